"""Sums over the last ten minutes that never drift: values go in and out, and nothing is ever subtracted.

A queue of two stacks. New values go on the back with a running sum; old ones leave the front, where each
entry already has the sum of itself and all that came after it up to the turn. When the front is empty, the
back is turned over. So a value costs the same however long the span is, and a sum is always a sum of what
is there.

The state (``Held``) is made of lists and numbers only: a checkpoint keeps it as it is.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, TypeAlias, TypeVar

Held: TypeAlias = dict[str, Any]
"""What is kept of one key: plain values."""

S = TypeVar("S", bound=tuple[float, ...])

Moments: TypeAlias = tuple[float, float, float]
"""How many, their mean, and the sum of their squared distances from it."""

Totals: TypeAlias = tuple[float, float, float, float]
"""How many, their sum, the least and the greatest; of none, the last two mean nothing."""


class Rolling(Generic[S]):
    """What values of a span come to. ``of`` one value, and ``merged`` of two parts, the older one first."""

    def __init__(self, nothing: S, of: Callable[[float], S], merged: Callable[[S, S], S]) -> None:
        self._nothing = nothing
        self._of = of
        self._merged = merged

    def begin(self) -> Held:
        """No values yet."""
        return {"front": [], "back": [], "sum": list(self._nothing)}

    def add(self, held: Held, at: int, value: float) -> None:
        """A value; they come in the order of time."""
        held["back"].append([at, value])
        held["sum"] = list(self._merged(held["sum"], self._of(value)))

    def expire(self, held: Held, until: int) -> None:
        """Values at ``until`` or before are gone."""
        front, back = held["front"], held["back"]
        if back and back[-1][0] <= until:
            front.clear()
            back.clear()
            held["sum"] = list(self._nothing)
            return
        while front and front[-1][0] <= until:
            front.pop()
        if not front and back and back[0][0] <= until:
            self._turn(held)
            while front[-1][0] <= until:
                front.pop()

    def _turn(self, held: Held) -> None:
        front, back = held["front"], held["back"]
        total = self._nothing
        for at, value in reversed(back):
            total = self._merged(self._of(value), total)
            front.append([at, *total])
        back.clear()
        held["sum"] = list(self._nothing)

    def total(self, held: Held) -> S:
        """What the values come to."""
        front = held["front"]
        after: S = held["sum"]
        if not front:
            return after
        _, *before = front[-1]
        return self._merged(before, after)

    def oldest(self, held: Held) -> int | None:
        """The time of the first value that is there."""
        if held["front"]:
            return int(held["front"][-1][0])
        return int(held["back"][0][0]) if held["back"] else None


def _merged_moments(left: Moments, right: Moments) -> Moments:
    n, mean, square = left
    m, other, more = right
    if not n:
        return m, other, more
    if not m:
        return n, mean, square
    both = n + m
    apart = other - mean
    return both, mean + apart * (m / both), square + more + apart * apart * (n * m / both)


def _merged_totals(left: Totals, right: Totals) -> Totals:
    n, total, low, high = left
    m, more, lower, higher = right
    if not n:
        return m, more, lower, higher
    if not m:
        return n, total, low, high
    return n + m, total + more, min(low, lower), max(high, higher)


MOMENTS: Rolling[Moments] = Rolling((0.0, 0.0, 0.0), lambda value: (1.0, value, 0.0), _merged_moments)
TOTALS: Rolling[Totals] = Rolling(
    (0.0, 0.0, 0.0, 0.0), lambda value: (1.0, value, value, value), _merged_totals
)
