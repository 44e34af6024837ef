"""How numbers are counted and added: the accumulators of count, sum, avg, stddev and percentile."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from typing import Any, TypeAlias

Order: TypeAlias = tuple[int, int]
"""Where an event stands: its time in microseconds, then its arrival."""

# Few enough to be small, enough for the work on them to be rare.
_MOST_PARTS = 16


def number_of(value: object) -> int | float | None:
    """The number that a value is, if it is one: the long way, for what is no plain int or float."""
    if isinstance(value, bool):
        return None
    if isinstance(value, int):
        return int(value)
    if isinstance(value, Decimal):
        return None if value.is_nan() else float(value)
    return float(value) if isinstance(value, float) and value == value else None


def as_float(number: float | Fraction) -> float:
    """The nearest float; infinite, where no float reaches."""
    try:
        return float(number)
    except OverflowError:
        return math.inf if number > 0 else -math.inf


def add_float(parts: list[float], value: float) -> None:
    """Add without rounding: the sum of ``parts`` is the exact one."""
    parts.append(value)
    if len(parts) > _MOST_PARTS:
        parts[:] = shortened(parts)


def shortened(parts: list[float]) -> list[float]:
    """Fewer parts with exactly the same sum: the sum rounded, what is missing rounded, and so on."""
    kept: list[float] = []
    rest = list(parts)
    while part := exact_sum(rest):
        kept.append(part)
        if not math.isfinite(part):
            return [part]
        rest.append(-part)
    return kept or [0.0]


def exact_sum(parts: list[float]) -> float:
    """The sum rounded once; infinite or NaN where that is what it comes to."""
    try:
        return math.fsum(parts)
    except ValueError:  # both infinities
        return math.nan
    except OverflowError:  # beyond all floats, at the end or on the way there
        return sum(parts)


def total_of(whole: int, parts: list[float]) -> int | float:
    """The sum of a whole number and of parts; a whole number, if there are none."""
    if not parts:
        return whole
    total = exact_sum(parts)
    if not whole or not math.isfinite(total):
        return total
    return as_float(sum(map(Fraction, parts), Fraction(whole)))


def itself(held: Any) -> Any:
    return held


def count_all(held: int, value: object, order: Order) -> int:  # noqa: ARG001 - every add has this form
    return held + 1


def count_add(held: int, value: object, order: Order) -> int:  # noqa: ARG001
    return held if value is None else held + 1


def sum_init() -> list[Any]:
    return [0, []]


def sum_add(held: list[Any], value: Any, order: Order) -> list[Any]:
    kind = type(value)
    if kind is int:
        held[0] += value
    elif kind is float:
        if value == value:
            add_float(held[1], value)
    elif (number := number_of(value)) is not None:
        return sum_add(held, number, order)
    return held


def sum_merge(held: list[Any], other: list[Any]) -> list[Any]:
    held[0] += other[0]
    for part in other[1]:
        add_float(held[1], part)
    return held


def sum_finish(held: list[Any]) -> int | float:
    return total_of(held[0], held[1])


def avg_init() -> list[Any]:
    return [0, [], 0]


def avg_add(held: list[Any], value: Any, order: Order) -> list[Any]:
    kind = type(value)
    if kind is int:
        held[0] += value
        held[2] += 1
    elif kind is float:
        if value == value:
            add_float(held[1], value)
            held[2] += 1
    elif (number := number_of(value)) is not None:
        return avg_add(held, number, order)
    return held


def avg_merge(held: list[Any], other: list[Any]) -> list[Any]:
    held[2] += other[2]
    return sum_merge(held, other)


def avg_finish(held: list[Any]) -> float | None:
    total, n = total_of(held[0], held[1]), held[2]
    try:
        return total / n if n else None
    except OverflowError:
        return math.inf if total > 0 else -math.inf


def stddev_init() -> list[Any]:
    return [0, 0.0, 0.0]


def stddev_add(held: list[Any], value: Any, order: Order) -> list[Any]:  # noqa: ARG001
    if (number := number_of(value)) is None:
        return held
    x = as_float(number)
    n, mean, squares = held
    n += 1
    away = x - mean
    mean += away / n
    held[:] = n, mean, squares + away * (x - mean)
    return held


def stddev_merge(held: list[Any], other: list[Any]) -> list[Any]:
    n, mean, squares = held
    m, other_mean, other_squares = other
    if not n or not m:
        return held if n else other
    away = other_mean - mean
    share = m / (n + m)
    held[:] = n + m, mean + away * share, squares + other_squares + away * away * n * share
    return held


def stddev_finish(held: list[Any]) -> float | None:
    return math.sqrt(held[2] / held[0]) if held[0] else None


def float_add(held: list[float], value: object, order: Order) -> list[float]:  # noqa: ARG001
    if (number := number_of(value)) is not None:
        held.append(as_float(number))
    return held


@dataclass(frozen=True, slots=True)
class Percentile:
    p: float

    def __call__(self, held: list[float]) -> float | None:
        if not held:
            return None
        values = sorted(held)
        position = (len(values) - 1) * self.p
        low, high = math.floor(position), math.ceil(position)
        if low == high or values[low] == values[high]:
            return values[low]
        return (high - position) * values[low] + (position - low) * values[high]


@dataclass(frozen=True, slots=True)
class Times:
    number: float

    def __call__(self, held: int) -> float:
        return held * self.number


@dataclass(frozen=True, slots=True)
class WithoutOrder:
    """A user's ``add``, which has no use for the order."""

    add: Callable[[Any, Any], Any]

    def __call__(self, held: Any, value: Any, order: Order) -> Any:  # noqa: ARG002
        return self.add(held, value)
