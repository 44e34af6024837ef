"""Connections, threads and waiting. ``_async/transport.py`` has the same names on asyncio."""

from __future__ import annotations

import contextlib
import inspect
import select
import signal
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from types import FrameType, TracebackType
from typing import Any, Self, TypeVar

from queenstream.client._base.addresses import Address
from queenstream.client._base.http import READ_BYTES, Ahead, Answer, Parser
from queenstream.errors import ConfigError

T = TypeVar("T")
CONNECT_SECONDS = 5.0
FLAVOUR = "sync"


class Connection:
    """A connection to a broker, one request at a time."""

    def __init__(self, opened: socket.socket) -> None:
        self._parser = Parser()
        # What arrives is put here: to make room for it each time costs more than to read it.
        self._room = memoryview(bytearray(READ_BYTES))
        self._socket: socket.socket | None = opened
        self._hung_up = False
        self._allowed = 0.0  # how long the socket waits
        self._poll = select.poll()  # select() takes no descriptor above 1023
        self._poll.register(opened, select.POLLIN)

    @classmethod
    def connect(cls, address: Address, timeout: float) -> Connection:
        """Open one; it fails with ``OSError``."""
        seconds = min(timeout, CONNECT_SECONDS)
        opened = socket.create_connection((address.host, address.port), timeout=seconds)
        try:
            opened.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if address.tls:
                opened = ssl.create_default_context().wrap_socket(opened, server_hostname=address.host)
        except BaseException:
            opened.close()
            raise
        return cls(opened)

    @property
    def open(self) -> bool:
        """Whether it can be used: no side has closed it. An idle one has nothing to read."""
        if self._socket is None or self._hung_up:
            return False
        return not self._poll.poll(0)

    def exchange(self, request: bytes, timeout: float, ahead: Ahead | None = None) -> Answer:
        """Send a request and wait for its answer; it fails with ``OSError``.

        ``ahead``: the bytes have that one in front, and its answer comes first.
        """
        opened = self._socket
        if opened is None or self._hung_up:
            raise ConnectionResetError("the connection was closed")
        ends = time.monotonic() + timeout
        self._allow(opened, timeout)
        opened.sendall(request)
        while True:
            left = ends - time.monotonic()
            if left <= 0:
                raise TimeoutError("no answer in time")
            self._allow(opened, left)
            size = opened.recv_into(self._room)
            if not size:
                raise ConnectionResetError("the connection was closed")
            for answer in self._parser.feed(self._room[:size]):
                if ahead is None:
                    return answer
                ahead.take(answer)
                ahead = None

    def _allow(self, opened: socket.socket, seconds: float) -> None:
        """Let the socket wait so long, or a tenth longer: to say it anew each time is a system call."""
        if not seconds <= self._allowed <= seconds * 1.1:
            opened.settimeout(seconds)
            self._allowed = seconds

    def hang_up(self) -> None:
        """Nothing more will be asked: the broker ends a long poll, unless its answer is on the way."""
        opened = self._socket
        self._hung_up = True
        if opened is not None:
            how = socket.SHUT_RDWR if isinstance(opened, ssl.SSLSocket) else socket.SHUT_WR
            with contextlib.suppress(OSError):
                opened.shutdown(how)

    def close(self) -> None:
        opened, self._socket = self._socket, None
        if opened is not None:
            opened.close()

    def abandon(self) -> None:
        """In a fork: it is the parent's, who goes on with it; only our copy of the descriptor is closed."""
        self.close()


class Event:
    """Set once, waited for by many."""

    def __init__(self) -> None:
        self._event = threading.Event()

    def set(self) -> None:
        self._event.set()

    def clear(self) -> None:
        self._event.clear()

    def is_set(self) -> bool:
        return self._event.is_set()

    def wait(self, timeout: float | None = None) -> bool:
        """Whether it is set, after at most that long."""
        return self._event.wait(timeout)


class Stop:
    """The wish to end: long polls under way are hung up, waits end, nothing new begins."""

    def __init__(self) -> None:
        self._event = Event()
        self._lock = threading.Lock()
        self._connections: set[Connection] = set()

    def set(self) -> None:
        self._event.set()
        with self._lock:
            connections = list(self._connections)
        for connection in connections:
            connection.hang_up()

    def is_set(self) -> bool:
        return self._event.is_set()

    def wait(self, timeout: float | None = None) -> bool:
        """Whether it is set, after at most that long."""
        return self._event.wait(timeout)

    def began(self, connection: Connection) -> None:
        """A request runs there that a stop may end."""
        with self._lock:
            self._connections.add(connection)
        if self.is_set():
            connection.hang_up()

    def ended(self, connection: Connection) -> None:
        """It is over."""
        with self._lock:
            self._connections.discard(connection)


class Crew:
    """Work that goes on beside; leaving the block waits for it, and shows what failed.

    A thread cannot be ended from outside: who leaves with an error has told the work to stop before.
    """

    def __init__(self) -> None:
        self._threads: list[threading.Thread] = []
        self._failures: list[BaseException] = []

    def start(self, work: Callable[[], None]) -> None:
        thread = threading.Thread(target=self._run, args=(work,), name="queenstream", daemon=True)
        self._threads.append(thread)
        thread.start()

    def _run(self, work: Callable[[], None]) -> None:
        try:
            work()
        except BaseException as error:  # noqa: BLE001 - it is raised in join
            self._failures.append(error)

    def join(self) -> None:
        """Wait for all; the first that failed is raised."""
        for thread in self._threads:
            thread.join()
        self._threads.clear()
        if self._failures:
            raise self._failures[0]

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            self.join()
        else:
            for thread in self._threads:
                thread.join()


Lock = threading.Lock
UserEvent = threading.Event  # what a caller may hand over to stop something


def until(event: UserEvent, ended: Event) -> None:
    """Until the caller's event is set, or there is nothing left to stop."""
    while not event.wait(0.1) and not ended.is_set():
        pass


def sleep(seconds: float) -> None:
    time.sleep(seconds)


_ASYNC = "the handler is an async function; use AsyncQueen, or make it a plain one"


def handler(given: Callable[..., T]) -> Callable[..., T]:
    """A user's function, which must be a plain one."""
    if inspect.iscoroutinefunction(given):
        raise ConfigError(_ASYNC)
    return given


def call(handler: Callable[..., T], *arguments: Any) -> T:
    """Call a user's function."""
    result = handler(*arguments)
    if inspect.iscoroutine(result):  # of a function that does not look like one
        result.close()
        raise ConfigError(_ASYNC)
    return result


@contextlib.contextmanager
def on_signals(stop: Callable[[], None], wanted: bool) -> Iterator[None]:
    """SIGINT and SIGTERM ask for a stop, once; a second one acts as it always did."""
    if not wanted or threading.current_thread() is not threading.main_thread():
        yield
        return
    caught = (signal.SIGINT, signal.SIGTERM)
    before = {number: signal.getsignal(number) for number in caught}

    def restore() -> None:
        for number, handler in before.items():
            signal.signal(number, handler if handler is not None else signal.SIG_DFL)

    def asked(_number: int, _frame: FrameType | None) -> None:
        restore()
        # Not here: the main thread may hold the very lock that this would wait for.
        threading.Thread(target=stop, name="queenstream-stop", daemon=True).start()

    for number in caught:
        signal.signal(number, asked)
    try:
        yield
    finally:
        restore()
