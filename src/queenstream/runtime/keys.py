"""Keys as text: the names under which a checkpoint keeps a step's state.

A name is the key's text, a line break (which JSON never has bare), and what tells the key's entries apart.
So all that a step knows of one key stands under one beginning.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import msgspec

_json = msgspec.json.Encoder(enc_hook=repr).encode

META = ""
"""The name of what a step keeps beside its keys: its watermark, how many records it has seen."""


def key_text(key: Any) -> str:
    """The same text for keys that are equal, as JSON; several parts are a list.

    >>> key_text("u1"), key_text(("shop", 7)), key_text(7.0)
    ('"u1"', '["shop",7]', '7')
    """
    if type(key) is str:
        return _json(key).decode()
    if type(key) is tuple:
        return f"[{','.join(map(key_text, key))}]"
    if isinstance(key, bool | float | Decimal) and key == key and abs(key) != float("inf"):
        whole = int(key)
        key = whole if whole == key else float(key)
    if isinstance(key, datetime) and key.utcoffset() is not None:
        key = key.astimezone(UTC)  # equal instants are equal keys, whatever their zones
    return _json(key).decode()


def key_to_json(key: Any) -> Any:
    """A key for a message: several parts are a list, and what JSON does not have is marked.

    >>> key_to_json(("shop", date(2026, 1, 31)))
    ['shop', {'$date': '2026-01-31'}]
    """
    if type(key) is tuple:
        return [key_to_json(part) for part in key]
    if isinstance(key, datetime):
        return {"$time": key.isoformat()}
    if isinstance(key, date):
        return {"$date": key.isoformat()}
    return {"$decimal": str(key)} if isinstance(key, Decimal) else key


def key_from_json(value: Any) -> Any:
    """The inverse.

    >>> key_from_json(["shop", {"$date": "2026-01-31"}])
    ('shop', datetime.date(2026, 1, 31))
    """
    if isinstance(value, list | tuple):
        return tuple(map(key_from_json, value))
    if isinstance(value, dict) and len(value) == 1:
        [(mark, text)] = value.items()
        if mark in _MARKS:
            return _MARKS[mark](text)
    return value


_MARKS: dict[str, Callable[[str], Any]] = {
    "$time": datetime.fromisoformat,
    "$date": date.fromisoformat,
    "$decimal": Decimal,
}


def entry_name(key: Any, entry: object = "") -> str:
    """The name of one entry of a key.

    >>> entry_name("u1", 300)
    '"u1"\\n300'
    """
    return f"{key_text(key)}\n{entry}"
