"""Windows of a stream: what a consumer of it gets."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from datetime import datetime
from typing import Any, Generic, TypeVar

from msgspec import Raw, Struct

from queenstream.client._async import transport
from queenstream.client._async.acks import AWAY, GIVE_BACK_SECONDS
from queenstream.client._async.consumer import Consumed, Polling, run_workers
from queenstream.client._async.iteration import Loop
from queenstream.client._async.retry import Calls, Stopped
from queenstream.client._async.stream import seek_stream
from queenstream.client._base import telemetry
from queenstream.client._base.brokers import backoff
from queenstream.client._base.chain import Duration, at_least, seconds
from queenstream.client._base.http import Place, decoded
from queenstream.client._base.payloads import Codec, encode
from queenstream.client._base.window import BaseWindow, WindowMessage
from queenstream.errors import InvalidRequest, LeaseLost, NotFound, PayloadInvalid, QueenstreamError

T = TypeVar("T")
log = logging.getLogger("queenstream.client")


class _Wire(Struct, rename={"lease_id": "leaseId", "lease_seconds": "leaseSeconds"}):
    id: str
    lease_id: str
    key: str
    start: datetime
    end: datetime
    messages: list[WindowMessage[Any]]
    attempt: int = 1
    complete: bool = True
    lease_seconds: float = 60.0


class _RawWire(Struct, rename={"lease_id": "leaseId", "lease_seconds": "leaseSeconds"}):
    id: str
    lease_id: str
    key: str
    start: datetime
    end: datetime
    messages: list[WindowMessage[Raw]]
    attempt: int = 1
    complete: bool = True
    lease_seconds: float = 60.0


class _Polled(Struct):
    window: _Wire


class _RawPolled(Struct):
    window: _RawWire


class AsyncWindow(BaseWindow[T]):
    """The messages of one key between ``start`` and ``end``, under a lease.

    ``all_messages`` are as they came, ``messages`` a working copy for ``filter``. ``attempt`` counts from 1;
    ``complete`` is False if retention took messages before the window was read. To acknowledge it together
    with pushes, all or nothing: ``queen.transaction().ack(window)``.

    >>> window.group_by("data.user")  # doctest: +SKIP
    {'ann': [...], 'bob': [...]}
    """

    def __init__(self, calls: Calls, found: Any) -> None:
        self._calls = calls
        self.id: str = found.id
        self.lease_id: str = found.lease_id
        self.key: str = found.key
        self.start: datetime = found.start
        self.end: datetime = found.end
        self.attempt: int = found.attempt
        self.complete: bool = found.complete
        self.all_messages: Sequence[WindowMessage[T]] = found.messages
        self.messages: list[WindowMessage[T]] = list(found.messages)
        self.lost = False  # the lease could not be renewed
        self.settled = False
        self.seconds: float = found.lease_seconds

    def __repr__(self) -> str:
        return f"<window {self.id}, {len(self.all_messages)} messages, attempt {self.attempt}>"

    async def ack(self, success: bool = True, error: str | BaseException = "") -> None:
        """It is done, or (``False``) it failed and comes again. ``LeaseLost`` if that comes too late."""
        await self._ack(success, error, None)

    async def _ack(self, success: bool, error: str | BaseException, timeout: float | None) -> None:
        body: dict[str, Any] = {"windowId": self.id, "leaseId": self.lease_id, "success": success}
        if error:
            said = str(error) if isinstance(error, str) else f"{type(error).__name__}: {error}"
            body["error"] = said[:60_000]
        try:
            await self._calls.send("POST", "/api/v1/stream/ack", encode(body), timeout=timeout)
        except InvalidRequest as refused:
            self.lost = True
            raise LeaseLost(f"window {self.id}: {refused}") from None
        self.settled = True

    async def renew(self, extend_ms: int | None = None) -> bool:
        """Hold the lease longer, from now on; False: it is over. A consumer does this by itself."""
        wanted = round(self.seconds * 1000) if extend_ms is None else at_least("extend_ms", extend_ms)
        return await self._renew(wanted, None)

    async def hold(self, timeout: float | None = None) -> bool:
        """Hold the lease as long again: what a consumer does while it works."""
        return await self._renew(round(self.seconds * 1000), timeout)

    async def _renew(self, wanted: int, timeout: float | None) -> bool:
        body = encode({"leaseId": self.lease_id, "extend_ms": wanted})
        try:
            await self._calls.send("POST", "/api/v1/stream/renew-lease", body, timeout=timeout)
        except NotFound:
            self.lost = True
            return False
        return True


class AsyncConsumer(Generic[T]):
    """A group that consumes a stream's windows: ``queen.consumer("stream", "group")``.

    >>> await queen.consumer("activity", "analytics").process(handle, concurrency=4)  # doctest: +SKIP
    """

    def __init__(self, calls: Calls, codec: Codec[T], stream: str, group: str, start: str | None) -> None:
        self._calls = calls
        self._codec = codec
        self._stream = stream
        self._group = group
        self._start = start

    async def poll(self, wait: Duration = 0) -> AsyncWindow[T] | None:
        """The next window, if one comes within ``wait``."""
        return await self._poll(seconds("wait", wait), None)

    async def _poll(self, wait_seconds: float, stop: transport.Stop | None) -> AsyncWindow[T] | None:
        body = {
            "streamName": self._stream,
            "consumerGroup": self._group,
            "timeout": int(wait_seconds * 1000),
            **({"subscriptionFrom": self._start} if self._start else {}),
        }
        answer = await self._calls.send(
            "POST", "/api/v1/stream/poll", encode(body), wait=wait_seconds, stop=stop
        )
        if answer.status == 204:
            return None
        found = decoded(answer.body, _RawPolled if self._codec.typed else _Polled).window
        window: AsyncWindow[T] = AsyncWindow(self._calls, found)
        if self._codec.typed:
            try:
                for message in found.messages:
                    message.data = self._codec.decode(message.data)
            except PayloadInvalid as error:
                await window.ack(False, error)
                raise
        return window

    async def seek(self, to: Place) -> None:
        """Move the group to the windows from a time on, back or forward. Leases that are out become void.

        ``to`` is a time, ``"beginning"``, or ``"now"`` (also ``"end"``): the window of this moment.

        >>> await queen.consumer("activity", "analytics").seek("2026-11-03T10:00:00Z")  # doctest: +SKIP
        """
        await seek_stream(self._calls, self._stream, self._group, to)

    async def process(
        self,
        handler: Callable[[AsyncWindow[T]], Awaitable[object] | object],
        *,
        concurrency: int = 1,
        limit: int | None = None,
        idle_timeout: Duration | None = None,
        stop: transport.UserEvent | None = None,
        signals: bool = True,
    ) -> Consumed:
        """Call ``handler`` with each window, and acknowledge it when it is done.

        If it raises, the window failed, with that error, and comes again. The lease is renewed while it
        runs. It ends with ``limit``, ``idle_timeout``, ``stop``, or SIGINT and SIGTERM, after the handlers
        that run; a broker that is away is waited for.
        """
        work = _Processing(self, handler, limit, idle_timeout)
        await run_workers(work.polling, work.run, at_least("concurrency", concurrency), stop, signals)
        return work.result

    async def windows(
        self, *, limit: int | None = None, idle_timeout: Duration | None = None
    ) -> AsyncIterator[AsyncWindow[T]]:
        """One window after the other, for ever, or until ``limit`` or ``idle_timeout``.

        A window is acknowledged when the loop asks for the next one, unless that was done by hand. The one
        that is in hand when the loop is left comes again.

        >>> async for window in queen.consumer("activity", "analytics").windows():  # doctest: +SKIP
        ...     print(window.key, len(window.messages))
        """
        polling = _polling(limit, idle_timeout)
        window: AsyncWindow[T] | None = None
        failures = 0

        async def put_down() -> None:
            if window is not None:
                await _give_back(window)

        loop = Loop(self._calls, polling, put_down)
        try:
            while await polling.room(1):
                try:
                    window = await self._poll(polling.wait_seconds, None)
                except AWAY as error:
                    failures += 1
                    polling.got(1, 0)
                    await polling.away(error, failures)
                    continue
                failures = 0
                polling.got(1, 0 if window is None else 1)
                if window is None:
                    polling.nothing()
                    continue
                polling.renewer.add(window)
                yield window
                if not window.settled:
                    await _ack_surely(window)
                polling.renewer.remove(window)
                polling.done()
        finally:
            await loop.leave()


def _polling(limit: int | None, idle_timeout: Duration | None) -> Polling:
    idle = None if idle_timeout is None else seconds("idle_timeout", idle_timeout)
    return Polling(None if limit is None else at_least("limit", limit), idle, None)


class _Processing(Generic[T]):
    """One call of ``process``."""

    def __init__(
        self,
        consumer: AsyncConsumer[T],
        handler: Callable[[AsyncWindow[T]], Awaitable[object] | object],
        limit: int | None,
        idle_timeout: Duration | None,
    ) -> None:
        self._consumer = consumer
        self._handler = transport.handler(handler)
        self._lock = threading.Lock()
        self.polling = _polling(limit, idle_timeout)
        self.result = Consumed()

    def _count(self, *, handled: int = 0, failed: int = 0, lost: int = 0) -> None:
        with self._lock:  # workers may be threads
            self.result.handled += handled
            self.result.failed += failed
            self.result.lost += lost

    async def run(self) -> None:
        """What each worker does."""
        failures = 0
        polling = self.polling
        while await polling.room(1):
            try:
                window = await self._consumer._poll(polling.wait_seconds, polling.stop)
            except Stopped:
                return
            except PayloadInvalid as error:  # the window has failed with it
                log.warning("a window of %s failed: %s", self._consumer._stream, error)
                self._count(failed=1)
                polling.got(1, 1)
                polling.done()
                continue
            except AWAY as error:
                failures += 1
                polling.got(1, 0)
                await polling.away(error, failures)
                continue
            failures = 0
            polling.got(1, 0 if window is None else 1)
            if window is None:
                polling.nothing()
                continue
            try:
                await self._take(window)
            finally:
                polling.done()

    async def _take(self, window: AsyncWindow[T]) -> None:
        try:
            if self.polling.stop.is_set():
                return
            self.polling.renewer.add(window)
            try:
                with telemetry.handling(self._consumer._stream, []):
                    await transport.call(self._handler, window)
            except Exception as error:
                log.warning("the handler failed at %r: %s", window, error, exc_info=error)
                self._count(failed=1)
                if not window.settled:
                    self._count(lost=not await _ack_surely(window, error))
                return
            self._count(handled=1)
            if not window.settled:
                self._count(lost=not await _ack_surely(window))
        finally:
            self.polling.renewer.remove(window)
            await _give_back(window)


async def _ack_surely(window: AsyncWindow[Any], error: Exception | None = None) -> bool:
    """Try for as long as the lease can last: after that the broker has taken it. Whether it was in time."""
    ends = time.monotonic() + window.seconds
    failures = 0
    while True:
        try:
            await window.ack(error is None, error or "")
            return True
        except LeaseLost as lost:
            log.warning("%r was handled, but its lease was over and it comes again: %s", window, lost)
            break
        except AWAY as away:
            failures += 1
            if time.monotonic() > ends:
                log.warning("%r could not be acknowledged and comes again: %s", window, away)
                break
            await transport.sleep(backoff(failures))
    window.settled = True
    return False


async def _give_back(window: AsyncWindow[Any]) -> None:
    """A window that nobody will handle now comes again."""
    if not window.settled and not window.lost:
        try:
            await window._ack(False, "the consumer ended before the window was handled", GIVE_BACK_SECONDS)
        except QueenstreamError as error:
            log.warning("%r comes again when its lease ends: %s", window, error)
