"""Push: look names up, lay messages out as columns, store a batch of requests in one statement.

What runs for every message is kept to comprehensions over columns; see docs/performance.md.
"""

from __future__ import annotations

import logging
import string
import uuid
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from datetime import datetime
from itertools import accumulate
from operator import add
from time import perf_counter
from typing import Any, cast

import asyncpg

from queenstream.broker.messaging import pop
from queenstream.broker.messaging.batcher import ROW_BYTES, Batcher
from queenstream.broker.messaging.catalog import Directory, Queue
from queenstream.broker.messaging.encryption import Keyring, message_identity
from queenstream.broker.messaging.pop import Popper, Ride
from queenstream.broker.messaging.sequence_cache import Tails
from queenstream.broker.ops.metrics import Metrics
from queenstream.broker.schemas.messages import PushItem, PushResult
from queenstream.broker.storage import sql
from queenstream.broker.storage.database import Database
from queenstream.broker.streams.model import refuse_own
from queenstream.errors import QueueFull, RequestError, TooLarge, Unavailable

log = logging.getLogger(__name__)

ATTEMPTS = 8

_PUSH = sql.bind(
    "queen.push($1::text::int[], $2::text::int[], $3::text::int[], $4::text::bigint[], $5::text::int[], "
    "$6::text::int[], $7::text::text[], $8, $9::text::int[], $10, $11, $12, $13, $14, $15, "
    "$16::text::bigint[], $17, $18, $19::text::timestamptz[])"
)
_POP = sql.bind(
    "queen.pop(case when pushed.status = 'ok' then $20::int[] else '{}' end, "
    "$21, $22, $23, $24, $25, $26, true, $18)"
)
COLUMNS = ("status", "base", "owned", "tails", "stored_at", "duplicate_rows", "duplicate_ids")
STATEMENT = f"select {', '.join(COLUMNS)} from {_PUSH}"  # noqa: S608
# With a ride: what was popped, one row each, and on the last row what became of the push.
_LAST = ", ".join(f"case when request <= 0 then {column} end as {column}" for column in COLUMNS)
RIDE_STATEMENT = (
    f"select {pop.COLUMNS}, {_LAST} from {_PUSH} pushed "  # noqa: S608
    f"cross join lateral {_POP} popped"
)
STRIPES = 1024  # of a partition's lock; sql/functions/push.sql
RIDE_ROWS = 100  # a larger batch takes no pops along: who waits would wait for all of it
LOOK = 50  # batches that look for repeated transactions first, after one that had some
_PLAIN = (string.ascii_letters + string.digits + "_.:,-").encode()
Fetch = Callable[..., Awaitable[list[Any]]]
Done = Callable[[list[PushResult] | BaseException], None]


class Rows:
    """The messages of one request."""

    __slots__ = ("items", "keys", "partitions", "payloads", "queues", "repeats", "subject")

    def __init__(
        self, items: Sequence[PushItem], subject: str | None, queues: dict[str, Queue], partitions: list[int]
    ) -> None:
        self.items = items
        self.subject = subject
        self.queues = queues
        self.partitions = partitions
        self.repeats = False  # some were stored already
        self.keys: list[str | None] | None = None  # when something is encrypted
        self.payloads: list[Any] | None = None


class StaleQueue(Exception):
    """A queue changed since its rows were made."""


class _Split(Exception):
    """A queue with maxSize: its requests must be stored one by one."""


class Pusher:
    """Stores messages, and tells ``stored`` which partitions of which queues have new ones.

    ``alone`` says whether no other broker is there.
    """

    def __init__(
        self,
        database: Database,
        directory: Directory,
        keyring: Keyring | None,
        metrics: Metrics,
        popper: Popper,
        stored: Callable[[dict[str, set[str]], Ride | None], None],
        alone: Callable[[], bool],
        *,
        max_batch: int = 10_000,
    ) -> None:
        self._database = database
        self._directory = directory
        self._keyring = keyring
        self._metrics = metrics
        self._popper = popper
        self._stored = stored
        self._alone = alone
        self._max_batch = max_batch
        self._look = 0
        self._tails = Tails()
        self._batcher: Batcher[Rows, list[PushResult]] = Batcher(self._run)
        self.drain = self._batcher.drain

    def submit(self, items: Sequence[PushItem], subject: str | None, size: int, done: Done) -> bool:
        """Store the items of a request of ``size`` bytes, all or none; ``done`` is called after the commit.

        False, and nothing is done, if a queue or partition is not known yet: then await ``push``.
        """
        rows = self._rows(items, subject)
        if rows is None:
            return False
        refuse_own(rows.queues)
        self._batcher.submit(rows, size + len(items) * ROW_BYTES, done)
        return True

    async def push(
        self, items: Sequence[PushItem], subject: str | None, size: int = 0, caller: str = ""
    ) -> list[PushResult]:
        """Store the items of a request, whose queues and partitions are made if they are missing."""
        refuse_own({item.queue for item in items})
        rows = await self.prepare(items, subject, caller)
        return await self._batcher.ask(rows, size + len(items) * ROW_BYTES)

    def forget(self, rows: Rows) -> None:
        """What is known of these queues is old: look again."""
        for name in rows.queues:
            self._directory.drop(name)

    async def prepare(self, items: Sequence[PushItem], subject: str | None, caller: str = "") -> Rows:
        """Look up queues and partitions, and make them, within the limits of who calls."""
        for _ in range(ATTEMPTS):
            rows = self._rows(items, subject)
            if rows is not None:
                return rows
            for name in {item.queue for item in items}:
                partitions = sorted({item.partition for item in items if item.queue == name})
                await self._directory.ensure(name, partitions, caller)
        raise Unavailable("the queue keeps changing; try again")

    def _rows(self, items: Sequence[PushItem], subject: str | None) -> Rows | None:
        """The rows of a request, if all the names in it are known."""
        if len(items) > self._max_batch:
            raise TooLarge(f"{len(items)} items are too many; send at most {self._max_batch} in one request")
        queues: dict[str, Queue] = {}
        partitions: list[int] = []
        encrypted = False
        for item in items:
            queue = queues.get(item.queue)
            if queue is None:
                queue = self._directory.cached(item.queue)
                if queue is None:
                    return None
                queues[item.queue] = queue
                encrypted = encrypted or queue.options.encryption_enabled
            partition = queue.partitions.get(item.partition)
            if partition is None:
                return None
            partitions.append(partition)
            if item.transaction_id is None:
                item.transaction_id = str(uuid.uuid4())
        rows = Rows(items, subject, queues, partitions)
        if encrypted:
            self._encrypt(rows)
        return rows

    def _encrypt(self, rows: Rows) -> None:
        rows.keys = [None] * len(rows.items)
        rows.payloads = [item.payload for item in rows.items]
        for at, item in enumerate(rows.items):
            if rows.queues[item.queue].options.encryption_enabled:
                if self._keyring is None:
                    raise Unavailable(
                        f"queue {item.queue} is encrypted, this broker has no key; set QUEEN_ENCRYPTION_KEYS"
                    )
                identity = message_identity(item.queue, item.partition, cast(str, item.transaction_id))
                rows.keys[at], rows.payloads[at] = self._keyring.encrypt(bytes(item.payload), identity)

    async def _run(self, batch: list[Rows], alone: bool) -> list[list[PushResult] | BaseException]:
        started = perf_counter()
        riding = True
        for _ in range(ATTEMPTS):
            ride = self._board(batch) if riding else None
            try:
                results = await self.store(batch, self._database.hot, alone=alone, ride=ride)
                break
            except StaleQueue:
                for rows in batch:
                    self.forget(rows)
                try:
                    batch = [await self.prepare(rows.items, rows.subject) for rows in batch]
                except RequestError:
                    return [await self._separately(rows) for rows in batch]
            except _Split:
                return [await self._separately(rows) for rows in batch]
            except asyncpg.PostgresError:
                if ride is None:
                    raise
                log.exception("a push with waiting pops failed; trying without them")
                riding = False
            finally:
                if ride is not None:
                    self._popper.alight(ride)
        else:
            raise Unavailable("the queue keeps changing; try again")
        self._metrics.batch("push", sum([len(rows.items) for rows in batch]), perf_counter() - started)
        self.announce(batch, results, ride)
        return [*results]

    def _board(self, batch: list[Rows]) -> Ride | None:
        """Who waits for messages of the queue, if the batch is small and for one queue."""
        if sum([len(rows.items) for rows in batch]) > RIDE_ROWS:
            return None
        names = {name for rows in batch for name in rows.queues}
        return self._popper.board(names.pop()) if len(names) == 1 else None

    async def _separately(self, rows: Rows) -> list[PushResult] | BaseException:
        try:
            rows = await self.prepare(rows.items, rows.subject)
            return (await self._run([rows], False))[0]
        except Exception as error:  # noqa: BLE001 - it is this request's answer
            return error

    def announce(
        self, batch: Sequence[Rows], results: Sequence[Sequence[PushResult]], ride: Ride | None = None
    ) -> None:
        """It is committed: count it, and wake who waits for it."""
        touched: dict[str, set[str]] = {}
        counts: dict[str, int] = {}
        for rows in batch:
            for item in rows.items:
                known = touched.get(item.queue)
                if known is None:
                    known = touched[item.queue] = set()
                    counts[item.queue] = 0
                known.add(item.partition)
                counts[item.queue] += 1
        repeats = Counter(
            answer.queueName
            for rows, answers in zip(batch, results, strict=True)
            if rows.repeats
            for answer in answers
            if answer.status == "duplicate"
        )
        for name, count in counts.items():
            self._metrics.pushed(name, count - repeats[name], repeats[name])
        self._stored(touched, ride)

    @asynccontextmanager
    async def apart(self, rows: Rows) -> AsyncIterator[None]:
        """Around a transaction that stores these rows beside the batches."""
        async with self._tails.apart(set(rows.partitions)):
            yield

    async def store(
        self,
        batch: Sequence[Rows],
        fetch: Fetch,
        *,
        alone: bool = False,
        ride: Ride | None = None,
        created: Sequence[datetime] | None = None,
    ) -> list[list[PushResult]]:
        """Run the statement for some requests; one list of results each.

        ``alone``: no other batch is under way, so that the numbers that are remembered hold. ``ride``: pops
        that travel with it. ``created``: the time of each message, where it is not now.
        """
        items = [item for rows in batch for item in rows.items]
        partitions = [partition for rows in batch for partition in rows.partitions]
        counts = Counter(partitions)
        touched = sorted(counts)
        sizes = [counts[partition] for partition in touched]
        starts = [0, *accumulate(sizes)][:-1]
        # Partition by partition: neighbours in the indexes are then stored one after the other.
        order = sorted(range(len(items)), key=partitions.__getitem__)
        ordered = [items[at] for at in order]
        encrypted = any(rows.keys for rows in batch)
        versions = {queue.id: queue.version for rows in batch for queue in rows.queues.values()}
        queues = sorted(versions)
        payloads = _payloads(batch, order) if encrypted else [bytes(item.payload) for item in ordered]
        remembered = self._tails
        tails, last = remembered.take(touched)
        if alone:
            remembered.rely(touched)
        try:
            found = await fetch(
                STATEMENT if ride is None else RIDE_STATEMENT,
                _array(queues),
                _array([versions[id] for id in queues]),
                _array(sorted({partition % STRIPES for partition in touched})),
                _array(touched),
                _array(starts),
                _places(sizes),
                _texts([cast(str, item.transaction_id) for item in ordered]),
                b"".join(payloads),
                _array([0, *accumulate(map(len, payloads))]),
                _column([item.trace_id for item in ordered]),
                _keys(batch, order) if encrypted else None,
                _subjects(batch, order),
                len(batch),
                self._look > 0,
                remembered.pusher if self._alone() else None,
                _array(tails) if alone else None,
                last if alone else None,
                self._database.now(),
                created and "{" + ",".join([created[at].isoformat() for at in order]) + "}",
                *(() if ride is None else ride.arguments),
            )
            status, base, owned, tails, stored_at, duplicate_rows, duplicate_ids = tuple(found[-1])[-7:]
            if ride is not None and status == "ok":
                ride.rows = found
            if not owned:
                remembered.forget()
            if alone and owned is not None and status == "ok" and not duplicate_rows:
                remembered.keep(touched, list(map(add, tails, sizes)), stored_at)
        except BaseException:
            remembered.forget()  # who knows what is stored
            raise
        finally:
            if alone:
                remembered.settle()
        if status == "stale":
            raise StaleQueue
        if status == "split":
            raise _Split
        if status == "full":
            names = sorted({name for rows in batch for name in rows.queues})
            raise QueueFull(
                f"queue {', '.join(names)} is full (maxSize); nothing was stored. Consume, or raise maxSize."
            )
        self._look = max(0, self._look - 1)
        duplicates: dict[int, int] = {}
        if duplicate_rows:
            self._look = LOOK
            duplicates = dict(zip(duplicate_rows, duplicate_ids, strict=True))
        numbers = [0] * len(order)  # of each row, in the order of the requests
        for number, at in enumerate(order, 1):
            numbers[at] = number
        results: list[list[PushResult]] = []
        first = 0
        for rows in batch:
            last_row = first + len(rows.items)
            results.append(_results(rows, numbers[first:last_row], base, duplicates))
            first = last_row
        return results


# PostgreSQL reads an array as text in a fraction of the time that asyncpg takes to write it by elements.
# For the same reason the payloads travel as one piece, with the places where each ends.


def _array(values: Iterable[int | None]) -> str:
    return ("{" + ",".join(map(str, values)) + "}").replace("None", "null")


def _places(sizes: list[int]) -> str:
    """1 for each row of the first partition, 2 for each of the second …"""
    return "{" + "".join([f"{place}," * size for place, size in enumerate(sizes, 1)])[:-1] + "}"


def _texts(values: list[str]) -> str:
    """An array literal, quoted unless nothing in it can be misread."""
    joined = ",".join(values)
    if (
        not joined.encode().translate(None, _PLAIN)  # nothing is left
        and joined.count(",") == len(values) - 1
        and "null" not in joined.lower()
    ):
        return "{" + joined + "}"
    return "{" + ",".join([_quoted(value) for value in values]) + "}"


def _quoted(value: str) -> str:
    return '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"'


def _column(values: list[Any]) -> list[Any] | None:
    """One column of a batch; None if it is null in every row."""
    return None if values.count(None) == len(values) else values


def _payloads(batch: Sequence[Rows], order: list[int]) -> list[bytes]:
    payloads = [p for rows in batch for p in rows.payloads or [item.payload for item in rows.items]]
    return [bytes(payloads[at]) for at in order]


def _keys(batch: Sequence[Rows], order: list[int]) -> list[str | None]:
    keys = [key for rows in batch for key in rows.keys or [None] * len(rows.items)]
    return [keys[at] for at in order]


def _subjects(batch: Sequence[Rows], order: list[int]) -> list[str | None] | None:
    if not any(rows.subject for rows in batch):
        return None
    subjects = [rows.subject for rows in batch for _ in rows.items]
    return [subjects[at] for at in order]


def _results(rows: Rows, numbers: list[int], base: int, duplicates: dict[int, int]) -> list[PushResult]:
    """What to answer for rows that were stored under these numbers."""
    results = [
        PushResult(
            index,
            cast(str, item.transaction_id),
            str(base + number),
            str(partition),
            item.trace_id,
            item.queue,
            "queued",
        )
        for index, item, partition, number in zip(
            range(len(numbers)), rows.items, rows.partitions, numbers, strict=True
        )
    ]
    if duplicates:
        for number, result in zip(numbers, results, strict=True):
            known = duplicates.get(number)
            if known is not None:
                result.message_id, result.status = str(known), "duplicate"
                rows.repeats = True
    return results
