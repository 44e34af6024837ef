"""Payloads encrypted at rest: AES-256-GCM, under keys that can be rotated.

A payload is sealed with the first key of the ring and says which one that was, so that a new key
goes in front while the old ones still read what they wrote::

    QUEEN_ENCRYPTION_KEYS=2026-02:<base64 of 32 bytes>,2025-11:<base64 of 32 bytes>

A key comes from ``openssl rand -base64 32``.
"""

from __future__ import annotations

import base64
import binascii
import os
import re
from collections.abc import Mapping

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from queenstream.errors import ConfigError, DecryptionError, KeyMissing

KEY_BYTES = 32
NONCE_BYTES = 12
TAG_BYTES = 16

_ID = re.compile(r"[A-Za-z0-9_.-]{1,64}")
_URL_SAFE = str.maketrans("-_", "+/")


class Keyring:
    """The keys by id; ``active_id`` names the one that encrypts.

    >>> ring = Keyring.parse("new:" + "A" * 43 + "=,old:" + "B" * 42 + "A=")
    >>> key_id, sealed = ring.encrypt(b'{"card": 4711}')
    >>> key_id, len(sealed), ring.decrypt(key_id, sealed)
    ('new', 42, b'{"card": 4711}')
    """

    def __init__(self, keys: Mapping[str, bytes]) -> None:
        if not keys:
            raise ConfigError("encryption_keys holds no key; write id:base64key")
        self.active_id = next(iter(keys))
        self._ciphers = {key_id: AESGCM(key) for key_id, key in keys.items()}

    @classmethod
    def parse(cls, text: str) -> Keyring:
        """A ring from ``id:base64[,id:base64]``; errors count entries and never quote them."""
        keys: dict[str, bytes] = {}
        for number, entry in enumerate(text.split(","), 1):
            # Not even the id is quoted: in a malformed entry it may be the key.
            key_id, colon, encoded = entry.strip().partition(":")
            if not colon or not _ID.fullmatch(key_id):
                raise ConfigError(
                    f"encryption_keys, entry {number}, does not start with an id; write "
                    "id:base64key, the id of 1 to 64 letters, digits, '_', '.' or '-'"
                )
            if key_id in keys:
                raise ConfigError(f"encryption_keys, entry {number}, repeats an id; give every key its own")
            keys[key_id] = _decode(encoded, number)
        return cls(keys)

    def encrypt(self, payload: bytes) -> tuple[str, bytes]:
        """The active key's id, and nonce + ciphertext + tag."""
        # Random nonces are safe for some 2^32 payloads under one key: rotate long before.
        nonce = os.urandom(NONCE_BYTES)
        return self.active_id, nonce + self._ciphers[self.active_id].encrypt(nonce, payload, None)

    def decrypt(self, key_id: str, sealed: bytes) -> bytes:
        """The payload; KeyMissing without its key, DecryptionError if a bit of it has changed."""
        cipher = self._ciphers.get(key_id)
        if cipher is None:
            raise KeyMissing(
                f"a payload is encrypted under the key {key_id!r}, which encryption_keys does not "
                "hold; add that key after the first one"
            )
        if len(sealed) < NONCE_BYTES + TAG_BYTES:
            raise DecryptionError(f"a payload under the key {key_id!r} is cut short; restore it")
        try:
            return cipher.decrypt(sealed[:NONCE_BYTES], sealed[NONCE_BYTES:], None)
        except InvalidTag:
            raise DecryptionError(
                f"a payload under the key {key_id!r} was changed since it was stored, or that id "
                "now names another key; restore the payload or the key"
            ) from None

    def __repr__(self) -> str:
        return f"Keyring({', '.join(self._ciphers)})"


def _decode(encoded: str, number: int) -> bytes:
    try:
        key = base64.b64decode(encoded.strip().translate(_URL_SAFE), validate=True)
    except (binascii.Error, ValueError):
        key = b""
    if len(key) != KEY_BYTES:
        raise ConfigError(
            f"encryption_keys, entry {number}, is not {KEY_BYTES} bytes in base64; "
            "make one with: openssl rand -base64 32"
        )
    return key
