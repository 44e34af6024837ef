"""Real brokers for tests: one embedded PostgreSQL, and for each test a database and a broker of its own.

>>> with TemporaryBrokers() as brokers, brokers.start() as broker:  # doctest: +SKIP
...     with broker.client() as queen:
...         queen.queue("orders").push({"amount": 5})

Brokers run in a thread with an event loop of its own, so that plain and async tests can use them alike.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import threading
from collections.abc import Coroutine, Iterator
from datetime import UTC, datetime, timedelta
from types import TracebackType
from typing import Any, Self, TypeVar

import asyncpg

from queenstream import config, postgres
from queenstream.broker.app import Broker
from queenstream.broker.storage.database import prepare
from queenstream.client._async.client import AsyncQueen
from queenstream.client._sync.client import Queen
from queenstream.core import durations

T = TypeVar("T")

_TEMPLATE = "queen"  # the database that an embedded server has; the others are copies of it
_SETTINGS = {"port": 0, "drain_timeout": "2s", "pool": 4}


class TemporaryBroker:
    """A broker with a database of its own, which is gone afterwards.

    >>> with brokers.start() as broker:  # doctest: +SKIP
    ...     broker.address, broker.database_url
    """

    def __init__(self, database_url: str) -> None:
        self.database_url = database_url
        self.address = ""
        self._ahead = timedelta()

    def client(self) -> Queen:
        """A client for this broker: use it in a ``with`` block.

        >>> with broker.client() as queen:  # doctest: +SKIP
        ...     queen.queue("orders").push({"amount": 5})
        """
        return Queen(self.address)

    def async_client(self) -> AsyncQueen:
        """The same for async tests.

        >>> async with broker.async_client() as queen:  # doctest: +SKIP
        ...     await queen.queue("orders").push({"amount": 5})
        """
        return AsyncQueen(self.address)

    def advance(self, by: str | float | timedelta) -> None:
        """Turn this broker's clock on: leases end, delays pass, windows become ripe; nobody has to sleep.

        >>> broker.advance("61s")  # doctest: +SKIP
        """
        self._ahead += durations.parse(by)

    def now(self) -> datetime | None:
        """What time it is for the broker; None: whatever the database's clock says."""
        return datetime.now(UTC) + self._ahead if self._ahead else None


class TemporaryBrokers:
    """The server and the thread that all temporary brokers of a test session share."""

    def __init__(self) -> None:
        self._opened = contextlib.ExitStack()
        self._numbers = itertools.count(1)
        self._loop = asyncio.new_event_loop()

    def __enter__(self) -> Self:
        with contextlib.ExitStack() as opened:
            opened.callback(self._loop.close)
            thread = threading.Thread(target=self._loop.run_forever, name="queen-broker", daemon=True)
            thread.start()
            opened.callback(thread.join)
            opened.callback(self._loop.call_soon_threadsafe, self._loop.stop)
            server = opened.enter_context(postgres.ephemeral())
            self._url = server.url
            self._run(prepare(self._database(_TEMPLATE)))
            self._opened = opened.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._opened.close()

    @contextlib.contextmanager
    def start(self) -> Iterator[TemporaryBroker]:
        """A broker on an empty database, stopped at the end of the block."""
        name = f"test_{next(self._numbers)}"
        self._run(self._admin(f"create database {name} template {_TEMPLATE}"))
        try:
            temporary = TemporaryBroker(self._database(name))
            running = self._run(_started(temporary))
            try:
                yield temporary
            finally:
                self._run(running.stop())
        finally:
            self._run(self._admin(f"drop database {name} with (force)"))

    def _database(self, name: str) -> str:
        """The URL of another database on the same server."""
        return self._url.replace(f"/{_TEMPLATE}?", f"/{name}?")

    async def _admin(self, statement: str) -> None:
        connection = await asyncpg.connect(self._database("postgres"))
        try:
            await connection.execute(statement)
        finally:
            await connection.close()

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()


async def _started(temporary: TemporaryBroker) -> Broker:
    # Made here, as its locks belong to the loop. Variables of the environment are not for tests.
    broker = Broker(config.load(_SETTINGS, {}, None), temporary.database_url, clock=temporary.now)
    await broker.start()
    temporary.address = broker.address
    return broker
