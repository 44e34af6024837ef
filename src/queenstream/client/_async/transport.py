"""Connections, tasks and waiting, on asyncio.

``_sync/transport.py`` has the same names on sockets and threads.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import signal
import ssl
import threading
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from types import TracebackType
from typing import Any, Self, TypeVar, cast

from queenstream.client._base.addresses import Address
from queenstream.client._base.http import READ_BYTES, Ahead, Answer, Parser
from queenstream.errors import QueenstreamError

T = TypeVar("T")
CONNECT_SECONDS = 5.0
ALARM_SECONDS = 0.001  # an event loop may call so much too early
FLAVOUR = "async"


class Connection(asyncio.BufferedProtocol):
    """A connection to a broker, one request at a time."""

    def __init__(self) -> None:
        self._parser = Parser()
        # What arrives is put here: to make room for it each time costs more than to read it.
        self._room = memoryview(bytearray(READ_BYTES))
        self._transport: asyncio.Transport | None = None
        self._answer: asyncio.Future[Answer] | None = None
        self._ahead: Ahead | None = None
        self._hung_up = False
        self._loop = asyncio.get_running_loop()
        self._ends = 0.0  # when the request under way has waited long enough
        self._alarm: asyncio.TimerHandle | None = None

    @classmethod
    async def connect(cls, address: Address, timeout: float) -> Connection:
        """Open one; it fails with ``OSError``."""
        context = ssl.create_default_context() if address.tls else None
        loop = asyncio.get_running_loop()
        async with asyncio.timeout(min(timeout, CONNECT_SECONDS)):
            _, made = await loop.create_connection(cls, address.host, address.port, ssl=context)
        return made

    @property
    def open(self) -> bool:
        """Whether it can be used: no side has closed it, and its event loop is the one that runs."""
        if self._transport is None or self._hung_up or self._loop is not asyncio.get_running_loop():
            return False
        return not self._transport.is_closing()

    async def exchange(self, request: bytes, timeout: float, ahead: Ahead | None = None) -> Answer:
        """Send a request and wait for its answer; it fails with ``OSError``.

        ``ahead``: the bytes have that one in front, and its answer comes first.
        """
        if self._transport is None or not self.open:
            raise ConnectionResetError("the connection was closed")
        self._answer = self._loop.create_future()
        self._ahead = ahead
        self._transport.write(request)
        self._limit(timeout)
        try:
            return await self._answer
        finally:
            self._answer = None

    def _limit(self, timeout: float) -> None:
        """The request under way may wait so long.

        An alarm is not taken back when the answer is there: the next request moves its end. One for each,
        or ``asyncio.timeout()``, costs a few times the CPU.
        """
        self._ends = self._loop.time() + timeout
        if self._alarm is not None and self._alarm.when() > self._ends:
            self._alarm.cancel()
            self._alarm = None
        if self._alarm is None:
            self._alarm = self._loop.call_at(self._ends, self._look)

    def _look(self) -> None:
        self._alarm = None
        if self._answer is None:
            return
        if self._ends - self._loop.time() > ALARM_SECONDS:
            self._alarm = self._loop.call_at(self._ends, self._look)
        else:
            self._end(TimeoutError("no answer in time"))

    def hang_up(self) -> None:
        """Nothing more will be asked: the broker ends a long poll, unless its answer is on the way."""
        transport = self._transport
        if transport is not None and self.open:
            self._hung_up = True
            if transport.can_write_eof():
                transport.write_eof()
            else:
                transport.close()

    def close(self) -> None:
        if self._transport is not None and not self._loop.is_closed():
            self._transport.close()

    def abandon(self) -> None:
        """In a fork: it is the parent's, and so is its event loop. There is nothing to do."""

    # asyncio calls these

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def get_buffer(self, sizehint: int) -> memoryview:  # noqa: ARG002 - asyncio's, and only a hint
        return self._room

    def buffer_updated(self, nbytes: int) -> None:
        try:
            answers = self._parser.feed(self._room[:nbytes])
        except QueenstreamError as error:
            self._end(error)
            self.close()
            return
        for answer in answers:
            if self._ahead is not None:
                ahead, self._ahead = self._ahead, None
                ahead.take(answer)
            elif self._answer is not None and not self._answer.done():
                self._answer.set_result(answer)

    def connection_lost(self, error: Exception | None) -> None:
        self._transport = None
        if self._alarm is not None:
            self._alarm.cancel()
            self._alarm = None
        self._end(error if isinstance(error, OSError) else ConnectionResetError("the connection was closed"))

    def _end(self, error: Exception) -> None:
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(error)


class Event:
    """Set once, waited for by many."""

    def __init__(self) -> None:
        self._event = asyncio.Event()

    def set(self) -> None:
        self._event.set()

    def clear(self) -> None:
        self._event.clear()

    def is_set(self) -> bool:
        return self._event.is_set()

    async def wait(self, timeout: float | None = None) -> bool:
        """Whether it is set, after at most that long."""
        if timeout is None:
            await self._event.wait()
            return True
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout):
                await self._event.wait()
        return self._event.is_set()


class Stop:
    """The wish to end: long polls under way are hung up, waits end, nothing new begins."""

    def __init__(self) -> None:
        self._event = Event()
        self._connections: set[Connection] = set()

    def set(self) -> None:
        self._event.set()
        for connection in list(self._connections):
            connection.hang_up()

    def is_set(self) -> bool:
        return self._event.is_set()

    async def wait(self, timeout: float | None = None) -> bool:
        """Whether it is set, after at most that long."""
        return await self._event.wait(timeout)

    def began(self, connection: Connection) -> None:
        """A request runs there that a stop may end."""
        self._connections.add(connection)
        if self.is_set():
            connection.hang_up()

    def ended(self, connection: Connection) -> None:
        """It is over."""
        self._connections.discard(connection)


class Crew:
    """Work that goes on beside; leaving the block ends what is left, and shows what failed."""

    def __init__(self) -> None:
        self._tasks: list[asyncio.Task[None]] = []

    def start(self, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        self._tasks.append(asyncio.get_running_loop().create_task(work()))

    async def join(self) -> None:
        """Wait for all; the first that failed is raised."""
        if self._tasks:
            try:
                await asyncio.gather(*self._tasks)
            finally:
                await self._cancel()

    async def _cancel(self) -> None:
        tasks, self._tasks = self._tasks, []
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            await self.join()
        else:
            await self._cancel()


Lock = asyncio.Lock
UserEvent = asyncio.Event  # what a caller may hand over to stop something


async def until(event: UserEvent, ended: Event) -> None:
    """Until the caller's event is set, or there is nothing left to stop."""
    waits = {asyncio.ensure_future(event.wait()), asyncio.ensure_future(ended.wait())}
    try:
        await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for wait in waits:
            wait.cancel()


async def sleep(seconds: float) -> None:
    await asyncio.sleep(seconds)


def handler(given: Callable[..., T]) -> Callable[..., T]:
    """A user's function, plain or async: both will do."""
    return given


async def call(handler: Callable[..., Awaitable[T] | T], *arguments: Any) -> T:
    """Call a user's function, plain or async."""
    result = handler(*arguments)
    if inspect.isawaitable(result):
        return await result
    return result


@contextlib.contextmanager
def on_signals(stop: Callable[[], None], wanted: bool) -> Iterator[None]:
    """SIGINT and SIGTERM ask for a stop, once; a second one acts as it always did."""
    if not wanted or threading.current_thread() is not threading.main_thread():
        yield
        return
    loop = asyncio.get_running_loop()
    caught = (signal.SIGINT, signal.SIGTERM)
    before = {number: signal.getsignal(number) for number in caught}

    def restore() -> None:
        for number, handler in before.items():
            loop.remove_signal_handler(number)
            signal.signal(number, handler if handler is not None else signal.SIG_DFL)

    def asked() -> None:
        restore()
        stop()

    for number in caught:
        loop.add_signal_handler(number, asked)
    try:
        yield
    finally:
        restore()
