"""The HTTP server's limits: sizes, times, connections, memory."""

from __future__ import annotations

import asyncio
import json

import psutil
import pytest

from queenstream.broker.http.routing import Request, Response
from tests.integration.rawhttp import GET, MIB, both_loops, post, serving, until

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
