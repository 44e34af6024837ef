"""Public keys that an identity provider publishes (a JWKS), fetched and kept.

A copy is good for five minutes. A key it does not hold makes us look again, at most every ten
seconds. When the address does not answer, the last copy serves for a day, and requests go on.

    keys = Jwks("https://id.example.com/.well-known/jwks.json")
    key = await keys.find("2026-02", "RS256")
"""

from __future__ import annotations

import asyncio
import logging
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from http.client import HTTPException
from typing import Any, ClassVar

import jwt
import msgspec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicKey

from queenstream.errors import Unauthorized, Unavailable

FRESH_SECONDS = 300.0
STALE_SECONDS = 86_400.0
RETRY_SECONDS = 10.0
FIRST_RETRY_SECONDS = 1.0  # as long as there is no copy at all, nobody can get in
TIMEOUT_SECONDS = 5.0
MAX_BYTES = 1 << 20
RSA_MIN_BITS = 2048

PublicKey = RSAPublicKey | Ed25519PublicKey
KeySet = dict[tuple[str | None, str], PublicKey]

log = logging.getLogger(__name__)


class Jwks:
    """The keys at one address, by key id and algorithm.

    ``generation`` counts the copies fetched: what an older copy vouched for is to be proven again.
    """

    ALGORITHMS: ClassVar = frozenset({"RS256", "EdDSA"})

    def __init__(self, url: str, *, monotonic: Callable[[], float] = time.monotonic) -> None:
        self.generation = 0
        self._url = url
        self._monotonic = monotonic
        self._keys: KeySet = {}
        self._fetched: float | None = None
        self._tried: float | None = None
        self._failing = False
        self._fetching: asyncio.Task[None] | None = None

    @property
    def fresh(self) -> bool:
        """Whether the copy is recent enough to use without looking again."""
        return self._younger_than(FRESH_SECONDS)

    def known(self, kid: str | None, algorithm: str) -> PublicKey | None:
        """The key, if a fresh copy holds it."""
        return self._lookup(kid, algorithm) if self.fresh else None

    async def find(self, kid: str | None, algorithm: str) -> PublicKey:
        """The key for a token's ``kid`` and ``alg``; Unauthorized if nobody publishes it."""
        if not self.fresh:
            # In an outage the first request waits for the timeout; those after it use the copy
            # while the next try runs.
            await self._refresh(wait=not (self._failing and self._usable))
            if not self._usable:
                raise Unavailable("the address of the token keys (auth_jwks_url) does not answer")
        key = self._lookup(kid, algorithm)
        if key is None and await self._refresh(wait=True):
            key = self._lookup(kid, algorithm)
        if key is not None:
            return key
        if self._failing:
            # It may well have been published meanwhile: a client should try again, not give up.
            raise Unavailable("the token's key is new, and auth_jwks_url does not answer to look")
        if kid is None:
            raise Unauthorized("the token names no key (kid), and there is not exactly one to try")
        raise Unauthorized("the token's key (kid) is not published at auth_jwks_url; get a new one")

    @property
    def _usable(self) -> bool:
        return self._younger_than(STALE_SECONDS)

    def _younger_than(self, seconds: float) -> bool:
        return self._fetched is not None and self._monotonic() - self._fetched < seconds

    def _lookup(self, kid: str | None, algorithm: str) -> PublicKey | None:
        if kid is not None:
            return self._keys.get((kid, algorithm))
        fitting = [key for (_, known), key in self._keys.items() if known == algorithm]
        return fitting[0] if len(fitting) == 1 else None

    async def _refresh(self, *, wait: bool) -> bool:
        """Start a fetch if one is due, or join the one under way; whether there was one."""
        if self._fetching is None:
            pause = RETRY_SECONDS if self._usable else FIRST_RETRY_SECONDS
            if self._tried is not None and self._monotonic() - self._tried < pause:
                return False
            self._tried = self._monotonic()
            self._fetching = asyncio.create_task(self._fetch())
        if wait:
            # Shielded: a client that hangs up must not take the fetch from the others.
            await asyncio.shield(self._fetching)
        return True

    async def _fetch(self) -> None:
        # Raises nothing: with nobody waiting, nobody would collect the error.
        try:
            # The socket's timeout is for each read; this one is for the whole.
            async with asyncio.timeout(TIMEOUT_SECONDS + 1):
                self._keys = parse(await asyncio.to_thread(_download, self._url))
        except (OSError, HTTPException, ValueError, msgspec.MsgspecError, RecursionError) as error:
            self._failing = True
            log.warning("cannot fetch the token keys from auth_jwks_url: %s", error)
        else:
            self._failing = False
            self._fetched = self._monotonic()
            self.generation += 1
        finally:
            self._fetching = None


def parse(document: bytes) -> KeySet:
    """The keys of a JWKS that can verify RS256 or EdDSA; all others are passed over.

    >>> parse(b'{"keys": [{"kty": "oct", "kid": "shared", "k": "c2VjcmV0"}]}')
    {}
    """
    found: KeySet = {}
    for entry in msgspec.json.decode(document, type=_Document).keys:
        key = _public_key(entry)
        if key is not None:
            algorithm = "RS256" if isinstance(key, RSAPublicKey) else "EdDSA"
            kid = entry.get("kid")
            found[kid if isinstance(kid, str) else None, algorithm] = key
    return found


_PUBLIC_MEMBERS = frozenset({"kty", "crv", "n", "e", "x"})


class _Document(msgspec.Struct):
    keys: list[dict[str, Any]]


def _public_key(entry: dict[str, Any]) -> PublicKey | None:
    algorithm = {"RSA": "RS256", "OKP": "EdDSA"}.get(str(entry.get("kty")))
    if algorithm is None or entry.get("alg", algorithm) != algorithm:
        return None
    operations = entry.get("key_ops", ["verify"])
    if entry.get("use", "sig") != "sig":
        return None
    if not isinstance(operations, list) or "verify" not in operations:
        return None
    # Only what a public key is made of: whatever else is published is not for us.
    public = {name: value for name, value in entry.items() if name in _PUBLIC_MEMBERS}
    if not all(isinstance(value, str) for value in public.values()):
        return None
    try:
        key = jwt.PyJWK(public, algorithm).key
    except (jwt.PyJWTError, ValueError, TypeError):
        return None
    if isinstance(key, RSAPublicKey):
        return key if key.key_size >= RSA_MIN_BITS else None
    return key if isinstance(key, Ed25519PublicKey) else None


def _download(url: str) -> bytes:
    # Built by hand: no file: or ftp:, and no redirects, which could lead from https to anywhere.
    opener = urllib.request.OpenerDirector()
    for handler in (
        urllib.request.ProxyHandler(),
        urllib.request.HTTPHandler(),
        urllib.request.HTTPSHandler(),
        urllib.request.HTTPDefaultErrorHandler(),
        urllib.request.HTTPErrorProcessor(),
        urllib.request.UnknownHandler(),
    ):
        opener.add_handler(handler)
    request = urllib.request.Request(url, headers={"Accept": "application/json"})  # noqa: S310
    deadline = time.monotonic() + TIMEOUT_SECONDS
    document = b""
    try:
        with opener.open(request, timeout=TIMEOUT_SECONDS) as response:
            while chunk := response.read1(65_536):
                document += chunk
                if len(document) > MAX_BYTES:
                    raise ValueError(f"the answer is larger than {MAX_BYTES} bytes")
                if time.monotonic() > deadline:
                    raise TimeoutError("the answer takes too long")
    except urllib.error.HTTPError as error:
        error.close()  # it holds the connection open until collected
        raise
    return document
