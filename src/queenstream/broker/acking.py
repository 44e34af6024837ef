"""Acknowledge: like pushes, acks that wait together are applied together."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Sequence
from time import perf_counter
from typing import Any

from queenstream.broker.batching import ROW_BYTES, Batcher
from queenstream.broker.database import Database
from queenstream.broker.metrics import Metrics
from queenstream.broker.pushing import Fetch
from queenstream.broker.wire import QUEUE_MODE, Ack, AckResult
from queenstream.errors import TooLarge

STATEMENT = (
    "select rows, queue_name, partition_name, successes, errors, dead, again, released "
    "from queen.ack($1, $2, $3, $4, $5, $6, $7, $8)"
)
_NO_LEASE = uuid.UUID(int=0)  # a lease id that is none: refused by the database like any other that has ended


_Request = tuple[Sequence[Ack], str | None]


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

    async def ack(self, acks: Sequence[Ack], group: str | None) -> list[AckResult]:
        """Apply the acks of one request; ``group`` is for those that name none."""
        if len(acks) > self._max_batch:
            raise TooLarge(f"{len(acks)} acknowledgments are too many; send at most {self._max_batch}")
        return await self._batcher.submit((acks, group), len(acks) * ROW_BYTES)

    async def _run(self, batch: list[_Request]) -> list[list[AckResult] | BaseException]:
        started = perf_counter()
        results = await self.apply(batch, self._database.hot)
        self._metrics.batch("ack", sum(len(acks) for acks, _ in batch), perf_counter() - started)
        self.announce(batch, results)
        return [*results]

    async def apply(
        self,
        requests: Sequence[_Request],
        fetch: Fetch,
        *,
        strict: bool = False,
    ) -> list[list[AckResult]]:
        """Run the statement for some requests; one list of results each."""
        partitions: list[int] = []
        groups: list[str] = []
        transactions: list[str] = []
        statuses: list[str] = []
        leases: list[uuid.UUID | None] = []
        errors: list[str | None] = []
        for acks, group in requests:
            for ack in acks:
                partitions.append(partition_number(ack.partition_id))
                groups.append(ack.consumer_group or group or QUEUE_MODE)
                transactions.append(ack.transaction_id)
                statuses.append(ack.status)
                leases.append(lease_number(ack.lease_id))
                errors.append(None if ack.error is None else ack.error.replace("\0", ""))
        found = await fetch(
            STATEMENT,
            partitions,
            groups,
            transactions,
            statuses,
            leases,
            errors,
            strict,
            self._database.now(),
        )
        flat: list[AckResult | None] = [None] * len(partitions)
        for record in found:
            _spread(record, transactions, flat)

        results: list[list[AckResult]] = []
        at = 0
        for acks, _ in requests:
            part = flat[at : at + len(acks)]
            at += len(acks)
            for index, result in enumerate(part):
                if result is not None:
                    result.index = index
            results.append([result for result in part if result is not None])
        return results

    def announce(self, batch: Sequence[_Request], results: Sequence[Sequence[AckResult]]) -> None:
        """It is committed: count it, and tell whose partitions can be taken again."""
        freed: set[str] = set()
        for (acks, _), answers in zip(batch, results, strict=True):
            for ack, answer in zip(acks, answers, strict=True):
                if answer.queue_name is None:
                    continue
                if answer.lease_released:
                    freed.add(answer.queue_name)
                if answer.success:
                    self._metrics.acked(answer.queue_name, ack.status, answer.dlq, answer.redelivered)
        if freed:
            self._freed(freed)


def _spread(record: Any, transactions: list[str], flat: list[AckResult | None]) -> None:
    places, queue, partition, successes, errors, dead, again, released = record
    for place, success, error, is_dead, comes_again in zip(
        places, successes, errors, dead, again, strict=True
    ):
        flat[place - 1] = AckResult(
            0, transactions[place - 1], success, error, queue, partition, released, is_dead, comes_again
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
