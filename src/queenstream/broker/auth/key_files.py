"""The fixed keys that tokens are checked with, from settings and files; a changed file is read again.

A file may hold several keys, so that a new one is accepted before the old one is removed: secrets stand one
to a line, public keys one after the other as PEM.
"""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import jwt
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicKey
from cryptography.hazmat.primitives.serialization import load_pem_public_key

from queenstream.broker.auth.jwks import RSA_MIN_BITS, PublicKey
from queenstream.config import Settings
from queenstream.errors import ConfigError

log = logging.getLogger(__name__)

SECRET_MIN_BYTES = 32
LOOK_SECONDS = 1.0  # between two looks at whether a file has changed
_PEM = re.compile(r"-----BEGIN [^-]+-----.*?-----END [^-]+-----", re.DOTALL)

_Stamp = tuple[int, int, int]


@dataclass(frozen=True)
class Key:
    """A key and the one algorithm it verifies."""

    algorithm: str
    key: bytes | PublicKey


class KeyFiles:
    """The keys of the settings; ``refresh`` reads files again that have changed.

    >>> KeyFiles(Settings()).keys
    ()
    """

    def __init__(self, settings: Settings, *, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._settings = settings
        self._monotonic = monotonic
        self._looked = monotonic()
        self._stamps = self._stamp()
        self.keys = tuple(self._read())

    def refresh(self) -> bool:
        """Whether the keys have changed; files that cannot be used leave those that were."""
        now = self._monotonic()
        if now - self._looked < LOOK_SECONDS:
            return False
        self._looked = now
        stamps = self._stamp()
        if stamps == self._stamps:
            return False
        self._stamps = stamps
        try:
            keys = tuple(self._read())
        except ConfigError as error:
            log.error("the changed keys cannot be used, so those before stay in force: %s", error)
            return False
        self.keys = keys
        log.info("the keys of tokens have changed; %s are in force", len(keys))
        return True

    def _stamp(self) -> tuple[_Stamp | None, ...]:
        return tuple(_stamp(path) for path in (self._settings.auth_secret_file, self._public_key_path()))

    def _public_key_path(self) -> Path | None:
        given = self._settings.auth_public_key
        return None if given is None or _as_pem(given) else Path(given)

    def _read(self) -> Iterator[Key]:
        settings = self._settings
        if settings.auth_secret is not None:
            yield _secret_key(settings.auth_secret, f"auth_secret ({settings.source('auth_secret')})")
        if settings.auth_secret_file is not None:
            where = f"auth_secret_file ({settings.source('auth_secret_file')})"
            for secret in _secrets(settings.auth_secret_file, where):
                yield _secret_key(secret, where)
        if settings.auth_public_key is not None:
            yield from _public_keys(settings.auth_public_key, settings.source("auth_public_key"))


def current_secret(settings: Settings) -> bytes | None:
    """The secret that signs new tokens; None if the settings have none."""
    if settings.auth_secret is not None:
        found = settings.auth_secret
    elif settings.auth_secret_file is not None:
        where = f"auth_secret_file ({settings.source('auth_secret_file')})"
        found = _secrets(settings.auth_secret_file, where)[0]
    else:
        return None
    key = _secret_key(found, "the secret").key
    assert isinstance(key, bytes)
    return key


def _stamp(path: Path | None) -> _Stamp | None:
    try:
        found = None if path is None else path.expanduser().stat()
    except (OSError, RuntimeError):
        return None
    return None if found is None else (found.st_mtime_ns, found.st_size, found.st_ino)


def _secrets(path: Path, where: str) -> list[str]:
    text = _read_file(path, where)
    found = [line.strip() for line in text.splitlines() if line.strip()]
    if not found:
        raise ConfigError(f"{where} is empty; make a secret with: queen keys new --file FILE")
    return found


def _read_file(path: Path, where: str, what: str = "text") -> str:
    try:
        return path.expanduser().read_text(encoding="utf-8").strip()
    except OSError as error:
        raise ConfigError(f"{where} cannot be read: {error.strerror}; check the path") from None
    except (ValueError, RuntimeError):
        raise ConfigError(f"{where} is not {what}, nor the path of a file with it; check the path") from None


def _secret_key(secret: str, where: str) -> Key:
    raw = secret.encode()
    if len(raw) < SECRET_MIN_BYTES:
        # RFC 7518, 3.2: an HS256 key is as long as its hash, or tokens can be forged by guessing.
        raise ConfigError(f"{where} is shorter than {SECRET_MIN_BYTES} bytes; make one with: queen keys new")
    try:
        jwt.get_algorithm_by_name("HS256").prepare_key(raw)
    except jwt.InvalidKeyError:
        raise ConfigError(f"{where} is a public key, known to anyone; set auth_public_key to it") from None
    return Key("HS256", raw)


def _as_pem(given: str) -> str | None:
    """The text, if it is PEM and not a path."""
    # An env file holds one line per variable: there, PEM comes with \n written out.
    text = given.strip().replace("\\n", "\n")
    return text if text.startswith("-----BEGIN") else None


def _public_keys(given: str, source: str) -> Iterator[Key]:
    where = f"auth_public_key ({source})"
    text = _as_pem(given) or _read_file(Path(given), where, "PEM")
    if "PRIVATE KEY" in text:
        raise ConfigError(f"{where} is a private key; keep that where tokens are signed, "
                          "and give its public key: openssl pkey -in key.pem -pubout")  # fmt: skip
    for block in _PEM.findall(text) or [text]:
        yield _public_key(block, where)


def _public_key(pem: str, where: str) -> Key:
    try:
        key = load_pem_public_key(pem.encode())
    except (ValueError, UnsupportedAlgorithm):
        raise ConfigError(f"{where} is not a public key in PEM; see openssl pkey -pubout") from None
    if isinstance(key, Ed25519PublicKey):
        return Key("EdDSA", key)
    if isinstance(key, RSAPublicKey) and key.key_size >= RSA_MIN_BITS:
        return Key("RS256", key)
    raise ConfigError(f"{where} is neither Ed25519 nor RSA of {RSA_MIN_BITS} bits or more")
