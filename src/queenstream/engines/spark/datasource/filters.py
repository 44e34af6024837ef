"""Filters that PostgreSQL can answer: by partition, by time, by id.

>>> from pyspark.sql.datasource import EqualTo, StringContains
>>> pushed, left = split([EqualTo(("partition",), "ann"), StringContains(("trace_id",), "x")])
>>> pushed.partitions, left
(frozenset({'ann'}), [StringContains(attribute=('trace_id',), value='x')])
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from pyspark.sql.datasource import (
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    LessThan,
    LessThanOrEqual,
)

from queenstream.engines.spark.datasource.planner import to_us

# Never null: the filter that Spark puts beside each comparison is answered as well.
_NEVER_NULL = {"data", "id", "partition", "queue", "transaction_id", "created_at"}


@dataclass(frozen=True)
class Pushed:
    """What was understood; all of it must hold. Bounds are included."""

    first_id: int | None = None
    last_id: int | None = None
    first_us: int | None = None
    last_us: int | None = None
    partitions: frozenset[str] | None = None


def split(filters: Iterable[Filter]) -> tuple[Pushed, list[Filter]]:
    """What PostgreSQL does, and what is left to Spark."""
    pushed, left = Pushed(), []
    for one in filters:
        after = _add(pushed, one)
        if after is None:
            left.append(one)
        else:
            pushed = after
    return pushed, left


def _add(pushed: Pushed, one: Filter) -> Pushed | None:
    """With one more; None if it is not understood."""
    path: tuple[str, ...] = getattr(one, "attribute", ())
    if len(path) != 1:
        return None
    column = path[0]
    if isinstance(one, IsNotNull):
        return pushed if column in _NEVER_NULL else None
    if column == "partition":
        return _partition(pushed, one)
    if column == "id":
        low, high = _bounds(one, int)
        if low is None and high is None:
            return None
        return replace(pushed, first_id=_higher(pushed.first_id, low), last_id=_lower(pushed.last_id, high))
    if column == "created_at":
        low, high = _bounds(one, datetime)
        if low is None and high is None:
            return None
        return replace(pushed, first_us=_higher(pushed.first_us, low), last_us=_lower(pushed.last_us, high))
    return None


def _partition(pushed: Pushed, one: Filter) -> Pushed | None:
    if isinstance(one, EqualTo):
        names = frozenset({one.value})
    elif isinstance(one, In):
        names = frozenset(value for value in one.value if value is not None)
    else:
        return None
    return replace(pushed, partitions=names if pushed.partitions is None else pushed.partitions & names)


def _bounds(one: Filter, kind: type) -> tuple[int | None, int | None]:
    """The lowest and the highest value that a comparison lets through, in whole numbers."""
    value: Any = getattr(one, "value", None)
    if not isinstance(value, kind) or isinstance(value, bool):
        return None, None
    if isinstance(value, datetime):
        if value.tzinfo is None:
            return None, None
        value = to_us(value)
    number = int(value)
    match one:
        case EqualTo():
            return number, number
        case GreaterThan():
            return number + 1, None
        case GreaterThanOrEqual():
            return number, None
        case LessThan():
            return None, number - 1
        case LessThanOrEqual():
            return None, number
    return None, None


def _higher(one: int | None, other: int | None) -> int | None:
    return max((each for each in (one, other) if each is not None), default=None)


def _lower(one: int | None, other: int | None) -> int | None:
    return min((each for each in (one, other) if each is not None), default=None)
