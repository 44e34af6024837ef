"""The HTTP server on a real socket, on plain asyncio and on uvloop, spoken to in raw bytes."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import json
import random
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from dataclasses import dataclass
from typing import Any

import psutil
import pytest
import uvloop

from queenstream.broker.http import HttpServer, Limits
from queenstream.broker.routing import Request, Response

MIB = 1024 * 1024
GET = b"GET /echo HTTP/1.1\r\nHost: x\r\n\r\n"
Handle = Callable[[Request], Awaitable[Response]]


def both_loops(scenario: Callable[[], Coroutine[Any, Any, None]]) -> Callable[[str], None]:
    """Run an async test on each event loop; one that hangs fails after 15 s."""

    @pytest.mark.parametrize("loop", ["asyncio", "uvloop"])
    def test(loop: str) -> None:
        factory = uvloop.new_event_loop if loop == "uvloop" else asyncio.new_event_loop
        with asyncio.Runner(loop_factory=factory) as runner:
            runner.run(asyncio.wait_for(scenario(), 15))

    functools.update_wrapper(test, scenario)
    del test.__wrapped__  # type: ignore[attr-defined]  # or pytest looks at the wrong signature
    return test


@dataclass
class Answer:
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def error(self) -> str:
        assert self.headers["content-type"] == "application/json"
        message = json.loads(self.body)["error"]
        assert isinstance(message, str)
        return message


class Client:
    """A socket that can read one answer after the other."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    async def send(self, data: bytes) -> None:
        self.writer.write(data)
        await self.writer.drain()

    async def answer(self, *, head_only: bool = False) -> Answer:
        head = (await self.reader.readuntil(b"\r\n\r\n")).decode("latin-1")
        first, *lines = head[:-4].split("\r\n")
        version, status, _ = first.split(" ", 2)
        assert version == "HTTP/1.1"
        headers = {n.lower(): v for n, v in (line.split(": ", 1) for line in lines)}
        length = 0 if head_only else int(headers.get("content-length", 0))
        return Answer(int(status), headers, await self.reader.readexactly(length))

    async def ask(self, data: bytes) -> Answer:
        await self.send(data)
        return await self.answer()

    async def ended(self) -> bool:
        """Whether the server closed, cleanly and without another byte."""
        return await self.reader.read() == b""

    def reset(self) -> None:
        """Leave without a word."""
        self.writer.transport.abort()


async def echo(request: Request) -> Response:
    headers = {n.decode(): v.decode("latin-1") for n, v in request.headers.items()}
    seen = {
        "method": request.method, "path": request.path, "query": request.query,
        "headers": headers, "body": request.body.decode("latin-1"),
    }  # fmt: skip
    return Response(200, json.dumps(seen).encode())


class Site:
    """A running server and the clients of one test."""

    def __init__(self, server: HttpServer, port: int) -> None:
        self.server = server
        self.port = port
        self.clients: list[Client] = []

    async def connect(self, *, receive_buffer: int | None = None) -> Client:
        raw = socket.socket()
        if receive_buffer is not None:
            raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        raw.setblocking(False)
        raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        try:
            await asyncio.get_running_loop().sock_connect(raw, ("127.0.0.1", self.port))
        except OSError:
            raw.close()
            raise
        client = Client(*await asyncio.open_connection(sock=raw, limit=4096))
        self.clients.append(client)
        return client


@contextlib.asynccontextmanager
async def serving(handle: Handle = echo, **limits: Any) -> AsyncIterator[Site]:
    server = HttpServer(handle, Limits(**limits))
    site = Site(server, await server.listen("127.0.0.1", 0))
    try:
        yield site
    finally:
        for client in site.clients:
            client.writer.close()
        await server.drain(2)
        for client in site.clients:
            with contextlib.suppress(OSError):
                await client.writer.wait_closed()
    assert (server.connections_open, server.requests_in_flight) == (0, 0)
    assert server.body_bytes_held == 0


def post(body: bytes, path: str = "/", headers: str = "") -> bytes:
    return f"POST {path} HTTP/1.1\r\n{headers}Content-Length: {len(body)}\r\n\r\n".encode() + body


async def until(true: Callable[[], object]) -> None:
    """Wait for what has no signal."""
    while not true():  # noqa: ASYNC110
        await asyncio.sleep(0.005)


# Requests in, answers out


@both_loops
async def test_keep_alive_and_what_the_handler_sees() -> None:
    async with serving() as site:
        client = await site.connect()
        for number in range(3):
            answer = await client.ask(post(b"hi", f"/a%2Fb/{number}?q=%20&r=1?2", "X-Y: 1\r\nx-y: 2\r\n"))
            assert answer.status == 200
            assert answer.headers["server"] == "queenstream"
            assert answer.headers["content-type"] == "application/json"
            assert "connection" not in answer.headers
            seen = json.loads(answer.body)
            assert (seen["method"], seen["body"]) == ("POST", "hi")
            assert (seen["path"], seen["query"]) == (f"/a%2Fb/{number}", "q=%20&r=1?2")
            assert seen["headers"] == {"x-y": "1, 2", "content-length": "2"}
        assert site.server.connections_open == 1


@both_loops
async def test_targets() -> None:
    async with serving() as site:
        client = await site.connect()
        for target, path, query in [
            ("http://h:1/a/b?c", "/a/b", "c"), ("http://h?c=http://d/e", "/", "c=http://d/e"),
            ("http://h", "/", ""), ("/?", "/", ""), ("/a://b/c", "/a://b/c", ""),
        ]:  # fmt: skip
            seen = json.loads((await client.ask(f"GET {target} HTTP/1.1\r\n\r\n".encode())).body)
            assert (seen["path"], seen["query"]) == (path, query), target
        answer = await client.ask("GET /é HTTP/1.1\r\n\r\n".encode())
        assert (answer.status, answer.headers["connection"]) == (400, "close")
        assert await client.ended()


@both_loops
async def test_old_clients_and_connection_close() -> None:
    async with serving() as site:
        client = await site.connect()
        granted = await client.ask(b"GET / HTTP/1.0\r\nConnection: keep-alive\r\n\r\n")
        assert granted.headers["connection"] == "keep-alive"
        for last in (b"GET / HTTP/1.0\r\n\r\n", b"GET / HTTP/1.1\r\nConnection: close\r\n\r\n"):
            answer = await client.ask(last)
            assert (answer.status, answer.headers["connection"]) == (200, "close")
            assert await client.ended()
            client = await site.connect()
        # What follows the last request is read over, and does no harm to its answer.
        answer = await client.ask(post(b"x" * 20_000, headers="Connection: close\r\n") + GET * 100_000)
        assert len(json.loads(answer.body)["body"]) == 20_000
        assert await client.ended()


@both_loops
async def test_head_and_answers_without_body() -> None:
    async def handle(request: Request) -> Response:
        return Response(int(request.path[1:]), b"12345")

    async with serving(handle) as site:
        client = await site.connect()
        await client.send(b"HEAD /200 HTTP/1.1\r\n\r\n")
        assert (await client.answer(head_only=True)).headers["content-length"] == "5"
        for status in (204, 304):
            answer = await client.ask(f"GET /{status} HTTP/1.1\r\n\r\n".encode())
            assert answer.status == status
            assert not {"content-length", "content-type"} & answer.headers.keys()
        answer = await client.ask(b"GET /299 HTTP/1.1\r\n\r\n")
        assert (answer.status, answer.body) == (299, b"12345")


@both_loops
async def test_chunked_bodies_and_bodies_of_get() -> None:
    async with serving() as site:
        client = await site.connect()
        head = b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n"
        chunks = b"".join(b"1;ext=1\r\n%c\r\n" % byte for byte in b"streaming" * 99)
        answer = await client.ask(head + chunks + b"0\r\nTrailer: x\r\n\r\n")
        seen = json.loads(answer.body)
        assert seen["body"] == "streaming" * 99
        assert "trailer" not in seen["headers"]
        answer = await client.ask(b"GET / HTTP/1.1\r\nContent-Length: 3\r\n\r\nabc")
        assert json.loads(answer.body)["body"] == "abc"
        assert (await client.ask(GET)).status == 200


@both_loops
async def test_every_split_of_a_request() -> None:
    upgrade = "Connection: Upgrade\r\nUpgrade: h2c\r\n"
    data = post(b"body", "/p?q", "A: b\r\n" + upgrade) + GET
    data += b"POST /c HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nbody\r\n0\r\n\r\n"
    async with serving() as site:
        client = await site.connect()

        async def three() -> list[tuple[str, str]]:
            seen = [json.loads((await client.answer()).body) for _ in range(3)]
            return [(one["path"], one["body"]) for one in seen]

        wanted = [("/p", "body"), ("/echo", ""), ("/c", "body")]
        for at in range(1, len(data)):
            await client.send(data[:at])
            await asyncio.sleep(0)
            await client.send(data[at:])
            assert await three() == wanted, at
        for byte in data:
            await client.send(bytes((byte,)))
            await asyncio.sleep(0.0005)
        assert await three() == wanted


@both_loops
async def test_upgrades_are_ignored() -> None:
    async with serving() as site:
        client = await site.connect()
        websocket = b"GET /w HTTP/1.1\r\nConnection: upgrade\r\nUpgrade: websocket\r\n\r\n"
        chunked = (
            b"POST /c HTTP/1.1\r\nConnection: upgrade\r\nUpgrade: h2c\r\n"
            b"Transfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n"
        )
        connect = b"CONNECT host:80 HTTP/1.1\r\n\r\n"
        await client.send(websocket + post(b"x" * 40_000) + chunked + connect + GET)
        seen = [json.loads((await client.answer()).body) for _ in range(5)]
        assert [one["path"] for one in seen] == ["/w", "/", "/c", "host:80", "/echo"]
        assert [len(one["body"]) for one in seen] == [0, 40_000, 3, 0, 0]


@both_loops
async def test_pipelined_requests_are_answered_in_order() -> None:
    release, running, most = asyncio.Event(), 0, 0

    async def handle(request: Request) -> Response:
        nonlocal running, most
        running, most = running + 1, max(most, running + 1)
        if request.path == "/0":
            await release.wait()
        running -= 1
        return Response(200, request.path.encode())

    async with serving(handle) as site:
        client, count = await site.connect(), 30_000
        sending = asyncio.create_task(
            client.send(b"".join(b"GET /%d HTTP/1.1\r\n\r\n" % n for n in range(count)))
        )
        await until(lambda: site.server.requests_in_flight)
        other = await site.connect()
        assert (await other.ask(GET)).body == b"/echo"  # nobody else waits
        release.set()
        for number in range(count):
            assert (await client.answer()).body == b"/%d" % number
        await sending
        assert most == 2  # one of this connection, one of the other


@both_loops
async def test_what_is_sent_ahead_stays_in_the_socket() -> None:
    release = asyncio.Event()

    async def handle(request: Request) -> Response:
        await release.wait()
        return Response()

    async with serving(handle) as site:
        client = await site.connect()
        client.writer.write(GET * (16 * MIB // len(GET)))
        await until(lambda: site.server.requests_in_flight)
        await asyncio.sleep(0.1)
        (connection,) = site.server._connections
        assert len(connection._ready) <= 16 * 1024 // len(GET)
        assert len(connection._unparsed) <= MIB
        client.reset()
        release.set()


@both_loops
async def test_an_error_waits_behind_the_answers_before_it() -> None:
    async def handle(request: Request) -> Response:
        await asyncio.sleep(0.02)
        return Response(200, b"first")

    async with serving(handle) as site:
        client = await site.connect()
        await client.send(GET + b"garbage\r\n\r\n")
        assert (await client.answer()).body == b"first"
        assert "not HTTP/1.1" in (await client.answer()).error
        assert await client.ended()


@both_loops
async def test_headers_of_answers() -> None:
    async def handle(request: Request) -> Response:
        given = (("Retry-After", "1"), ("Content-Length", "99"), ("X", request.path[1:]))
        value = "a\r\nSet-Cookie: b" if request.path == "/evil" else "é"
        return Response(200, b"x", "text/plain", (*given, ("Y", value)))

    async with serving(handle) as site:
        client = await site.connect()
        answer = await client.ask(GET)
        assert answer.headers["content-length"] == "1"
        assert answer.headers["retry-after"] == "1"
        assert answer.headers["y"] == "é"
        assert answer.headers["content-type"] == "text/plain"
        answer = await client.ask(b"GET /evil HTTP/1.1\r\n\r\n")
        assert answer.status == 500
        assert "set-cookie" not in answer.headers


@both_loops
async def test_a_handler_that_fails_is_a_500() -> None:
    async def handle(request: Request) -> Response:
        if request.path == "/cancelled":
            raise asyncio.CancelledError
        raise LookupError("secret")

    async with serving(handle) as site:
        client = await site.connect()
        answer = await client.ask(GET)
        assert answer.status == 500
        assert "secret" not in answer.error
        assert (await client.ask(b"GET /cancelled HTTP/1.1\r\n\r\n")).status == 503
        assert (await client.ask(GET)).status == 500  # the connection lives


@both_loops
async def test_nodelay() -> None:
    async with serving() as site:
        await (await site.connect()).ask(GET)
        (connection,) = site.server._connections
        raw = connection._transport.get_extra_info("socket")
        assert raw.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


# Limits


@both_loops
async def test_expect_100_continue() -> None:
    async with serving(body_bytes=100) as site:
        client = await site.connect()
        head = "POST / HTTP/1.1\r\nExpect: 100-continue\r\nContent-Length: {}\r\n\r\n"
        await client.send(GET + head.format(4).encode())
        assert (await client.answer()).status == 200  # the 100 keeps its place in the order
        assert (await client.answer()).status == 100
        assert json.loads((await client.ask(b"body")).body)["body"] == "body"
        # A client that did not wait gets no 100; nor does one of HTTP/1.0.
        assert (await client.ask(head.format(4).encode() + b"body")).status == 200
        answer = await client.ask(head.format(101).encode())
        assert answer.status == 413
        assert await client.ended()
        old = await site.connect()
        await old.send(head.replace("1.1", "1.0").format(1).encode())
        await asyncio.sleep(0.02)
        assert (await old.ask(b"x")).status == 200


@both_loops
async def test_a_declared_body_over_the_limit() -> None:
    handled = 0

    async def handle(request: Request) -> Response:
        nonlocal handled
        handled += 1
        return Response()

    async with serving(handle, body_bytes=MIB) as site:
        for length in (MIB + 1, 10**15, 10**40):
            client = await site.connect()
            answer = await client.ask(b"POST / HTTP/1.1\r\nContent-Length: %d\r\n\r\n" % length)
            assert answer.status == 413
            assert str(MIB) in answer.error
            assert await client.ended()
        # A client that sends all of it before it reads still gets the answer, and no reset.
        client, memory = await site.connect(), psutil.Process()
        before = memory.memory_info().rss
        await client.send(b"POST / HTTP/1.1\r\nContent-Length: %d\r\n\r\n" % (12 * MIB))
        for _ in range(12):
            await client.send(b"x" * MIB)
        assert (await client.answer()).status == 413
        assert await client.ended()
        assert memory.memory_info().rss - before < 8 * MIB
        assert handled == 0


@both_loops
async def test_a_chunked_body_over_the_limit() -> None:
    async with serving(body_bytes=MIB) as site:
        client, held, memory = await site.connect(), 0, psutil.Process()
        await client.send(b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n")
        before, chunk = memory.memory_info().rss, b"8000\r\n" + b"x" * 0x8000 + b"\r\n"
        for _ in range(300):
            await client.send(chunk)
            await asyncio.sleep(0)
            held = max(held, site.server.body_bytes_held)
        assert (await client.answer()).status == 413
        assert await client.ended()
        assert 0 < held <= MIB + 64 * 1024
        assert memory.memory_info().rss - before < 8 * MIB


@both_loops
async def test_a_sender_without_end_is_cut_off() -> None:
    async with serving(body_bytes=1024, receive_seconds=0.4) as site:
        client = await site.connect()
        await client.send(b"POST / HTTP/1.1\r\nContent-Length: 99999999999\r\n\r\n")

        async def flood() -> None:
            while True:
                await client.send(b"x" * 65536)

        with pytest.raises(ConnectionError):
            await flood()


@both_loops
async def test_bodies_in_memory_are_bounded() -> None:
    release = asyncio.Event()

    async def handle(request: Request) -> Response:
        await release.wait()
        return Response()

    async with serving(handle, buffered_bytes=1000) as site:
        first, second, third = [await site.connect() for _ in range(3)]
        await first.send(post(b"x" * 900))
        await until(lambda: site.server.body_bytes_held == 900)
        answer = await second.ask(post(b"x" * 200))
        assert (answer.status, answer.headers["retry-after"]) == (503, "1")
        chunked = b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n"
        assert (await third.ask(chunked + b"c8\r\n" + b"x" * 200)).status == 503
        release.set()
        assert (await first.answer()).status == 200
        assert (await (await site.connect()).ask(post(b"x" * 900))).status == 200


@both_loops
async def test_headers_over_the_limit() -> None:
    heads = [
        b"GET /" + b"x" * 5000 + b" HTTP/1.1\r\n\r\n",
        b"GET / HTTP/1.1\r\nA: " + b"x" * 5000 + b"\r\n\r\n",
        b"GET / HTTP/1.1\r\n" + b"".join(b"H%d: x\r\n" % n for n in range(900)) + b"\r\n",
        b"GET / HTTP/1.1\r\nA: " + b"x" * 50_000,  # without an end
        b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\nT: " + b"x" * 50_000,
    ]
    async with serving(header_bytes=4096) as site:
        for head in heads:
            client = await site.connect()
            answer = await client.ask(head)
            assert answer.status == 431, head[:40]
            assert "4096" in answer.error
            assert await client.ended()
    async with serving() as site:
        answer = await (await site.connect()).ask(b"GET / HTTP/1.1\r\n" + b"a:b\r\n" * 9000)
        assert answer.status == 431


@both_loops
async def test_slow_senders_are_cut() -> None:
    async with serving(receive_seconds=0.2, idle_seconds=5) as site:
        starts = [
            b"GET /",
            post(b"12345")[:-2],
            b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nab",
        ]
        clients = [await site.connect() for _ in starts]
        for client, start in zip(clients, starts, strict=True):
            await client.send(start)

        async def drip() -> None:  # a byte now and then does not help
            while True:
                await asyncio.sleep(0.03)
                await clients[0].send(b"x")

        dripping = asyncio.create_task(drip())
        for client in clients:
            answer = await client.answer()
            assert answer.status == 408
            assert "0.2 s" in answer.error
            dripping.cancel()
            assert await client.ended()


@both_loops
async def test_idle_connections_are_closed_without_a_word() -> None:
    async with serving(idle_seconds=0.1) as site:
        silent, used = await site.connect(), await site.connect()
        assert (await used.ask(GET)).status == 200
        assert await silent.ended()
        assert await used.ended()


@both_loops
async def test_a_long_poll_outlives_every_timeout() -> None:
    async def handle(request: Request) -> Response:
        await asyncio.sleep(0.3)
        return Response(200, b"patience")

    async with serving(handle, idle_seconds=0.05, receive_seconds=0.05) as site:
        assert (await (await site.connect()).ask(GET)).body == b"patience"


@both_loops
async def test_a_reader_that_stalls_is_cut_and_a_slow_one_is_not() -> None:
    size, undelivered = 8 * MIB, asyncio.Event()

    async def handle(request: Request) -> Response:
        return Response(200, b"x" * size, undelivered=undelivered.set)

    async with serving(handle, receive_seconds=0.2) as site:
        slow = await site.connect(receive_buffer=65536)
        await slow.send(GET)
        await slow.reader.readuntil(b"\r\n\r\n")
        for _ in range(8):
            await asyncio.sleep(0.06)  # much longer in all than receive_seconds
            await slow.reader.readexactly(size // 8)
        assert not undelivered.is_set()
        stalled = await site.connect(receive_buffer=65536)
        await stalled.send(GET * 5)
        await undelivered.wait()
        await until(lambda: site.server.connections_open == 1)
        assert site.server.requests_in_flight == 0  # the pipelined rest was never started


@both_loops
async def test_too_many_connections() -> None:
    async with serving(connections=2) as site:
        clients = [await site.connect() for _ in range(2)]
        for client in clients:
            assert (await client.ask(GET)).status == 200
        extra = await site.connect()
        answer = await extra.ask(GET)
        assert (answer.status, answer.headers["retry-after"]) == (503, "1")
        assert await extra.ended()
        extra.writer.close()
        clients[0].writer.close()
        await until(lambda: site.server.connections_open == 1)
        assert (await (await site.connect()).ask(GET)).status == 200


# Clients that leave


@both_loops
async def test_a_client_that_leaves() -> None:
    events: list[str] = []
    requests: list[Request] = []
    started, release, told = asyncio.Event(), asyncio.Event(), asyncio.Event()

    def undelivered() -> None:
        events.append("undelivered")
        told.set()

    async def handle(request: Request) -> Response:
        requests.append(request)
        request.on_gone = lambda: events.append("gone")
        started.set()
        await release.wait()
        events.append(f"finished, gone={request.gone}")
        return Response(undelivered=undelivered)

    async with serving(handle) as site:
        for leave in (Client.reset, lambda client: client.writer.close()):
            client = await site.connect()
            await client.send(post(b"12345"))
            await started.wait()
            assert not requests[-1].gone
            leave(client)
            await until(lambda: events)
            assert (events, requests[-1].gone) == (["gone"], True)
            assert (site.server.connections_open, site.server.requests_in_flight) == (0, 1)
            release.set()
            await told.wait()
            assert events == ["gone", "finished, gone=True", "undelivered"]
            events.clear()
            for event in (started, release, told):
                event.clear()


@both_loops
async def test_an_answer_that_arrives_is_not_called_undelivered() -> None:
    undelivered: list[bool] = []

    async def handle(request: Request) -> Response:
        request.on_gone = lambda: undelivered.append(True)
        return Response(200, b"x", undelivered=lambda: undelivered.append(True))

    async with serving(handle) as site:
        client = await site.connect()
        assert (await client.ask(GET)).status == 200
        client.reset()
        await until(lambda: not site.server.connections_open)
        assert not undelivered


@both_loops
async def test_a_callback_that_fails_harms_nobody() -> None:
    release = asyncio.Event()

    def broken() -> None:
        raise LookupError

    async def handle(request: Request) -> Response:
        request.on_gone = broken
        await release.wait()
        return Response(undelivered=broken)

    async with serving(handle) as site:
        client = await site.connect()
        await client.send(GET)
        await until(lambda: site.server.requests_in_flight)
        client.reset()
        await until(lambda: not site.server.connections_open)
        release.set()
        await until(lambda: not site.server.requests_in_flight)
        assert (await (await site.connect()).ask(GET)).status == 200


# Stopping


@both_loops
async def test_drain_lets_requests_finish_and_takes_no_more() -> None:
    release, release_left, paths = asyncio.Event(), asyncio.Event(), []

    async def handle(request: Request) -> Response:
        paths.append(request.path)
        await (release_left if request.path == "/left" else release).wait()
        return Response(200, request.path.encode())

    async with serving(handle) as site:
        idle, busy, arriving, left = [await site.connect() for _ in range(4)]
        await busy.send(GET + GET)
        await left.send(b"GET /left HTTP/1.1\r\n\r\n")
        await arriving.send(post(b"12", "/arriving")[:-1])
        await until(lambda: site.server.requests_in_flight == 2)
        left.reset()
        draining = asyncio.create_task(site.server.drain(10))
        assert await idle.ended()
        with pytest.raises(ConnectionError):
            await site.connect()
        await arriving.send(b"2")
        await until(lambda: len(paths) == 3)
        assert not draining.done()
        release.set()
        for client, path in ((busy, b"/echo"), (arriving, b"/arriving")):
            answer = await client.answer()
            assert (answer.body, answer.headers["connection"]) == (path, "close")
            assert await client.ended()
            client.writer.close()
        await until(lambda: not site.server.connections_open)
        await asyncio.sleep(0.01)
        assert not draining.done()  # its client is gone, its work is not
        release_left.set()
        await draining
        assert sorted(paths) == ["/arriving", "/echo", "/left"]


@both_loops
async def test_drain_cuts_what_outlasts_the_grace() -> None:
    cancelled = asyncio.Event()

    async def handle(request: Request) -> Response:
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.set()
        return Response()

    async with serving(handle) as site:
        client = await site.connect()
        await client.send(GET)
        await until(lambda: site.server.requests_in_flight)
        await site.server.drain(0.05)
        assert cancelled.is_set()
        assert await client.ended()


# Nonsense


@both_loops
async def test_bad_syntax_is_a_400() -> None:
    bad = [
        b"\0\1\2\3", b"\x16\x03\x01\x02\x00\x01", b"FOO / HTTP/1.1\r\n\r\n",
        b"GET / HTTP/9.9\r\n\r\n", b"GET / HTTP/1.1\r\nA b: c\r\n\r\n",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        b"POST / HTTP/1.1\r\nContent-Length: -1\r\n\r\n",
        b"POST / HTTP/1.1\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n",
        b"POST / HTTP/1.1\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n",
        b"POST / HTTP/1.1\r\nTransfer-Encoding: gzip\r\n\r\n",
        b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\nxyz\r\n",
        b"POST / HTTP/1.1\r\nUpgrade: a\r\nConnection: upgrade\r\nTransfer-Encoding: gzip\r\n\r\n",
    ]  # fmt: skip
    async with serving() as site:
        for data in bad:
            client = await site.connect()
            answer = await client.ask(data)
            assert (answer.status, answer.headers["connection"]) == (400, "close"), data
            assert "HTTP/1.1" in answer.error
            assert await client.ended()


@both_loops
async def test_the_server_survives_random_bytes() -> None:
    chance = random.Random(20240607)
    seeds = [
        GET, post(b"body" * 50),
        b"POST /c HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nbody\r\n0\r\n\r\n",
        post(b"b", headers="Connection: upgrade\r\nUpgrade: h2c\r\n"),
        post(b"b", headers="Expect: 100-continue\r\nConnection: close\r\n"),
    ]  # fmt: skip

    def mutated() -> bytes:
        data = bytearray(b"".join(chance.choices(seeds, k=chance.randrange(1, 4))))
        for _ in range(chance.randrange(6)):
            at = chance.randrange(len(data))
            match chance.randrange(3):
                case 0:
                    data[at] = chance.randrange(256)
                case 1:
                    del data[at : at + chance.randrange(20)]
                case _:
                    data[at:at] = chance.randbytes(chance.randrange(1, 20))
            data = data or bytearray(b"\r\n")
        return bytes(data) if chance.random() < 0.9 else chance.randbytes(chance.randrange(1, 5000))

    async with serving(receive_seconds=1) as site:
        for _ in range(400):
            client, data = await site.connect(), mutated()
            cut = chance.randrange(len(data) + 1)
            with contextlib.suppress(ConnectionError):
                await client.send(data[:cut])
                await asyncio.sleep(0)
                await client.send(data[cut:])
            match chance.randrange(3):
                case 0:
                    client.reset()
                case 1:
                    client.writer.close()
                case _:
                    pass  # stays, for the server to deal with
        assert (await (await site.connect()).ask(GET)).status == 200
        await until(lambda: site.server.requests_in_flight == 0)
