"""Reading messages from the list of a queue, in order and in pieces, as ``queen tail`` does.

The broker lists messages newest first, a page at a time, and can skip only so many. So long spans are read
from one page to the next by time: backwards from the end, or forwards in slices that fit a page. Messages are
told apart by their ids. One that commits late has a time before that of others that are there already: who
follows looks back a little each time.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta
from typing import TYPE_CHECKING

from queenstream.cli.support.output import note

if TYPE_CHECKING:
    from queenstream.client._base.responses.history import MessageInfo

PAGE = 1000  # what a broker gives at most
MOST_OFFSET = 10_000  # what it skips at most
LOOK_SECONDS = 0.3  # between looks for new messages
LOOK_BACK = timedelta(seconds=5)  # how late a commit may be to be seen by who follows
LOOK_BACK_BUSY = timedelta(milliseconds=500)  # the same where 5 s hold too much
SKEW = timedelta(milliseconds=100)  # by how much the orders of ids and of times may differ
TICK = timedelta(microseconds=1)
LONGEST_SLICE = timedelta(days=365)

Fits = Callable[["MessageInfo"], bool]
# A page of messages of a span of time, both ends included, the newest first: start, end, how many to skip.
Fetch = Callable[[datetime | None, datetime | None, int], list["MessageInfo"]]


def last(fetch: Fetch, fits: Fits, most: int, end: datetime) -> Iterator[MessageInfo]:
    """The last messages up to ``end`` that fit, at most so many, in order."""
    found: deque[MessageInfo] = deque()
    for message in backwards(fetch, None, end) if most else ():
        if fits(message):
            found.appendleft(message)
            if len(found) == most:
                break
    return iter(found)


def forwards(fetch: Fetch, start: datetime, end: datetime) -> Iterator[MessageInfo]:
    """All messages of a span, in order; never more than a slice of them is in memory."""
    length = timedelta(seconds=1)
    while start <= end:
        until = min(start + length, end + TICK)
        page = fetch(start, until - TICK, 0)
        if len(page) >= PAGE and length > SKEW:
            length /= 2
            continue
        if len(page) >= PAGE:  # very many at one time
            page = list(backwards(fetch, start, until - TICK))
        yield from sorted(page, key=_place)
        start = until
        if len(page) < PAGE // 4:
            length = min(length * 2, LONGEST_SLICE)


def backwards(fetch: Fetch, start: datetime | None, end: datetime | None) -> Iterator[MessageInfo]:
    """All messages of a span, the newest first."""
    offset = 0
    seen: dict[str, datetime] = {}
    while True:
        page = fetch(start, end, offset)
        yield from (message for message in page if message.id not in seen)
        if len(page) < PAGE:
            return
        seen.update((message.id, message.created_at) for message in page)
        offset += PAGE
        if offset > MOST_OFFSET:
            end, offset = _earlier(page[-1].created_at, end), 0
            seen = {id: at for id, at in seen.items() if at <= end}


def _earlier(oldest: datetime, end: datetime | None) -> datetime:
    """Where to go on after so many pages: earlier each time, and after what was read."""
    if end is None or oldest + SKEW < end:
        return oldest + SKEW
    if oldest < end:
        return oldest
    note(f"more than {MOST_OFFSET + PAGE:,} messages were stored at {oldest.isoformat()}; some are left out")
    return oldest - TICK


class Follower:
    """The messages that come after ``now``. Make it before reading what is there, and tell it what was read.

    >>> follower = Follower(fetch, now)                      # doctest: +SKIP
    >>> for message in forwards(fetch, start, now):          # doctest: +SKIP
    ...     follower.known(message)
    >>> for message in follower.coming():                    # doctest: +SKIP
    ...     print(message.data)
    """

    def __init__(self, fetch: Fetch, now: datetime) -> None:
        self._fetch = fetch
        self._newest = now
        self._look_back = LOOK_BACK
        self._known: dict[str, datetime] = {}
        for message in backwards(fetch, now - LOOK_BACK, now):
            self.known(message)

    def known(self, message: MessageInfo) -> None:
        """This one is no news."""
        if message.created_at >= self._newest - LOOK_BACK:
            self._known[message.id] = message.created_at

    def coming(self) -> Iterator[MessageInfo]:
        """For ever, each message once, those of one look in order."""
        while True:
            began = time.monotonic()
            yield from self.look()
            # A queue that is slow to list is not asked all the time.
            time.sleep(max(LOOK_SECONDS, time.monotonic() - began))

    def look(self) -> list[MessageInfo]:
        """What has come since the last look."""
        span = backwards(self._fetch, self._newest - self._look_back, None)
        fresh = sorted((message for message in span if message.id not in self._known), key=_place)
        for message in fresh:
            self._known[message.id] = message.created_at
        if fresh:
            self._newest = max(self._newest, fresh[-1].created_at)
        self._look_back = LOOK_BACK_BUSY if len(fresh) >= PAGE else LOOK_BACK
        bound = self._newest - LOOK_BACK
        self._known = {id: at for id, at in self._known.items() if at >= bound}
        return fresh


def _place(message: MessageInfo) -> tuple[datetime, int]:
    return message.created_at, int(message.id)
