"""A small HTTP/1.1 server: bytes in, ``Request`` to a handler, ``Response`` out as bytes.

It knows nothing of queues. llhttp (by way of httptools) parses; here are the order of answers, the
limits and the clock::

    async def hello(request: Request) -> Response:
        return Response(200, b'{"hello": true}')

    server = HttpServer(hello)
    port = await server.listen("127.0.0.1", 0)
    await server.drain(grace_seconds=10)

Every limit ends in a JSON error and a closed connection: 400 syntax, 408 too slow, 413 body, 431
headers, 503 too many connections or bytes in memory. While a request is handled, its connection is
read only to see whether the client leaves; what else arrives waits (one read, then reading pauses).
"""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from email.utils import formatdate
from http import HTTPStatus

from queenstream.broker.http.connection import BODILESS, Connection
from queenstream.broker.http.routing import Request, Response
from queenstream.errors import RequestError, Unavailable

_LINGER_SECONDS = 2.0  # after a refusal: how long without a byte we still read

_PHRASES = {int(status): status.phrase for status in HTTPStatus}
_FRAMING = frozenset({"connection", "content-length", "transfer-encoding"})  # ours to write


@dataclass(frozen=True)
class Limits:
    """What one client, and all of them together, may take."""

    body_bytes: int = 64 * 1024 * 1024
    header_bytes: int = 64 * 1024  # request line and headers
    receive_seconds: float = 30  # a whole request, from its first byte; also: a reader that stalls
    idle_seconds: float = 75  # a connection without a request
    connections: int = 10_000  # more are answered 503 and closed
    buffered_bytes: int = 512 * 1024 * 1024  # all bodies in this process, arriving or handled
    anonymous_bytes: int = 1024 * 1024  # the same for requests that nobody vouches for


class HttpServer:
    """Listens, and calls ``handle`` for every request; one at a time per connection.

    ``handle`` gives a coroutine of the answer. None, at once or as the coroutine's result, says that
    ``request.answer(request, response)`` was called or will be: no task is made for such a request.

    A handler is never cancelled because its client left: ``request.gone`` turns true and
    ``request.on_gone`` is called, then ``response.undelivered``, as the answer has no reader.

    ``check`` is called when the headers of a request are complete: a response from it is the answer, and
    the request's body is not kept, nor ``handle`` called. If it sets ``request.undecided``, nothing more of a
    body is read before ``decide`` has found out. Bodies of requests that it sets ``anonymous`` share a small
    budget of memory.

    An answer with ``chunks`` is sent as fast as the client reads it; until its last piece is written, the
    request counts as handled. Here the client's leaving does cancel: nobody is there to read the rest.
    """

    def __init__(
        self,
        handle: Callable[[Request], Awaitable[Response | None] | None],
        limits: Limits | None = None,
        *,
        check: Callable[[Request], Response | None] = lambda _: None,
        decide: Callable[[Request], Awaitable[Response | None]] | None = None,
        server_header: str = "queenstream",
    ) -> None:
        self.handle = handle
        self.check = check
        self.decide = decide
        self.limits = limits = limits or Limits()
        self.connections_open = 0
        self.requests_in_flight = 0
        self.body_bytes_held = 0
        self.anonymous_bytes_held = 0
        self.draining = False
        # Deadlines are counted in ticks of one shared, coarse timer: setting one is an addition,
        # and a stall of the event loop stretches everyone's time rather than cutting clients off.
        shortest = min(limits.receive_seconds, limits.idle_seconds)
        self._tick_seconds = min(1.0, max(0.01, shortest / 4))
        self.tick = 0
        self.receive_ticks = self._ticks(limits.receive_seconds)
        self.idle_ticks = self._ticks(limits.idle_seconds)
        self.linger_ticks = self._ticks(min(_LINGER_SECONDS, limits.receive_seconds))
        self._timer: asyncio.TimerHandle | None = None
        self._listeners: list[asyncio.AbstractServer] = []
        self._connections: set[Connection] = set()
        self._orphans: set[Connection] = set()  # the client left, the handler is still at work
        self._empty = asyncio.Event()  # of connections and orphans
        self._empty.set()
        self._server_line = _header_line("server", server_header)
        self._heads: dict[tuple[int, str], bytes] = {}

    async def listen(self, host: str, port: int, *, reuse_port: bool = False) -> int:
        """Accept connections; returns the port, which is a free one if ``port`` is 0."""
        loop = asyncio.get_running_loop()
        listener = await loop.create_server(
            lambda: Connection(self, loop), host, port, reuse_port=reuse_port, backlog=1024
        )
        self._listeners.append(listener)
        if self._timer is None:
            self._timer = loop.call_later(self._tick_seconds, self._sweep, loop)
        bound: int = listener.sockets[0].getsockname()[1]
        return bound

    def close_listener(self) -> None:
        """Refuse new connections; those that are open go on."""
        for listener in self._listeners:
            listener.close()

    async def drain(self, grace_seconds: float) -> None:
        """Stop: idle connections close at once, requests may finish, after the grace all is cut."""
        self.close_listener()
        self.draining = True
        for connection in tuple(self._connections):
            connection.close_if_idle()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._empty.wait(), grace_seconds)
        tasks = [task for c in (*self._connections, *self._orphans) if (task := c.cut())]
        if tasks:
            await asyncio.wait(tasks, timeout=1)
        with contextlib.suppress(TimeoutError):  # aborted transports report a moment later
            await asyncio.wait_for(self._empty.wait(), 1)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._listeners.clear()

    def _ticks(self, seconds: float) -> int:
        return math.ceil(seconds / self._tick_seconds) + 1  # the current tick has partly passed

    def _sweep(self, loop: asyncio.AbstractEventLoop) -> None:
        self._timer = loop.call_later(self._tick_seconds, self._sweep, loop)
        self.tick = tick = self.tick + 1
        self._heads.clear()  # they hold the date
        for connection in tuple(self._connections):
            if 0 < connection.deadline <= tick:
                connection.deadline_passed()

    def admit(self, connection: Connection) -> RequestError | None:
        """Register a new connection; returns why it may not stay, if so."""
        self._connections.add(connection)
        self._empty.clear()
        self.connections_open += 1
        if self.draining:
            return Unavailable("the server is stopping; connect again in a moment")
        if self.connections_open > self.limits.connections:
            return Unavailable("too many open connections; close some or try again later")
        return None

    def forget(self, connection: Connection, *, orphaned: bool) -> None:
        """A connection is lost; ``orphaned`` if its handler is still at work."""
        self._connections.discard(connection)
        self.connections_open -= 1
        if orphaned:
            self._orphans.add(connection)
        elif not self._connections and not self._orphans:
            self._empty.set()

    def hold(self, request: Request, size: int) -> bool:
        """Count bytes of a request's body as kept; whether there is room for them."""
        if request.anonymous:
            self.anonymous_bytes_held += size
            return self.anonymous_bytes_held <= self.limits.anonymous_bytes
        self.body_bytes_held += size
        return self.body_bytes_held <= self.limits.buffered_bytes

    def release(self, request: Request, size: int) -> None:
        """These bytes are kept no longer."""
        if request.anonymous:
            self.anonymous_bytes_held -= size
        else:
            self.body_bytes_held -= size

    def has_room(self, request: Request, size: int) -> bool:
        """Whether a body of that size could be kept now."""
        if request.anonymous:
            return self.anonymous_bytes_held + size <= self.limits.anonymous_bytes
        return self.body_bytes_held + size <= self.limits.buffered_bytes

    def finished(self, connection: Connection, request: Request) -> None:
        """A handler has finished."""
        self.requests_in_flight -= 1
        self.release(request, len(request.body))
        if self._orphans:
            self._orphans.discard(connection)
            if not self._connections and not self._orphans:
                self._empty.set()

    def render_head(self, response: Response, connection: bytes) -> bytes:
        """Status line and headers. Raises ValueError for a header that would break the framing."""
        status = response.status
        head = self._heads.get((status, response.content_type))
        if head is None:
            head = self._render_first_lines(status, response.content_type)
        extra = _header_lines(response.headers) if response.headers else b""
        if status in BODILESS:
            return b"%b%b%b\r\n" % (head, connection, extra)
        return b"%bcontent-length: %d\r\n%b%b\r\n" % (head, len(response.body), connection, extra)

    def render_open_head(self, response: Response, framing: bytes) -> bytes:
        """The same for an answer of unknown length; ``framing`` are the lines that say how it ends."""
        head = self._render_first_lines(response.status, response.content_type)
        return b"%b%b%b\r\n" % (head, framing, _header_lines(response.headers))

    def _render_first_lines(self, status: int, content_type: str) -> bytes:
        head = f"HTTP/1.1 {status:03d} {_PHRASES.get(status, 'Unknown')}\r\n".encode("ascii")
        head += self._server_line + _header_line("date", formatdate(usegmt=True))
        if content_type and status not in BODILESS:
            head += _header_line("content-type", content_type)
        self._heads[status, content_type] = head
        return head


def _header_lines(headers: tuple[tuple[str, str], ...]) -> bytes:
    return b"".join(_header_line(n, v) for n, v in headers if n.lower() not in _FRAMING)


def _header_line(name: str, value: str) -> bytes:
    line = f"{name}: {value}".encode("latin-1")
    if not name or b"\r" in line or b"\n" in line or b"\0" in line:
        raise ValueError(f"header {name!r} holds a line break or NUL")
    return line + b"\r\n"
