"""Connections to PostgreSQL: pools, the schema, and what a failure means.

Two pools: ``hot`` for push, pop and ack, and ``admin`` for everything else, so that a slow look at a big
queue never stands in the way of a message.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from datetime import datetime
from typing import Any, TypeVar
from urllib.parse import urlsplit

import asyncpg

from queenstream.broker import sql
from queenstream.broker.pool import Connection, Pool
from queenstream.errors import DatabaseUnusable, Unavailable

log = logging.getLogger(__name__)

OLDEST_SERVER = 150_000
ATTEMPTS = 5  # at a statement that lost to another
T = TypeVar("T")

_AWAY = (
    OSError,
    TimeoutError,
    asyncpg.InterfaceError,
    asyncpg.InternalClientError,  # the server's last word came to a connection that was idle
    asyncpg.PostgresConnectionError,
    asyncpg.CannotConnectNowError,
    asyncpg.AdminShutdownError,
    asyncpg.CrashShutdownError,
    asyncpg.TooManyConnectionsError,
    asyncpg.InvalidCatalogNameError,
    asyncpg.QueryCanceledError,
    asyncpg.LockNotAvailableError,
)
_AGAIN = (asyncpg.DeadlockDetectedError, asyncpg.SerializationError)

# The plans of the hot path must not depend on how many rows the planner believes in: always by index, in
# the index's order, and planned once.
_HOT = {"enable_seqscan": "off", "enable_mergejoin": "off", "plan_cache_mode": "force_generic_plan"}
_COMMON = {
    "enable_bitmapscan": "off",  # it would read a whole partition to give its first message
    "jit": "off",
    "application_name": "queenstream",
    "timezone": "UTC",
    "search_path": "pg_catalog",
    "synchronous_commit": "on",
}


class Database:
    """The pools, and one way to run a statement.

    ``clock`` gives the time for every statement that depends on it: ``None`` is the database's own
    clock; a test turns it instead of sleeping.
    """

    def __init__(
        self, url: str, *, connections: int = 8, clock: Callable[[], datetime | None] | None = None
    ) -> None:
        self.url = url
        self.now: Callable[[], datetime | None] = clock or (lambda: None)
        self._hot = Pool(lambda: self._connect(_HOT, statement_seconds=30), connections)
        self._admin = Pool(lambda: self._connect({}, statement_seconds=60), 3)
        self._opened = False

    async def open(self) -> None:
        """Check the server, bring the schema up to date."""
        await prepare(self.url)
        self._opened = True

    async def close(self) -> None:
        self._opened = False
        await self._hot.close()
        await self._admin.close()

    async def _connect(self, settings: dict[str, str], *, statement_seconds: int) -> Connection:
        return await asyncpg.connect(
            self.url,
            timeout=10,
            command_timeout=statement_seconds + 5,
            server_settings={
                **_COMMON,
                **settings,
                "statement_timeout": f"{statement_seconds}s",
                "idle_in_transaction_session_timeout": "60s",
            },
        )

    async def hot(self, query: str, *args: Any) -> list[asyncpg.Record]:
        """Run one statement of the hot path."""
        return await self.run(self._hot, lambda connection: connection.fetch(query, *args))

    async def admin(self, name: str, *args: Any) -> list[asyncpg.Record]:
        """Run a named query."""
        query = sql.QUERIES[name]
        return await self.run(self._admin, lambda connection: connection.fetch(query, *args))

    async def bounded(self, seconds: float, name: str, *args: Any) -> list[asyncpg.Record] | None:
        """Run a named query that may be a long one; None: it took longer, and was cancelled."""

        async def work(connection: Any) -> list[asyncpg.Record] | None:
            try:
                found: list[asyncpg.Record] = await connection.fetch(
                    sql.QUERIES[name], *args, timeout=seconds
                )
            except TimeoutError:
                return None
            return found

        return await self.run(self._admin, work)

    async def transaction(self, work: Callable[[Any], Awaitable[T]]) -> T:
        """Run several statements of the hot path as one transaction."""

        async def whole(connection: Any) -> T:
            async with connection.transaction():
                return await work(connection)

        return await self.run(self._hot, whole)

    async def answers(self) -> bool:
        """Whether a statement of the hot path gets through. Not logged: probes ask by the second."""
        try:
            await self.run(self._hot, lambda connection: connection.fetch(sql.QUERIES["ping"]), quiet=True)
        except (Unavailable, asyncpg.PostgresError):
            return False
        return True

    async def run(self, pool: Pool, work: Callable[[Any], Awaitable[T]], *, quiet: bool = False) -> T:
        if not self._opened:
            raise Unavailable("the broker is starting or stopping; try again in a moment")
        for _ in range(ATTEMPTS):
            try:
                connection = await pool.acquire()
                try:
                    return await work(connection)
                finally:
                    pool.release(connection)
            except _AGAIN:
                continue
            except asyncpg.DiskFullError:
                raise Unavailable("the database's disk is full; nothing was stored. Free space.") from None
            except _AWAY as error:
                if not quiet:
                    log.warning("database: %s: %s", type(error).__name__, error)
                raise Unavailable("the database is away; try again in a moment") from None
        raise Unavailable("too many conflicts in the database; try again")

    @property
    def usage(self) -> tuple[int, int]:
        """How many hot connections are busy, and how many there may be."""
        return self._hot.busy, self._hot.size


async def connect(url: str, **settings: str) -> Connection:
    """One connection outside the pools; a failure is one line that says what to do."""
    place = _place(url)
    try:
        return await asyncpg.connect(url, timeout=10, server_settings={**_COMMON, **settings})
    except (asyncpg.InvalidPasswordError, asyncpg.InvalidAuthorizationSpecificationError) as error:
        raise DatabaseUnusable(
            f"PostgreSQL at {place} refuses the user: {error}; check user and password in the URL"
        ) from None
    except asyncpg.InvalidCatalogNameError as error:
        raise DatabaseUnusable(f"PostgreSQL at {place}: {error}; create it or name another") from None
    except (ValueError, asyncpg.ClientConfigurationError) as error:
        raise DatabaseUnusable(
            f"the PostgreSQL URL is not usable: {error}; write postgresql://user:password@host:5432/database"
        ) from None
    except (OSError, TimeoutError, asyncpg.PostgresError, asyncpg.InterfaceError) as error:
        raise DatabaseUnusable(
            f"no PostgreSQL answers at {place}: {str(error) or type(error).__name__}; "
            "is it running, and are host and port right?"
        ) from None


def _place(url: str) -> str:
    """Where a URL points, without the password."""
    try:
        parts = urlsplit(url)
        return f"{parts.hostname or 'the local socket'}:{parts.port or 5432}{parts.path}"
    except ValueError:
        return "that URL"


async def prepare(url: str) -> None:
    """Check the server's version and our rights, and apply what is missing of the schema, under a lock."""
    connection = await connect(url)
    try:
        version = int(await connection.fetchval("show server_version_num"))
        if version < OLDEST_SERVER:
            raise DatabaseUnusable(f"PostgreSQL {version // 10000} is too old; Queenstream needs 15 or newer")
        async with connection.transaction():
            await connection.execute("select pg_advisory_xact_lock(72000)")
            await _migrate(connection)
    except asyncpg.InsufficientPrivilegeError as error:
        raise DatabaseUnusable(
            f"the PostgreSQL user lacks a right: {error}; "
            "grant it CREATE on the database (and ownership of the schema queen)"
        ) from None
    except asyncpg.ReadOnlySQLTransactionError:
        raise DatabaseUnusable(
            f"PostgreSQL at {_place(url)} is read-only; give the URL of the primary"
        ) from None
    finally:
        await connection.close(timeout=5)


async def _migrate(connection: Any) -> None:
    known = sql.MIGRATIONS[-1].number
    if await connection.fetchval("select to_regclass('queen.migrations')") is None:
        await connection.execute("create schema if not exists queen")
        await connection.execute(
            "create table queen.migrations (number integer primary key, name text not null, "
            "functions text not null, applied_at timestamptz not null default now())"
        )
    row = await connection.fetchrow(
        "select number, functions from queen.migrations order by number desc limit 1"
    )
    applied, functions = (row["number"], row["functions"]) if row else (0, "")
    if applied > known:
        raise DatabaseUnusable(
            f"the database's schema is {applied}, this version knows {known}; upgrade Queenstream"
        )
    for migration in sql.MIGRATIONS:
        if migration.number > applied:
            await connection.execute(migration.text)
            await connection.execute(
                "insert into queen.migrations (number, name, functions) values ($1, $2, '')",
                migration.number,
                migration.name,
            )
    if functions != sql.FUNCTIONS_HASH:
        await _drop_functions(connection)
        await connection.execute(sql.FUNCTIONS)
        await connection.execute(
            "update queen.migrations set functions = $1 where number = $2", sql.FUNCTIONS_HASH, known
        )


async def _drop_functions(connection: Any) -> None:
    """A function whose arguments changed is another function to PostgreSQL: remove the old set first."""
    names = await connection.fetch(
        "select p.oid::regprocedure::text as signature from pg_proc p "
        "join pg_namespace n on n.oid = p.pronamespace where n.nspname = 'queen'"
    )
    for row in names:
        await connection.execute(f"drop function {row['signature']} cascade")
