"""Keys from an address: a real server that rotates, lies and fails."""

from __future__ import annotations

import asyncio
import base64
import doctest
import json
import threading
from collections.abc import Iterator
from functools import cache
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from jwt.algorithms import OKPAlgorithm, RSAAlgorithm

from queenstream.broker.auth import jwks
from queenstream.broker.auth.tokens import Authenticator, Identity
from queenstream.broker.http.routing import Role
from queenstream.config import Settings
from queenstream.errors import Unauthorized, Unavailable

SECRET = "a secret of no less than 32 bytes, as RFC 7518 asks"
START = 1_800_000_000.0


class Clock:
    """Both clocks, turned by hand."""

    def __init__(self) -> None:
        self.time = START

    def __call__(self) -> float:
        return self.time


@cache
def rsa_key(name: str, bits: int = 2048) -> rsa.RSAPrivateKey:
    return rsa.generate_private_key(public_exponent=65537, key_size=bits)


@cache
def ed_key(name: str) -> Ed25519PrivateKey:
    return Ed25519PrivateKey.generate()


def bearer(key: Any, algorithm: str, headers: dict[str, Any] | None = None, **claims: Any) -> bytes:
    claims = {"exp": START + 1e6, "role": "admin", **claims}
    return b"Bearer " + jwt.encode(claims, key, algorithm, headers=headers).encode()


def make(clock: Clock | None = None, **settings: Any) -> Authenticator:
    clock = clock or Clock()
    given = Settings(**{"auth_leeway": 0.0, **settings})
    made = Authenticator.from_settings(given, now=clock, monotonic=clock)
    assert made is not None
    return made


async def refused(authenticator: Authenticator, header: bytes) -> str:
    with pytest.raises(Unauthorized) as caught:
        await authenticator.check(header)
    return str(caught.value)


class KeyServer:
    """An identity provider's key page."""

    def __init__(self) -> None:
        self.status = 200
        self.body = b""
        self.headers: dict[str, str] = {}
        self.hits = 0
        self.asked = threading.Event()
        self.hold = threading.Event()
        self.hold.set()
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                outer.hits += 1
                outer.asked.set()
                outer.hold.wait(10)
                self.send_response(outer.status)
                for name, value in outer.headers.items():
                    self.send_header(name, value)
                self.send_header("Content-Length", str(len(outer.body)))
                self.end_headers()
                self.wfile.write(outer.body)

            def log_message(self, format: str, *args: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.thread = threading.Thread(target=self.server.serve_forever, args=(0.02,))
        self.thread.start()
        self.url = f"http://127.0.0.1:{self.server.server_port}/jwks"

    def publish(self, *keys: dict[str, Any]) -> None:
        self.status, self.body = 200, json.dumps({"keys": keys}).encode()

    def stop(self) -> None:
        if self.thread.is_alive():
            self.hold.set()
            self.server.shutdown()
            self.thread.join()
            self.server.server_close()


@pytest.fixture
def server() -> Iterator[KeyServer]:
    made = KeyServer()
    yield made
    made.stop()


def rsa_jwk(name: str, **members: Any) -> dict[str, Any]:
    return {**RSAAlgorithm.to_jwk(rsa_key(name).public_key(), as_dict=True), "kid": name, **members}


def ed_jwk(name: str, **members: Any) -> dict[str, Any]:
    return {**OKPAlgorithm.to_jwk(ed_key(name).public_key(), as_dict=True), "kid": name, **members}


def by_rsa(name: str, kid: str | None = None, **claims: Any) -> bytes:
    return bearer(rsa_key(name), "RS256", {"kid": kid or name}, **claims)


async def test_jwks_verifies_both_algorithms_with_one_fetch(server: KeyServer) -> None:
    server.publish(rsa_jwk("a", alg="RS256", use="sig"), ed_jwk("e"))
    authenticator = make(auth_jwks_url=server.url)
    assert (await authenticator.check(by_rsa("a", sub="ada"))).subject == "ada"
    await authenticator.check(bearer(ed_key("e"), "EdDSA", {"kid": "e"}))
    assert server.hits == 1
    assert "signature does not hold" in await refused(authenticator, by_rsa("b", kid="a"))
    assert "not signed with EdDSA or RS256" in await refused(authenticator, bearer(SECRET, "HS256"))


async def test_a_published_shared_secret_or_unfit_key_is_passed_over(server: KeyServer) -> None:
    shared = base64.urlsafe_b64encode(SECRET.encode()).decode()
    server.publish(
        {"kty": "oct", "kid": "o", "k": shared, "alg": "HS256"},
        rsa_jwk("a", use="enc"),
        rsa_jwk("b", alg="RS512"),
        rsa_jwk("c", key_ops=["encrypt"]),
        {"kty": "RSA", "kid": "d"},
        {"kty": "RSA", "kid": "f", "n": 7, "e": "AQAB"},
        {"kty": "OKP", "kid": "g", "crv": "X25519", "x": "AAAA"},
        {**RSAAlgorithm.to_jwk(rsa_key("small", 1024).public_key(), as_dict=True), "kid": "h"},
        rsa_jwk("good"),
    )
    authenticator = make(auth_jwks_url=server.url)
    shared_token = bearer(SECRET, "HS256", {"kid": "o"})
    await refused(authenticator, shared_token)
    for kid in "abcdfgh":
        assert "is not published" in await refused(authenticator, by_rsa("a", kid=kid))
    await authenticator.check(by_rsa("good"))


async def test_a_token_without_kid_needs_a_single_key(server: KeyServer) -> None:
    server.publish(rsa_jwk("a"), ed_jwk("e"))
    clock = Clock()
    authenticator = make(clock, auth_jwks_url=server.url)
    header = bearer(rsa_key("a"), "RS256")
    await authenticator.check(header)
    server.publish(rsa_jwk("a"), rsa_jwk("b"))
    clock.time += 301
    assert "names no key (kid)" in await refused(authenticator, header)
    await refused(authenticator, b"Bearer eyJhbGciOiJSUzI1NiIsImtpZCI6N30.e30.AAAA")  # kid: 7


async def test_rotation_is_noticed_but_not_at_every_unknown_kid(server: KeyServer) -> None:
    clock = Clock()
    server.publish(rsa_jwk("a"))
    authenticator = make(clock, auth_jwks_url=server.url)
    await authenticator.check(by_rsa("a"))
    server.publish(rsa_jwk("b"))
    clock.time += 9
    for _ in range(5):
        assert "is not published" in await refused(authenticator, by_rsa("b"))
    assert server.hits == 1
    clock.time += 1
    assert (await authenticator.check(by_rsa("b"))).role is Role.ADMIN
    assert server.hits == 2
    # The key that is gone is gone for tokens already seen too.
    assert "is not published" in await refused(authenticator, by_rsa("a"))
    assert server.hits == 2


async def test_a_withdrawn_key_stops_working_within_five_minutes(server: KeyServer) -> None:
    clock = Clock()
    server.publish(rsa_jwk("a"))
    authenticator = make(clock, auth_jwks_url=server.url)
    await authenticator.check(by_rsa("a"))
    server.publish()
    clock.time += 299
    await authenticator.check(by_rsa("a"))
    assert server.hits == 1
    clock.time += 1
    assert "is not published" in await refused(authenticator, by_rsa("a"))
    assert server.hits == 2


async def test_concurrent_requests_share_one_fetch(server: KeyServer) -> None:
    server.publish(rsa_jwk("a"))
    server.hold.clear()
    authenticator = make(auth_jwks_url=server.url)
    checks = [asyncio.create_task(authenticator.check(by_rsa("a", sub=str(n)))) for n in range(20)]
    await asyncio.to_thread(server.asked.wait, 10)
    checks[0].cancel()  # a client that hangs up takes nothing from the others
    await asyncio.sleep(0)
    server.hold.set()
    outcomes = await asyncio.gather(*checks, return_exceptions=True)
    assert isinstance(outcomes[0], asyncio.CancelledError)
    assert [one.subject for one in outcomes[1:] if isinstance(one, Identity)] == [
        str(n) for n in range(1, 20)
    ]
    assert server.hits == 1


async def test_an_outage_is_bridged_for_a_day(server: KeyServer) -> None:
    clock = Clock()
    server.publish(rsa_jwk("a"))
    authenticator = make(clock, auth_jwks_url=server.url)
    await authenticator.check(by_rsa("a"))
    server.stop()
    for age in (301, 3_600, 86_399):
        clock.time = START + age
        assert (await authenticator.check(by_rsa("a"))).role is Role.ADMIN
    with pytest.raises(Unavailable, match="key is new"):
        await authenticator.check(by_rsa("b"))
    clock.time = START + 86_400
    with pytest.raises(Unavailable, match="auth_jwks_url"):
        await authenticator.check(by_rsa("a"))
    await settle(authenticator)


async def test_in_an_outage_requests_do_not_wait_and_it_heals(server: KeyServer) -> None:
    clock = Clock()
    server.publish(rsa_jwk("a"))
    authenticator = make(clock, auth_jwks_url=server.url)
    await authenticator.check(by_rsa("a"))
    server.status = 500
    clock.time += 301
    await authenticator.check(by_rsa("a"))
    assert server.hits == 2
    server.publish(rsa_jwk("a"), rsa_jwk("b"))
    server.hold.clear()
    clock.time += 10
    async with asyncio.timeout(2):  # the server does not answer, and nobody waits for it
        for _ in range(3):
            await authenticator.check(by_rsa("a"))
    server.hold.set()
    await settle(authenticator)
    assert server.hits == 3
    await authenticator.check(by_rsa("b"))
    assert server.hits == 3


async def test_without_any_copy_the_broker_is_unavailable_and_recovers(server: KeyServer) -> None:
    clock = Clock()
    server.status = 503
    authenticator = make(clock, auth_jwks_url=server.url)
    for _ in range(3):
        with pytest.raises(Unavailable, match="does not answer"):
            await authenticator.check(by_rsa("a"))
    assert server.hits == 1
    server.publish(rsa_jwk("a"))
    clock.time += 1
    await authenticator.check(by_rsa("a"))


@pytest.mark.parametrize(
    ("status", "body", "headers"),
    [
        (200, b"<html>", {}),
        (200, b"[]", {}),
        (200, b'{"keys": 7}', {}),
        (200, b'{"keys": ["x"]}', {}),
        (200, b"[" * 100_000, {}),
        (200, b" " * (1 << 20) + b'{"keys": []}', {}),
        (302, b"", {"Location": "file:///etc/passwd"}),
        (404, b"", {}),
    ],
)
async def test_a_page_that_is_no_jwks_is_an_outage(
    server: KeyServer, status: int, body: bytes, headers: dict[str, str]
) -> None:
    server.status, server.body, server.headers = status, body, headers
    with pytest.raises(Unavailable):
        await make(auth_jwks_url=server.url).check(by_rsa("a"))
    assert server.hits == 1


async def test_a_slow_page_is_an_outage(server: KeyServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jwks, "TIMEOUT_SECONDS", 0.1)
    server.publish(rsa_jwk("a"))
    server.hold.clear()
    with pytest.raises(Unavailable):
        await make(auth_jwks_url=server.url).check(by_rsa("a"))


@pytest.mark.parametrize("url", ["file:///etc/passwd", "ftp://127.0.0.1/x", "data:,{}"])
async def test_only_web_addresses_are_fetched(url: str) -> None:
    with pytest.raises(Unavailable):
        await make(auth_jwks_url=url).check(by_rsa("a"))


async def test_a_fixed_key_works_while_the_jwks_is_away(server: KeyServer) -> None:
    server.stop()
    public = rsa_key("a").public_key()
    pem = public.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo).decode()
    authenticator = make(auth_public_key=pem, auth_jwks_url=server.url)
    await authenticator.check(by_rsa("a"))
    with pytest.raises(Unavailable):
        await authenticator.check(by_rsa("b"))


async def settle(authenticator: Authenticator) -> None:
    """Let a fetch in the background end before the test's loop does."""
    assert authenticator._jwks is not None
    while (task := authenticator._jwks._fetching) is not None:
        await task


def test_examples() -> None:
    assert doctest.testmod(jwks).failed == 0
