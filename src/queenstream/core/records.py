"""Records as engines need them: as rows with named fields, as copies, with a time, in a message."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Hashable, Mapping
from datetime import UTC, datetime
from typing import Any

from queenstream.core.windows import from_us, to_us

# Within the years that a datetime has, with room for a window around.
EARLIEST = to_us(datetime(1, 1, 3, tzinfo=UTC))
LATEST = to_us(datetime(9999, 12, 30, tzinfo=UTC))

_MILLISECOND = 1_000


def as_row(record: Any) -> dict[str, Any]:
    """The fields of a record by name; a dictionary is given as it is.

    >>> as_row({"user": "a"})
    {'user': 'a'}
    """
    if type(record) is dict:
        return record
    if isinstance(record, Mapping):
        return dict(record)
    if dataclasses.is_dataclass(record) and not isinstance(record, type):
        return {each.name: getattr(record, each.name) for each in dataclasses.fields(record)}
    names = getattr(type(record), "__struct_fields__", None) or getattr(type(record), "model_fields", None)
    if names is None:
        raise TypeError(f"{short(record)} has no named fields; give a dict, a dataclass, a Struct or a model")
    return {name: getattr(record, name) for name in names}


def copied(value: Any) -> Any:
    """Dictionaries and lists anew, all the way down, so that who changes them changes nobody else's."""
    kind = type(value)
    if kind is dict:
        return {name: copied(each) if type(each) in (dict, list) else each for name, each in value.items()}
    if kind is list:
        return [copied(each) if type(each) in (dict, list) else each for each in value]
    return value


def event_time(value: Any) -> int:
    """Microseconds since 1970 of a datetime, ISO 8601 text, or milliseconds; without a zone it is UTC.

    >>> event_time(1_500), event_time("1970-01-01T00:00:01.5Z")
    (1500000, 1500000)
    """
    kind = type(value)
    us: int
    if kind is int:
        us = value * _MILLISECOND
    elif kind is str or isinstance(value, datetime):
        us = _from_datetime(value)
    elif isinstance(value, int | float) and kind is not bool and math.isfinite(value):
        us = round(value * _MILLISECOND)
    else:
        raise ValueError(
            f"{short(value)} is no event time; write a time, ISO 8601 text or milliseconds since 1970"
        )
    if EARLIEST <= us <= LATEST:
        return us
    raise ValueError(f"{short(value)} is not in the years 1 to 9999; a number is milliseconds since 1970")


def _from_datetime(value: str | datetime) -> int:
    try:
        found = datetime.fromisoformat(value) if isinstance(value, str) else value
        return to_us(found if found.utcoffset() is not None else found.replace(tzinfo=UTC))
    except (ValueError, OverflowError):
        raise ValueError(
            f"{short(value)} is no event time; write ISO 8601, such as 2026-01-31T12:00:00Z"
        ) from None


def moment(us: int) -> datetime:
    """The instant in UTC; at the ends of the calendar, the last one that it has."""
    try:
        return from_us(us)
    except ValueError:
        return from_us(min(max(us, _FIRST), _LAST))


_FIRST = to_us(datetime.min.replace(tzinfo=UTC))
_LAST = to_us(datetime.max.replace(tzinfo=UTC))


def hashable(value: Any) -> Hashable:
    """The value, which can be a key; a list or a dict cannot, and is refused with what to do instead."""
    try:
        hash(value)
    except TypeError:
        raise TypeError(
            f"{short(value)} cannot be compared with others quickly; take a text or number in it"
        ) from None
    return value  # type: ignore[no-any-return]


def short(value: object, most: int = 60) -> str:
    """A value for a message, cut where it is long."""
    text = repr(value)
    return text if len(text) <= most else f"{text[: most - 3]}..."
