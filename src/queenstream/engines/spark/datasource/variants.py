"""JSON to VARIANT, Spark's binary form of a value without a schema.

``parse_json`` does this in the JVM; a data source has to do it here, because its rows leave Python as what
they are. Numbers become what ``parse_json`` makes of them: whole ones the smallest integer, others a decimal,
and a double only with an exponent or too many digits.

>>> encode(b'{"a": 1}')
(b'\\x02\\x01\\x00\\x00\\x02\\x0c\\x01', b'\\x01\\x01\\x00\\x01a')
"""

from __future__ import annotations

import struct
from functools import lru_cache

import msgspec

_NULL, _TRUE, _FALSE = b"\x00", b"\x04", b"\x08"
_INT8, _INT16, _INT32, _INT64, _DOUBLE = 0x0C, 0x10, 0x14, 0x18, 0x1C
_DECIMAL4, _DECIMAL8, _DECIMAL16, _LONG_STRING = 0x20, 0x24, 0x28, 0x40
_SHORT_STRING_BYTES = 64
_MOST_DIGITS = 38

Json = None | bool | int | str | list["Json"] | dict[str, "Json"]


class _Number(str):
    """A number with a point or an exponent, as it was written."""

    __slots__ = ()


_decoder = msgspec.json.Decoder(float_hook=_Number)


def encode(text: bytes) -> tuple[bytes, bytes]:
    """The value and the metadata (the names of its fields) of a JSON text."""
    names: dict[str, int] = {}
    value = _value(_decoder.decode(text), names)
    return value, _metadata(tuple(names))


@lru_cache(1024)  # messages of a queue look alike
def _metadata(names: tuple[str, ...]) -> bytes:
    encoded = [name.encode() for name in names]
    size = _width(max(sum(map(len, encoded)), len(encoded)))
    head = bytes([1 | (size - 1) << 6]) + len(encoded).to_bytes(size, "little")
    return head + _offsets(encoded, size) + b"".join(encoded)


def _value(value: Json, names: dict[str, int]) -> bytes:
    if value is None:
        return _NULL
    if value is True:
        return _TRUE
    if value is False:
        return _FALSE
    if isinstance(value, _Number):
        return _number(value)
    if isinstance(value, str):
        data = value.encode()
        if len(data) < _SHORT_STRING_BYTES:
            return bytes([len(data) << 2 | 1]) + data
        return struct.pack("<BI", _LONG_STRING, len(data)) + data
    if isinstance(value, int):
        return _integer(value)
    if isinstance(value, list):
        return _array([_value(item, names) for item in value])
    return _object(value, names)


def _integer(value: int) -> bytes:
    if -0x80 <= value < 0x80:
        return struct.pack("<Bb", _INT8, value)
    if -0x8000 <= value < 0x8000:
        return struct.pack("<Bh", _INT16, value)
    if -0x8000_0000 <= value < 0x8000_0000:
        return struct.pack("<Bi", _INT32, value)
    if -(1 << 63) <= value < 1 << 63:
        return struct.pack("<Bq", _INT64, value)
    return _number(_Number(value))


def _number(text: _Number) -> bytes:
    whole, _, fraction = text.partition(".")
    digits = (whole + fraction).lstrip("-").lstrip("0")
    scale = len(fraction)
    if "e" in text or "E" in text or len(digits) > _MOST_DIGITS or scale > _MOST_DIGITS:
        return struct.pack("<Bd", _DOUBLE, float(text))
    unscaled = int(whole + fraction)
    most = max(len(digits), scale)
    if most <= 9:
        return struct.pack("<BBi", _DECIMAL4, scale, unscaled)
    if most <= 18:
        return struct.pack("<BBq", _DECIMAL8, scale, unscaled)
    return bytes([_DECIMAL16, scale]) + unscaled.to_bytes(16, "little", signed=True)


def _array(items: list[bytes]) -> bytes:
    size = _width(sum(map(len, items)))
    large = len(items) > 255
    head = bytes([(large << 2 | size - 1) << 2 | 3]) + len(items).to_bytes(4 if large else 1, "little")
    return head + _offsets(items, size) + b"".join(items)


def _object(value: dict[str, Json], names: dict[str, int]) -> bytes:
    """The fields in the order of their names, as the format asks."""
    ids, items = [], []
    for name in sorted(value):
        ids.append(names.setdefault(name, len(names)))
        items.append(_value(value[name], names))
    size = _width(sum(map(len, items)))
    id_size = _width(max(ids, default=0))
    large = len(items) > 255
    head = bytes([(large << 4 | (id_size - 1) << 2 | size - 1) << 2 | 2])
    head += len(items).to_bytes(4 if large else 1, "little")
    return head + _packed(ids, id_size) + _offsets(items, size) + b"".join(items)


def _offsets(items: list[bytes], size: int) -> bytes:
    """Where each begins, and where the last ends."""
    at, places = 0, [0]
    for item in items:
        at += len(item)
        places.append(at)
    return _packed(places, size)


def _packed(numbers: list[int], size: int) -> bytes:
    if size == 1:
        return bytes(numbers)
    return b"".join([number.to_bytes(size, "little") for number in numbers])


def _width(number: int) -> int:
    """How many bytes a number takes: 1 to 4."""
    return max(1, (number.bit_length() + 7) // 8)
