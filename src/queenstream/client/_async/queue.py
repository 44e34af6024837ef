"""``queen.queue(…)``: a chain of words that says what to do, and the call that does it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any, Generic, Literal, Self, TypeVar, overload

from msgspec import UNSET, UnsetType

from queenstream.client._async import transport
from queenstream.client._async.admin.groups import seek_group
from queenstream.client._async.consumer import Consumed, Consumption
from queenstream.client._async.iteration import each_message
from queenstream.client._async.message import AsyncMessage, AsyncMessages
from queenstream.client._async.pop import pop
from queenstream.client._async.producer import AsyncProducer
from queenstream.client._async.retry import Calls
from queenstream.client._base import telemetry
from queenstream.client._base.buffer import Backpressure, Buffering
from queenstream.client._base.chain import (
    ConfigureBody,
    Duration,
    QueueOptions,
    Settings,
    SubscriptionMode,
    at_least,
    seconds,
    start_of,
)
from queenstream.client._base.http import Place, decoded, path_of
from queenstream.client._base.ids import new_id, new_ids
from queenstream.client._base.payloads import Codec, encode
from queenstream.client._base.responses.messages import PushBody, PushItem, PushResult
from queenstream.client._base.responses.resources import Sought
from queenstream.core import schemas
from queenstream.errors import ConfigError

T = TypeVar("T")
MOST_ITEMS = 10_000  # in one request
QUEUE_MODE = "__QUEUE_MODE__"  # the group of those that name none
POP_SECONDS = 30.0  # what .wait() alone means
_RESULTS = list[PushResult]


class AsyncQueueBase(Generic[T]):
    """The words that every chain knows. Each gives a new chain; nothing is sent before the last call."""

    def __init__(self, calls: Calls, codec: Codec[T], settings: Settings) -> None:
        self._calls = calls
        self._codec = codec
        self._settings = settings

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._settings}>"

    def _with(self, **changes: Any) -> Self:
        return type(self)(self._calls, self._codec, replace(self._settings, **changes))

    # Which messages

    def namespace(self, name: str) -> Self:
        """The queue's namespace; without a queue: pop from all queues of it."""
        return self._with(namespace=name)

    def task(self, name: str) -> Self:
        """The queue's task; without a queue: pop from all queues of it."""
        return self._with(task=name)

    def partition(self, name: str) -> Self:
        """One lane of the queue: order is kept inside it. It is made with the first push."""
        return self._with(partition=name)

    def group(self, name: str) -> Self:
        """The consumer group. Each gets every message; without one, all consumers share one group."""
        return self._with(group=name)

    def subscription_mode(self, mode: SubscriptionMode) -> Self:
        """Where a new group starts: ``all`` (default) at the first message, ``new`` with its first pop."""
        if mode not in ("all", "new"):
            raise ConfigError(f"subscription_mode is {mode!r}; use 'all' or 'new'")
        return self._with(mode=mode)

    def subscription_from(self, when: datetime | str) -> Self:
        """Where a new group starts: a time, or ``now``."""
        return self._with(start=start_of(when))

    # How to take them

    def batch(self, count: int) -> Self:
        """At most so many messages at once."""
        return self._with(batch=at_least("batch", count))

    def partitions(self, count: int) -> Self:
        """Take from up to so many partitions at once."""
        return self._with(partitions=at_least("partitions", count))

    def wait(self, time: Duration | bool = True) -> Self:
        """Wait for messages up to that long (30 seconds if nothing is said), instead of coming back empty."""
        if isinstance(time, bool):
            return self._with(wait_seconds=POP_SECONDS if time else 0.0)
        return self._with(wait_seconds=seconds("wait", time))

    def auto_ack(self, wanted: bool = True) -> Self:
        """``pop``: acknowledge with the pop. ``consume``: when the handler is done, which is the default."""
        return self._with(auto_ack=wanted)

    def concurrency(self, count: int) -> Self:
        """So many handlers at once, each with its own pops."""
        return self._with(concurrency=at_least("concurrency", count))

    def limit(self, count: int) -> Self:
        """A consumer ends after so many messages."""
        return self._with(limit=at_least("limit", count))

    def idle_timeout(self, time: Duration) -> Self:
        """A consumer ends when nothing has come for that long."""
        return self._with(idle_seconds=seconds("idle_timeout", time))

    # The queue itself

    def config(
        self,
        *,
        lease_time: int | UnsetType = UNSET,
        retry_limit: int | UnsetType = UNSET,
        retry_delay: int | UnsetType = UNSET,
        ttl: int | UnsetType = UNSET,
        max_size: int | UnsetType = UNSET,
        priority: int | UnsetType = UNSET,
        delayed_processing: int | UnsetType = UNSET,
        window_buffer: int | UnsetType = UNSET,
        retention_enabled: bool | UnsetType = UNSET,
        retention_seconds: int | UnsetType = UNSET,
        completed_retention_seconds: int | UnsetType = UNSET,
        max_wait_time_seconds: int | UnsetType = UNSET,
        encryption_enabled: bool | UnsetType = UNSET,
        dead_letter_queue: bool | UnsetType = UNSET,
        dlq_after_max_retries: bool | UnsetType = UNSET,
    ) -> Self:
        """The options for ``create``; docs/broker.md says what each means. Seconds, ``retry_delay`` in ms."""
        options = QueueOptions(
            lease_time, retry_limit, retry_delay, ttl, max_size, priority, delayed_processing, window_buffer,
            retention_enabled, retention_seconds, completed_retention_seconds, max_wait_time_seconds,
            encryption_enabled, dead_letter_queue, dlq_after_max_retries,
        )  # fmt: skip
        return self._with(options=options)

    async def create(self) -> dict[str, Any]:
        """Make the queue, or give an existing one these options: all of them, also those left out.

        >>> await queen.queue("orders").config(lease_time=60).create()  # doctest: +SKIP
        """
        said = self._settings
        body = ConfigureBody(said.name, said.namespace, said.task, said.options)
        answer: dict[str, Any] = await self._calls.call("POST", "/api/v1/configure", body=body)
        return answer

    async def delete(self) -> bool:
        """Delete the queue with its messages, groups and dead letters; whether there was one."""
        path = path_of("api", "v1", "resources", "queues", self._settings.name)
        # Not again: by then the name may be another queue's.
        answer: dict[str, Any] = await self._calls.call("DELETE", path, repeat=False)
        return bool(answer["existed"])

    async def seek(self, to: Place) -> Sought:
        """Move the chain's group to another place in the queue, back or forward; a new group starts there.

        ``to`` is a time, ``"beginning"``, or ``"end"`` (also ``"now"``): past all that is stored. With
        ``partition`` in the chain only that partition is moved. Leases that are out become void.

        >>> await queen.queue("orders").group("billing").seek("2026-01-31T12:00:00Z")  # doctest: +SKIP
        """
        said = self._settings
        return await seek_group(self._calls, said.group or QUEUE_MODE, said.name, to, said.partition)

    # Push

    @overload
    async def push(  # type: ignore[overload-overlap]  # a list is many messages
        self,
        payload: list[T],
        *,
        transaction_ids: Sequence[str] | None = None,
        trace_id: str | None = None,
    ) -> list[PushResult]: ...
    @overload
    async def push(
        self,
        payload: T,
        *,
        transaction_id: str | None = None,
        trace_id: str | None = None,
    ) -> PushResult: ...
    async def push(
        self,
        payload: T | list[T],
        *,
        transaction_id: str | None = None,
        transaction_ids: Sequence[str] | None = None,
        trace_id: str | None = None,
    ) -> PushResult | list[PushResult]:
        """Push one message, or a list of them in order. When it returns they are stored and safe.

        Each carries a transaction id, its own or a new one, so a repeat stores nothing twice. A JSON array as
        one message is a list in a list. More than 10,000 go in several requests.

        >>> await queen.queue("orders").partition("ann").push({"amount": 5})  # doctest: +SKIP
        PushResult(index=0, ..., status='queued')
        """
        if isinstance(payload, list):
            if transaction_id is not None:
                raise ConfigError("a list takes transaction_ids=[…], one for each")
            return await self._push(payload, transaction_ids, trace_id)
        if transaction_ids is not None:
            raise ConfigError("one message takes transaction_id=…")
        ids = [transaction_id if transaction_id is not None else new_id()]
        return (await self._push([payload], ids, trace_id))[0]

    async def _push(
        self, payloads: list[T], ids: Sequence[str] | None, trace_id: str | None
    ) -> list[PushResult]:
        if ids is None:
            ids = new_ids(len(payloads))
        elif len(ids) != len(payloads):
            raise ConfigError(f"{len(payloads)} messages and {len(ids)} transaction_ids; give one for each")
        if len(payloads) <= MOST_ITEMS:
            return await self._push_some(payloads, ids, trace_id) if payloads else []
        results: list[PushResult] = []
        for first in range(0, len(payloads), MOST_ITEMS):
            last = first + MOST_ITEMS
            results += await self._push_some(payloads[first:last], ids[first:last], trace_id)
        for index, result in enumerate(results):
            result.index = index
        return results

    async def _push_some(
        self, payloads: list[T], ids: Sequence[str], trace_id: str | None
    ) -> list[PushResult]:
        name = self._settings.name
        partition = self._settings.partition or "Default"
        if self._codec.checks:
            payloads = [self._codec.check(payload) for payload in payloads]
        with telemetry.sending(name, len(payloads)) as context:
            trace = trace_id if trace_id is not None else context
            items = [
                PushItem(name, payload, partition, id, trace)
                for payload, id in zip(payloads, ids, strict=True)
            ]
            answer = await self._calls.send("POST", "/api/v1/push", encode(PushBody(items)))
        found: list[PushResult] = decoded(answer.body, _RESULTS)
        return found

    def buffered(
        self,
        *,
        batch_size: int = 500,
        flush_interval: Duration = 0,
        max_concurrency: int = 4,
        backpressure: Backpressure | Literal["block", "drop_oldest", "drop_newest", "error"] = "block",
        partition_key: str | Sequence[str] | Callable[[T], str] | None = None,
        schema: schemas.Definition | None = None,
        dead_letters: str | None = None,
        ttl: int | None = None,
    ) -> AsyncProducer[T]:
        """A producer that takes single messages and pushes them together.

        A free lane takes what is pending, up to ``batch_size``; ``flush_interval`` lets it wait for more.
        Messages of one partition keep their order; ``partition_key`` finds the partition in the payload.
        ``schema`` checks and converts each; what does not fit goes to the queue ``dead_letters``.

        >>> async with queen.queue("metrics").buffered(partition_key="name") as producer:  # doctest: +SKIP
        ...     await producer.push({"name": "cpu", "value": 0.7})
        """
        plan = Buffering(batch_size, seconds("flush_interval", flush_interval), max_concurrency, backpressure)
        return AsyncProducer(
            self._calls, self._codec, self._settings, plan, partition_key, schema, dead_letters, ttl
        )

    # Pop

    async def pop(self) -> AsyncMessages[T]:
        """Take what there is, up to ``batch`` (1), under a lease; at once, or after ``wait``.

        >>> messages = await queen.queue("orders").batch(10).wait("5s").pop()  # doctest: +SKIP
        """
        said = self._settings
        return await pop(
            self._calls,
            self._codec,
            said,
            batch=said.batch,
            wait_seconds=said.wait_seconds or 0.0,
            auto_ack=bool(said.auto_ack),
        )

    def messages(self) -> AsyncIterator[AsyncMessage[T]]:
        """One message after the other, for ever, or until ``limit`` or ``idle_timeout``.

        A message is acknowledged when the loop asks for the next one, unless it was settled by hand. The one
        that is in hand when the loop is left comes again.

        >>> async for message in queen.queue("orders").batch(100).messages():  # doctest: +SKIP
        ...     print(message.data)
        """
        return each_message(self._calls, self._codec, self._settings)


class AsyncQueue(AsyncQueueBase[T]):
    """A queue; its handlers take the messages of a pop together.

    >>> queue = queen.queue("orders").group("billing").batch(100)  # doctest: +SKIP
    >>> await queue.consume(handle)  # doctest: +SKIP
    """

    def each(self) -> AsyncEachQueue[T]:
        """Handlers take one message at a time."""
        return AsyncEachQueue(self._calls, self._codec, self._settings)

    async def consume(
        self,
        handler: Callable[[AsyncMessages[T]], Awaitable[object] | object],
        *,
        stop: transport.UserEvent | None = None,
        signals: bool = True,
    ) -> Consumed:
        """Call ``handler`` with the messages of each pop, and acknowledge them when it is done.

        If it raises, those that are not settled failed, with that error, and come again. The lease is renewed
        while it runs. It ends with ``limit``, ``idle_timeout``, ``stop``, or SIGINT and SIGTERM, after the
        handlers that run; a broker that is away is waited for.

        >>> await queen.queue("orders").batch(100).concurrency(4).consume(handle)  # doctest: +SKIP
        """
        work = Consumption(self._calls, self._codec, self._settings, handler, each=False)
        return await work.run(stop, signals)


class AsyncEachQueue(AsyncQueueBase[T]):
    """A queue whose handlers take one message at a time: ``queue.each()``."""

    async def consume(
        self,
        handler: Callable[[AsyncMessage[T]], Awaitable[object] | object],
        *,
        stop: transport.UserEvent | None = None,
        signals: bool = True,
    ) -> Consumed:
        """Call ``handler`` with each message, in order, and acknowledge it when it is done.

        If it raises, the message failed, with that error; it comes again with all after it in its partition.
        The rest is as for a queue without ``each``.

        >>> await queen.queue("orders").batch(100).each().consume(handle_one)  # doctest: +SKIP
        """
        work = Consumption(self._calls, self._codec, self._settings, handler, each=True)
        return await work.run(stop, signals)
