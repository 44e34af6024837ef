"""A database for each test, and statements against it from tests that are not async."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from typing import Any, TypeAlias

import asyncpg
import pytest

from queenstream import postgres
from tests.databases import database_of

Connection: TypeAlias = "asyncpg.Connection[asyncpg.Record]"


class Sql:
    """Statements against a database, one after the other; ``connect`` for a transaction that stays open."""

    def __init__(self, url: str, runner: asyncio.Runner) -> None:
        self.url = url
        self._runner = runner
        self._connections: list[Connection] = []
        self.connect()

    def connect(self) -> Connection:
        made = self._runner.run(asyncpg.connect(self.url))
        self._connections.append(made)
        return made

    def rows(self, query: str, *args: Any, on: Connection | None = None) -> list[tuple[Any, ...]]:
        connection = on or self._connections[0]
        return [tuple(row) for row in self._runner.run(connection.fetch(query, *args))]

    def script(self, statements: str, on: Connection | None = None) -> None:
        self._runner.run((on or self._connections[0]).execute(statements))

    def close(self) -> None:
        for connection in self._connections:
            self._runner.run(connection.close())


@pytest.fixture
def sql(server: postgres.Server) -> Iterator[Sql]:
    """A database of the test's own, for tests that start runs (which have threads of their own)."""
    with asyncio.Runner() as runner:
        admin = runner.run(asyncpg.connect(database_of(server.url, "postgres")))
        runner.run(admin.execute("drop database if exists tables with (force)"))
        runner.run(admin.execute("create database tables strategy file_copy"))
        made = Sql(database_of(server.url, "tables"), runner)
        yield made
        made.close()
        runner.run(admin.execute("drop database tables with (force)"))
        runner.run(admin.close())


@pytest.fixture
async def db(empty_database_url: str) -> AsyncIterator[Connection]:
    """The same for async tests."""
    connection = await asyncpg.connect(empty_database_url)
    yield connection
    await connection.close()
