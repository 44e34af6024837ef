"""Which windows of a stream processor are there, and how many events each has had. Events are kept elsewhere.

The arithmetic is that of ``core.windows``. A window stays until it is cleared, or until there are too
many: then the one that ended first goes. From then on ``closed`` says up to which end windows are gone, and
an event that only lies in such windows is late.
"""

from __future__ import annotations

import heapq
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass
from operator import attrgetter
from typing import TypeAlias

from queenstream.core.windows import Late, Session, Sliding, Span, Tumbling, place
from queenstream.processor.metrics import Tally

Definition: TypeAlias = Tumbling | Sliding | Session

_start = attrgetter("span.start")


@dataclass(slots=True, eq=False)
class Kept:
    """A window that is there. ``whole``: no event of it was lost before it was made."""

    key: str | None
    span: Span
    whole: bool = True
    total: int = 0
    gone: bool = False


class WindowTable:
    """The windows of one definition, at most ``most``.

    ``lost_us``: events up to this time may have gone before the table was made, so that the windows which
    start no later are not whole.
    """

    __slots__ = (
        "_by_end",
        "_count",
        "_lanes",
        "_lost_us",
        "_most",
        "_number",
        "_on_grid",
        "_tally",
        "closed",
        "definition",
    )

    def __init__(self, definition: Definition, most: int, tally: Tally, lost_us: int | None = None) -> None:
        self.definition = definition
        self.closed: int | None = None
        self._tally = tally
        self._most = most
        self._lost_us = lost_us
        self._count = 0
        self._number = 0
        self._on_grid: dict[Span, Kept] = {}
        self._lanes: dict[str | None, list[Kept]] = {}
        # By the end each had when it was put in: a session that has grown since is put in again when its
        # turn comes, and one that was taken in by another is passed over.
        self._by_end: list[tuple[int, int, Kept]] = []

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[Kept]:
        """By start, end and key."""
        kept = (window for _, _, window in self._by_end if not window.gone)
        return iter(sorted(kept, key=lambda window: (window.span, window.key or "")))

    def add(self, key: str | None, time: int) -> Late | None:
        """Place an event; if none of its windows takes it any more, how late it is."""
        if isinstance(self.definition, Session):
            late = self._add_to_session(self.definition, key, time)
        else:
            late = self._add_to_grid(self.definition, time)
        while self._count > self._most:
            oldest = self._oldest()
            self._close(oldest)
            self._remove(oldest)
            self._tally.windows_evicted += 1
        return late

    def clear(self, now: int) -> int:
        """Remove the windows that have ended by ``now``; how many they were."""
        removed = 0
        while self._count and (oldest := self._oldest()).span.end <= now:
            self._remove(oldest)
            removed += 1
        self.closed = now if self.closed is None else max(now, self.closed)
        self._tally.windows_cleared += removed
        return removed

    def _add_to_grid(self, definition: Tumbling | Sliding, time: int) -> Late | None:
        placed = place(definition.assign(time), time, self.closed)
        if isinstance(placed, Late):
            return placed
        for span in placed:
            window = self._on_grid.get(span)
            if window is None:
                window = self._on_grid[span] = self._new(None, span)
            window.total += 1
        return None

    def _add_to_session(self, definition: Session, key: str | None, time: int) -> Late | None:
        lane = self._lanes.get(key, [])
        # A key's sessions do not overlap and last a gap at least, so an event can touch two of them: the
        # last that starts by its time, and the next.
        at = bisect_right(lane, time, key=_start)
        first = max(at - 1, 0)
        near = lane[first : at + 1]
        span, taken = definition.add([window.span for window in near], time)
        if not taken:
            placed = place([span], time, self.closed)
            if isinstance(placed, Late):
                return placed
            window = self._new(key, span)
            lane.insert(at, window)
            self._lanes[key] = lane
        else:
            window, *others = (each for each in near if each.span in taken)
            window.span = span
            for other in others:
                window.total += other.total
                window.whole = window.whole and other.whole
                self._remove(other)
        window.total += 1
        return None

    def _new(self, key: str | None, span: Span) -> Kept:
        window = Kept(key, span, whole=self._lost_us is None or self._lost_us < span.start)
        self._number += 1
        self._count += 1
        self._tally.windows_created += 1
        if len(self._by_end) > 2 * self._count + 16:
            self._by_end = [entry for entry in self._by_end if not entry[2].gone]
            heapq.heapify(self._by_end)
        heapq.heappush(self._by_end, (span.end, self._number, window))
        return window

    def _oldest(self) -> Kept:
        """The window that ended first; there is one."""
        while True:
            end, number, window = self._by_end[0]
            if window.gone:
                heapq.heappop(self._by_end)
            elif window.span.end != end:
                heapq.heapreplace(self._by_end, (window.span.end, number, window))
            else:
                return window

    def _close(self, window: Kept) -> None:
        self.closed = window.span.end if self.closed is None else max(self.closed, window.span.end)

    def _remove(self, window: Kept) -> None:
        window.gone = True
        self._count -= 1
        if not isinstance(self.definition, Session):
            del self._on_grid[window.span]
            return
        lane = self._lanes[window.key]
        del lane[bisect_right(lane, window.span.start, key=_start) - 1]
        if not lane:
            del self._lanes[window.key]
