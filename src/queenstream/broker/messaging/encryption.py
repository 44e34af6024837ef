"""Payloads encrypted at rest: AES-256-GCM, under keys that can be rotated.

A payload is sealed with the first key of the ring and says which one that was, so that a new key
goes in front while the old ones still read what they wrote. It is bound to its message (queue, partition,
transaction): a payload that is moved to another row of the database cannot be read there::

    QUEEN_ENCRYPTION_KEYS=2026-02:<base64 of 32 bytes>,2025-11:<base64 of 32 bytes>

A key comes from ``openssl rand -base64 32``.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import os
import re
from collections.abc import Mapping

import msgspec
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from queenstream.errors import ConfigError, DecryptionError, KeyMissing, PayloadAltered

KEY_BYTES = 32
NONCE_BYTES = 12
TAG_BYTES = 16

_ID = re.compile(r"[A-Za-z0-9_.-]{1,64}")
_URL_SAFE = str.maketrans("-_", "+/")
_RETRY = re.compile(r"~retry-[0-9]+\Z")
_BOUND_CHARACTERS = 229  # of a transaction id: a replay cuts it to have room for its own suffix
_SEALED = b"sealed "  # what a document that is sealed whole begins with; JSON does not


def message_identity(queue: str, partition: str, transaction_id: str) -> bytes:
    """What a payload is bound to. A replayed dead letter is the same message as the one that died.

    >>> message_identity("orders", "ann", "7~retry-12") == message_identity("orders", "ann", "7")
    True
    """
    return msgspec.json.encode([queue, partition, _RETRY.sub("", transaction_id)[:_BOUND_CHARACTERS]])


class Keyring:
    """The keys by id; ``active_id`` names the one that encrypts.

    >>> ring = Keyring.parse("new:" + "A" * 43 + "=,old:" + "B" * 42 + "A=")
    >>> message = message_identity("orders", "ann", "7")
    >>> key, sealed = ring.encrypt(b'{"card": 4711}', message)
    >>> key, len(sealed), ring.decrypt(key, sealed, message)
    ('new:4dcd1f76', 42, b'{"card": 4711}')
    """

    def __init__(self, keys: Mapping[str, bytes]) -> None:
        if not keys:
            raise ConfigError("encryption_keys holds no key; write id:base64key")
        self.active_id = next(iter(keys))
        self._ciphers = {key_id: AESGCM(key) for key_id, key in keys.items()}
        self._fingerprints = {key_id: _fingerprint(key) for key_id, key in keys.items()}

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

    def encrypt(self, payload: bytes, identity: bytes) -> tuple[str, bytes]:
        """The active key (id and fingerprint), and nonce + ciphertext + tag, bound to ``identity``."""
        # Random nonces are safe for some 2^32 payloads under one key: rotate long before.
        nonce = os.urandom(NONCE_BYTES)
        key = f"{self.active_id}:{self._fingerprints[self.active_id]}"
        return key, nonce + self._ciphers[self.active_id].encrypt(nonce, payload, identity)

    def decrypt(self, key: str, sealed: bytes, identity: bytes) -> bytes:
        """The payload; KeyMissing without its key, PayloadAltered if a bit of it or its identity has changed.

        A key without a fingerprint is that of a payload that was sealed before payloads were bound: whether
        it was changed or the key was cannot be told, and is a DecryptionError.
        """
        key_id, bound, fingerprint = key.partition(":")
        cipher = self._ciphers.get(key_id)
        if cipher is None:
            raise KeyMissing(
                f"a payload is encrypted under the key {key_id!r}, which encryption_keys does not "
                "hold; add that key after the first one"
            )
        if bound and fingerprint != self._fingerprints[key_id]:
            raise KeyMissing(
                f"a payload is encrypted under another key than the one that encryption_keys has as "
                f"{key_id!r}; give each key its own id, and add the one that is missing"
            )
        try:
            if len(sealed) < NONCE_BYTES + TAG_BYTES:
                raise InvalidTag
            return cipher.decrypt(sealed[:NONCE_BYTES], sealed[NONCE_BYTES:], identity if bound else None)
        except InvalidTag:
            if bound:
                raise PayloadAltered(
                    f"a payload under the key {key_id!r} was changed in the database, or is another "
                    "message's; restore it from a backup"
                ) from None
            raise DecryptionError(
                f"a payload under the key {key_id!r} was changed since it was stored, or that id "
                "now names another key; restore the payload or the key"
            ) from None

    def seal(self, document: bytes, identity: bytes) -> bytes:
        """A document that says itself how it was sealed, for a column that also holds plain JSON."""
        key, sealed = self.encrypt(document, identity)
        return _SEALED + key.encode() + b"\n" + sealed

    def __repr__(self) -> str:
        return f"Keyring({', '.join(self._ciphers)})"


def unseal(keyring: Keyring | None, document: bytes, identity: bytes) -> bytes:
    """A document as it was before ``Keyring.seal``; one that was never sealed, as it is."""
    if not document.startswith(_SEALED):
        return document
    if keyring is None:
        raise KeyMissing("it is encrypted and this broker has no key; set QUEEN_ENCRYPTION_KEYS")
    key, _, sealed = document.removeprefix(_SEALED).partition(b"\n")
    return keyring.decrypt(key.decode(), sealed, identity)


def _fingerprint(key: bytes) -> str:
    """Tells keys under the same id apart, and nothing about the key."""
    return hashlib.sha256(b"queenstream encryption key " + key).hexdigest()[:8]


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
