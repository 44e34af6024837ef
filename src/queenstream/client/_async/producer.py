"""A buffered producer: takes single messages, pushes them together, loses none."""

from __future__ import annotations

import logging
import threading
import time
import warnings
import weakref
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any, Generic, Self, TypeVar

from queenstream.client._async import transport
from queenstream.client._async.pending_push import AsyncPushed, Lane, Stored
from queenstream.client._async.retry import Calls, Stopped
from queenstream.client._base import telemetry
from queenstream.client._base.brokers import backoff
from queenstream.client._base.buffer import Buffering, BufferStats, Pressure
from queenstream.client._base.chain import Settings
from queenstream.client._base.http import path_of
from queenstream.client._base.ids import new_id
from queenstream.client._base.payloads import Codec, encode
from queenstream.client._base.responses.messages import PushItem
from queenstream.core import paths, schemas
from queenstream.errors import (
    BrokerUnreachable,
    BufferFull,
    ClientClosed,
    InvalidRequest,
    NotFound,
    PayloadInvalid,
    QueenstreamError,
    QueueFull,
    ServerFailed,
    TooLarge,
    Unavailable,
)

T = TypeVar("T")
MOST_BYTES = 8 << 20  # of messages in one request
AGAIN = (
    BrokerUnreachable,
    QueueFull,
    ServerFailed,
    Unavailable,
)  # it passes: the lane waits, and tries again
log = logging.getLogger("queenstream.client")


class AsyncProducer(Generic[T]):
    """Made by ``queue.buffered(…)``. Close it, or use it in a ``with`` block: then everything is stored.

    >>> async with queen.queue("metrics").buffered() as producer:  # doctest: +SKIP
    ...     pushed = await producer.push({"cpu": 0.7})
    ...     (await pushed.result()).status
    'queued'
    """

    def __init__(
        self,
        calls: Calls,
        codec: Codec[T],
        settings: Settings,
        plan: Buffering,
        partition_key: str | Sequence[str] | Callable[[T], str] | None,
        schema: schemas.Definition | None,
        dead_letters: str | None,
        ttl: int | None,
    ) -> None:
        self._calls = calls
        self._codec = codec
        self._name = settings.name
        self._settings = settings
        self._plan = plan
        self._partition_of = _partitioner(partition_key, settings.partition)
        self._schema = None if schema is None else schemas.Schema.of(schema)
        self._dead_letters = dead_letters or f"{self._name}.dead-letters"
        self._ttl = ttl
        self._prepared = ttl is None
        self._lanes = [Lane() for _ in range(plan.lanes)]
        self._mutex = threading.Lock()
        self._crew = transport.Crew()
        self._space = transport.Event()
        self._space.set()
        self._moved = transport.Event()  # some are answered, or dropped
        self._stop = transport.Stop()  # what is under way is given up
        self._threshold = plan.backpressure.threshold
        # Who waits for room goes on when there is some for several: to be woken costs as much as many pushes.
        # With an interval, lanes keep what is no whole batch, and it might not come to that.
        self._room = self._threshold - (0 if plan.flush_seconds else self._threshold // 8)
        self._pressed = False
        self._flushing = 0
        self._closing = False
        self._closed = False
        self._error: Exception | None = None  # of a message that nobody asked about
        self.stats = BufferStats()
        # Not __del__: the lanes' work holds on to the producer, perhaps to the end of the program.
        self._guard = weakref.finalize(self, _left_open, self._name, self.stats)

    # Taking messages

    async def push(
        self, payload: T, *, partition: str | None = None, transaction_id: str | None = None
    ) -> AsyncPushed:
        """Take one message. It waits only when ``block`` says so; the result can be waited for, or not."""
        if not self._prepared:
            await self._prepare()
        value: Any = self._codec.check(payload) if self._codec.checks else payload
        queue = self._name
        try:
            if self._schema is not None:
                value = self._schema.coerce(value)
            lane_of = partition if partition is not None else self._partition_of(value)
        except PayloadInvalid as error:
            if self._schema is None:
                raise
            value = {"record": value, "error": str(error), "queue": queue}
            queue, lane_of = self._dead_letters, "Default"
        stats, plan = self.stats, self._plan
        trace = telemetry.context() if telemetry.available() else None
        item = encode(PushItem(queue, value, lane_of, transaction_id or new_id(), trace))
        lane = self._lanes[hash(lane_of) % len(self._lanes)]
        pushed = AsyncPushed(self._mutex, item)
        if stats.pending >= self._threshold and not await self._make_room(pushed):
            return pushed
        with self._mutex:
            if self._closing:  # here it is sure: what is taken now, close will wait for
                raise ClientClosed("the producer was closed; make a new one")
            if plan.flush_seconds:
                pushed._came = time.monotonic()
            lane.pending.append(pushed)
            lane.entered += 1
            stats.accepted += 1
            stats.pending += 1
            if queue is not self._name:
                stats.rejected += 1
            waiting = len(lane.pending)
            start = not lane.started
            lane.started = True
        full = waiting % plan.batch_size == 0
        if start:
            self._crew.start(lambda: self._run(lane))
        elif full or waiting == 1:
            lane.wake.set()
        if full:
            await transport.sleep(0)  # a batch is whole: let the lane send it while the next one fills
        return pushed

    async def _make_room(self, pushed: AsyncPushed) -> bool:
        """The threshold is reached: what the strategy says. False: the new message is given up."""
        pressure = self._plan.backpressure
        self._press(True)
        if pressure.strategy == "error":
            raise BufferFull(
                f"{self.stats.pending} messages are pending and the threshold is {pressure.threshold}; "
                "push more slowly, raise the threshold, or use another backpressure strategy"
            )
        if pressure.strategy == "block":
            while self.stats.pending >= pressure.threshold and not self._closing:
                self._space.clear()
                if self.stats.pending >= pressure.threshold:
                    await self._space.wait(1.0)
            return True
        with self._mutex:
            lanes = [lane for lane in self._lanes if lane.pending]
            if pressure.strategy == "drop_oldest" and lanes:
                # The lane that has waited longest; without times, the longest one.
                oldest = min(lanes, key=lambda lane: (lane.pending[0]._came, -len(lane.pending)))
                dropped = oldest.pending.popleft()
                self.stats.pending -= 1
            else:
                dropped = pushed
            dropped._failed(BufferFull("dropped: more came than could be pushed"))
            self.stats.dropped += 1
        self._moved.set()
        return dropped is not pushed

    def _press(self, on: bool) -> None:
        if self._pressed == on:
            return
        self._pressed = on
        self.stats.pressures += on
        pressure = self._plan.backpressure
        if pressure.on_change is not None:
            pressure.on_change(Pressure(on, self.stats.pending, pressure.strategy))

    async def _prepare(self) -> None:
        """Give the queue its ttl; its other options stay."""
        options: dict[str, Any] = {}
        try:
            path = path_of("api", "v1", "resources", "queues", self._name)
            options = (await self._calls.call("GET", path))["options"]
        except NotFound:
            pass
        if options.get("ttl") != self._ttl:
            body = {
                "queue": self._name,
                "options": {**options, "ttl": self._ttl},
                **({"namespace": self._settings.namespace} if self._settings.namespace else {}),
                **({"task": self._settings.task} if self._settings.task else {}),
            }
            await self._calls.call("POST", "/api/v1/configure", body=body)
        self._prepared = True

    # Sending them

    async def _run(self, lane: Lane) -> None:
        """Send what is pending, for ever; close ends it."""
        plan = self._plan
        while True:
            if not lane.pending:
                if self._closing:
                    return
                lane.wake.clear()
                if not lane.pending and not self._closing:
                    await lane.wake.wait()
                continue
            if plan.flush_seconds and not self._flushing and not self._closing:
                due = lane.pending[0]._came + plan.flush_seconds - time.monotonic()
                if due > 0 and len(lane.pending) < plan.batch_size:
                    lane.wake.clear()
                    await lane.wake.wait(due)
                    continue
            with self._mutex:
                batch = lane.take(plan.batch_size, MOST_BYTES)
            await self._send(batch)
            lane.sending = None
            if not self._moved.is_set():
                self._moved.set()

    async def _send(self, batch: list[AsyncPushed]) -> None:
        if not batch:
            return
        body = b'{"items":[' + b",".join([pushed._item for pushed in batch]) + b"]}"
        failures = 0
        while True:
            if self._closed:  # close has waited long enough
                self._failed(batch, BrokerUnreachable("the producer was closed before a broker answered"))
                return
            try:
                answer = await self._calls.send("POST", "/api/v1/push", body, stop=self._stop)
                self._stored(batch, Stored(answer.body, len(batch)))
                return
            except Stopped:
                continue
            except (TooLarge, InvalidRequest) as error:  # perhaps of one: the others go on
                if len(batch) == 1:
                    self._failed(batch, error)
                    return
                middle = len(batch) // 2
                await self._send(batch[:middle])
                await self._send(batch[middle:])
                return
            except AGAIN as error:
                failures += 1
                log.warning("%d buffered messages of %s are tried again: %s", len(batch), self._name, error)
                await self._stop.wait(backoff(failures))
            except QueenstreamError as error:
                self._failed(batch, error)
                return

    def _stored(self, batch: list[AsyncPushed], stored: Stored) -> None:
        with self._mutex:
            stored.tell(batch)
            self.stats.duplicates += stored.duplicates
            self.stats.stored += len(batch)
        self._answered(batch)

    def _failed(self, batch: list[AsyncPushed], error: Exception) -> None:
        log.error("%d buffered messages of %s were not stored: %s", len(batch), self._name, error)
        with self._mutex:
            for pushed in batch:
                pushed._failed(error)
            self.stats.failed += len(batch)
            self._error = self._error or error
        self._answered(batch)

    def _answered(self, batch: list[AsyncPushed]) -> None:
        with self._mutex:
            self.stats.batches += 1
            self.stats.pending -= len(batch)
            pending = self.stats.pending
        if pending < self._room and not self._space.is_set():
            self._space.set()
        if self._pressed and pending <= self._threshold // 2:
            self._press(False)

    # Ending

    async def flush(self, timeout: float | None = None) -> None:
        """Wait until everything taken so far is stored; an error if something could not be."""
        with self._mutex:
            wanted = [(lane, lane.entered) for lane in self._lanes]
            self._flushing += 1
        ends = None if timeout is None else time.monotonic() + timeout
        try:
            for lane, _ in wanted:
                lane.wake.set()
            while True:
                self._moved.clear()
                if all(lane.is_past(number) for lane, number in wanted):
                    break
                left = None if ends is None else ends - time.monotonic()
                if left is not None and left <= 0:
                    raise BrokerUnreachable(
                        f"{self.stats.pending} buffered messages are not stored after {timeout:g} s; "
                        "they are tried further"
                    )
                await self._moved.wait(left)
        finally:
            with self._mutex:
                self._flushing -= 1
        error, self._error = self._error, None
        if error is not None:
            raise error

    async def close(self, timeout: float | None = None) -> None:
        """Store what is left, then end.

        After ``timeout`` seconds, by default the client's, the rest fails, and that is raised.
        """
        if self._closed:
            return
        with self._mutex:
            self._closing = True
        self._space.set()
        try:
            await self.flush(self._calls.timeout if timeout is None else timeout)
        finally:
            self._closed = True
            self._guard.detach()
            self._stop.set()
            for lane in self._lanes:
                lane.wake.set()
            await self._crew.join()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()


def _left_open(name: str, stats: BufferStats) -> None:
    """A producer is gone, or the program ends, and nobody has closed it."""
    if stats.accepted:
        warnings.warn(
            f"a producer of {name} was not closed: {stats.pending} messages may be lost; "
            "use it in a with block",
            ResourceWarning,
            stacklevel=2,
        )


def _partitioner(
    key: str | Sequence[str] | Callable[[Any], str] | None, fixed: str | None
) -> Callable[[Any], str]:
    """How the partition of a message is found."""
    if key is None:
        name = fixed or "Default"
        return lambda _: name
    if callable(key):
        return key
    reads = [paths.getter(paths.strip(path)) for path in ([key] if isinstance(key, str) else key)]

    def partition_of(value: Any) -> str:
        found = [read(value) for read in reads]
        if any(part is None for part in found):
            raise PayloadInvalid(
                f"the payload has no {key}, which names its partition; add it or push with partition="
            )
        return ":".join(str(part) for part in found)

    return partition_of
