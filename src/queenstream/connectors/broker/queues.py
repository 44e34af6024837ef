"""Queues of the broker, read and written.

Reading, a pipeline is a consumer group (its own name, unless the source names another). A position is the
last message of a partition: ``{partition: [message id, created_at in µs]}``. Inside a partition the order of
ids is the order of messages, so what comes again after a crash, up to that id, was dealt with: it is passed
over, and acknowledged once more.

- Positions and no such group at the broker (it was deleted): everything that is stored comes again, and is
  passed over up to the positions.
- A group and no positions (the checkpoint is new, or there is none): the group goes on where it stands;
  ``start`` is for a group that the broker does not know.
- Ids lower than the position with later times: another broker's database. That is an error, as nobody can
  say what was read.
- Going back moves the group in every partition. What retention or ``ttl`` has taken does not come back.

Writing, every row carries a transaction id of its epoch: a repeat is a duplicate to the broker, which
stores nothing. This holds as long as the broker still has the messages of the last epoch.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import msgspec

from queenstream.client._async.client import AsyncQueen
from queenstream.client._async.message import AsyncMessage, AsyncMessages
from queenstream.client._async.queue import MOST_ITEMS, AsyncQueue
from queenstream.client._base.payloads import encode, encode_all
from queenstream.client._base.responses.messages import PushBody, PushItem
from queenstream.client._base.responses.resources import GroupQueue
from queenstream.connectors.base import Context, Positions, Refusal
from queenstream.connectors.broker.connection import AWAY, Leases, Patience, connect, log
from queenstream.connectors.provenance import Provenance
from queenstream.connectors.validation import schema_of
from queenstream.core import paths
from queenstream.core.batches import Batch
from queenstream.core.windows import from_us, to_us
from queenstream.errors import (
    ConfigError,
    InvalidRequest,
    NotFound,
    PayloadInvalid,
    QueenstreamError,
    QueueFull,
    TooLarge,
)
from queenstream.pipeline.endpoints import Queue

MOST_PARTITIONS = 1000  # in one pop
MOST_BYTES = 8 << 20  # in one push
SEEKS = 16  # at once
LAG_SECONDS = 10.0  # how old what is known of the lag may be
_BEGINNING = "beginning"
_CHECKPOINT = "/api/v1/sinks/checkpoint"


class QueueReader:
    """Reads a queue as a consumer group, and acknowledges what is committed."""

    def __init__(self, source: Queue, context: Context) -> None:
        self._source = source
        self._context = context
        self._group = source.group or context.pipeline
        self._schema = schema_of(source.schema)
        self._patience = Patience(context.node)
        self._positions: dict[str, tuple[int, int]] = {}
        self._moved: set[str] = set()
        self._taken: list[AsyncMessages[Any]] = []  # since the last changes()
        self._covered: list[AsyncMessages[Any]] = []  # to be acknowledged with the next commit
        self._committing = False
        self._lag: float | None = None
        self._lag_known = 0.0

    async def open(self, positions: Positions) -> None:
        self._positions = {name: (int(id), int(us)) for name, (id, us) in positions.items()}
        self._queen = await connect(self._source.url, self._context)
        self._leases = Leases()
        self._queue = self._subscribed(self._queen)
        if self._context.rewound:
            await self._move_back()
        elif self._context.exclusive:
            await self._take_back()
        await self._measure()

    def _subscribed(self, queen: AsyncQueen) -> AsyncQueue[Any]:
        source = self._source
        queue = queen.queue(source.name).group(self._group)
        if source.partition is not None:
            queue = queue.partition(source.partition)
        # Where there are positions, a group that is gone must not begin anew behind them.
        if self._positions or source.start == "earliest":
            return queue
        if source.start == "latest":
            return queue.subscription_mode("new")
        return queue.subscription_from(source.start)

    async def read(self, most: int, wait_seconds: float) -> Batch | None:
        most = min(most, MOST_ITEMS)
        queue = self._queue.batch(most).partitions(min(most, MOST_PARTITIONS)).wait(wait_seconds)
        try:
            messages = await queue.pop()
        except AWAY as error:
            await self._patience.wait(error, wait_seconds)
            return Batch([], [])
        self._patience.reset()
        if messages:
            self._taken.append(messages)
            self._leases.add(messages[0]._lease)
        return self._batch(messages)

    def _batch(self, messages: AsyncMessages[Any]) -> Batch:
        """The records of messages that are new."""
        times: list[int] = []
        batch = Batch([], times)
        positions, convert = self._positions, self._converter()
        for message in messages:
            id, at = int(message.id), to_us(message.created_at)
            known = positions.get(message.partition)
            if known is not None and id <= known[0]:
                self._check_known(message, at, known[1])
                continue
            positions[message.partition] = id, at
            self._moved.add(message.partition)
            try:
                batch.records.append(convert(message))
            except PayloadInvalid as error:
                batch.failures.append((message.data, error))
            else:
                times.append(at)
        return batch

    def _converter(self) -> Callable[[AsyncMessage[Any]], Any]:
        coerce = None if self._schema is None else self._schema.coerce
        if self._source.envelope:
            return lambda message: _enveloped(
                message, message.data if coerce is None else coerce(message.data)
            )
        return (lambda message: message.data) if coerce is None else (lambda message: coerce(message.data))

    def _check_known(self, message: AsyncMessage[Any], at: int, known_at: int) -> None:
        if at > known_at:
            raise ConfigError(
                f"message {message.id} of {self._source.title} is newer than the checkpoint's position, with "
                "a lower id: this is another broker's database; start afresh with another checkpoint"
            )

    def changes(self) -> dict[str, Any]:
        changed = {name: list(self._positions[name]) for name in self._moved}
        self._moved.clear()
        self._covered += self._taken
        self._taken = []
        return changed

    async def commit(self) -> None:
        covered, self._covered = self._covered, []
        if covered:
            self._committing = True
            try:
                await self._acknowledge(covered)
            except AWAY as error:
                # They come again when their lease ends, and are passed over; or the next commit is in time.
                log.warning("%s could not acknowledge yet: %s", self._context.node, error)
                self._covered = covered + self._covered
                return
            finally:
                self._committing = False
        if time.monotonic() - self._lag_known > LAG_SECONDS:
            await self._measure()

    async def _acknowledge(self, covered: list[AsyncMessages[Any]]) -> None:
        results = await self._queen.ack([message for messages in covered for message in messages])
        for messages in covered:
            self._leases.remove(messages[0]._lease)
        late = sum(not result.success for result in results)
        if late:
            log.warning("%d messages of %s come again, and are passed over", late, self._source.title)

    def drained(self) -> bool:
        return not self._taken and not self._covered and not self._committing

    def lag(self) -> float | None:
        return self._lag

    async def close(self) -> None:
        held = AsyncMessages(m for messages in self._covered + self._taken for m in messages)
        with contextlib.suppress(QueenstreamError):  # if not now, then when the lease ends
            await held.retry()
        await self._leases.close()
        await self._queen.close()

    # Where the group stands

    async def _standing(self) -> GroupQueue | None:
        try:
            return (await self._queen.admin.group(self._group)).queues.get(self._source.name)
        except NotFound:
            return None

    async def _measure(self) -> None:
        self._lag_known = time.monotonic()
        with contextlib.suppress(QueenstreamError):  # a figure for people: not worth a failure
            standing = await self._standing()
            held = sum(map(len, self._covered)) + sum(map(len, self._taken))
            self._lag = None if standing is None else max(0, standing.lag - held)

    async def _take_back(self) -> None:
        """What a run that was killed had leased comes now, not when its leases end, and counts no try.

        Only what the broker lists is found: of very many partitions, those furthest behind.
        """
        standing = await self._standing()
        if standing is not None:
            leased = [each.partition for each in standing.partition_details if each.leased_until is not None]
            await self._seek_each({name: self._place(name, standing) for name in leased})

    async def _move_back(self) -> None:
        """To the positions in all partitions, and to the start in those that were not read yet."""
        standing = await self._standing()
        if standing is None:
            return
        start = _start_of(standing) or from_us(min((at for _, at in self._positions.values()), default=0))
        if self._source.partition is None:
            await self._queen.admin.seek(self._group, self._source.name, start)
        else:
            await self._seek_each({self._source.partition: start})
        await self._seek_each({name: self._place(name, standing) for name in self._positions})

    def _place(self, partition: str, standing: GroupQueue) -> datetime | str | None:
        """Where the group has to go on in a partition, at the latest; None: it cannot be said as a time."""
        known = self._positions.get(partition)
        return _start_of(standing) if known is None else from_us(known[1])

    async def _seek_each(self, places: Mapping[str, datetime | str | None]) -> None:
        turns = asyncio.Semaphore(SEEKS)

        async def seek(partition: str, to: datetime | str) -> None:
            async with turns:
                with contextlib.suppress(NotFound):  # the partition is gone, with its messages
                    await self._queen.admin.seek(self._group, self._source.name, to, partition=partition)

        await asyncio.gather(*(seek(name, to) for name, to in places.items() if to is not None))


def _start_of(standing: GroupQueue) -> datetime | str | None:
    """Where the group began; None: with what was new then, which no time says exactly."""
    if standing.subscription_timestamp is not None:
        return standing.subscription_timestamp
    return None if standing.subscription_mode == "new" else _BEGINNING


def _enveloped(message: AsyncMessage[Any], data: Any) -> dict[str, Any]:
    return {
        "id": message.id,
        "transaction_id": message.transaction_id,
        "queue": message.queue,
        "partition": message.partition,
        "created_at": message.created_at,
        "data": data,
    }


@dataclass(slots=True)
class _Item:
    """A row on its way: its index among the rows, and what is sent."""

    index: int
    sent: PushItem
    size: int


class QueueWriter:
    """Pushes rows in order, each under an id of its own that a repeat has too."""

    def __init__(self, sink: Queue, context: Context) -> None:
        self._sink = sink
        self._context = context
        self._message_of = message_maker(sink)
        self._patience = Patience(context.node)

    async def open(self) -> None:
        self._queen = await connect(self._sink.url, self._context)

    async def write(self, epoch: str, rows: Sequence[Any]) -> list[Refusal]:
        name = self._context.delivery(epoch)
        refused: list[Refusal] = []
        waiting: list[_Item] = []
        size = 0
        for index, row in enumerate(rows):
            try:
                item = self._item(name, index, row)
            except PayloadInvalid as error:
                refused.append((index, error))
                continue
            if waiting and (len(waiting) >= MOST_ITEMS or size + item.size > MOST_BYTES):
                refused += await self._push(waiting)
                waiting, size = [], 0
            waiting.append(item)
            size += item.size
        if waiting:
            refused += await self._push(waiting)
        return sorted(refused, key=lambda refusal: refusal[0])

    def _item(self, name: str, index: int, row: Any) -> _Item:
        body, partition, id = self._message_of(row)
        item = PushItem(self._sink.name, msgspec.Raw(body), partition, id or f"{name}:{index}")
        return _Item(index, item, len(body))

    async def _push(self, items: Sequence[_Item]) -> list[Refusal]:
        """Until the broker has them. What it does not take is found by halving."""
        body = encode(PushBody([item.sent for item in items]))
        while True:
            try:
                await self._queen._calls.send("POST", "/api/v1/push", body)
            except (TooLarge, InvalidRequest) as error:
                if len(items) == 1:
                    return [(items[0].index, error)]
                middle = len(items) // 2
                return await self._push(items[:middle]) + await self._push(items[middle:])
            except (*AWAY, QueueFull) as error:
                await self._patience.wait(error)
            else:
                self._patience.reset()
                return []

    async def provenance(self) -> Provenance | None:
        try:
            return await self._queen._calls.call("GET", _CHECKPOINT, query=self._step, type=Provenance)
        except NotFound:  # also of a broker of an earlier release
            return None

    async def store_provenance(self, provenance: Provenance) -> None:
        body = {**self._step, **msgspec.to_builtins(provenance)}
        while True:
            try:
                await self._queen._calls.call("POST", _CHECKPOINT, body=body)
            except NotFound:
                return
            except AWAY as error:
                await self._patience.wait(error)
            else:
                self._patience.reset()
                return

    @property
    def _step(self) -> dict[str, str]:
        context = self._context
        return {"queue": self._sink.name, "pipeline": context.pipeline, "step": context.node}

    async def close(self) -> None:
        await self._queen.close()


def message_maker(sink: Queue) -> Callable[[Any], tuple[bytes, str, str | None]]:
    """What makes of a row its payload as JSON, its partition, and the transaction id that it names, if any.

    What cannot be a message raises ``PayloadInvalid``.
    """
    schema = schema_of(sink.schema)
    partition_of = _partitioner(sink)

    def message(row: Any) -> tuple[bytes, str, str | None]:
        payload, id = row, None
        if sink.envelope:
            if not isinstance(row, Mapping) or "data" not in row:
                raise PayloadInvalid("the row has no 'data', and is to be a whole message; add it to the row")
            payload, id = row["data"], str(row.get("transaction_id") or "") or None
        value = payload if schema is None else schema.coerce(payload)
        return encode(value), partition_of(row if sink.envelope else value), id

    return message


def messages_maker(sink: Queue) -> Callable[[Sequence[Any]], tuple[list[bytes], list[str]] | None]:
    """What makes of rows their payloads and partitions. None: the rows have to be taken one by one."""
    partition_of = _partitioner(sink)
    fixed = sink.partition_by is None
    plain = sink.schema is None and not sink.envelope

    def messages(rows: Sequence[Any]) -> tuple[list[bytes], list[str]] | None:
        if not plain:
            return None
        try:
            names = [partition_of(None)] * len(rows) if fixed else list(map(partition_of, rows))
            return encode_all(rows), names
        except Exception:  # noqa: BLE001 - the maker of a single message says what is wrong with it
            return None

    return messages


def _partitioner(sink: Queue) -> Callable[[Any], str]:
    if sink.partition_by is None:
        name = sink.partition or "Default"
        if sink.envelope and sink.partition is None:
            return lambda row: str(row.get("partition") or name)
        return lambda _: name
    path = sink.partition_by
    read = paths.getter(path)

    def partition_of(row: Any) -> str:
        value = read(row)
        if value is None:
            raise PayloadInvalid(
                f"the row has no {path}, which names its partition; add it, or filter such rows"
            )
        return str(value)

    return partition_of
