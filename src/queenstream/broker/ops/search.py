"""Search for messages: from the newest back, in steps, until enough are found or enough was looked at.

Payloads are read here and not by the database: some are encrypted, and JSON that PostgreSQL does not take
must not end a search. Between steps the event loop has its turn.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime
from time import monotonic
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from queenstream.core import paths
from queenstream.errors import ConfigError, InvalidRequest, Unavailable

if TYPE_CHECKING:
    from queenstream.broker.app import Broker

MOST_ROWS = 50_000  # that one request looks at
MOST_SECONDS = 5.0
STEP_ROWS, MOST_STEP_ROWS = 1_000, 16_000  # the first step, and any: each is twice the one before
STEP_BYTES = 4 * 1024 * 1024
TURN_BYTES = 256 * 1024  # read before the event loop has its turn
MOST_SEARCHES = 2  # at a time
_END = 2**63 - 1

Test = Callable[[bytes], bool]
Place = tuple[int, int]  # partition, message


@dataclass(frozen=True)
class Wanted:
    """What is searched for: where, when, and what ``test`` (None: everything) says of the payload."""

    queue: int
    partition: str | None = None
    prefix: str | None = None
    start: datetime | None = None
    end: datetime | None = None
    test: Test | None = None


@dataclass
class Findings:
    """``next``: where to go on; None: everything was looked at."""

    places: list[Place] = field(default_factory=list)
    scanned: int = 0
    stopped: Literal["rows", "time"] | None = None
    next: int | None = None


def payload_test(path: str | None, value: str | None, contains: str | None) -> Test | None:
    """Whether a payload fits; None: nothing was said of it.

    >>> test = payload_test("data.user.id", "7", None)
    >>> test(b'{"user": {"id": 7}}'), test(b'{"user": {"id": "7"}}'), test(b'{"user": 7}')
    (True, True, False)
    """
    if path is None and value is not None:
        raise InvalidRequest("a value is that of a field: name it with path, such as data.user.id")
    if path is None and contains is None:
        return None
    piece = None if contains is None else contains.encode()
    fits = None if path is None else _field_test(path, value)

    def test(payload: bytes) -> bool:
        return (piece is None or piece in payload) and (fits is None or fits(payload))

    return test


def _field_test(path: str, value: str | None) -> Test:
    try:
        read = paths.getter(paths.strip(path))
    except ConfigError as error:
        raise InvalidRequest(f"path: {error}") from None
    wanted = [] if value is None else [value, *_as_json(value)]

    def test(payload: bytes) -> bool:
        try:
            found = read(msgspec.json.decode(payload))
        except (msgspec.DecodeError, RecursionError):
            return False
        if value is None:
            return found is not None
        return any((type(found) is type(each) and found == each) or _same(found, each) for each in wanted)

    return test


def _as_json(value: str) -> list[Any]:
    try:
        return [msgspec.json.decode(value)]
    except (msgspec.DecodeError, RecursionError):
        return []


def _same(found: Any, wanted: Any) -> bool:
    """Whether two numbers are the same; true is none, though Python says so."""
    numbers = isinstance(found, int | float) and isinstance(wanted, int | float)
    return numbers and not isinstance(found, bool) and not isinstance(wanted, bool) and found == wanted


class Searches:
    """The searches of one broker, few at a time: each has a database connection, which others need too."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._turns = asyncio.Semaphore(MOST_SEARCHES)

    async def run(self, wanted: Wanted, before: int | None, limit: int) -> Findings:
        """Look from ``before`` (None: the newest) back."""
        until = monotonic() + MOST_SECONDS
        found = Findings(next=_END if before is None else before)
        try:
            async with asyncio.timeout(MOST_SECONDS):
                await self._turns.acquire()
        except TimeoutError:
            raise Unavailable("too many searches are under way; try again in a moment") from None
        try:
            while not self._enough(found, until, limit):
                await self._step(found, wanted, until, limit)
        finally:
            self._turns.release()
        if found.next == _END:
            found.next = None
        return found

    def _enough(self, found: Findings, until: float, limit: int) -> bool:
        if found.next is None or found.stopped or len(found.places) >= limit:
            return True
        if found.scanned >= MOST_ROWS:
            found.stopped = "rows"
        elif monotonic() >= until:
            found.stopped = "time"
        return found.stopped is not None

    async def _step(self, found: Findings, wanted: Wanted, until: float, limit: int) -> None:
        # A step costs by partitions before it costs by rows: larger ones, where many are needed.
        step = min(max(STEP_ROWS, found.scanned), MOST_STEP_ROWS, MOST_ROWS - found.scanned)
        rows_wanted = step if wanted.test else limit - len(found.places)
        rows = await self._broker.database.bounded(
            max(0.05, until - monotonic()), "search_messages", wanted.queue, wanted.partition, wanted.prefix,
            wanted.start, wanted.end, found.next, rows_wanted, STEP_BYTES,
        )  # fmt: skip
        if rows is None:
            found.stopped = "time"
            return
        if not rows:
            found.next = None
            return
        seen = 0
        for row in rows:
            found.scanned += 1
            found.next = row["id"]
            if wanted.test is None or self._fits(wanted.test, row):
                found.places.append((row["partition_id"], row["id"]))
                if len(found.places) >= limit:
                    return
            seen += len(row["payload"])
            if seen > TURN_BYTES:
                await asyncio.sleep(0)
                seen = 0

    def _fits(self, test: Test, row: Any) -> bool:
        payload = self._broker.reveal(
            row["key_id"], row["payload"], row["queue"], row["partition"], row["transaction_id"]
        )
        return payload is not None and test(payload)
