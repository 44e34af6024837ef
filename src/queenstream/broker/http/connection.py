"""One HTTP connection: llhttp (by way of httptools) parses, requests are answered in order."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import struct
import sys
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import lru_cache
from typing import TYPE_CHECKING, cast

import httptools

from queenstream.broker.http.routing import Request, Response, error_response
from queenstream.errors import (
    HeadersTooLarge,
    InvalidRequest,
    RequestError,
    RequestTimeout,
    TooLarge,
    Unavailable,
)

if TYPE_CHECKING:
    from queenstream.broker.http.server import HttpServer, Limits

logger = logging.getLogger(__name__)

# The parser cannot be stopped between two pipelined requests, so it is fed this much at a time: it
# bounds how many requests one connection can have parsed but not handled.
_SLICE_BYTES = 16 * 1024
_BURST = 64  # pipelined requests, or pieces of one answer, before other connections get their turn
_JOINED_HEADER_BYTES = 8 * 1024  # past this, joining a repeated header would itself be the attack
_JOINED_BODY_BYTES = 64 * 1024  # larger bodies are not copied to stand behind their headers
_SHORT_BYTES = 256  # paths up to here are split once and remembered
_SKIPPED_BODY_BYTES = 64 * 1024  # of a refused request: larger ones end the connection
_LINGER_BYTES = 16 * 1024 * 1024  # after a refusal: how much beyond the body limit we still read
_CLOSE, _KEEP_ALIVE = b"connection: close\r\n", b"connection: keep-alive\r\n"
_CHUNKED = b"transfer-encoding: chunked\r\n"
_RESET, _NO_RESET = struct.pack("ii", 1, 0), struct.pack("ii", 0, 0)  # SO_LINGER: how closing ends

BODILESS = frozenset({*range(100, 200), 204, 304})


class Connection(asyncio.Protocol):
    """One client. Requests are parsed into ``_ready`` and answered from there, in order."""

    __slots__ = (  # they make attributes fast, and there are thousands of connections
        "_body", "_closing", "_deciding", "_discard_bytes", "_expecting", "_head_bytes", "_headers",
        "_in_head", "_in_message", "_incoming", "_input_done", "_linger_until", "_loop", "_old_client",
        "_parser", "_pumping", "_reading_paused", "_ready", "_replaying", "_request", "_resumed", "_server",
        "_silent_bytes", "_streaming", "_target", "_task", "_transport", "_unparsed", "_unsent",
        "_unsent_bytes", "_write_paused", "deadline",
    )  # fmt: skip
    _transport: asyncio.Transport
    _incoming: Request  # its headers are complete, its body is not

    def __init__(self, server: HttpServer, loop: asyncio.AbstractEventLoop) -> None:
        self._server = server
        self._loop = loop
        self._parser = httptools.HttpRequestParser(self)
        self.deadline = 0  # a tick; 0 while a request is handled, which has no limit here
        # The message being parsed
        self._target = b""
        self._headers: dict[bytes, bytes] = {}
        self._body: bytes | bytearray = b""
        self._head_bytes = 0
        self._silent_bytes = 0  # fed without a message or body data to show for it
        self._in_message = self._in_head = False
        self._expecting = False  # the client waits for "100 Continue"
        self._replaying = False  # see _ignore_upgrade
        self._old_client = False  # HTTP/1.0 with keep-alive, which wants to hear it granted; knows no chunks
        # What waits, what is handled, what is written
        self._ready: deque[Request | Response] = deque()  # a Response is a refusal, and the last
        self._unparsed: bytes | memoryview = b""
        self._input_done = False  # no request after those in _ready
        self._request: Request | None = None
        self._task: asyncio.Task[None] | None = None
        self._deciding: asyncio.Task[None] | None = None  # who asks is being found out; nothing is read
        self._pumping = self._reading_paused = self._write_paused = self._closing = False
        self._unsent: Response | None = None  # more than the socket's buffer took
        self._unsent_bytes = self._discard_bytes = self._linger_until = 0
        # An answer in pieces
        self._streaming = False  # its iterator is at work; else the task must be left to tidy up
        self._resumed: asyncio.Future[None] | None = None  # the next piece waits for the client

    # The transport calls these.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport = cast(asyncio.Transport, transport)
        self.deadline = self._server.tick + self._server.idle_ticks
        with contextlib.suppress(OSError):  # the client may be gone already
            raw = transport.get_extra_info("socket")
            raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        error = self._server.admit(self)
        if error is not None:
            self._refuse(error_response(error))
            self._pump()

    def data_received(self, data: bytes) -> None:
        if self._closing:
            self._discard(len(data))
        elif (
            self._request is not None
            or self._ready
            or self._unparsed
            or self._write_paused
            or self._deciding is not None
        ):
            self._unparsed = bytes(self._unparsed) + data
            self._reading_paused = True
            self._transport.pause_reading()
        else:
            self._parse(data)
            self._pump()

    def eof_received(self) -> None:
        """A half-closed client counts as gone: it looks no different from one that left."""

    def connection_lost(self, _: Exception | None) -> None:
        self._closing = True
        self.deadline = 0
        self._drop_input()
        request = self._request
        self._server.forget(self, orphaned=request is not None)
        if request is not None:
            request.gone = True
            _call(request.on_gone)
        if self._streaming and self._task is not None:
            self._task.cancel()
        if self._unsent is not None:
            _call(self._unsent.undelivered)

    def pause_writing(self) -> None:
        self._write_paused = True
        self._unsent_bytes = self._transport.get_write_buffer_size()
        self.deadline = self._server.tick + self._server.receive_ticks

    def resume_writing(self) -> None:
        self._write_paused = False
        self._unsent = None
        if self._resumed is not None and not self._resumed.done():
            self._resumed.set_result(None)
        if not self._closing:
            self.deadline = 0
            self._pump()

    # The server calls these.

    def deadline_passed(self) -> None:
        """The client was too slow: in reading an answer, in sending a request, or in having one."""
        server, unsent = self._server, self._transport.get_write_buffer_size()
        if unsent and unsent != self._unsent_bytes:  # it takes bytes, if slowly
            self._unsent_bytes = unsent
            self.deadline = server.tick + server.receive_ticks
        elif self._in_message and not unsent:
            within = f"{server.limits.receive_seconds:g} s"
            error = RequestTimeout(f"the request took longer than {within}; send it faster")
            self._refuse(error_response(error))
            self._pump()
        else:
            self._transport.abort()

    def close_if_idle(self) -> None:
        at_work = self._request or self._ready or self._unparsed or self._in_message
        if not at_work and not self._closing:
            self._close()

    def cut(self) -> asyncio.Task[None] | None:
        """Drop the connection and cancel what it handles; returns the task to wait for."""
        self._transport.abort()
        if self._task is not None:
            self._task.cancel()
        return self._task

    # The parser calls these. A RequestError raised here becomes the answer: see _feed.

    def on_message_begin(self) -> None:
        if self._replaying:
            return
        self._target = self._body = b""
        self._headers = {}
        self._head_bytes = self._silent_bytes = 0
        self._in_message = self._in_head = True
        self.deadline = self._server.tick + self._server.receive_ticks

    def on_url(self, url: bytes) -> None:
        self._target += url

    def on_header(self, name: bytes, value: bytes) -> None:
        if not self._in_head:
            return  # trailers are read over
        self._head_bytes += len(name) + len(value) + 4
        name = name.lower()
        known = self._headers.get(name)
        if known is not None:
            if len(known) > _JOINED_HEADER_BYTES:
                raise HeadersTooLarge(f"{name[:80]!r} is sent too often; send it once")
            value = known + b", " + value
        self._headers[name] = value

    def on_headers_complete(self) -> None:
        if self._replaying:
            return
        server, parser, headers = self._server, self._parser, self._headers
        limits = server.limits
        self._in_head = False
        if self._head_bytes + len(self._target) > limits.header_bytes:
            raise _headers_too_large(limits)
        target = self._target
        path, query = _split_known(target) if len(target) < _SHORT_BYTES else _split_target(target)
        if not target.startswith(b"/") and b"://" in target:
            _adopt_authority(target, headers)
        self._incoming = incoming = Request(_method(parser.get_method()), path, query, headers, b"")
        self._input_done = not parser.should_keep_alive()
        if b"connection" in headers:
            # Once is for good: a request parsed ahead must not speak for the one being answered.
            old = not self._input_done and parser.get_http_version() == "1.0"
            self._old_client = self._old_client or old
        refusal = server.check(incoming)
        if refusal is not None:
            self._skip(incoming, refusal)
            return
        if b"content-length" in headers:
            length = int(headers[b"content-length"])
            if length > limits.body_bytes:
                raise _body_too_large(limits)
            if not (incoming.undecided or server.has_room(incoming, length)):
                raise _memory_full()
        if b"expect" in headers:
            wanted = headers[b"expect"].lower() == b"100-continue"
            self._expecting = wanted and parser.get_http_version() != "1.0"

    def _skip(self, request: Request, refusal: Response) -> None:
        """Answer without the body: in order and on the same connection if it is small, else at once."""
        headers = request.headers
        length = int(headers.get(b"content-length", b"0"))
        waits = length and b"expect" in headers
        if waits or length > _SKIPPED_BODY_BYTES or b"transfer-encoding" in headers:
            raise _RefusedError(refusal)
        request.refusal = refusal

    def on_body(self, data: bytes) -> None:
        server, size = self._server, len(data)
        self._silent_bytes = 0
        if self._incoming.refusal is not None:
            return
        room = server.hold(self._incoming, size)
        if not self._body:
            self._body = data
        else:  # one growing buffer: a list of one-byte chunks would weigh many times the body
            if isinstance(self._body, bytes):
                self._body = bytearray(self._body)
            self._body += data
        if len(self._body) > server.limits.body_bytes:
            raise _body_too_large(server.limits)
        if not room:
            raise _memory_full()

    def on_message_complete(self) -> None:
        if self._parser.should_upgrade():
            return  # only its headers: see _ignore_upgrade
        self._incoming.body = bytes(self._body)
        self._body = b""
        self._in_message = self._expecting = False
        self._ready.append(self._incoming)

    @property
    def _must_decide(self) -> bool:
        """Whether nothing more may be read before it is known who sends it."""
        return self._in_message and not self._in_head and self._incoming.undecided

    # Parsing

    def _parse(self, data: bytes | memoryview) -> None:
        """Parse until a request is whole; the rest waits in ``_unparsed``."""
        if len(data) <= _SLICE_BYTES:
            data = data[self._feed(data) :]
        if data:
            rest = memoryview(data)
            while rest and not self._ready and (self._in_message or not self._input_done):
                if self._must_decide:
                    break
                rest = rest[self._feed(rest[:_SLICE_BYTES]) :]
            data = rest
        self._unparsed = data

    def _feed(self, data: bytes | memoryview) -> int:
        """Give one slice to the parser; returns how much of it is used up."""
        self._silent_bytes += len(data)
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:
            self._ignore_upgrade()
            return int(upgrade.args[0])
        except httptools.HttpParserError as failure:
            # After a request that ends the connection, what follows is no concern of ours.
            if self._in_message or not self._input_done:
                self._refuse(self._explain(failure))
        else:
            if self._in_message and self._silent_bytes > self._server.limits.header_bytes:
                self._refuse(error_response(_headers_too_large(self._server.limits)))
        return len(data)

    def _explain(self, failure: httptools.HttpParserError) -> Response:
        cause = failure.__context__
        if isinstance(cause, _RefusedError):
            return cause.response
        if isinstance(cause, RequestError):
            return error_response(cause)
        if str(failure) == "Content-Length overflow":
            return error_response(_body_too_large(self._server.limits))
        return error_response(InvalidRequest(f"this is not HTTP/1.1: {failure}; send a well-formed request"))

    def _ignore_upgrade(self) -> None:
        """Carry on in HTTP/1.1, as a server that knows no other protocol may.

        llhttp takes what follows the headers for another protocol. A fresh parser, told of a
        request framed alike, reads the body that belongs to this one (Java's client sends such).
        """
        framing = b"content-length: " + self._headers.get(b"content-length", b"0")
        if b"transfer-encoding" in self._headers:
            framing = b"transfer-encoding: " + self._headers[b"transfer-encoding"]
        self._parser = httptools.HttpRequestParser(self)
        self._replaying = True
        try:
            self._parser.feed_data(b"POST / HTTP/1.1\r\n" + framing + b"\r\n\r\n")
        except httptools.HttpParserError as failure:
            self._refuse(self._explain(failure))
        self._replaying = False

    def _refuse(self, refusal: Response) -> None:
        """Queue the refusal behind the answers still due; nothing more is parsed."""
        self._drop_body()
        self._in_message = self._expecting = False
        self._input_done = True
        self._ready.append(refusal)

    # Handling and answering

    def _pump(self) -> None:
        """Handle what is ready, while nothing is being handled and the client takes its answers."""
        if self._pumping:
            return
        self._pumping = True
        turns = _BURST
        while self._request is None and not self._write_paused and not self._closing:
            if self._deciding is not None and not self._ready:
                break
            if self._unparsed and not self._ready and not self._must_decide:
                self._parse(self._unparsed)
            if not self._ready:
                self._await_more()
                break
            if not turns:
                self._loop.call_soon(self._pump)
                break
            turns -= 1
            item = self._ready.popleft()
            if isinstance(item, Request):
                self._start(item)
            else:
                self._transport.write(self._server.render_head(item, _CLOSE) + item.body)
                self._close(linger=True)
        self._pumping = False

    def _await_more(self) -> None:
        server = self._server
        if server.draining and not self._in_message:
            self._close()
            return
        if self._must_decide:
            self._reading_paused = True
            self._transport.pause_reading()
            self._deciding = self._loop.create_task(self._decide(self._incoming))
            return
        if self._expecting:
            self._expecting = False
            self._transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        if not self.deadline:
            ticks = server.receive_ticks if self._in_message else server.idle_ticks
            self.deadline = server.tick + ticks
        if self._reading_paused:
            self._reading_paused = False
            self._transport.resume_reading()

    async def _decide(self, request: Request) -> None:
        """Find out who sends the request whose body has not arrived, then go on with it."""
        server, size = self._server, len(self._body)
        assert server.decide is not None
        refusal = await server.decide(request)
        self._deciding = None
        if refusal is not None:
            self._refuse(refusal)
        else:
            server.release(request, size)
            request.anonymous = request.undecided = False
            room = server.hold(request, size)
            length = int(request.headers.get(b"content-length", b"0"))
            if not room or not server.has_room(request, length - size):
                self._refuse(error_response(_memory_full()))
        self._pump()

    def _start(self, request: Request) -> None:
        self.deadline = 0
        self._request = request
        self._server.requests_in_flight += 1
        request.answer = self._finish
        request.transport = self._transport
        if request.refusal is not None:
            self._finish(request, request.refusal)
            return
        work = self._server.handle(request)
        if work is None:
            return  # answered, or it will be
        if sys.version_info >= (3, 12):
            task = asyncio.Task(self._serve(request, work), loop=self._loop, eager_start=True)
        else:
            task = self._loop.create_task(self._serve(request, work))
        if self._request is request:  # else it has finished already
            self._task = task

    async def _serve(self, request: Request, work: Awaitable[Response | None]) -> None:
        response: Response | None
        try:
            response = await work
        except asyncio.CancelledError:
            response = error_response(Unavailable("the server is stopping; try again"))
        except Exception:
            logger.exception("%s %s: the handler failed", request.method, request.path[:200])
            response = _BROKEN
        if response is not None:
            request.answer(request, response)

    def _finish(self, request: Request, response: Response) -> None:
        """The answer to the request that is handled."""
        assert self._request is request
        if response.chunks is not None:
            request.answer = _answered_twice  # the request stays ours: the assertion would not see it
            self._loop.create_task(self._stream(request, response, response.chunks))
            return
        try:
            self._answer(request, response)
        except Exception:
            logger.exception("%s %s: the answer cannot be sent", request.method, request.path[:200])
            self._answer(request, _BROKEN)
        self._request = self._task = None
        self._server.finished(self, request)
        self._pump()

    def _answer(self, request: Request, response: Response) -> None:
        transport, body = self._transport, response.body
        if self._closing or transport.is_closing():
            _call(response.undelivered)
            return
        last = self._server.draining or (self._input_done and not self._ready)
        connection = _CLOSE if last else _KEEP_ALIVE if self._old_client else b""
        head = self._server.render_head(response, connection)
        if request.method == "HEAD" or response.status in BODILESS:
            transport.write(head)
        elif len(body) <= _JOINED_BODY_BYTES:
            transport.write(head + body)
        else:
            transport.write(head)  # not writelines: CVE-2024-12254, it never pauses the writer
            transport.write(body)
        if self._write_paused:
            self._unsent = response
        if last:
            self._close(linger=bool(self._unparsed or self._ready))

    # Answers in pieces

    async def _stream(self, request: Request, response: Response, chunks: AsyncIterator[bytes]) -> None:
        """Send an answer in pieces; its request is handled until the last of them is written."""
        # Known from here on, not before: a task cancelled before its first step would close no iterator.
        self._task, self._streaming = asyncio.current_task(), True
        begun = whole = last = False
        try:
            if not self._closing and not self._transport.is_closing():
                until_close = self._old_client or (self._input_done and not self._ready)
                last = until_close or self._server.draining
                framing = b"" if until_close or response.status in BODILESS else _CHUNKED
                head = self._server.render_open_head(response, framing + _CLOSE if last else framing)
                self._transport.write(head)
                begun = True
                if request.method == "HEAD" or response.status in BODILESS:
                    whole = True
                elif until_close:
                    whole = await self._send_until_close(chunks)
                else:
                    whole = await self._send(chunks, chunked=True)
        except asyncio.CancelledError:
            pass  # the client has left, or the server stops
        except Exception:
            logger.exception("%s %s: the answer broke off", request.method, request.path[:200])
        if begun and not whole:
            self._closing = True  # nor is there an answer to what was sent ahead
            self._transport.abort()
        elif whole and last:
            self._close(linger=bool(self._unparsed or self._ready))
        self._streaming = False
        await _close_iterator(chunks)
        if not whole:
            _call(response.undelivered)
        if not begun:
            self._finish(request, _BROKEN)  # which nobody gets if the client has left
            return
        self._request = self._task = None
        self._server.finished(self, request)
        self._pump()

    async def _send(self, chunks: AsyncIterator[bytes], *, chunked: bool) -> bool:
        """Write the pieces as fast as the client takes them; returns whether it got all."""
        transport, task, turns = self._transport, self._task, _BURST
        assert task is not None
        async for piece in chunks:
            if transport.is_closing() or task.cancelling():
                return False
            if not piece:  # an empty chunk would end the answer
                pass
            elif not chunked:
                transport.write(piece)
            elif len(piece) <= _JOINED_BODY_BYTES:
                transport.write(b"%x\r\n%b\r\n" % (len(piece), piece))
            else:
                transport.write(b"%x\r\n" % len(piece))
                transport.write(piece)
                transport.write(b"\r\n")
            turns -= 1
            if self._write_paused:
                await self._until_resumed()
            elif turns <= 0:
                await asyncio.sleep(0)
                turns = _BURST
        # An iterator may take its being cancelled for its end.
        if transport.is_closing() or task.cancelling():
            return False
        if chunked:
            transport.write(b"0\r\n\r\n")
        transport.set_write_buffer_limits(0)  # it has got all when nothing is left here
        if self._write_paused:
            await self._until_resumed()
        if not transport.is_closing():
            transport.set_write_buffer_limits()
        return True

    async def _until_resumed(self) -> None:
        self._unsent_bytes = self._transport.get_write_buffer_size()  # grown since the pause
        self._resumed = self._loop.create_future()
        await self._resumed

    async def _send_until_close(self, chunks: AsyncIterator[bytes]) -> bool:
        """The same without framing, for a client that takes the end of the connection for the end.

        So until all is sent, the end is to be a reset, whoever brings it about: even a kill of this process.
        """
        raw = self._transport.get_extra_info("socket")
        with contextlib.suppress(OSError):  # the client may be gone already
            raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
        whole = await self._send(chunks, chunked=False)
        if whole:
            with contextlib.suppress(OSError):
                raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _NO_RESET)
        return whole

    # The end

    def _close(self, *, linger: bool = False) -> None:
        """Close once all is written.

        ``linger`` where the client may still be sending: closing then would reset the connection,
        and the client would see that instead of our answer. So say "no more", and read on a little.
        """
        self._closing = True
        self._drop_input()
        server = self._server
        self.deadline = self._linger_until = server.tick + server.receive_ticks
        if not linger or self._transport.is_closing():
            self._transport.close()
            return
        self._discard_bytes = server.limits.body_bytes + _LINGER_BYTES
        self._discard(0)
        with contextlib.suppress(OSError):  # the client has left: connection_lost follows
            self._transport.write_eof()
        if self._reading_paused:
            self._transport.resume_reading()

    def _discard(self, size: int) -> None:
        self._discard_bytes -= size
        self.deadline = min(self._server.tick + self._server.linger_ticks, self._linger_until)
        if self._discard_bytes < 0:
            self._transport.abort()

    def _drop_input(self) -> None:
        self._drop_body()
        for item in self._ready:
            if isinstance(item, Request):
                self._server.release(item, len(item.body))
        self._ready.clear()
        self._unparsed = b""
        self._in_message = False

    def _drop_body(self) -> None:
        """Forget what has arrived of a body that is not complete, and who sends it."""
        if self._body:
            self._server.release(self._incoming, len(self._body))
            self._body = b""
        if self._deciding is not None:
            self._deciding.cancel()
            self._deciding = None


_BROKEN = Response(500, b'{"error":"the server failed; its log says why; try again or report it"}')


class _RefusedError(Exception):
    """A request is refused by its headers; the connection ends with the response."""

    def __init__(self, response: Response) -> None:
        super().__init__()
        self.response = response


def _call(callback: Callable[[], None] | None) -> None:
    try:
        if callback is not None:
            callback()
    except Exception:
        logger.exception("a callback for a client that left failed")


def _answered_twice(request: Request, _: Response) -> None:
    raise AssertionError(f"{request.method} {request.path[:200]} is answered twice")


async def _close_iterator(chunks: AsyncIterator[bytes]) -> None:
    try:
        close = getattr(chunks, "aclose", None)  # generators have it, other iterators may
        if close is not None:
            await close()
    except asyncio.CancelledError:
        pass  # the server stops
    except Exception:
        logger.exception("an iterator of chunks cannot be closed")


def _split_target(target: bytes) -> tuple[str, str]:
    """Path and query, both still percent-encoded; ``http://host/a?b`` counts as ``/a?b``."""
    if not target.isascii():
        raise InvalidRequest("the path holds raw bytes over 127; percent-encode it as UTF-8")
    path, _, query = target.decode("ascii").partition("?")
    if not path.startswith("/") and "://" in path:
        path = "/" + path.partition("://")[2].partition("/")[2]
    return path, query


def _adopt_authority(target: bytes, headers: dict[bytes, bytes]) -> None:
    """Take the host of ``http://host/path`` for the request's host; one that contradicts Host is refused."""
    authority = target.partition(b"://")[2].partition(b"/")[0].partition(b"?")[0]
    if headers.setdefault(b"host", authority).lower() != authority.lower():
        raise InvalidRequest("the request line and Host name different hosts; send the same in both")


_split_known = lru_cache(1024)(_split_target)
_method = lru_cache(64)(lambda method: method.decode("ascii"))


def _headers_too_large(limits: Limits) -> HeadersTooLarge:
    return HeadersTooLarge(f"request line and headers over {limits.header_bytes} bytes; send less")


def _body_too_large(limits: Limits) -> TooLarge:
    return TooLarge(f"the body is over {limits.body_bytes} bytes; send it in smaller batches")


def _memory_full() -> Unavailable:
    return Unavailable("too many request bodies are in memory; try again in a moment")
