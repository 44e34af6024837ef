"""Who is asking: JWTs, and the role each one carries.

Off unless a key is configured. Every key is bound to one algorithm by its type: a secret verifies
HS256 only, an RSA key RS256 only, an Ed25519 key EdDSA only. What a token's header claims merely
picks among them: a public key is never taken for an HMAC secret, and ``none`` picks nothing.

    authenticator = Authenticator.from_settings(settings)      # None: authentication is off
    identity = await authenticator.check(request.headers.get(b"authorization"))
    require(identity, route.role)
"""

from __future__ import annotations

import hashlib
import math
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

import jwt

from queenstream.broker.auth.access import is_loopback
from queenstream.broker.auth.jwks import Jwks
from queenstream.broker.auth.key_files import Key, KeyFiles
from queenstream.broker.auth.scope import Scope
from queenstream.broker.http.routing import Role
from queenstream.config import Settings
from queenstream.errors import ConfigError, Forbidden, Unauthorized

CACHE_SIZE = 1_000
TOKEN_MAX_BYTES = 16_384
SUBJECT_MAX_CHARS = 255

ROLE_NAMES = {
    "read-only": Role.READ_ONLY,
    "read-write": Role.READ_WRITE,
    "admin": Role.ADMIN,
}
_NAME_OF = {role: name for name, role in ROLE_NAMES.items()} | {Role.PUBLIC: "no role"}

# PyJWT proves the signature; the claims are checked here, where the clock is a parameter and the
# cache can ask again.
_SIGNATURE_ONLY: Any = {
    "verify_signature": True, "verify_exp": False, "verify_nbf": False, "verify_iat": False,
    "verify_aud": False, "verify_iss": False, "verify_sub": False, "verify_jti": False,
}  # fmt: skip


_BAD_SIGNATURE = "the token's signature does not hold; sign it with the configured key"


@dataclass(frozen=True)
class Identity:
    """Who asks and what they may do; ``subject`` is the token's ``sub``."""

    subject: str | None
    role: Role
    scope: Scope | None = None  # the queues it is limited to


@dataclass(frozen=True)
class _Verified:
    identity: Identity
    expires: float
    not_before: float
    generation: int | None  # of the JWKS that vouched for it; None for a fixed key


class Authenticator:
    """Checks the ``Authorization`` header of every request.

    >>> Authenticator.from_settings(Settings()) is None
    True
    """

    def __init__(
        self,
        key_files: KeyFiles,
        jwks: Jwks | None = None,
        *,
        issuer: str | None = None,
        audience: str | None = None,
        role_claim: str = "role",
        leeway: float = 30.0,
        now: Callable[[], float] = time.time,
    ) -> None:
        self._key_files = key_files
        self._jwks = jwks
        self._issuer = issuer
        self._audience = audience
        self._role_claim = role_claim
        self._leeway = leeway
        self._now = now
        self._cache: OrderedDict[bytes, _Verified] = OrderedDict()

    @classmethod
    def from_settings(
        cls,
        settings: Settings,
        *,
        now: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> Authenticator | None:
        """The authenticator that ``settings`` asks for; None when no key is configured."""
        url = settings.auth_jwks_url
        if url is not None:
            _refuse_open_jwks(url, settings.source("auth_jwks_url"))
        jwks = None if url is None else Jwks(url, monotonic=monotonic)
        key_files = KeyFiles(settings, monotonic=monotonic)
        if not key_files.keys and jwks is None:
            _refuse_half_configured(settings)
            return None
        return cls(
            key_files,
            jwks,
            issuer=settings.auth_issuer,
            audience=settings.auth_audience,
            role_claim=settings.auth_role_claim,
            leeway=settings.auth_leeway,
            now=now,
        )

    async def check(self, authorization: bytes | None) -> Identity:
        """Who the header's token belongs to; Unauthorized, with the cause, if it does not hold.

        The token itself is in no message: those end up in logs.
        """
        identity = self.check_now(authorization)
        if identity is not None:
            return identity
        token = _bearer(authorization)
        proven = await self._verify_published(token)
        return self._accept(hashlib.sha256(token).digest(), self._judge(*proven))

    def check_now(self, authorization: bytes | None) -> Identity | None:
        """The same without waiting; None if published keys have to be fetched for it."""
        if self._key_files.refresh():
            self._cache.clear()  # what a key vouched for that may be gone
        token = _bearer(authorization)
        digest = hashlib.sha256(token).digest()
        verified = self._cache.get(digest)
        if verified is not None and self._still_vouched(verified):
            self._cache.move_to_end(digest)
        else:
            proven = self._verify(token)
            if proven is None:
                return None
            verified = self._judge(*proven)
        return self._accept(digest, verified)

    def _accept(self, digest: bytes, verified: _Verified) -> Identity:
        # On every hit: a cached signature stays good, a token does not.
        self._check_times(verified)
        self._cache[digest] = verified
        if len(self._cache) > CACHE_SIZE:
            self._cache.popitem(last=False)
        return verified.identity

    def _still_vouched(self, verified: _Verified) -> bool:
        if verified.generation is None or self._jwks is None:
            return True
        return self._jwks.fresh and self._jwks.generation == verified.generation

    def _verify(self, token: bytes) -> tuple[dict[str, Any], int | None] | None:
        """The claims, if a key proves them, and the JWKS generation that did; None: it has to be fetched."""
        header = _header(token)
        algorithm, kid = header.get("alg"), header.get("kid")
        fixed = [key for key in self._key_files.keys if key.algorithm == algorithm]
        for key in fixed:
            claims = _claims(token, key)
            if claims is not None:
                return claims, None
        if self._jwks is not None and algorithm in Jwks.ALGORITHMS:
            published = self._jwks.known(kid, algorithm)
            if published is None:
                return None
            claims = _claims(token, Key(algorithm, published))
            if claims is not None:
                return claims, self._jwks.generation
        elif not fixed:
            raise Unauthorized(
                f"the token is not signed with {self._algorithms()}; no other algorithm is accepted"
            )
        raise Unauthorized(_BAD_SIGNATURE)

    async def _verify_published(self, token: bytes) -> tuple[dict[str, Any], int | None]:
        """The claims, once a published key has proven them, and the JWKS generation that did."""
        assert self._jwks is not None
        header = _header(token)
        algorithm = header["alg"]
        claims = _claims(token, Key(algorithm, await self._jwks.find(header.get("kid"), algorithm)))
        if claims is None:
            raise Unauthorized(_BAD_SIGNATURE)
        return claims, self._jwks.generation

    def _algorithms(self) -> str:
        found = {key.algorithm for key in self._key_files.keys}
        if self._jwks is not None:
            found.update(Jwks.ALGORITHMS)
        return " or ".join(sorted(found))

    def _judge(self, claims: dict[str, Any], generation: int | None) -> _Verified:
        if "exp" not in claims:
            raise Unauthorized("the token never expires; get one with an exp claim")
        expires = _time(claims, "exp")
        not_before = _time(claims, "nbf") if "nbf" in claims else -math.inf
        if self._audience is not None:
            audience = claims.get("aud")
            if self._audience not in (audience if isinstance(audience, list) else [audience]):
                raise Unauthorized(
                    f"the token is not for the audience {self._audience!r}; get one with that aud"
                )
        if self._issuer is not None and claims.get("iss") != self._issuer:
            raise Unauthorized(f"the token is not from {self._issuer!r}; get one with that iss")
        role = _role(claims.get(self._role_claim))
        identity = Identity(_subject(claims), role, Scope.from_claims(claims))
        return _Verified(identity, expires, not_before, generation)

    def _check_times(self, verified: _Verified) -> None:
        now = self._now()
        if now >= verified.expires + self._leeway:
            raise Unauthorized("the token has expired; get a new one")
        if now < verified.not_before - self._leeway:
            raise Unauthorized("the token is not valid yet (nbf); wait, or check both clocks")


def require(identity: Identity, role: Role) -> None:
    """Forbidden, unless ``identity`` has ``role`` or a higher one.

    >>> require(Identity("ada", Role.ADMIN), Role.READ_WRITE)
    >>> require(Identity("bob", Role.READ_ONLY), Role.READ_WRITE)
    Traceback (most recent call last):
    queenstream.errors.Forbidden: this needs the role read-write, and the token carries read-only; \
ask for a token with that role
    """
    if identity.role < role:
        raise Forbidden(
            f"this needs the role {_NAME_OF[role]}, and the token carries "
            f"{_NAME_OF[identity.role]}; ask for a token with that role"
        )


def _bearer(authorization: bytes | None) -> bytes:
    if authorization is None:
        raise Unauthorized("there is no token; send the header Authorization: Bearer <JWT>")
    scheme, _, token = authorization.strip().partition(b" ")
    token = token.strip()
    if scheme.lower() != b"bearer" or not token:
        raise Unauthorized("the Authorization header does not fit; send Bearer <JWT>")
    if len(token) > TOKEN_MAX_BYTES:
        raise Unauthorized(f"the token is longer than {TOKEN_MAX_BYTES} bytes; get a smaller one")
    return token


def _header(token: bytes) -> dict[str, Any]:
    """What the token says of itself, unproven; its ``kid``, if any, is text."""
    try:
        header = jwt.get_unverified_header(token)
    except (jwt.PyJWTError, ValueError, RecursionError):
        raise Unauthorized("the token is not a JWT; send header.payload.signature") from None
    if "crit" in header:
        # RFC 7515: what is marked critical and not understood must be refused.
        raise Unauthorized("the token needs extensions (crit) that are not supported here")
    return header


def _claims(token: bytes, key: Key) -> dict[str, Any] | None:
    """What the token says, not yet judged; None when ``key`` did not sign it."""
    try:
        claims: dict[str, Any] = jwt.decode(
            token, key.key, algorithms=[key.algorithm], options=_SIGNATURE_ONLY
        )
    except jwt.InvalidSignatureError:
        return None
    except (jwt.PyJWTError, ValueError, RecursionError):
        raise Unauthorized("the token's content cannot be read; get a new token") from None
    return claims


def _time(claims: dict[str, Any], name: str) -> float:
    value = claims[name]
    # JSON as Python reads it knows NaN and Infinity; neither is within a range.
    if isinstance(value, int | float) and not isinstance(value, bool) and -1e15 < value < 1e15:
        return float(value)
    raise Unauthorized(f"the token's {name} is not a time in seconds; get a new token")


def _subject(claims: dict[str, Any]) -> str | None:
    subject = claims.get("sub")
    if subject is None:
        return None
    # It is stored with every message: PostgreSQL takes neither NUL nor half a surrogate pair.
    if (
        not isinstance(subject, str)
        or len(subject) > SUBJECT_MAX_CHARS
        or any(c == "\0" or "\ud800" <= c <= "\udfff" for c in subject)
    ):
        raise Unauthorized(
            f"the token's sub is not text of at most {SUBJECT_MAX_CHARS} characters without NUL"
        )
    return subject


def _role(claim: object) -> Role:
    """The highest role that ``claim`` names. None known: PUBLIC, and the route answers 403."""
    names = claim if isinstance(claim, list) else [claim]
    known = [ROLE_NAMES[name] for name in names if isinstance(name, str) and name in ROLE_NAMES]
    return max(known, default=Role.PUBLIC)


def _refuse_half_configured(settings: Settings) -> None:
    # Whoever sets an audience believes that tokens are checked; an open broker would be a trap.
    for name in ("auth_issuer", "auth_audience"):
        if getattr(settings, name) is not None:
            raise ConfigError(
                f"{name} ({settings.source(name)}) is set without a key, so nothing would be "
                "checked; set auth_secret, auth_public_key or auth_jwks_url too"
            )


def _refuse_open_jwks(url: str, source: str) -> None:
    # Whoever sits between here and there could answer with keys of their own.
    parts = urlsplit(url)
    if parts.scheme == "http" and not is_loopback(parts.hostname or ""):
        raise ConfigError(
            f"auth_jwks_url ({source}) is not https, so anybody on the way could replace the keys; use https"
        )
