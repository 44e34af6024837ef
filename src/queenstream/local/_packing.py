"""Values as bytes, as a checkpoint keeps them: what comes back equals what went in, or is found damaged.

MessagePack has numbers, text, bytes, lists, maps and times. What Python has beyond that (decimals, sets,
tuples, dates, numbers over 64 bits …) is marked, so that a row that is delivered again after a crash is
written as it was the first time. Objects of a user's class become maps of their fields.

>>> unpack(pack({"at": datetime(2026, 1, 31, tzinfo=UTC), "sum": Decimal("9.50")}))["sum"]
Decimal('9.50')
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from typing import Any
from uuid import UUID

import msgspec

_ENCODER = msgspec.msgpack.Encoder()
_PLAIN = frozenset((str, float, bool, type(None), bytes))
_INT_64 = range(-(1 << 63), 1 << 64)

_TUPLE, _SET, _FROZEN_SET, _NUMBER, _DECIMAL, _UUID, _DATE, _TIME, _DATETIME, _SPAN, _MAP = range(1, 12)


class Damaged(ValueError):
    """The bytes are not those that were written."""


def pack(value: object) -> bytes:
    """A value as bytes, with a checksum before them."""
    body = _encoded(value)
    return zlib.crc32(body).to_bytes(4, "big") + body


def _encoded(value: object) -> bytes:
    # Nearly everything needs no mark. To read it back and compare costs half of a walk through it.
    try:
        body = _ENCODER.encode(value)
        if _DECODER.decode(body) == value:
            return body
    except (TypeError, ValueError, OverflowError, NotImplementedError):
        pass  # what MessagePack does not have
    return _ENCODER.encode(_marked(value))


def unpack(data: bytes) -> Any:
    """The value again; ``Damaged`` if a bit has changed.

    >>> unpack(pack([1])[:-1] + b"x")
    Traceback (most recent call last):
    queenstream.local._packing.Damaged: the checksum is wrong
    """
    if len(data) < 5 or zlib.crc32(data[4:]).to_bytes(4, "big") != data[:4]:
        raise Damaged("the checksum is wrong")
    return _DECODER.decode(data[4:])


def _marked(value: Any) -> Any:
    """The value with marks where MessagePack alone would give back something else."""
    kind = type(value)
    if kind in _PLAIN:
        return value
    if kind is dict:
        if all(type(key) is str for key in value):
            return {key: _marked(item) for key, item in value.items()}
        return _ext(_MAP, [[_marked(key), _marked(item)] for key, item in value.items()])
    if kind is list:
        return _listed(value)
    if kind is int:
        return value if value in _INT_64 else _ext(_NUMBER, str(value))
    if kind is datetime:
        # A time with another zone is kept as an instant; one without a zone is none.
        return value.astimezone(UTC) if value.tzinfo is not None else _ext(_DATETIME, value.isoformat())
    return _rare(value)


def _rare(value: Any) -> Any:
    for kinds, code, written in _WRITTEN:
        if isinstance(value, kinds):
            return _ext(code, written(value))
    if isinstance(value, Mapping):
        return _marked(dict(value))
    for plain in (str, int, float, list):
        if isinstance(value, plain):  # of a subclass: an IntEnum, a list with a name
            return _marked(plain(value))  # type: ignore[arg-type]
    dump = getattr(value, "model_dump", None)
    if dump is not None:
        return _marked(dump())
    fields = _fields(value)
    if fields is None:
        raise TypeError(
            f"{type(value).__name__} cannot be kept in a checkpoint; use numbers, text, times, lists, dicts, "
            "dataclasses, Structs or pydantic models"
        )
    return _marked(fields)


def _fields(value: Any) -> dict[str, Any] | None:
    names = getattr(value, "__struct_fields__", None) or getattr(value, "__dataclass_fields__", None)
    return None if names is None else {name: getattr(value, name) for name in names}


def _listed(value: Any) -> list[Any]:
    return [_marked(item) for item in value]


_WRITTEN: tuple[tuple[Any, int, Any], ...] = (
    (tuple, _TUPLE, _listed),
    (set, _SET, _listed),
    (frozenset, _FROZEN_SET, _listed),
    (Decimal, _DECIMAL, str),
    (UUID, _UUID, str),
    (datetime, _DATETIME, datetime.isoformat),
    (date, _DATE, date.isoformat),
    (time, _TIME, time.isoformat),
    (timedelta, _SPAN, lambda value: _marked(value // timedelta(microseconds=1))),  # may pass 64 bits
)


def _ext(code: int, value: object) -> msgspec.msgpack.Ext:
    return msgspec.msgpack.Ext(code, _ENCODER.encode(value))


_READ: dict[int, Any] = {
    _TUPLE: tuple,
    _SET: set,
    _FROZEN_SET: frozenset,
    _NUMBER: int,
    _DECIMAL: Decimal,
    _UUID: UUID,
    _DATETIME: datetime.fromisoformat,
    _DATE: date.fromisoformat,
    _TIME: time.fromisoformat,
    _SPAN: lambda value: timedelta(microseconds=value),
    _MAP: dict,
}


def _unmarked(code: int, data: memoryview) -> Any:
    return _READ[code](_DECODER.decode(data))


_DECODER: msgspec.msgpack.Decoder[Any] = msgspec.msgpack.Decoder(ext_hook=_unmarked)
