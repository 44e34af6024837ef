"""Sums over the last ten minutes that never drift: values go in and out, and nothing is ever subtracted.

A queue of two stacks. New values go on the back with a running sum; old ones leave the front, where each
entry already has the sum of itself and all that came after it up to the turn. When the front is empty, the
back is turned over. So a value costs the same however long the span is, and a sum is always a sum of what
is there.

The state (``Held``) is made of lists and numbers only: a checkpoint keeps it as it is.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

Held: TypeAlias = dict[str, Any]
"""What is kept of one key: plain values."""

Total: TypeAlias = list[float]
"""What values come to, in several numbers; the first says how many there are."""


class Rolling:
    """What values of a span come to, in ``size`` numbers.

    ``added``: with one value more. ``merged``: of two parts together. Both give new lists.
    """

    def __init__(
        self, size: int, added: Callable[[Total, float], Total], merged: Callable[[Total, Total], Total]
    ) -> None:
        self._size = size
        self._added = added
        self._merged = merged

    def begin(self) -> Held:
        """No values yet."""
        return {"front": [], "back": [], "sum": self._nothing()}

    def add(self, held: Held, at: int, value: float) -> None:
        """A value; they come in the order of time."""
        held["back"].append([at, value])
        held["sum"] = self._added(held["sum"], value)

    def expire(self, held: Held, until: int) -> None:
        """Values at ``until`` or before are gone."""
        front, back = held["front"], held["back"]
        if front:
            if front[-1][0] > until:  # and so are all that came after it
                return
        elif not back or back[0][0] > until:
            return
        if back and back[-1][0] <= until:
            front.clear()
            back.clear()
            held["sum"] = self._nothing()
            return
        while front and front[-1][0] <= until:
            front.pop()
        if not front and back and back[0][0] <= until:
            self._turn(held)
            while front[-1][0] <= until:
                front.pop()

    def _turn(self, held: Held) -> None:
        front, back, added = held["front"], held["back"], self._added
        total = self._nothing()
        for at, value in reversed(back):
            total = added(total, value)
            front.append([at, *total])
        back.clear()
        held["sum"] = self._nothing()

    def _nothing(self) -> Total:
        return [0.0] * self._size

    def total(self, held: Held) -> Total:
        """What the values come to."""
        front = held["front"]
        after: Total = held["sum"]
        if not front:
            return after
        _, *before = front[-1]
        return self._merged(before, after)

    def oldest(self, held: Held) -> int | None:
        """The time of the first value that is there."""
        if held["front"]:
            return int(held["front"][-1][0])
        return int(held["back"][0][0]) if held["back"] else None


def _added_moment(total: Total, value: float) -> Total:
    n, mean, square = total
    more = n + 1.0
    apart = value - mean
    return [more, mean + apart / more, square + apart * apart * (n / more)]


def _merged_moments(left: Total, right: Total) -> Total:
    n, mean, square = left
    m, other, more = right
    if not n:
        return right
    if not m:
        return left
    both = n + m
    apart = other - mean
    return [both, mean + apart * (m / both), square + more + apart * apart * (n * m / both)]


def _added_total(total: Total, value: float) -> Total:
    n, so_far, low, high = total
    if not n:
        return [1.0, value, value, value]
    return [n + 1.0, so_far + value, value if value < low else low, value if value > high else high]


def _merged_totals(left: Total, right: Total) -> Total:
    n, total, low, high = left
    m, more, lower, higher = right
    if not n:
        return right
    if not m:
        return left
    return [n + m, total + more, min(low, lower), max(high, higher)]


MOMENTS = Rolling(3, _added_moment, _merged_moments)
"""How many, their mean, and the sum of their squared distances from it."""

TOTALS = Rolling(4, _added_total, _merged_totals)
"""How many, their sum, the least and the greatest; of none, the last two mean nothing."""
