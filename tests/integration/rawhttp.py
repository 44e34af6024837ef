"""For tests of the HTTP server: a real socket, plain asyncio and uvloop, raw bytes."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import json
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from dataclasses import dataclass
from typing import Any

import pytest
import uvloop

from queenstream.broker.http.routing import Request, Response
from queenstream.broker.http.server import HttpServer, Limits

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

    @classmethod
    @contextlib.asynccontextmanager
    async def connected(cls, port: int) -> AsyncIterator[Client]:
        """A client of a server that the test did not start by ``serving``."""
        client = cls(*await asyncio.open_connection("127.0.0.1", port))
        try:
            yield client
        finally:
            client.writer.close()
            with contextlib.suppress(OSError):
                await client.writer.wait_closed()

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
    assert (server.body_bytes_held, server.anonymous_bytes_held) == (0, 0)


def post(body: bytes, path: str = "/", headers: str = "") -> bytes:
    return f"POST {path} HTTP/1.1\r\n{headers}Content-Length: {len(body)}\r\n\r\n".encode() + body


async def until(true: Callable[[], object]) -> None:
    """Wait for what has no signal."""
    while not true():  # noqa: ASYNC110
        await asyncio.sleep(0.005)
