"""Push: look names up, lay messages out as columns, store a batch of requests in one statement.

What runs for every message is kept to comprehensions over columns; see docs/performance.md.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Awaitable, Callable, Sequence
from time import perf_counter
from typing import Any

from queenstream.broker.batching import ROW_BYTES, Batcher
from queenstream.broker.database import Database
from queenstream.broker.directory import Directory, Queue
from queenstream.broker.encryption import Keyring
from queenstream.broker.metrics import Metrics
from queenstream.broker.wire import PushItem, PushResult
from queenstream.errors import QueueFull, TooLarge, Unavailable

ATTEMPTS = 8

STATEMENT = (
    "select status, base, duplicate_rows, duplicate_ids "
    "from queen.push($1, $2, $3, $4, $5::text::int[], $6::text::int[], $7::text::text[], $8, $9, $10, $11, "
    "$12, $13, $14)"
)
STRIPES = 1024  # of a partition's lock; sql/functions/push.sql
LOOK = 50  # batches that look for repeated transactions first, after one that had some
_PLAIN = re.compile(r"[0-9A-Za-z_.:,-]+")
_NULL = re.compile(r"(?i)\bnull\b")
Fetch = Callable[..., Awaitable[list[Any]]]


class Rows:
    """The messages of one request, as columns."""

    __slots__ = ("items", "keys", "partitions", "payloads", "queues", "subject", "traces", "transactions")

    def __init__(self, items: Sequence[PushItem], subject: str | None, queues: dict[str, Queue]) -> None:
        self.items = items
        self.subject = subject
        self.queues = queues
        self.partitions: list[int] = []
        self.transactions = [item.transaction_id or str(uuid.uuid4()) for item in items]
        self.traces = [item.trace_id for item in items]
        self.payloads: list[Any] = [item.payload for item in items]
        self.keys: list[str | None] | None = None


class StaleQueue(Exception):
    """A queue changed since its rows were made."""


class _Split(Exception):
    """A queue with maxSize: its requests must be stored one by one."""


class Pusher:
    """Stores messages, and tells ``stored`` which partitions of which queues have new ones."""

    def __init__(
        self,
        database: Database,
        directory: Directory,
        keyring: Keyring | None,
        metrics: Metrics,
        stored: Callable[[dict[str, set[str]]], None],
        *,
        max_batch: int = 10_000,
    ) -> None:
        self._database = database
        self._directory = directory
        self._keyring = keyring
        self._metrics = metrics
        self._stored = stored
        self._max_batch = max_batch
        self._look = 0
        self._batcher: Batcher[Rows, list[PushResult]] = Batcher(self._run)
        self.drain = self._batcher.drain

    async def push(self, items: Sequence[PushItem], subject: str | None, size: int = 0) -> list[PushResult]:
        """Store the items of a request of ``size`` bytes, all or none; the answer comes after the commit."""
        if len(items) > self._max_batch:
            raise TooLarge(f"{len(items)} items are too many; send at most {self._max_batch} in one request")
        for _ in range(ATTEMPTS):
            rows = await self.prepare(items, subject)
            try:
                return await self._batcher.submit(rows, size + len(items) * ROW_BYTES)
            except StaleQueue:
                self.forget(rows)
        raise Unavailable("the queue keeps changing; try again")

    def forget(self, rows: Rows) -> None:
        """What is known of these queues is old: look again."""
        for name in rows.queues:
            self._directory.drop(name)

    async def prepare(self, items: Sequence[PushItem], subject: str | None) -> Rows:
        """Look up (and make) queues and partitions, and lay the items out as columns."""
        queues: dict[str, Queue] = {}
        for name in {item.queue for item in items}:
            queue = self._directory.cached(name)
            if queue is None or any(i.partition not in queue.partitions for i in items if i.queue == name):
                partitions = sorted({item.partition for item in items if item.queue == name})
                queue = await self._directory.ensure(name, partitions)
            queues[name] = queue
        rows = Rows(items, subject, queues)
        rows.partitions = [queues[item.queue].partitions[item.partition] for item in items]
        if any(queue.options.encryption_enabled for queue in queues.values()):
            self._encrypt(rows)
        return rows

    def _encrypt(self, rows: Rows) -> None:
        rows.keys = [None] * len(rows.items)
        for at, item in enumerate(rows.items):
            if rows.queues[item.queue].options.encryption_enabled:
                if self._keyring is None:
                    raise Unavailable(
                        f"queue {item.queue} is encrypted, this broker has no key; set QUEEN_ENCRYPTION_KEYS"
                    )
                rows.keys[at], rows.payloads[at] = self._keyring.encrypt(bytes(item.payload))

    async def _run(self, batch: list[Rows]) -> list[list[PushResult] | BaseException]:
        started = perf_counter()
        try:
            results = await self.store(batch, self._database.hot)
        except _Split:
            return [await self._alone(request) for request in batch]
        self._metrics.batch("push", sum(len(rows.items) for rows in batch), perf_counter() - started)
        self.announce(batch, results)
        return [*results]

    async def _alone(self, request: Rows) -> list[PushResult] | BaseException:
        try:
            return (await self._run([request]))[0]
        except Exception as error:  # noqa: BLE001 - it is this request's answer
            return error

    def announce(self, batch: Sequence[Rows], results: Sequence[Sequence[PushResult]]) -> None:
        """It is committed: count it, and wake who waits for it."""
        touched: dict[str, set[str]] = {}
        for rows, answers in zip(batch, results, strict=True):
            for name in rows.queues:
                one = len(rows.queues) == 1
                stored = [a.status for a in answers if one or a.queueName == name]
                repeats = stored.count("duplicate")
                self._metrics.pushed(name, len(stored) - repeats, repeats)
                names = {item.partition for item in rows.items if one or item.queue == name}
                touched.setdefault(name, set()).update(names)
        self._stored(touched)

    async def store(self, batch: Sequence[Rows], fetch: Fetch) -> list[list[PushResult]]:
        """Run the statement for some requests; one list of results each."""
        queues: dict[int, int] = {}
        touched: dict[int, int] = {}  # partition → its place among the touched, from 1
        counts = [0]  # rows so far in each touched partition
        places: list[int] = []
        ranks: list[int] = []
        for rows in batch:
            for queue in rows.queues.values():
                queues[queue.id] = queue.version
            for partition in rows.partitions:
                place = touched.get(partition)
                if place is None:
                    place = touched[partition] = len(counts)
                    counts.append(0)
                rank = counts[place] = counts[place] + 1
                places.append(place)
                ranks.append(rank)
        transactions = [transaction for rows in batch for transaction in rows.transactions]
        payloads = [payload for rows in batch for payload in rows.payloads]
        traces = _column([rows.traces for rows in batch])
        keys = _column([rows.keys or [None] * len(rows.items) for rows in batch])
        subjects = _column([[rows.subject] * len(rows.items) for rows in batch])
        # Partition by partition: neighbours in the indexes are then stored one after the other.
        order = sorted(range(len(places)), key=places.__getitem__)
        ids = sorted(queues)
        found = await fetch(
            STATEMENT,
            ids,
            [queues[id] for id in ids],
            sorted({partition % STRIPES for partition in touched}),
            list(touched),
            _integers([places[at] for at in order]),
            _integers([ranks[at] for at in order]),
            _texts([transactions[at] for at in order]),
            [payloads[at] for at in order],
            traces and [traces[at] for at in order],
            keys and [keys[at] for at in order],
            subjects and [subjects[at] for at in order],
            len(batch),
            self._look > 0,
            self._database.now(),
        )
        status, base, duplicate_rows, duplicate_ids = found[0]
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
            last = first + len(rows.items)
            results.append(_results(rows, numbers[first:last], base, duplicates))
            first = last
        return results


# PostgreSQL reads a long array faster as text than asyncpg writes it element by element.


def _integers(values: list[int]) -> str:
    return "{" + ",".join(map(str, values)) + "}"


def _texts(values: list[str]) -> str:
    """An array literal, quoted unless nothing in it can be misread."""
    joined = ",".join(values)
    if _PLAIN.fullmatch(joined) and joined.count(",") == len(values) - 1 and not _NULL.search(joined):
        return "{" + joined + "}"
    return "{" + ",".join([_quoted(value) for value in values]) + "}"


def _quoted(value: str) -> str:
    return '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"'


def _column(parts: list[list[Any]]) -> list[Any] | None:
    """One column of a batch; None if it is null in every row."""
    column = [value for part in parts for value in part]
    return column if any(value is not None for value in column) else None


def _results(rows: Rows, numbers: list[int], base: int, duplicates: dict[int, int]) -> list[PushResult]:
    """What to answer for rows that were stored under these numbers."""
    results = [
        PushResult(index, name, str(base + number), str(partition), item.trace_id, item.queue, "queued")
        for index, (item, name, partition, number) in enumerate(
            zip(rows.items, rows.transactions, rows.partitions, numbers, strict=True)
        )
    ]
    if duplicates:
        for number, result in zip(numbers, results, strict=True):
            known = duplicates.get(number)
            if known is not None:
                result.message_id, result.status = str(known), "duplicate"
    return results
