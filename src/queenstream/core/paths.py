"""Paths into payloads: ``user.country``, ``items.0.price``; written once for windows, streams and pipelines.

A path is names with dots between them. Each name is looked up in what the one before it gave: a key of a
mapping, a position of a list (digits), or an attribute of an object (a dataclass, a msgspec Struct, a
pydantic model). What is not there is None; a look-up never raises. A name that holds a dot stands in
backticks: ```a.b`.c``.

>>> country = getter("user.country")
>>> country({"user": {"country": "DE"}}), country({"user": None}), country({})
('DE', None, None)

Who reads messages and not payloads takes the prefix away first:
``getter(strip("data.user.country"))(message.data)``.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from datetime import date, time, timedelta
from decimal import Decimal
from typing import Any, TypeAlias
from uuid import UUID

from queenstream.errors import ConfigError

Getter: TypeAlias = Callable[[Any], Any]

_SEGMENT = re.compile(r"`((?:[^`]|``)*)`|([^.`]+)")
_INDEX = re.compile(r"[0-9]{1,9}")
_PREFIXES = ("data", "payload")
# Values, not records: the year of a date is no field of a payload.
_LEAVES = (str, bytes, int, float, complex, Decimal, date, time, timedelta, UUID, set, frozenset, type(None))


def segments(path: str) -> tuple[str, ...]:
    """The names of a path, without their quotes; the empty path has none.

    >>> segments("user.tags.0"), segments("`first name`.x"), segments("")
    (('user', 'tags', '0'), ('first name', 'x'), ())
    """
    names: list[str] = []
    at = 0
    while path:
        match = _SEGMENT.match(path, at)
        if match is None:
            raise ConfigError(_malformed(path))
        quoted, plain = match.groups()
        names.append(plain if quoted is None else quoted.replace("``", "`"))
        at = match.end()
        if at == len(path):
            break
        if path[at] != ".":
            raise ConfigError(_malformed(path))
        at += 1
    return tuple(names)


def join(names: Iterable[str]) -> str:
    """The path of these names, which ``segments`` reads back; quotes only where there must be some.

    >>> join(["user", "first name", "a.b"])
    'user.first name.`a.b`'
    """
    return ".".join(quote(name) if not name or "." in name or "`" in name else name for name in names)


def quote(name: str) -> str:
    """One name in backticks.

    >>> quote("a.b")
    '`a.b`'
    """
    return "`" + name.replace("`", "``") + "`"


def strip(path: str) -> str:
    """A path into a message as a path into its payload: ``data.`` and ``payload.`` say the same, and go.

    >>> strip("data.user.id"), strip("payload.x"), strip("x"), strip("data")
    ('user.id', 'x', 'x', '')
    """
    first, _, rest = path.partition(".")
    return rest if first in _PREFIXES else path


def getter(path: str) -> Getter:
    """What reads ``path`` from a value. The empty path is the value itself.

    >>> getter("items.1")({"items": ["a", "b"]})
    'b'
    """
    names = segments(path)
    if not names:
        return _itself
    steps = tuple((name, int(name) if _INDEX.fullmatch(name) else None) for name in names)
    return _one(*steps[0]) if len(steps) == 1 else _many(steps)


def _itself(value: Any) -> Any:
    return value


def _one(name: str, index: int | None) -> Getter:
    # Nearly every look-up is one name in a dict: that one goes without a loop or another call.
    def read(value: Any) -> Any:
        return value.get(name) if type(value) is dict else _step(value, name, index)

    return read


def _many(steps: tuple[tuple[str, int | None], ...]) -> Getter:
    def read(value: Any) -> Any:
        for name, index in steps:
            value = value.get(name) if type(value) is dict else _step(value, name, index)
            if value is None:
                return None
        return value

    return read


def _step(value: Any, name: str, index: int | None) -> Any:
    if isinstance(value, Mapping):
        return value.get(name)
    if index is not None and isinstance(value, (list, tuple)):
        return value[index] if index < len(value) else None
    # A path may come from a stranger's text: it sees the fields of an object and nothing of its inside.
    if isinstance(value, _LEAVES) or name.startswith("_"):
        return None
    try:
        found = getattr(value, name, None)
    except Exception:  # noqa: BLE001 - a property of the user's: if it fails, there is no value
        return None
    return None if callable(found) else found


def _malformed(path: str) -> str:
    shown = path if len(path) <= 60 else f"{path[:57]}..."
    return f"{shown!r} is not a path; write names with dots between them, such as user.country or items.0"
