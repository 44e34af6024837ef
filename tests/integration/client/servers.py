"""Servers that misbehave to order, for what a real broker does only on its worst days."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import Callable
from typing import Literal

Server = Callable[[str, bytes], bytes | Literal["silence", "close"]]
"""What to answer to a request (first line and body): these bytes, nothing ever, or a closed connection."""


def answer(status: int, body: bytes = b"{}", *headers: str) -> bytes:
    """An answer as bytes."""
    more = "".join(f"{header}\r\n" for header in headers)
    return f"HTTP/1.1 {status} X\r\n{more}Content-Length: {len(body)}\r\n\r\n".encode() + body


class Served:
    """A running one. ``requests``: the first line of each; ``asked`` is set with every one."""

    def __init__(self, behaviour: Server) -> None:
        self._behaviour = behaviour
        self.requests: list[str] = []
        self.connections = 0
        self.asked = asyncio.Event()
        self._open: dict[asyncio.Task[None], asyncio.StreamWriter] = {}

    async def start(self, tls: ssl.SSLContext | None = None) -> None:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0, ssl=tls)
        self.address = f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    async def stop(self) -> None:
        self._server.close()
        for writer in self._open.values():
            writer.transport.abort()
        await asyncio.gather(*self._open)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        task = asyncio.current_task()
        assert task is not None
        self._open[task] = writer
        try:
            await self._talk(reader, writer)
        except (asyncio.IncompleteReadError, ConnectionError):
            pass  # the client has gone
        finally:
            writer.close()
            with contextlib.suppress(ConnectionError):
                await writer.wait_closed()
            del self._open[task]

    async def _talk(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            head = (await reader.readuntil(b"\r\n\r\n")).decode()
            length = 0
            for line in head.split("\r\n"):
                if line.lower().startswith("content-length:"):
                    length = int(line.split(":")[1])
            body = await reader.readexactly(length)
            first = head.split("\r\n", maxsplit=1)[0]
            self.requests.append(first)
            self.asked.set()
            said = self._behaviour(first, body)
            if said == "close":
                return
            if said == "silence":
                await reader.read()  # until the client gives up
                return
            assert isinstance(said, bytes)
            writer.write(said)
            await writer.drain()
