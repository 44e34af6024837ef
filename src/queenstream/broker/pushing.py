"""Push: look names up, lay messages out as columns, store a batch of requests in one statement."""

from __future__ import annotations

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
    "from queen.push($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12)"
)
Fetch = Callable[..., Awaitable[list[Any]]]


class Rows:
    """The rows of one request, as columns."""

    __slots__ = ("bytes", "keys", "partitions", "payloads", "queues", "subject", "traces", "transactions")

    def __init__(self, subject: str | None) -> None:
        self.subject = subject
        self.queues: dict[str, Queue] = {}
        self.partitions: list[int] = []
        self.transactions: list[str] = []
        self.traces: list[str | None] = []
        self.payloads: list[bytes] = []
        self.keys: list[str | None] = []
        self.bytes = 0


class StaleQueue(Exception):
    """A queue changed since its rows were made."""


_Request = tuple[Sequence[PushItem], Rows]


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
        self._batcher: Batcher[_Request, list[PushResult]] = Batcher(self._run)
        self.drain = self._batcher.drain

    async def push(self, items: Sequence[PushItem], subject: str | None) -> list[PushResult]:
        """Store the items of one request, all or none; the answer comes after the commit."""
        self.check(items)
        for _ in range(ATTEMPTS):
            rows = await self.prepare(items, subject)
            try:
                return await self._batcher.submit((items, rows), rows.bytes)
            except StaleQueue:
                self.forget(rows)
        raise Unavailable("the queue keeps changing; try again")

    def forget(self, rows: Rows) -> None:
        """What is known of these queues is old: look again."""
        for name in rows.queues:
            self._directory.drop(name)

    def check(self, items: Sequence[PushItem]) -> None:
        if len(items) > self._max_batch:
            raise TooLarge(f"{len(items)} items are too many; send at most {self._max_batch} in one request")

    async def prepare(self, items: Sequence[PushItem], subject: str | None) -> Rows:
        """Look up (and make) queues and partitions, and lay the items out as columns."""
        missing: dict[str, set[str]] = {}
        for item in items:
            queue = self._directory.cached(item.queue)
            if queue is None or item.partition not in queue.partitions:
                missing.setdefault(item.queue, set()).add(item.partition)
        for name, partitions in missing.items():
            await self._directory.ensure(name, sorted(partitions))

        rows = Rows(subject)
        queues = rows.queues
        for item in items:
            known = queues.get(item.queue) or self._directory.cached(item.queue)
            if known is None or item.partition not in known.partitions:
                # Dropped while another queue was looked up: once more, this one alone.
                known = await self._directory.ensure(item.queue, [item.partition])
            queues[item.queue] = known
            key: str | None = None
            payload = bytes(item.payload)
            if known.options.encryption_enabled:
                if self._keyring is None:
                    raise Unavailable(
                        f"queue {item.queue} is encrypted, this broker has no key; set QUEEN_ENCRYPTION_KEYS"
                    )
                key, payload = self._keyring.encrypt(payload)
            rows.partitions.append(known.partitions[item.partition])
            rows.transactions.append(item.transaction_id or str(uuid.uuid4()))
            rows.traces.append(item.trace_id)
            rows.payloads.append(payload)
            rows.keys.append(key)
            rows.bytes += len(payload) + ROW_BYTES
        return rows

    async def _run(self, batch: list[_Request]) -> list[list[PushResult] | BaseException]:
        started = perf_counter()
        try:
            results = await self.store(batch, self._database.hot)
        except _Split:
            return [await self._alone(request) for request in batch]
        self._metrics.batch("push", sum(len(items) for items, _ in batch), perf_counter() - started)
        self.announce(batch, results)
        return [*results]

    async def _alone(self, request: _Request) -> list[PushResult] | BaseException:
        try:
            return (await self._run([request]))[0]
        except Exception as error:  # noqa: BLE001 - it is this request's answer
            return error

    def announce(self, batch: Sequence[_Request], results: Sequence[Sequence[PushResult]]) -> None:
        """It is committed: count it, and wake who waits for it."""
        touched: dict[str, set[str]] = {}
        for (items, _), answers in zip(batch, results, strict=True):
            for item, answer in zip(items, answers, strict=True):
                touched.setdefault(item.queue, set()).add(item.partition)
                self._metrics.pushed(item.queue, answer.status == "duplicate")
        self._stored(touched)

    async def store(self, requests: Sequence[_Request], fetch: Fetch) -> list[list[PushResult]]:
        """Run the statement for some requests; one list of results each."""
        queues: dict[int, int] = {}
        touched: dict[int, int] = {}  # partition → its place among the touched, from 1
        counts: list[int] = []  # rows so far in each touched partition
        partitions: list[int] = []
        ranks: list[int] = []
        transactions: list[str] = []
        traces: list[str | None] = []
        payloads: list[bytes] = []
        keys: list[str | None] = []
        subjects: list[str | None] = []
        places: dict[tuple[int, str], int] = {}  # (partition, transaction) → its row, from 1
        for _, rows in requests:
            for queue in rows.queues.values():
                queues[queue.id] = queue.version
            for at, pair in enumerate(zip(rows.partitions, rows.transactions, strict=True)):
                if pair in places:
                    continue
                place = touched.get(pair[0])
                if place is None:
                    place = touched[pair[0]] = len(touched) + 1
                    counts.append(0)
                counts[place - 1] += 1
                partitions.append(place)
                ranks.append(counts[place - 1])
                transactions.append(pair[1])
                traces.append(rows.traces[at])
                payloads.append(rows.payloads[at])
                keys.append(rows.keys[at])
                subjects.append(rows.subject)
                places[pair] = len(partitions)

        found = await fetch(
            STATEMENT, list(queues), list(queues.values()), list(touched), partitions, ranks, transactions,
            traces, payloads, keys, subjects, len(requests), self._database.now(),
        )  # fmt: skip
        status, base, duplicate_rows, duplicate_ids = found[0]
        if status == "stale":
            raise StaleQueue
        if status == "split":
            raise _Split
        if status == "full":
            names = sorted({name for _, rows in requests for name in rows.queues})
            raise QueueFull(
                f"queue {', '.join(names)} is full (maxSize); nothing was stored. Consume, or raise maxSize."
            )
        duplicates = dict(zip(duplicate_rows or (), duplicate_ids or (), strict=True))
        seen: set[int] = set()
        return [_results(items, rows, places, base, duplicates, seen) for items, rows in requests]


def _results(
    items: Sequence[PushItem],
    rows: Rows,
    places: dict[tuple[int, str], int],
    base: int,
    duplicates: dict[int, int],
    seen: set[int],
) -> list[PushResult]:
    results = []
    for index, item in enumerate(items):
        partition, transaction = rows.partitions[index], rows.transactions[index]
        place = places[partition, transaction]
        first = duplicates.get(place)
        repeated = first is not None or place in seen
        seen.add(place)
        results.append(
            PushResult(
                index,
                transaction,
                str(base + place if first is None else first),
                str(partition),
                item.trace_id,
                item.queue,
                "duplicate" if repeated else "queued",
            )
        )
    return results
