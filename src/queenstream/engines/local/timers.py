"""What is to happen at a time, in order of time: timers, windows that close, records that expire.

Most of it lies far ahead, where order does not matter yet: it waits in buckets of time, and only the bucket
that has come is kept in order. So a million waiting things cost no more for each than a thousand.
"""

from __future__ import annotations

import heapq
from typing import Generic, TypeVar

T = TypeVar("T")

_BUCKETS = 16  # so many to the length that things usually wait


class Due(Generic[T]):
    """Things by time. ``usual_us`` is about how far ahead they are added.

    >>> due = Due[str](usual_us=100)
    >>> due.add(30, "later"), due.add(20, "soon")
    (None, None)
    >>> due.pop(until=20), due.pop(until=20), len(due)
    ((20, 'soon'), None, 1)
    """

    __slots__ = ("_added", "_ahead", "_numbers", "_present", "_reached", "_since", "_width")

    def __init__(self, usual_us: int) -> None:
        self._width = max(1, usual_us // _BUCKETS)
        self._ahead: dict[int, list[tuple[int, int, T]]] = {}
        self._numbers: list[int] = []
        self._present: list[tuple[int, int, T]] = []  # sorted, the earliest last
        self._since: list[tuple[int, int, T]] = []  # a heap: what was added after the present was sorted
        self._reached: int | None = None
        self._added = 0

    def __len__(self) -> int:
        return len(self._present) + len(self._since) + sum(map(len, self._ahead.values()))

    def add(self, time: int, item: T) -> None:
        """``item`` is to happen at ``time``; of equal times, what was added first comes first."""
        self._added = added = self._added + 1
        number = time // self._width
        if self._reached is not None and number <= self._reached:
            heapq.heappush(self._since, (time, added, item))
        elif number in self._ahead:
            self._ahead[number].append((time, added, item))
        else:
            self._ahead[number] = [(time, added, item)]
            heapq.heappush(self._numbers, number)

    def pop(self, until: int) -> tuple[int, T] | None:
        """The earliest of all, if it is to happen at ``until`` or before."""
        present, since = self._present, self._since
        if not present and not since:
            if not self._numbers or self._numbers[0] * self._width > until:
                return None
            self._reached = heapq.heappop(self._numbers)
            self._present = present = self._ahead.pop(self._reached)
            present.sort(reverse=True)
        newer = bool(since) and (not present or since[0] < present[-1])
        time, _, item = since[0] if newer else present[-1]
        if time > until:
            return None
        if newer:
            heapq.heappop(since)
        else:
            present.pop()
        return time, item
