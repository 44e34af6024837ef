"""The events that a stream processor keeps: the newest ones, found by time and by key without a search.

An entry is (time, arrival, event). Arrivals are numbered, so no two entries are equal, and entries sort by
time, then arrival.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import deque
from collections.abc import Iterator
from itertools import islice
from typing import TypeAlias

from queenstream.processor.events import Event

Entry: TypeAlias = tuple[int, int, Event]


class TimeIndex:
    """Entries by time. What comes in order costs nothing extra; what comes late is put in its place."""

    __slots__ = ("_entries", "_head")

    def __init__(self) -> None:
        self._entries: list[Entry] = []
        self._head = 0  # before it lie entries that were removed

    def __len__(self) -> int:
        return len(self._entries) - self._head

    def add(self, entry: Entry) -> None:
        """Put an entry in its place."""
        if not self._entries or self._entries[-1] < entry:
            self._entries.append(entry)
        else:
            insort(self._entries, entry, lo=self._head)

    def remove(self, entry: Entry) -> None:
        """Take out an entry, which is here."""
        at = bisect_left(self._entries, entry, lo=self._head)
        if at > self._head:
            del self._entries[at]
            return
        # The first one goes, nearly always. Moving all others down each time would cost their number.
        self._head += 1
        if self._head * 8 > len(self._entries):
            del self._entries[: self._head]
            self._head = 0

    def between(self, start: int | None, end: int | None) -> list[Entry]:
        """The entries in ``[start, end)``, by time, then arrival."""
        first = self._head if start is None else bisect_left(self._entries, (start,), lo=self._head)
        past = len(self._entries) if end is None else bisect_left(self._entries, (end,), lo=first)
        return self._entries[first:past]


class EventLog:
    """The last ``most`` events to arrive.

    ``evicted`` counts those that had to go, ``evicted_us`` is the latest of their times.
    """

    __slots__ = ("_arrivals", "_by_key", "_by_time", "_late", "_most", "_number", "evicted", "evicted_us")

    def __init__(self, most: int) -> None:
        self._most = most
        self._number = 0
        self._arrivals: deque[Entry] = deque()
        self._by_time = TimeIndex()
        self._by_key: dict[str | None, TimeIndex] = {}
        self._late: set[int] = set()
        self.evicted = 0
        self.evicted_us: int | None = None

    def __len__(self) -> int:
        return len(self._arrivals)

    def __iter__(self) -> Iterator[Event]:
        """In the order of arrival."""
        return (event for _, _, event in self._arrivals)

    def add(self, event: Event, *, late: bool) -> None:
        """Keep an event, and let the oldest go if there are too many. ``late``: no session is to have it."""
        entry = (event.us, self._number, event)
        if late:
            self._late.add(self._number)
        self._number += 1
        self._arrivals.append(entry)
        self._by_time.add(entry)
        lane = self._by_key.get(event.key)
        if lane is None:
            lane = self._by_key[event.key] = TimeIndex()
        lane.add(entry)
        if len(self._arrivals) > self._most:
            self._evict()

    def recent(self, count: int) -> list[Event]:
        """The last ``count`` to arrive, oldest first."""
        newest = [event for _, _, event in islice(reversed(self._arrivals), count)]
        newest.reverse()
        return newest

    def between(self, start: int | None, end: int | None) -> list[Event]:
        """The events in ``[start, end)``, by time, then arrival."""
        return [event for _, _, event in self._by_time.between(start, end)]

    def of_session(self, key: str | None, start: int, end: int) -> list[Event]:
        """Those of one key, without what was too late: a session may grow over its time afterwards."""
        lane = self._by_key.get(key)
        found = [] if lane is None else lane.between(start, end)
        return [event for _, number, event in found if number not in self._late]

    def forgive(self) -> None:
        """Nothing is late any more: there are other windows."""
        self._late.clear()

    def _evict(self) -> None:
        entry = self._arrivals.popleft()
        us, number, event = entry
        self._late.discard(number)
        self._by_time.remove(entry)
        lane = self._by_key[event.key]
        lane.remove(entry)
        if not lane:
            del self._by_key[event.key]
        self.evicted += 1
        self.evicted_us = us if self.evicted_us is None else max(us, self.evicted_us)
