"""Limits how fast one caller creates names: queues, partitions and groups.

A caller is the token's ``sub``, or the address where there is no token. The broker itself has no limit.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from queenstream.errors import QueueFull

MOST_CALLERS = 10_000  # remembered


class Quota:
    """A token bucket for each caller; it holds what one minute allows.

    >>> quota = Quota(2, monotonic=lambda: 0.0)
    >>> quota.take("ann", 2)
    >>> quota.take("ann", 1)
    Traceback (most recent call last):
    queenstream.errors.QueueFull: you create queues, partitions and groups faster than 2 a minute \
(max_new_names); nothing was stored. Try again in a moment, or raise that setting of the broker.
    """

    def __init__(self, per_minute: int, *, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._per_minute = per_minute
        self._monotonic = monotonic
        self._left: dict[str, tuple[float, float]] = {}  # of a caller, as of when

    def take(self, caller: str, count: int) -> None:
        """Count new names of a caller; QueueFull if the minute's are used up. 0 a minute: no limit."""
        if not caller or not count or not self._per_minute:
            return
        now = self._monotonic()
        left = self._refill(caller, now)
        if left <= 0:
            raise QueueFull(
                f"you create queues, partitions and groups faster than {self._per_minute} a minute "
                "(max_new_names); nothing was stored. Try again in a moment, or raise that setting of the "
                "broker."
            )
        # A request larger than what is left passes, and the next ones wait for it: none is refused for ever.
        self._left[caller] = left - count, now

    def _refill(self, caller: str, now: float) -> float:
        if caller not in self._left and len(self._left) >= MOST_CALLERS:
            self._left = {
                each: known for each, known in self._left.items() if now - known[1] < 60.0 or known[0] < 0
            }
        left, at = self._left.get(caller, (float(self._per_minute), now))
        return min(float(self._per_minute), left + (now - at) * self._per_minute / 60.0)
