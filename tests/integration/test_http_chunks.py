"""Answers in pieces, on a real socket: framing, backpressure, and every way to break off."""

from __future__ import annotations

import asyncio
import logging
import subprocess
import sys
from collections.abc import AsyncIterator, Coroutine
from typing import Any

import httpx
import psutil
import pytest

from queenstream.broker.http.connection import Connection
from queenstream.broker.http.routing import Request, Response
from tests.integration.rawhttp import GET, MIB, Client, Site, both_loops, post, serving, until

OLD = b"GET / HTTP/1.0\r\n\r\n"
CLOSE = b"GET / HTTP/1.1\r\nConnection: close\r\n\r\n"


class Source:
    """An iterator of pieces that tells what became of it. It raises at an exception, waits at an event."""

    def __init__(self, *pieces: bytes | Exception | asyncio.Event) -> None:
        self.pieces = iter(pieces)
        self.asked = self.closed = self.undelivered = 0
        self.cancelled = False

    def __aiter__(self) -> Source:
        return self

    async def __anext__(self) -> bytes:
        self.asked += 1
        try:
            for piece in self.pieces:
                if isinstance(piece, Exception):
                    raise piece
                if isinstance(piece, bytes):
                    return piece
                await piece.wait()
        except asyncio.CancelledError:
            self.cancelled = True
            raise
        raise StopAsyncIteration

    async def aclose(self) -> None:
        await asyncio.sleep(0)  # closing takes its time
        self.closed += 1

    def _not_delivered(self) -> None:
        assert self.closed == 1, "told before all is tidied up"
        self.undelivered += 1

    def response(self, status: int = 200) -> Response:
        return Response(status, b"", "text/plain", undelivered=self._not_delivered, chunks=self)

    async def handle(self, request: Request) -> Response:
        return self.response()

    async def broken_off(self, site: Site) -> None:
        """Wait for the end, and see that it is the right one."""
        await until(lambda: not site.server.requests_in_flight and not site.server.connections_open)
        await asyncio.sleep(0.02)  # for what must not come any more
        assert (self.closed, self.undelivered) == (1, 1)
        assert not site.server._orphans
        assert site.server.body_bytes_held == 0


async def head_of(client: Client) -> dict[str, str]:
    return (await client.answer(head_only=True)).headers


async def chunk_of(client: Client) -> bytes:
    size = int(await client.reader.readuntil(b"\r\n"), 16)
    data = await client.reader.readexactly(size + 2)
    assert data[-2:] == b"\r\n"
    return data[:-2]


async def chunks_of(client: Client) -> list[bytes]:
    chunks = []
    while chunk := await chunk_of(client):
        chunks.append(chunk)
    return chunks


async def rest_of(client: Client) -> tuple[bytes, bool]:
    """All that still comes, and whether a reset ended it."""
    data = b""
    try:
        while more := await client.reader.read(65536):
            data += more
    except ConnectionError:
        return data, True
    return data, False


def connection_of(site: Site) -> Connection:
    (connection,) = site.server._connections
    return connection


# Whole answers


@both_loops
async def test_every_piece_is_a_chunk_and_the_connection_lives_on() -> None:
    pieces = [b"%d," % n * (n % 7) for n in range(3000)] + [b"x" * 200_000, b"", b"end"]
    sources: list[Source] = []

    async def handle(request: Request) -> Response:
        sources.append(Source(*pieces))
        return sources[-1].response()

    async with serving(handle) as site:
        client = await site.connect()
        for _ in range(3):
            await client.send(GET)
            headers = await head_of(client)
            assert headers["transfer-encoding"] == "chunked"
            assert headers["content-type"] == "text/plain"
            assert not {"content-length", "connection"} & headers.keys()
            assert await chunks_of(client) == [piece for piece in pieces if piece]
        await until(lambda: not site.server.requests_in_flight)
        assert [(one.closed, one.undelivered) for one in sources] == [(1, 0)] * 3
        assert site.server.connections_open == 1
        assert connection_of(site)._transport.get_write_buffer_limits() == (16 * 1024, 64 * 1024)


@both_loops
async def test_handlers_that_answer_by_calling() -> None:
    """At once, later, and from a coroutine: a task is made for the pieces in each case."""

    async def answer_from_a_task(request: Request, response: Response) -> None:
        await asyncio.sleep(0)
        request.answer(request, response)

    def handle(request: Request) -> Coroutine[Any, Any, None] | None:
        response = Source(b"a", b"b").response()
        if request.path == "/now":
            request.answer(request, response)
            return None
        if request.path == "/later":
            asyncio.get_running_loop().call_later(0.01, request.answer, request, response)
            return None
        return answer_from_a_task(request, response)

    async with serving(handle) as site:  # type: ignore[arg-type]
        client = await site.connect()
        for path in ("/now", "/later", "/coroutine") * 2:
            await client.send(post(b"body", path))
            await head_of(client)
            assert await chunks_of(client) == [b"a", b"b"], path
        await until(lambda: not site.server.requests_in_flight)
        assert site.server.body_bytes_held == 0


@both_loops
async def test_httpx_reads_it() -> None:
    async def count() -> AsyncIterator[bytes]:  # a plain generator, as handlers will have
        for number in range(5000):
            yield b"%d\n" % number

    async def handle(request: Request) -> Response:
        return Response(chunks=count())

    async with serving(handle) as site, httpx.AsyncClient(trust_env=False) as web:
        url, wanted = f"http://127.0.0.1:{site.port}/", "".join(f"{n}\n" for n in range(5000))
        for headers in ({}, {}, {"connection": "close"}):
            answer = await web.get(url, headers=headers)
            assert answer.text == wanted
        assert (await web.head(url)).headers["transfer-encoding"] == "chunked"


@both_loops
async def test_a_piece_arrives_before_the_next_is_made() -> None:
    gate = asyncio.Event()
    source = Source(b"first", gate, b"second")
    async with serving(source.handle) as site:
        client = await site.connect()
        await client.send(GET)
        await head_of(client)
        assert await chunk_of(client) == b"first"
        assert site.server.requests_in_flight == 1
        gate.set()
        assert await chunks_of(client) == [b"second"]


@both_loops
async def test_old_clients_get_the_pieces_plain() -> None:
    keep = b"GET / HTTP/1.0\r\nConnection: keep-alive\r\n\r\n"
    # What a newer request, sent ahead, says of its client must not count for the old one.
    ahead = keep + b"GET / HTTP/1.1\r\nConnection: keep-alive\r\n\r\n"
    for request in (OLD, CLOSE, keep, ahead, OLD + b"more" * 1000):
        source = Source(b"a" * 100_000, b"", b"b")
        async with serving(source.handle) as site:
            client = await site.connect()
            await client.send(request)
            headers = await head_of(client)
            assert headers["connection"] == "close"
            assert not {"content-length", "transfer-encoding"} & headers.keys()
            assert await rest_of(client) == (b"a" * 100_000 + b"b", False)
            await until(lambda: not site.server.requests_in_flight)
            assert (source.closed, source.undelivered) == (1, 0)


@both_loops
async def test_head_and_statuses_without_body_leave_the_pieces_unread() -> None:
    sources: list[Source] = []

    async def handle(request: Request) -> Response:
        sources.append(Source(b"never"))
        return sources[-1].response(int(request.path[1:]))

    async with serving(handle) as site:
        client = await site.connect()
        for request, framing in (
            (b"HEAD /200 HTTP/1.1\r\n\r\n", "chunked"), (b"GET /204 HTTP/1.1\r\n\r\n", None),
            (b"GET /304 HTTP/1.1\r\n\r\n", None), (b"HEAD /200 HTTP/1.0\r\n\r\n", None),
        ):  # fmt: skip
            await client.send(request)
            headers = await head_of(client)
            assert headers.get("transfer-encoding") == framing
            assert "content-length" not in headers
        assert await client.ended()
        assert [(one.asked, one.closed, one.undelivered) for one in sources] == [(0, 1, 0)] * 4


@both_loops
async def test_what_is_sent_ahead_waits_for_the_last_piece() -> None:
    gate, started = asyncio.Event(), []

    async def handle(request: Request) -> Response:
        started.append(request.path)
        if request.path == "/plain":
            return Response(200, b"plain")
        return Source(b"1", gate, b"2").response()

    async with serving(handle) as site:
        client = await site.connect()
        await client.send(post(b"x" * 10, "/a") + b"GET /plain HTTP/1.1\r\n\r\n")
        await head_of(client)
        assert await chunk_of(client) == b"1"
        await client.send(b"GET /b HTTP/1.1\r\n\r\n")
        await asyncio.sleep(0.02)
        assert (started, site.server.requests_in_flight, site.server.body_bytes_held) == (["/a"], 1, 10)
        gate.set()
        assert await chunks_of(client) == [b"2"]
        assert (await client.answer()).body == b"plain"
        await head_of(client)
        assert await chunks_of(client) == [b"1", b"2"]
        assert (started, site.server.body_bytes_held) == (["/a", "/plain", "/b"], 0)


# Backpressure


@both_loops
async def test_a_slow_reader_of_much_is_waited_for() -> None:
    total, piece, written, buffered, ahead = 50 * MIB, b"x" * 50_000, 0, 0, 0
    received = 0

    async def count() -> AsyncIterator[bytes]:
        nonlocal written, buffered, ahead
        while written < total:  # and never gives others their turn
            buffered = max(buffered, connection_of(site)._transport.get_write_buffer_size())
            ahead = max(ahead, written - received)
            written += len(piece)
            yield piece

    async def handle(request: Request) -> Response:
        return Response(chunks=count())

    async with serving(handle) as site:
        client, memory = await site.connect(receive_buffer=65536), psutil.Process()
        before = memory.memory_info().rss
        await client.send(GET)
        await head_of(client)
        await asyncio.sleep(0.1)
        assert written < 10 * MIB  # it went as far as the socket's buffers, and waits
        while chunk := await chunk_of(client):
            received += len(chunk)
            if not received % MIB:
                await asyncio.sleep(0.002)
        assert received == written >= total
        assert 0 < buffered <= 64 * 1024  # asked for more only below the high-water mark
        assert ahead < 10 * MIB
        assert memory.memory_info().rss - before < 16 * MIB


@both_loops
async def test_an_endless_source_leaves_others_their_turn() -> None:
    async def endless() -> AsyncIterator[bytes]:
        while True:
            yield b""

    async def handle(request: Request) -> Response:
        return Response(200, b"quick") if request.path == "/echo" else Response(chunks=endless())

    async with serving(handle) as site:
        client, other = await site.connect(), await site.connect()
        await client.send(b"GET / HTTP/1.1\r\n\r\n")
        await head_of(client)
        assert (await other.ask(GET)).body == b"quick"
        client.reset()
        await until(lambda: site.server.connections_open == 1)


@both_loops
async def test_a_reader_that_stalls_is_cut_and_a_slow_source_is_not() -> None:
    for request in (GET, OLD):
        slow = asyncio.Event()
        asyncio.get_running_loop().call_later(0.5, slow.set)
        source = Source(slow, *[b"x" * MIB] * 50)
        async with serving(source.handle, receive_seconds=0.2, idle_seconds=0.2) as site:
            client = await site.connect(receive_buffer=65536)
            await client.send(request + GET * (request is GET))
            await head_of(client)
            assert await client.reader.readexactly(100)  # after longer than any limit
            begun = asyncio.get_running_loop().time()
            await source.broken_off(site)
            assert 0.15 < asyncio.get_running_loop().time() - begun < 1
            assert source.asked < 20
            _, reset = await rest_of(client)
            assert reset or request is GET  # where the end is the connection's, only this tells


@both_loops
async def test_a_tail_that_is_not_taken_is_undelivered() -> None:
    """The iterator has ended, and what the client does not take is less than makes the transport pause."""
    for request in (GET, OLD):
        source, made = Source(), 0

        async def until_the_socket_is_full() -> AsyncIterator[bytes]:
            nonlocal made
            while connection_of(site)._transport.get_write_buffer_size() < 10_000:
                await asyncio.sleep(0)
                made += 1
                yield b"x" * 10_000

        async def handle(request: Request, source: Source = source) -> Response:
            response = source.response()
            source.closed = 1
            response.chunks = until_the_socket_is_full()
            return response

        async with serving(handle, receive_seconds=0.2) as site:
            client = await site.connect(receive_buffer=65536)
            await client.send(request)
            await source.broken_off(site)
            data, reset = await rest_of(client)
            assert len(data) < made * 10_000
            assert reset or request is GET


# Breaking off


@both_loops
async def test_a_client_that_leaves_midway() -> None:
    async def read_some(client: Client) -> None:
        await head_of(client)
        await client.reader.readexactly(5)

    for request in (GET, OLD):
        for leave in (Client.reset, lambda client: client.writer.close()):
            # The source waits; and the source is waited for.
            for pieces in ((b"12345", asyncio.Event()), (b"12345", *[b"x" * MIB] * 50)):
                source = Source(*pieces)
                gone: list[int] = []

                async def handle(
                    request: Request, source: Source = source, gone: list[int] = gone
                ) -> Response:
                    request.on_gone = lambda: gone.append(1)
                    return source.response()

                async with serving(handle) as site:
                    client = await site.connect(receive_buffer=65536)
                    await client.send(request)
                    await read_some(client)
                    leave(client)
                    await source.broken_off(site)
                    assert gone == [1]
                    assert source.asked < 20


@both_loops
async def test_a_client_that_leaves_before_the_first_piece() -> None:
    """Whether before the handler answers or just after it, when the task has not taken a step yet."""
    release = asyncio.Event()
    for same_moment in (False, True):
        source = Source(b"x")

        async def handle(request: Request, source: Source = source, now: bool = same_moment) -> Response:
            if now:
                connection_of(site)._transport.abort()
            else:
                await release.wait()
            return source.response()

        async with serving(handle) as site:
            client = await site.connect()
            await client.send(post(b"12345"))
            if not same_moment:
                await until(lambda: site.server.requests_in_flight)
                client.reset()
                await until(lambda: not site.server.connections_open)
                release.set()
            await source.broken_off(site)
            assert source.asked == 0


def test_an_iterator_that_raises_breaks_the_answer(caplog: pytest.LogCaptureFixture) -> None:
    @both_loops
    async def scenario() -> None:
        for request, wanted in ((GET, b"5\r\nfirst\r\n"), (CLOSE, b"first"), (OLD, b"first")):
            caplog.clear()
            gate = asyncio.Event()
            source = Source(b"first", gate, LookupError("no more"))
            async with serving(source.handle) as site:
                client = await site.connect()
                await client.send(request + GET * (request is GET))  # the second is never answered
                await head_of(client)
                assert await client.reader.readexactly(len(wanted)) == wanted
                gate.set()
                data, reset = await rest_of(client)
                assert data == b""
                assert reset or request is GET
                await source.broken_off(site)
            (record,) = [one for one in caplog.records if one.levelno >= logging.ERROR]
            assert "the answer broke off" in record.message
            assert record.exc_info is not None
            assert "no more" in str(record.exc_info[1])

    for loop in ("asyncio", "uvloop"):
        scenario(loop)


@both_loops
async def test_an_iterator_that_raises_starts_nothing_more() -> None:
    paths = []

    async def failing() -> AsyncIterator[bytes]:
        yield b"first"
        raise LookupError

    async def handle(request: Request) -> Response:
        paths.append(request.path)
        return Response(chunks=failing())

    async with serving(handle) as site:
        client = await site.connect()
        await client.send(GET * 3)
        await until(lambda: paths and not site.server.connections_open)
        assert paths == ["/echo"]


@both_loops
async def test_httpx_sees_that_the_answer_is_broken() -> None:
    gate = asyncio.Event()

    async def handle(request: Request) -> Response:
        return Source(b"first", gate, LookupError()).response()

    async with serving(handle) as site, httpx.AsyncClient(trust_env=False) as web:
        for headers in ({}, {"connection": "close"}):
            gate.clear()
            url = f"http://127.0.0.1:{site.port}/"
            async with web.stream("GET", url, headers=headers) as answer:
                pieces = answer.aiter_bytes()
                assert await anext(pieces) == b"first"
                gate.set()
                with pytest.raises(httpx.HTTPError):
                    await anext(pieces)


@both_loops
async def test_headers_that_cannot_be_sent_are_a_500() -> None:
    sources: list[Source] = []

    async def handle(request: Request) -> Response:
        sources.append(Source(b"x"))
        response = sources[-1].response()
        response.headers = (("content-disposition", "filename=→"),)
        return response

    async with serving(handle) as site:
        client = await site.connect()
        for request in (GET, GET, OLD):
            answer = await client.ask(request)
            assert answer.status == 500
            assert "the server failed" in answer.error
        assert await client.ended()
        assert [(one.asked, one.closed, one.undelivered) for one in sources] == [(0, 1, 1)] * 3


@both_loops
async def test_an_iterator_that_hides_its_cancelling_is_not_taken_for_whole() -> None:
    for goes_on in (True, False):
        events: list[str] = []

        async def stubborn(goes_on: bool = goes_on, events: list[str] = events) -> AsyncIterator[bytes]:
            try:
                yield b"first"
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                if goes_on:
                    yield b"second"
            finally:
                events.append("closed")

        async def handle(request: Request, events: list[str] = events) -> Response:
            return Response(chunks=stubborn(), undelivered=lambda: events.append("undelivered"))

        async with serving(handle) as site:
            client = await site.connect()
            await client.send(GET)
            await head_of(client)
            assert await chunk_of(client) == b"first"
            task = connection_of(site)._task
            assert task is not None
            task.cancel()  # as the end of the event loop does
            assert (await rest_of(client))[0] == b""
            await until(lambda: not site.server.connections_open)
            assert events == ["closed", "undelivered"]
            assert site.server.requests_in_flight == 0


@both_loops
async def test_an_answer_given_twice_does_not_get_between_the_pieces() -> None:
    gate = asyncio.Event()
    source = Source(b"first", gate, b"second")

    def handle(request: Request) -> None:
        request.answer(request, source.response())
        with pytest.raises(AssertionError, match="twice"):
            request.answer(request, Response(200, b"again"))
        gate.set()

    async with serving(handle) as site:  # type: ignore[arg-type]
        client = await site.connect()
        await client.send(GET)
        await head_of(client)
        assert await chunks_of(client) == [b"first", b"second"]


# Stopping


@both_loops
async def test_drain_lets_an_answer_finish() -> None:
    for request in (GET, OLD):
        gate = asyncio.Event()
        source = Source(b"first", gate, b"second")
        async with serving(source.handle) as site:
            client = await site.connect()
            await client.send(request)
            await head_of(client)
            await client.reader.readuntil(b"first")
            draining = asyncio.create_task(site.server.drain(10))
            await asyncio.sleep(0.02)
            assert not draining.done()
            gate.set()
            data, reset = await rest_of(client)
            assert data == (b"second" if request is OLD else b"\r\n6\r\nsecond\r\n0\r\n\r\n")
            assert not reset
            client.writer.close()
            await draining
            assert (source.closed, source.undelivered) == (1, 0)


@both_loops
async def test_an_answer_begun_while_draining_is_chunked_and_the_last() -> None:
    release, source = asyncio.Event(), Source(b"all")

    async def handle(request: Request) -> Response:
        await release.wait()
        return source.response()

    async with serving(handle) as site:
        client = await site.connect()
        await client.send(GET)
        await until(lambda: site.server.requests_in_flight)
        draining = asyncio.create_task(site.server.drain(10))
        await asyncio.sleep(0)
        release.set()
        headers = await head_of(client)
        assert (headers["transfer-encoding"], headers["connection"]) == ("chunked", "close")
        assert await chunks_of(client) == [b"all"]
        assert await client.ended()
        client.writer.close()
        await draining


@both_loops
async def test_drain_cuts_an_answer_that_outlasts_the_grace() -> None:
    for request in (GET, OLD):
        source = Source(b"first", asyncio.Event())
        async with serving(source.handle) as site:
            client = await site.connect()
            await client.send(request)
            await head_of(client)
            await client.reader.readuntil(b"first")
            await site.server.drain(0.05)
            assert source.cancelled
            assert (source.closed, source.undelivered, site.server.requests_in_flight) == (1, 1, 0)
            data, reset = await rest_of(client)
            assert data == (b"" if request is OLD else b"\r\n")
            assert reset or request is GET


_SERVER = """
import asyncio, uvloop
from queenstream.broker.http.server import HttpServer
from queenstream.broker.http.routing import Response

async def pieces():
    yield b"first"
    await asyncio.Event().wait()

async def handle(request):
    return Response(chunks=pieces())

async def main():
    print(await HttpServer(handle).listen("127.0.0.1", 0), flush=True)
    await asyncio.Event().wait()

asyncio.Runner(loop_factory=LOOP).run(main())
"""


@pytest.mark.parametrize("factory", ["asyncio.new_event_loop", "uvloop.new_event_loop"])
async def test_a_server_that_is_killed_leaves_no_answer_that_looks_whole(factory: str) -> None:
    code = _SERVER.replace("LOOP", factory)
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", code, stdout=subprocess.PIPE)
    assert process.stdout is not None
    reader, writer = await asyncio.open_connection("127.0.0.1", int(await process.stdout.readline()))
    client = Client(reader, writer)
    await client.send(OLD)
    await head_of(client)
    assert await reader.readexactly(5) == b"first"
    process.kill()
    assert await rest_of(client) == (b"", True)
    writer.close()
    await process.wait()
