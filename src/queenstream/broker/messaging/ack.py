"""Acknowledge: like pushes, acks that wait together are applied together."""

from __future__ import annotations

import uuid
from collections.abc import Awaitable, Callable, Iterable, Sequence
from operator import attrgetter
from time import perf_counter
from typing import Any

from queenstream.broker.messaging.batcher import ROW_BYTES, Batcher
from queenstream.broker.messaging.push import Fetch
from queenstream.broker.ops.metrics import Metrics
from queenstream.broker.schemas.messages import QUEUE_MODE, Ack, AckResult
from queenstream.broker.storage import sql
from queenstream.broker.storage.database import Database
from queenstream.errors import TooLarge

STATEMENT = sql.bind(
    "select unit, queue_name, partition_name, successes, errors, dead, again, released, ready "
    "from queen.ack($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11)"
)
_NO_LEASE = uuid.UUID(int=0)  # a lease id that is none: refused by the database like any other that has ended

_Request = tuple[Sequence[Ack], str | None]
_kind = attrgetter("partition_id", "consumer_group", "lease_id", "status")


class _Unit:
    """The acks for one partition and group: where they are in the batch."""

    __slots__ = ("lease", "plain", "rows")

    def __init__(self, lease: uuid.UUID | None) -> None:
        self.rows: list[int] = []
        self.lease = lease
        self.plain = True  # all completed, with one lease or none: the database may take them as a whole


class Acker:
    """Applies acknowledgements, and tells ``freed`` which queues have partitions to deliver again."""

    def __init__(
        self,
        database: Database,
        metrics: Metrics,
        freed: Callable[[set[str]], None],
        *,
        max_batch: int = 10_000,
    ) -> None:
        self._database = database
        self._metrics = metrics
        self._freed = freed
        self._max_batch = max_batch
        self._batcher: Batcher[_Request, list[AckResult]] = Batcher(self._run)
        self.drain = self._batcher.drain

    def submit(
        self, acks: Sequence[Ack], group: str | None, done: Callable[[list[AckResult] | BaseException], None]
    ) -> None:
        """Apply the acks of one request; ``group`` is for those that name none."""
        if len(acks) > self._max_batch:
            raise TooLarge(f"{len(acks)} acknowledgments are too many; send at most {self._max_batch}")
        self._batcher.submit((acks, group), len(acks) * ROW_BYTES, done)

    def ask(self, acks: Sequence[Ack], group: str | None) -> Awaitable[list[AckResult]]:
        """The same, for a coroutine that awaits the answer."""
        return self._batcher.ask((acks, group), len(acks) * ROW_BYTES)

    async def _run(self, batch: list[_Request], _alone: bool) -> list[list[AckResult] | BaseException]:
        started = perf_counter()
        results, ready = await self.apply(batch, self._database.hot)
        self._metrics.batch("ack", sum([len(acks) for acks, _ in batch]), perf_counter() - started)
        self.announce(batch, results, ready)
        return [*results]

    async def apply(
        self,
        requests: Sequence[_Request],
        fetch: Fetch,
        *,
        strict: bool = False,
    ) -> tuple[list[list[AckResult]], set[str]]:
        """Run the statement for some requests: results for each, and the queues with more to deliver."""
        leases: dict[str | None, uuid.UUID | None] = {}
        units = _units(requests, leases)
        wanted = sorted(units)  # the order in which they are locked, in every batch
        acks = [ack for part, _ in requests for ack in part]
        order: list[int] = []
        ends: list[int] = []
        for key in wanted:
            order += units[key].rows
            ends.append(len(order))
        statuses: list[str] | None = None
        each_lease: list[uuid.UUID | None] | None = None
        errors: list[str | None] | None = None
        if not all(unit.plain for unit in units.values()):
            sorted_acks = [acks[row] for row in order]
            statuses = [ack.status for ack in sorted_acks]
            each_lease = [leases[ack.lease_id] for ack in sorted_acks]
            errors = [ack.error and ack.error.replace("\0", "") for ack in sorted_acks]
        found = await fetch(
            STATEMENT,
            [partition for partition, _ in wanted],
            [group for _, group in wanted],
            ends,
            [units[key].plain for key in wanted],
            [units[key].lease for key in wanted],
            [acks[row].transaction_id for row in order],
            statuses,
            each_lease,
            errors,
            strict,
            self._database.now(),
        )
        places = [place for part, _ in requests for place in range(len(part))]
        flat: list[Any] = [None] * len(acks)
        for record in found:
            _spread(record, units[wanted[record[0] - 1]].rows, acks, places, flat)
        results: list[list[AckResult]] = []
        at = 0
        for part, _ in requests:
            results.append(flat[at : at + len(part)])
            at += len(part)
        return results, {record["queue_name"] for record in found if record["ready"]}

    def announce(
        self, batch: Sequence[_Request], results: Sequence[Sequence[AckResult]], ready: set[str]
    ) -> None:
        """It is committed: count it, and tell whose partitions can be taken again."""
        done: dict[str, int] = {}
        for (acks, _), answers in zip(batch, results, strict=True):
            for ack, answer in zip(acks, answers, strict=True):
                queue = answer.queue_name
                if queue is None:
                    continue
                if not answer.success:
                    continue
                if ack.status == "completed" and not answer.dlq and not answer.redelivered:
                    done[queue] = done.get(queue, 0) + 1
                else:
                    self._metrics.acked(queue, ack.status, answer.dlq, answer.redelivered)
        for queue, count in done.items():
            self._metrics.queue(queue).acked += count
        if ready:
            self._freed(ready)


def _units(
    requests: Sequence[_Request], leases: dict[str | None, uuid.UUID | None]
) -> dict[tuple[int, str], _Unit]:
    """The units of a batch, by partition and group. ``leases`` gets every lease id that is named."""
    units: dict[tuple[int, str], _Unit] = {}
    at = 0
    for acks, group in requests:
        kinds = list(map(_kind, acks))
        alike: dict[tuple[str, str | None, str | None, str], Iterable[int]]
        if kinds.count(kinds[0]) == len(kinds):  # as a rule a request acks what one pop gave
            alike = {kinds[0]: range(at, at + len(kinds))}
        else:
            several: dict[Any, list[int]] = {}
            for row, kind in enumerate(kinds, at):
                several.setdefault(kind, []).append(row)
            alike = {**several}
        at += len(kinds)
        for (partition_id, consumer_group, lease_id, status), rows in alike.items():
            if lease_id not in leases:
                leases[lease_id] = lease_number(lease_id)
            lease = leases[lease_id]
            key = (partition_number(partition_id), consumer_group or group or QUEUE_MODE)
            unit = units.get(key)
            if unit is None:
                unit = units[key] = _Unit(lease)
            unit.rows.extend(rows)
            if status != "completed" or lease != unit.lease:
                unit.plain = False
    for unit in units.values():
        unit.rows.sort()  # as they were sent
    return units


def _spread(record: Any, rows: list[int], acks: list[Ack], places: list[int], flat: list[Any]) -> None:
    """Lay the answer for a unit out as one result for each of its acks."""
    _, queue, partition, successes, errors, dead, again, released, _ = record
    if successes is None:  # the lease is completed as a whole
        for row in rows:
            flat[row] = AckResult(
                places[row], acks[row].transaction_id, True, None, queue, partition, released, False, False
            )
        return
    for row, success, error, is_dead, comes_again in zip(rows, successes, errors, dead, again, strict=True):
        flat[row] = AckResult(
            places[row],
            acks[row].transaction_id,
            success,
            error,
            queue,
            partition,
            released,
            is_dead,
            comes_again,
        )


def partition_number(text: str) -> int:
    """A partition's id as a client sends it; one that cannot exist is no partition's."""
    if text.isascii() and text.isdigit() and len(text) < 19:
        return int(text)
    return -1


def lease_number(text: str | None) -> uuid.UUID | None:
    """A lease id as a client sends it; one that cannot exist is refused like any that has ended."""
    if text is None or text == "":
        return None
    try:
        return uuid.UUID(text)
    except ValueError:
        return _NO_LEASE
