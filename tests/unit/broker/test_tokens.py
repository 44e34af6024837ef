"""Tokens and roles, with real keys; see test_jwks.py for keys from an address."""

from __future__ import annotations

import base64
import doctest
import hashlib
import hmac
import json
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
)

from queenstream.broker.auth import key_files, tokens
from queenstream.broker.auth.tokens import Authenticator, Identity, require
from queenstream.broker.http.routing import Role
from queenstream.config import Settings
from queenstream.errors import ConfigError, Forbidden, Unauthorized

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


def pem(key: Any) -> str:
    made: bytes = key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    return made.decode()


def bearer(
    key: Any = SECRET,
    algorithm: str = "HS256",
    headers: dict[str, Any] | None = None,
    **claims: Any,
) -> bytes:
    claims = {"exp": START + 60, "role": "admin", **claims}
    claims = {name: value for name, value in claims.items() if value is not ...}
    return b"Bearer " + jwt.encode(claims, key, algorithm, headers=headers).encode()


def handmade(header: object, claims: object, sign: Callable[[bytes], bytes] | None = None) -> bytes:
    """A token as a library would not make it."""

    def part(value: object) -> bytes:
        raw = value if isinstance(value, bytes) else json.dumps(value).encode()
        return base64.urlsafe_b64encode(raw).rstrip(b"=")

    signed = part(header) + b"." + part(claims)
    return b"Bearer " + signed + b"." + part(sign(signed) if sign else b"")


def hs256(key: bytes) -> Callable[[bytes], bytes]:
    return lambda signed: hmac.new(key, signed, hashlib.sha256).digest()


def make(clock: Clock | None = None, **settings: Any) -> Authenticator:
    clock = clock or Clock()
    given = Settings(**{"auth_leeway": 0.0, **settings})
    made = Authenticator.from_settings(given, now=clock, monotonic=clock)
    assert made is not None
    return made


async def refused(authenticator: Authenticator, header: bytes | None) -> str:
    with pytest.raises(Unauthorized) as caught:
        await authenticator.check(header)
    message = str(caught.value)
    if header is not None and len(header) > 30:
        assert header.split()[-1].decode("latin-1")[:20] not in message
    return message


# -- keys and algorithms


def test_off_without_a_key() -> None:
    assert Authenticator.from_settings(Settings()) is None


async def test_each_kind_of_key_verifies_its_algorithm(tmp_path: Path) -> None:
    by_rsa, by_ed = rsa_key("a"), ed_key("a")
    path = tmp_path / "key.pem"
    path.write_text(pem(by_rsa))
    expected = Identity("ada", Role.ADMIN)
    assert await make(auth_secret=SECRET).check(bearer(sub="ada")) == expected
    for given in (pem(by_rsa), str(path), pem(by_rsa).replace("\n", "\\n")):
        assert await make(auth_public_key=given).check(bearer(by_rsa, "RS256", sub="ada")) == expected
    assert await make(auth_public_key=pem(by_ed)).check(bearer(by_ed, "EdDSA", sub="ada")) == expected


async def test_two_keys_may_serve_together() -> None:
    both = make(auth_secret=SECRET, auth_public_key=pem(rsa_key("a")))
    assert (await both.check(bearer(sub="a"))).subject == "a"
    assert (await both.check(bearer(rsa_key("a"), "RS256", sub="b"))).subject == "b"
    assert "not signed with HS256 or RS256" in await refused(both, bearer(ed_key("a"), "EdDSA"))


async def test_another_key_does_not_verify() -> None:
    cases = [
        (make(auth_secret=SECRET), bearer(SECRET[::-1])),
        (make(auth_public_key=pem(rsa_key("a"))), bearer(rsa_key("b"), "RS256")),
        (make(auth_public_key=pem(ed_key("a"))), bearer(ed_key("b"), "EdDSA")),
    ]
    for authenticator, header in cases:
        assert "signature does not hold" in await refused(authenticator, header)


@pytest.mark.parametrize("key", [rsa_key("a"), ed_key("a")], ids=["rsa", "ed25519"])
async def test_a_public_key_is_never_an_hmac_secret(key: Any) -> None:
    text = pem(key)
    der = key.public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    authenticator = make(auth_public_key=text)
    for secret in (text.encode(), text.strip().encode(), der):
        forged = handmade({"alg": "HS256"}, {"exp": START + 60, "role": "admin"}, hs256(secret))
        assert "no other algorithm" in await refused(authenticator, forged)


@pytest.mark.parametrize("algorithm", ["none", "None", "NONE", "", None, 7, ["HS256"], "RS512"])
async def test_no_other_algorithm_is_accepted(algorithm: object) -> None:
    claims = {"exp": START + 60, "role": "admin"}
    for sign in (None, hs256(SECRET.encode())):
        token = handmade({"alg": algorithm}, claims, sign)
        await refused(make(auth_secret=SECRET), token)
        await refused(make(auth_public_key=pem(rsa_key("a"))), token)


async def test_hs512_with_the_right_secret_is_not_hs256() -> None:
    header = bearer(SECRET * 2, "HS512")
    assert "not signed with HS256" in await refused(make(auth_secret=SECRET * 2), header)


async def test_critical_extensions_are_refused() -> None:
    token = handmade({"alg": "HS256", "crit": ["exp"]}, {"exp": START + 60}, hs256(SECRET.encode()))
    await refused(make(auth_secret=SECRET), token)


# -- configuration


def test_a_short_secret_is_refused_and_not_shown() -> None:
    with pytest.raises(ConfigError, match="shorter than 32 bytes; make one with") as caught:
        make(auth_secret="hunter2")
    assert "hunter2" not in str(caught.value)


def test_a_public_key_as_secret_is_refused() -> None:
    with pytest.raises(ConfigError, match="known to anyone; set auth_public_key"):
        make(auth_secret=pem(rsa_key("a")))


def test_keys_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    private = rsa_key("a").private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()).decode()
    binary = tmp_path / "key.der"
    binary.write_bytes(b"\xff\x00")
    cases = {
        private: "is a private key; keep that",
        str(tmp_path / "gone.pem"): "cannot be read: No such file",
        str(binary): "is not PEM",
        "-----BEGIN PUBLIC KEY-----\nnonsense": "is not a public key in PEM",
        pem(rsa_key("small", 1024)): "neither Ed25519 nor RSA of 2048 bits",
        pem(ec.generate_private_key(ec.SECP256R1())): "neither Ed25519 nor RSA",
    }
    for given, message in cases.items():
        with pytest.raises(ConfigError, match=message) as caught:
            make(auth_public_key=given)
        assert "MII" not in str(caught.value)


@pytest.mark.parametrize("name", ["auth_issuer", "auth_audience"])
def test_an_audience_without_a_key_does_not_leave_the_broker_open(name: str) -> None:
    with pytest.raises(ConfigError, match=f"{name} .* is set without a key"):
        Authenticator.from_settings(Settings(**{name: "x"}))  # type: ignore[arg-type]


# -- the header and the claims


@pytest.mark.parametrize(
    ("header", "cause"),
    [
        (None, "there is no token; send the header Authorization: Bearer"),
        (b"", "does not fit; send Bearer"),
        (b"Bearer", "does not fit; send Bearer"),
        (b"Bearer   ", "does not fit; send Bearer"),
        (b"Basic dXNlcjpwYXNzd29yZA==", "does not fit; send Bearer"),
        (b"Bearer this-is-not-a-token-of-any-kind", "is not a JWT"),
        (b"Bearer a.b.c", "is not a JWT"),
        (b"Bearer \xff\xfe.\xff.\xff", "is not a JWT"),
        (b"Bearer " + b"x" * 20_000, "longer than 16384 bytes"),
        (handmade([1], {}), "is not a JWT"),
        (handmade(b"[" * 9_000, {}), "is not a JWT"),
    ],
)
async def test_what_is_no_token(header: bytes | None, cause: str) -> None:
    assert cause in await refused(make(auth_secret=SECRET), header)


async def test_the_scheme_is_case_insensitive() -> None:
    authenticator = make(auth_secret=SECRET)
    for scheme in (b"bearer ", b"BEARER ", b"Bearer   "):
        assert (await authenticator.check(bearer().replace(b"Bearer ", scheme))).role == Role.ADMIN


@pytest.mark.parametrize("claims", [b"not json", b"[1]", b'"text"', b"[" * 9_000, b"\xff"])
async def test_signed_nonsense_is_refused(claims: bytes) -> None:
    token = handmade({"alg": "HS256"}, claims, hs256(SECRET.encode()))
    assert "cannot be read" in await refused(make(auth_secret=SECRET), token)


@pytest.mark.parametrize(
    ("claims", "cause"),
    [
        ({"exp": ...}, "never expires; get one with an exp claim"),
        ({"exp": START - 1}, "has expired"),
        ({"exp": START}, "has expired"),
        ({"exp": "soon"}, "exp is not a time"),
        ({"exp": True}, "exp is not a time"),
        ({"exp": None}, "exp is not a time"),
        ({"exp": float("nan")}, "exp is not a time"),
        ({"exp": float("inf")}, "exp is not a time"),
        ({"exp": 10**400}, "exp is not a time"),
        ({"nbf": START + 1}, "not valid yet"),
        ({"nbf": "x"}, "nbf is not a time"),
        ({"aud": ...}, "not for the audience 'queen'"),
        ({"aud": "other"}, "not for the audience 'queen'"),
        ({"aud": ["other", 7]}, "not for the audience 'queen'"),
        ({"aud": {"queen": 1}}, "not for the audience 'queen'"),
        ({"iss": ...}, "not from 'idp'"),
        ({"iss": "other"}, "not from 'idp'"),
        ({"sub": 7}, "sub is not text"),
        ({"sub": "x" * 256}, "sub is not text of at most 255"),
        ({"sub": "a\0b"}, "without NUL"),
        ({"sub": "\ud800"}, "sub is not text"),
    ],
)
async def test_claims_are_checked(claims: dict[str, Any], cause: str) -> None:
    authenticator = make(auth_secret=SECRET, auth_audience="queen", auth_issuer="idp")
    good: dict[str, Any] = {"aud": "queen", "iss": "idp", "nbf": START, "sub": "x" * 255}
    given = {"exp": START + 60, **good, **claims}
    given = {name: value for name, value in given.items() if value is not ...}
    token = handmade({"alg": "HS256"}, given, hs256(SECRET.encode()))
    assert cause in await refused(authenticator, token)
    assert (await authenticator.check(bearer(**good))).subject == "x" * 255


async def test_one_audience_of_a_list_is_enough_and_unasked_claims_are_free() -> None:
    await make(auth_secret=SECRET, auth_audience="queen").check(bearer(aud=["a", "queen"]))
    identity = await make(auth_secret=SECRET).check(bearer(aud="a", iss="b", iat=START + 500))
    assert identity == Identity(None, Role.ADMIN)


async def test_leeway_forgives_clocks_that_differ() -> None:
    authenticator = make(auth_secret=SECRET, auth_leeway=Settings().auth_leeway)
    await authenticator.check(bearer(exp=START - 29, nbf=START + 30))
    assert "expired" in await refused(authenticator, bearer(exp=START - 30))
    assert "not valid yet" in await refused(authenticator, bearer(nbf=START + 31))


@pytest.mark.parametrize(
    ("claim", "role"),
    [
        ("admin", Role.ADMIN),
        ("read-write", Role.READ_WRITE),
        ("read-only", Role.READ_ONLY),
        (["read-only", "read-write", "other"], Role.READ_WRITE),
        (["other", 7, None, {}], Role.PUBLIC),
        ([], Role.PUBLIC),
        ("Admin", Role.PUBLIC),
        ("PUBLIC", Role.PUBLIC),
        ({"admin": True}, Role.PUBLIC),
        (3, Role.PUBLIC),
        (..., Role.PUBLIC),
    ],
)
async def test_roles(claim: object, role: Role) -> None:
    authenticator = make(auth_secret=SECRET, auth_role_claim="queen/role")
    claims: dict[str, Any] = {"queen/role": claim, "role": "admin"}
    header = bearer(**claims)
    assert (await authenticator.check(header)).role is role


def test_require_says_which_role_is_needed() -> None:
    for have in Role:
        for need in Role:
            if have >= need:
                require(Identity(None, have), need)
            else:
                with pytest.raises(Forbidden, match=f"needs the role {need.name.lower()[:4]}"):
                    require(Identity(None, have), need)
    with pytest.raises(Forbidden, match="role read-only, and the token carries no role"):
        require(Identity(None, Role.PUBLIC), Role.READ_ONLY)


# -- the cache of verified tokens


async def test_a_hot_token_is_verified_once(monkeypatch: pytest.MonkeyPatch) -> None:
    proofs = count_proofs(monkeypatch)
    authenticator, header = make(auth_public_key=pem(rsa_key("a"))), bearer(rsa_key("a"), "RS256")
    for _ in range(10):
        await authenticator.check(header)
    assert len(proofs) == 1


async def test_a_cached_token_still_expires() -> None:
    clock = Clock()
    authenticator, header = make(clock, auth_secret=SECRET), bearer(nbf=START)
    await authenticator.check(header)
    clock.time = START - 1
    assert "not valid yet" in await refused(authenticator, header)
    clock.time = START + 59.9
    await authenticator.check(header)
    clock.time = START + 60
    assert "expired" in await refused(authenticator, header)


async def test_the_cache_is_bounded_and_keeps_what_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tokens, "CACHE_SIZE", 3)
    proofs = count_proofs(monkeypatch)
    authenticator, hot = make(auth_secret=SECRET), bearer(sub="hot")
    for number in range(20):
        await authenticator.check(hot)
        await authenticator.check(bearer(sub=str(number)))
    assert len(proofs) == 21
    await authenticator.check(bearer(sub="0"))
    assert len(proofs) == 22


async def test_a_refused_token_is_refused_again() -> None:
    authenticator, forged = make(auth_secret=SECRET), bearer(SECRET[::-1])
    for _ in range(3):
        assert "signature" in await refused(authenticator, forged)


def count_proofs(monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    proofs: list[bytes] = []
    real = tokens._claims

    def counting(token: bytes, key: key_files.Key) -> dict[str, Any] | None:
        proofs.append(token)
        return real(token, key)

    monkeypatch.setattr(tokens, "_claims", counting)
    return proofs


def test_examples() -> None:
    assert doctest.testmod(tokens).failed == 0
