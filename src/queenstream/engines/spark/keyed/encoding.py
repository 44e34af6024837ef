"""State as text: JSON that says where a value is more than JSON knows, so that it comes back as it was.

People read it too, through Spark's state data source.

>>> pack({"started": datetime(2026, 1, 31, tzinfo=UTC), "seen": ("a", 1)})
'{"started":{"$time":"2026-01-31T00:00:00+00:00"},"seen":{"$tuple":["a",1]}}'
>>> unpack(pack({1: 2.5, "a": None}))
{1: 2.5, 'a': None}
"""

from __future__ import annotations

import base64
import json
import marshal
from collections.abc import Callable
from datetime import UTC, date, datetime  # noqa: F401 - UTC is for the example
from decimal import Decimal
from typing import Any

import msgspec

from queenstream.runtime.encoding import decode, encode_exactly

_PLAIN = {str, int, float, bool, type(None)}
_MARK = '"$'


def pack(value: Any) -> str:
    """A value as text."""
    plain = _plain_text(value)
    if plain is not None:
        return plain
    return json.dumps(_told(value), separators=(",", ":"), ensure_ascii=False)


def unpack(text: str) -> Any:
    """The inverse."""
    try:
        value = msgspec.json.decode(text)
    except msgspec.DecodeError:  # NaN and the infinities are no JSON
        value = json.loads(text)
    return _read(value) if _MARK in text else value


def _plain_text(value: Any) -> str | None:
    """The text of what JSON knows as it is, which most state is: found out without a loop in Python."""
    try:
        marshal.dumps(value)  # refuses all but the very types that are built in: no subclass passes for one
        data = msgspec.json.encode(value)
        text = data.decode()
        # A tuple comes back as a list, a number as a key as text, NaN as null: then it is not equal.
        return text if _MARK not in text and msgspec.json.decode(data) == value else None
    except (ValueError, TypeError, OverflowError, RecursionError, msgspec.MsgspecError):
        return None


def _told(value: Any) -> Any:
    kind = type(value)
    if kind in _PLAIN:
        return value  # Python's JSON has NaN, the infinities, and whole numbers of any size
    if kind is list:
        return [_told(each) for each in value]
    if kind is dict:
        if all(type(name) is str and not name.startswith("$") for name in value):
            return {name: _told(each) for name, each in value.items()}
        return {"$map": [[_told(name), _told(each)] for name, each in value.items()]}
    if kind is tuple:
        return {"$tuple": [_told(each) for each in value]}
    if kind is datetime:
        return {"$time": value.isoformat()}
    if kind is date:
        return {"$date": value.isoformat()}
    if kind is Decimal:
        return {"$decimal": str(value)}
    return {"$packed": base64.b64encode(encode_exactly(value)).decode()}


def _read(value: Any) -> Any:
    if type(value) is list:
        return [_read(each) for each in value]
    if type(value) is not dict:
        return value
    if len(value) == 1:
        [(name, inside)] = value.items()
        if name in _MARKS:
            return _MARKS[name](inside)
    return {name: _read(each) for name, each in value.items()}


_MARKS: dict[str, Callable[[Any], Any]] = {
    "$map": lambda pairs: {_read(name): _read(each) for name, each in pairs},
    "$tuple": lambda parts: tuple([_read(each) for each in parts]),
    "$time": datetime.fromisoformat,
    "$date": date.fromisoformat,
    "$decimal": Decimal,
    "$packed": lambda text: decode(base64.b64decode(text)),
}
