"""The HTTP server on a real socket, in raw bytes: requests, clients that leave, stopping, nonsense."""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import socket

import pytest

from queenstream.broker.http.routing import Request, Response
from tests.integration.rawhttp import GET, MIB, Client, both_loops, post, serving, until

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
