"""Encryption at rest: round trips, rotation, tampering, and keys that never show."""

from __future__ import annotations

import base64
import doctest

import pytest
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from hypothesis import given, settings
from hypothesis import strategies as st

from queenstream.broker.messaging import encryption
from queenstream.broker.messaging.encryption import Keyring, message_identity, unseal
from queenstream.errors import ConfigError, DecryptionError, KeyMissing, PayloadAltered, QueenstreamError

OLD, NEW = bytes(range(32)), bytes(range(100, 132))


def entry(key_id: str, key: bytes) -> str:
    return f"{key_id}:{base64.b64encode(key).decode()}"


RING = Keyring.parse(entry("k1", OLD))
ROW = message_identity("orders", "ann", "t1")


@settings(deadline=None)  # a busy machine is no failure
@given(st.binary(max_size=2_000))
def test_round_trip(payload: bytes) -> None:
    key_id, sealed = RING.encrypt(payload, ROW)
    assert key_id.startswith("k1:")
    assert len(sealed) == 12 + len(payload) + 16
    assert RING.decrypt(key_id, sealed, ROW) == payload


def test_is_plain_aes_256_gcm_with_the_message_as_associated_data() -> None:
    _, sealed = RING.encrypt(b"payload", ROW)
    assert AESGCM(OLD).decrypt(sealed[:12], sealed[12:], b'["orders","ann","t1"]') == b"payload"


def test_a_payload_is_readable_in_its_own_row_only() -> None:
    key, sealed = RING.encrypt(b"payload", ROW)
    for other in (("orders", "ann", "t2"), ("orders", "bob", "t1"), ("clicks", "ann", "t1")):
        with pytest.raises(PayloadAltered, match="is another message's"):
            RING.decrypt(key, sealed, message_identity(*other))
    with pytest.raises(DecryptionError):  # nor by saying that it was sealed before payloads were bound
        RING.decrypt("k1", sealed, ROW)


def test_what_was_sealed_before_payloads_were_bound_stays_readable() -> None:
    sealed = bytes(12) + AESGCM(OLD).encrypt(bytes(12), b"payload", None)
    assert RING.decrypt("k1", sealed, ROW) == b"payload"
    with pytest.raises(DecryptionError, match="that id now names another key"):
        Keyring.parse(entry("k1", NEW)).decrypt("k1", sealed, ROW)


@pytest.mark.parametrize("transaction", ["t", "t~retry-5", "x" * 255])
def test_a_replayed_message_keeps_its_identity(transaction: str) -> None:
    """As queen.replay names it."""
    suffix = "~retry-9223372036854775807"
    replayed = transaction.removesuffix("~retry-5")[: 255 - len(suffix)] + suffix
    assert message_identity("q", "p", replayed) == message_identity("q", "p", transaction)


def test_a_document_that_is_sealed_says_so() -> None:
    sealed = RING.seal(b'{"samples": 1}', ROW)
    assert b"samples" not in sealed
    assert unseal(RING, sealed, ROW) == b'{"samples": 1}'
    assert unseal(None, b'{"plain": 1}', ROW) == b'{"plain": 1}'
    with pytest.raises(KeyMissing, match="QUEEN_ENCRYPTION_KEYS"):
        unseal(None, sealed, ROW)


def test_nonces_differ() -> None:
    assert len({RING.encrypt(b"same", ROW)[1][:12] for _ in range(1_000)}) == 1_000


@settings(deadline=None)  # a busy machine is no failure
@given(st.binary(max_size=50), st.data())
def test_any_flipped_bit_is_noticed(payload: bytes, data: st.DataObject) -> None:
    key_id, sealed = RING.encrypt(payload, ROW)
    bit = data.draw(st.integers(0, len(sealed) * 8 - 1))
    changed = bytearray(sealed)
    changed[bit // 8] ^= 1 << bit % 8
    with pytest.raises(DecryptionError, match="was changed in the database"):
        RING.decrypt(key_id, bytes(changed), ROW)


@pytest.mark.parametrize("length", [0, 11, 27])
def test_a_payload_cut_short_is_an_error_of_ours(length: int) -> None:
    key_id, sealed = RING.encrypt(b"payload", ROW)
    with pytest.raises(DecryptionError, match="was changed in the database"):
        RING.decrypt(key_id, sealed[:length], ROW)


def test_rotation_encrypts_with_the_first_and_decrypts_with_all() -> None:
    old, before = RING.encrypt(b"old", ROW)
    rotated = Keyring.parse(f"{entry('k2', NEW)}, {entry('k1', OLD)}")
    assert rotated.active_id == "k2"
    key_id, after = rotated.encrypt(b"new", ROW)
    assert key_id.startswith("k2:")
    assert rotated.decrypt(old, before, ROW) == b"old"
    assert rotated.decrypt(key_id, after, ROW) == b"new"
    with pytest.raises(KeyMissing, match="'k2', which encryption_keys does not hold; add"):
        RING.decrypt(key_id, after, ROW)
    assert issubclass(KeyMissing, DecryptionError)
    assert issubclass(DecryptionError, QueenstreamError)


def test_another_key_under_the_same_id_is_noticed() -> None:
    key_id, sealed = RING.encrypt(b"payload", ROW)
    with pytest.raises(KeyMissing, match="another key than the one"):
        Keyring.parse(entry("k1", NEW)).decrypt(key_id, sealed, ROW)


def test_reads_url_safe_base64_too() -> None:
    key = b"\xfb\xff" * 16
    ring = Keyring.parse("k:" + base64.urlsafe_b64encode(key).decode())
    _, sealed = ring.encrypt(b"x", ROW)
    assert AESGCM(key).decrypt(sealed[:12], sealed[12:], ROW) == b"x"


SECRET = base64.b64encode(b"Attack at dawn, by the old bridge").decode()  # 33 bytes


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "entry 1, does not start with an id"),
        (SECRET, "entry 1, does not start with an id"),
        (f":{SECRET}", "entry 1, does not start with an id"),
        (f"{SECRET}/x:{SECRET}", "entry 1, does not start with an id"),
        (f"{'i' * 65}:{SECRET}", "entry 1, does not start with an id"),
        (f"{entry('a', OLD)},", "entry 2, does not start with an id"),
        (f"a:{SECRET}", "entry 1, is not 32 bytes in base64; make one with"),
        (f"a:{SECRET[:20]}", "entry 1, is not 32 bytes"),
        (f"a:not base64 {SECRET}", "entry 1, is not 32 bytes"),
        (f"a:{SECRET}\u00e9", "entry 1, is not 32 bytes"),
        ("a:", "entry 1, is not 32 bytes"),
        (f"{entry('a', OLD)},{entry('a', NEW)}", "entry 2, repeats an id"),
    ],
)
def test_bad_keys_are_named_by_number_and_never_shown(text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        Keyring.parse(text)
    assert SECRET[:12] not in str(caught.value)
    # A chained error would bring the material back in the traceback.
    assert caught.value.__cause__ is None
    assert caught.value.__suppress_context__ or caught.value.__context__ is None


def test_repr_shows_ids_only() -> None:
    assert repr(Keyring.parse(f"{entry('k2', NEW)},{entry('k1', OLD)}")) == "Keyring(k2, k1)"


def test_examples() -> None:
    assert doctest.testmod(encryption).failed == 0
