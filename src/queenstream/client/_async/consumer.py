"""Consumers: pop, handle, acknowledge, again; with leases renewed and a graceful end."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from queenstream.client._async import transport
from queenstream.client._async.acks import AWAY, Acknowledgement, Hand, give_back, settle_surely
from queenstream.client._async.lease_renewer import Renewer
from queenstream.client._async.message import AsyncMessage, AsyncMessages
from queenstream.client._async.pop import pop
from queenstream.client._async.retry import Calls, Stopped
from queenstream.client._base import telemetry
from queenstream.client._base.brokers import backoff
from queenstream.client._base.chain import POLL_SECONDS, Settings
from queenstream.client._base.payloads import Codec

T = TypeVar("T")
log = logging.getLogger("queenstream.client")


@dataclass
class Consumed:
    """What a consumer did: messages handled, those whose handler raised, those whose lease was lost."""

    handled: int = 0
    failed: int = 0
    lost: int = 0


class Polling:
    """When to ask for how much, and when to end: shared by all workers of a consumer."""

    def __init__(self, limit: int | None, idle_seconds: float | None, wait_seconds: float | None) -> None:
        self.stop = transport.Stop()
        self.renewer = Renewer()
        self._left = limit
        self._idle_seconds = idle_seconds
        self._wait_seconds = POLL_SECONDS if wait_seconds is None else max(wait_seconds, 0.05)
        self._lock = threading.Lock()
        self._busy = 0
        self._reserved = 0
        self._returned = transport.Event()
        self._since = time.monotonic()

    def grant(self, most: int) -> int:
        """How many messages a worker may ask for at once; 0: none, as far as is known now."""
        if self.stop.is_set():
            return 0
        if self._left is None:
            return most
        with self._lock:
            granted = max(0, min(most, self._left - self._reserved))
            self._reserved += granted
            return granted

    async def room(self, most: int) -> int:
        """The same, when others may yet give back what they did not get; 0: it is over."""
        while not self.stop.is_set() and (self._left is None or self._left > 0):
            if granted := self.grant(most):
                return granted
            self._returned.clear()
            await self._returned.wait(0.1)
        return 0

    def got(self, asked: int, count: int) -> None:
        """So many came of those asked for."""
        with self._lock:
            if self._left is not None:
                self._reserved -= asked
                self._left -= count
            if count:
                self._busy += 1
        if self._left is not None and not self._returned.is_set():
            self._returned.set()

    def done(self) -> None:
        """They are handled."""
        with self._lock:
            self._busy -= 1
            self._since = time.monotonic()
            over = self._left is not None and self._left <= 0 and self._busy == 0
        if over:
            self.stop.set()

    @property
    def wait_seconds(self) -> float:
        """How long a long poll may be."""
        if self._idle_seconds is None:
            return self._wait_seconds
        left = self._since + self._idle_seconds - time.monotonic()
        return min(self._wait_seconds, max(left, 0.05))

    def nothing(self) -> None:
        """A poll came back empty: perhaps for the last time."""
        idle = time.monotonic() - self._since
        if self._idle_seconds is not None and self._busy == 0 and idle >= self._idle_seconds:
            self.stop.set()

    async def away(self, error: Exception, failures: int) -> None:
        """No broker can be asked now: wait a while."""
        log.warning("the consumer waits for a broker: %s", error)
        await self.stop.wait(backoff(failures))


class Consumption(Generic[T]):
    """One call of ``consume``."""

    def __init__(
        self,
        calls: Calls,
        codec: Codec[T],
        settings: Settings,
        handler: Callable[..., Awaitable[object] | object],
        *,
        each: bool,
    ) -> None:
        self._calls = calls
        self._codec = codec
        self._settings = settings
        self._handler = transport.handler(handler)
        self._handle = self._handle_each if each else self._handle_all
        self._acks = settings.auto_ack is not False
        self._polling = Polling(settings.limit, settings.idle_seconds, settings.wait_seconds)
        self.result = Consumed()
        self._lock = threading.Lock()

    def _count(self, *, handled: int = 0, failed: int = 0, lost: int = 0) -> None:
        with self._lock:  # workers may be threads
            self.result.handled += handled
            self.result.failed += failed
            self.result.lost += lost

    async def run(self, stop: transport.UserEvent | None, signals: bool) -> Consumed:
        """Until it is over."""
        # What is wrong with the chain shows before anything starts.
        self._settings.pop_path(batch=1, wait_seconds=0, auto_ack=False)
        await run_workers(self._polling, self._work, self._settings.concurrency, stop, signals)
        return self.result

    async def _work(self) -> None:
        failures = 0
        polling = self._polling
        before: Acknowledgement[T] | None = None  # of the messages before, to be said with the next pop
        try:
            while True:
                asked = polling.grant(self._settings.batch)
                if not asked:  # others may wait for these partitions
                    await self._said(before)
                    before = None
                    asked = await polling.room(self._settings.batch)
                if not asked:
                    return
                try:
                    messages = await pop(
                        self._calls,
                        self._codec,
                        self._settings,
                        batch=asked,
                        wait_seconds=polling.wait_seconds,
                        auto_ack=False,
                        stop=polling.stop,
                        ahead=before.ahead if before is not None else None,
                    )
                except Stopped:
                    await self._said(before)
                    return
                except AWAY as error:
                    failures += 1
                    polling.got(asked, 0)
                    await self._said(before)
                    before = None
                    await polling.away(error, failures)
                    continue
                failures = 0
                polling.got(asked, len(messages))
                if not messages:
                    await self._said(before)
                    before = None
                    polling.nothing()
                    continue
                before = await self._take(messages, before)
        except BaseException:
            if before is not None:
                await before.broken_off()
            raise

    async def _said(self, before: Acknowledgement[T] | None) -> None:
        if before is not None and (lost := await before.said()):
            self._count(lost=lost)

    async def _take(
        self, messages: AsyncMessages[T], before: Acknowledgement[T] | None
    ) -> Acknowledgement[T] | None:
        """Handle them; gives what is to be said of them, if that has not been said."""
        lease, polling = messages[0]._lease, self._polling
        polling.renewer.add(lease)

        def over() -> None:
            polling.renewer.remove(lease)
            polling.done()

        done: list[AsyncMessage[T]] = []
        try:
            await self._said(before)
            if polling.stop.is_set():  # they came while the consumer was told to end
                await give_back(self._calls, messages)
            else:
                done = await self._handle(messages)
        except BaseException:
            await give_back(self._calls, messages)
            raise
        finally:
            if not done:
                over()
        return Acknowledgement(done, over) if done else None

    async def _handle_all(self, messages: AsyncMessages[T]) -> list[AsyncMessage[T]]:
        try:
            with telemetry.handling(messages[0].queue, (message.trace_id for message in messages)):
                await transport.call(self._handler, messages)
        except Exception as error:  # noqa: BLE001 - the handler's: it goes to the broker
            await self._failed(messages[0], messages.unsettled, error)
            return []
        self._count(handled=len(messages))
        return messages.unsettled if self._acks else []

    async def _handle_each(self, messages: AsyncMessages[T]) -> list[AsyncMessage[T]]:
        hand = Hand(messages, acks=self._acks)
        for message in hand:
            try:
                with telemetry.handling(message.queue, [message.trace_id]):
                    await transport.call(self._handler, message)
            except Exception as error:  # noqa: BLE001 - the handler's: it goes to the broker
                await self._failed(message, [] if message._settled else [message], error)
            else:
                self._count(handled=1)
                await hand.done(message)
            if self._polling.stop.is_set():
                await hand.put_down()
                break
        self._count(lost=hand.lost)
        return hand.unsaid

    async def _failed(
        self, first: AsyncMessage[T], messages: list[AsyncMessage[T]], error: Exception
    ) -> None:
        """The handler raised; ``messages`` are those about which nothing was said by hand."""
        self._count(failed=max(1, len(messages)))
        log.warning(
            "the handler failed at message %s of %s: %s",
            first.transaction_id,
            first.queue,
            error,
            exc_info=error,
        )
        if messages:
            await settle_surely(messages, "failed", error)


async def run_workers(
    polling: Polling,
    work: Callable[[], Any],
    concurrency: int,
    stop: transport.UserEvent | None,
    signals: bool,
) -> None:
    """So many workers, one of them here, until the polling is over."""
    ended = transport.Event()

    async def watch() -> None:
        assert stop is not None
        await transport.until(stop, ended)
        polling.stop.set()

    async def worker() -> None:
        try:
            await work()
        except BaseException:
            polling.stop.set()  # one that fails ends them all
            raise

    async with transport.Crew() as crew:
        with transport.on_signals(polling.stop.set, signals):
            try:
                crew.start(polling.renewer.run)
                if stop is not None:
                    crew.start(watch)
                async with transport.Crew() as workers:
                    for _ in range(concurrency - 1):
                        workers.start(worker)
                    await worker()
            finally:
                ended.set()
                polling.stop.set()
                polling.renewer.end()
