"""The way to a PostgreSQL server: one connection, made anew when it is lost, and what its errors mean."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import asyncpg
import msgspec

from queenstream.connectors.broker.connection import Patience
from queenstream.errors import ConfigError, DatabaseUnusable, PostgresError
from queenstream.postgres import place_of

T = TypeVar("T")

CONNECT_SECONDS = 10.0
STATEMENT_SECONDS = 60.0  # then it is asked again: a lock may be held by somebody who is gone

_LOST = (
    asyncpg.PostgresConnectionError,
    asyncpg.InterfaceError,
    asyncpg.InternalClientError,  # what the next call gets if the server hung up between two
    OSError,
    TimeoutError,
)
# By SQLSTATE: connections, deadlocks, no room or memory or places, shut down or cancelled; a lock that was
# not to be had, a server that is a standby for now.
_PASSING = ("08", "40", "53", "57", "55P03", "25006")
# Of the row: cardinality, data, constraints, check options, triggers, limits such as an index row's size.
_OF_ROW = ("21", "22", "23", "44", "P0", "54")


def passes(error: BaseException) -> bool:
    """Whether to wait and try again helps: the server is away, or busy with somebody else."""
    if isinstance(error, asyncpg.PostgresError):
        return str(error.sqlstate).startswith(_PASSING)
    return isinstance(error, _LOST)


def is_of_row(error: asyncpg.PostgresError) -> bool:
    """Whether it is the row's fault, and another row may be taken."""
    return str(error.sqlstate).startswith(_OF_ROW)


def url_of(given: str | None, title: str) -> str:
    """Where a table's server is: what the endpoint says, or ``QUEEN_PG``."""
    url = given or os.environ.get("QUEEN_PG")
    if not url:
        raise ConfigError(f"{title} has no server; write url='postgresql://…', or set QUEEN_PG")
    return url


class Link:
    """One connection to a server. ``what`` is the step that it is for."""

    def __init__(self, url: str, what: str) -> None:
        self._url = url
        self._what = what
        self._patience = Patience(what, "PostgreSQL")
        self._connection: asyncpg.Connection[Any] | None = None

    async def open(self, prepare: Callable[[asyncpg.Connection[Any]], Awaitable[T]]) -> T:
        """Connect and look around. A server that does not answer is an error at once."""
        try:
            return await self.attempt(prepare)
        except BaseException:
            self.drop()
            raise

    async def connection(self) -> asyncpg.Connection[Any]:
        """The connection, made if there is none."""
        if self._connection is None or self._connection.is_closed():
            self._connection = await self._connect()
        return self._connection

    async def _connect(self) -> asyncpg.Connection[Any]:
        try:
            made = await asyncpg.connect(
                self._url,
                timeout=CONNECT_SECONDS,
                command_timeout=STATEMENT_SECONDS,
                server_settings={
                    "application_name": f"queen {self._what}"[:60],
                    "timezone": "UTC",
                    "datestyle": "ISO",
                    "intervalstyle": "postgres",
                },
            )
        except ValueError:  # it may quote the URL
            raise ConfigError(
                f"{self._what}: the url is none; write postgresql://user:password@host:5432/database"
            ) from None
        except (*_LOST, asyncpg.PostgresError) as error:
            raise self._away("does not let us in", error) from error
        for name in ("json", "jsonb"):
            await made.set_type_codec(
                name, schema="pg_catalog", encoder=_to_json, decoder=msgspec.json.decode
            )
        return made

    async def run(self, work: Callable[[asyncpg.Connection[Any]], Awaitable[T]]) -> T:
        """Do it, however long the server is away."""
        while True:
            try:
                done = await self.attempt(work)
            except Away as error:
                if not error.waits:
                    raise
                await self.wait(error)
            else:
                self._patience.reset()
                return done

    async def attempt(self, work: Callable[[asyncpg.Connection[Any]], Awaitable[T]]) -> T:
        """Try it once; ``Away`` if trying again may help."""
        try:
            return await work(await self.connection())
        except Away:
            raise
        except (*_LOST, asyncpg.PostgresError) as error:
            if isinstance(error, asyncpg.PostgresError) and not passes(error):
                raise self._explained(error) from error
            self.drop()
            raise self._away("has hung up", error) from error

    def _away(self, what: str, error: Exception) -> Away:
        why = str(error) or type(error).__name__
        remedy = "start the server, or check the url"
        return Away(f"PostgreSQL at {place_of(self._url)} {what} ({why}); {remedy}", waits=passes(error))

    async def wait(self, error: Exception, most_seconds: float = 60.0) -> None:
        """It is away: say so, and wait a while."""
        await self._patience.wait(error, most_seconds)

    def _explained(self, error: asyncpg.PostgresError) -> DatabaseUnusable:
        remedy = "see the server's log"
        if isinstance(error, asyncpg.InsufficientPrivilegeError):
            remedy = "grant the right to the user of the url"
        elif isinstance(error, asyncpg.UndefinedTableError | asyncpg.UndefinedColumnError):
            remedy = "the table has changed: start the run again"
        return DatabaseUnusable(f"{self._what}: {error}; {remedy}")

    def drop(self) -> None:
        """Let go of a connection that may be lost."""
        if self._connection is not None:
            self._connection.terminate()
            self._connection = None

    async def close(self) -> None:
        """Say goodbye, if there is somebody."""
        if self._connection is not None:
            with contextlib.suppress(*_LOST, asyncpg.PostgresError):
                await self._connection.close(timeout=5)
            self.drop()


class Away(PostgresError):
    """The server does not answer. ``waits``: it may do so in a while."""

    def __init__(self, message: str, *, waits: bool) -> None:
        super().__init__(message)
        self.waits = waits


def _to_json(value: object) -> str:
    return msgspec.json.encode(value).decode()
