"""How large the next batch of a query may be, by how long the last ones took."""

from __future__ import annotations

import time
from collections.abc import Callable

SHORTEST_SECONDS, LONGEST_SECONDS = 2.0, 8.0
"""A full batch that takes less time is followed by a larger one, one that takes more by a smaller one."""

MOST_TIMES = 8
"""How many times as large as at first a batch may get."""


class BatchSize:
    """By what number to multiply the limits of the first batch.

    A source asks for it when it plans a batch, and then says whether the batch is as large as the limits
    allow. Spark plans a batch when the one before it is done, so the time in between is what that one took.

    >>> times = iter([0.0, 1.0, 2.0])
    >>> size = BatchSize(clock=lambda: next(times))
    >>> size.next_times(), size.planned(full=True)
    (1, None)
    >>> size.next_times(), size.planned(full=True)
    (2, None)
    >>> size.next_times()
    4
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._times = 1
        self._began: float | None = None  # when the last batch was planned, if it was full

    def next_times(self) -> int:
        """The number for the batch that is planned now."""
        now = self._clock()
        if self._began is not None:
            taken = now - self._began
            if taken < SHORTEST_SECONDS:
                self._times = min(MOST_TIMES, self._times * 2)
            elif taken > LONGEST_SECONDS:
                self._times = max(1, self._times // 2)
        self._began = now
        return self._times

    def planned(self, *, full: bool) -> None:
        """A batch was planned. One that is not full says nothing about how long a full one takes."""
        if not full:
            self._began = None
