"""Connections to the database, a few, handed out and given back.

asyncpg's own pool wraps each connection in a proxy and takes it back in a task of its own; with nothing to
reset that still costs 68 µs of CPU for each statement (1 µs here), more than the rest of a small batch.
Nothing that runs on these connections changes a session, so a list does.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Awaitable, Callable
from typing import TypeAlias

import asyncpg

Connection: TypeAlias = "asyncpg.Connection[asyncpg.Record]"
WAIT_SECONDS = 10.0


class Pool:
    """At most ``size`` connections, made when they are wanted, handed out last in, first out."""

    def __init__(self, connect: Callable[[], Awaitable[Connection]], size: int) -> None:
        self._connect = connect
        self.size = size
        self._open = 0
        self._free: list[Connection] = []
        self._current: set[Connection] = set()  # those made since the last ``renew``
        self._waiting: deque[asyncio.Future[None]] = deque()

    @property
    def busy(self) -> int:
        return self._open - len(self._free)

    async def acquire(self) -> Connection:
        """A connection; TimeoutError if none is free in time."""
        while True:
            while self._free:
                connection = self._free.pop()
                if not connection.is_closed():
                    return connection
                self._open -= 1
                self._current.discard(connection)
            if self._open < self.size:
                self._open += 1
                try:
                    connection = await self._connect()
                except BaseException:
                    self._open -= 1
                    self._wake()
                    raise
                self._current.add(connection)
                return connection
            turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiting.append(turn)
            try:
                async with asyncio.timeout(WAIT_SECONDS):
                    await turn
            except BaseException:
                if turn in self._waiting:
                    self._waiting.remove(turn)
                else:
                    self._wake()  # its turn came too late: the next one's
                raise

    def release(self, connection: Connection) -> None:
        """Give a connection back, whatever became of it."""
        if not connection.is_closed() and (
            connection.is_in_transaction()  # whoever had it was cancelled before it could end it
            or connection not in self._current
        ):
            connection.terminate()
        if connection.is_closed():
            self._open -= 1
            self._current.discard(connection)
        else:
            self._free.append(connection)
        self._wake()

    def _wake(self) -> None:
        while self._waiting:
            turn = self._waiting.popleft()
            if not turn.done():
                turn.set_result(None)
                return

    def renew(self) -> None:
        """Replace all connections: what is free is closed now, what is busy when it is released."""
        self._current.clear()
        while self._free:
            self._free.pop().terminate()
            self._open -= 1

    async def close(self) -> None:
        """Close what is free; what is busy is closed by the server's end of the socket at the latest."""
        while self._free:
            connection = self._free.pop()
            self._open -= 1
            self._current.discard(connection)
            with contextlib.suppress(OSError, TimeoutError, asyncpg.PostgresError, asyncpg.InterfaceError):
                await connection.close(timeout=5)
