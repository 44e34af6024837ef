"""Connections to PostgreSQL: pools, the schema, and what a failure means.

Four pools, so that a slow look at a big queue never stands in the way of a message: ``hot`` for push, pop and
ack, ``catalog`` for names (look-ups, new partitions and groups), ``upkeep`` for what the broker does by
itself, and ``admin`` for everything else.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from datetime import datetime
from functools import partial
from importlib.metadata import version as package_version
from typing import Any, TypeVar

import asyncpg

from queenstream.broker.storage import sql
from queenstream.broker.storage.pool import Connection, Pool
from queenstream.broker.storage.sqlstate import Connections, meaning_of
from queenstream.errors import DatabaseUnusable, PostgresError, Unavailable
from queenstream.postgres import hosts_of, names_session, place_of

log = logging.getLogger(__name__)

OLDEST_SERVER = 150_000
CATALOG_CONNECTIONS = 2
UPKEEP_CONNECTIONS = 3
READ_CONNECTIONS = 5
EXPENSIVE_REQUESTS = 3  # of them at once (throttle.py): the rest is for short reads
ATTEMPTS = 5  # at a statement that lost to another
CONNECT_SECONDS = 10.0
PREPARE_SECONDS = 300.0  # how long to wait for another broker that changes the schema
MIGRATE_SECONDS = 60.0  # how long to try to get the locks for a migration
MIGRATION_LOCK_SECONDS = 1.0  # how long others stand behind one try
FIRST_WITH_COMPATIBILITY = 9  # the migration that made the column compatible_from
READ_ONLY = "the database is read-only, as after a failover"
T = TypeVar("T")

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
        self._catalog = Pool(lambda: self._connect({}, statement_seconds=30), CATALOG_CONNECTIONS)
        self._upkeep = Pool(lambda: self._connect({}, statement_seconds=60), UPKEEP_CONNECTIONS)
        self._admin = Pool(lambda: self._connect({}, statement_seconds=60), READ_CONNECTIONS)
        self._opened = False

    @property
    def _pools(self) -> tuple[Pool, ...]:
        return self._hot, self._catalog, self._upkeep, self._admin

    async def open(self) -> None:
        """Check the server, bring the schema up to date."""
        await prepare(self.url)
        self._opened = True

    async def prepare(self) -> None:
        """Bring the schema and this release's functions up to date again, as after a restore."""
        await prepare(self.url)

    async def close(self) -> None:
        self._opened = False
        for pool in self._pools:
            await pool.close()

    async def _connect(self, settings: dict[str, str], *, statement_seconds: int) -> Connection:
        return await open_connection(
            self.url,
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
        """Run a named query for somebody who reads or administers."""
        return await self._fetch(self._admin, name, args)

    async def catalog(self, name: str, *args: Any) -> list[asyncpg.Record]:
        """Run a named query about names that a message waits for: a short one."""
        return await self._fetch(self._catalog, name, args)

    async def upkeep(self, name: str, *args: Any) -> list[asyncpg.Record]:
        """Run a named query that the broker needs for itself."""
        return await self._fetch(self._upkeep, name, args)

    async def _fetch(self, pool: Pool, name: str, args: tuple[Any, ...]) -> list[asyncpg.Record]:
        query = sql.QUERIES[name]
        return await self.run(pool, lambda connection: connection.fetch(query, *args))

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

    async def find_trouble(self) -> str:
        """Why no message could be stored now; empty if one could. Not logged: probes ask by the second."""
        try:
            rows = await self.run(
                self._hot, lambda connection: connection.fetch(sql.QUERIES["can_write"]), quiet=True
            )
        except (Unavailable, asyncpg.PostgresError) as error:
            return str(error)
        if rows[0]["can_write"]:
            return ""
        self.renew()
        return READ_ONLY

    async def run(self, pool: Pool, work: Callable[[Any], Awaitable[T]], *, quiet: bool = False) -> T:
        """Run work on a connection of a pool; a failure of the database becomes what ``sqlstate`` says."""
        if not self._opened:
            raise Unavailable("the broker is starting or stopping; try again in a moment")
        for _ in range(ATTEMPTS):
            connection: Connection | None = None
            try:
                connection = await pool.acquire()
                return await work(connection)
            except Exception as error:
                meaning = meaning_of(error)
                if meaning is None:
                    raise
                if meaning.connections is not Connections.KEEP and connection is not None:
                    connection.terminate()
                if meaning.connections is Connections.RENEW:
                    self.renew()
                if meaning.repeat:
                    continue
                if not quiet:
                    log.warning("database: %s: %s", type(error).__name__, error)
                raise Unavailable(meaning.message) from None
            finally:
                if connection is not None:
                    pool.release(connection)
        raise Unavailable("too many conflicts in the database; try again")

    def renew(self) -> None:
        """From here on, statements go over new connections: the server of the old ones takes no writes."""
        for pool in self._pools:
            pool.renew()

    @property
    def usage(self) -> tuple[int, int]:
        """How many hot connections are busy, and how many there may be."""
        return self._hot.busy, self._hot.size


async def open_connection(url: str, **options: Any) -> Connection:
    """Connect to the server of a URL that takes writes, unless the URL asks for another kind.

    Of several hosts the first to answer is taken. They are asked at the same time: one after the other, a
    machine that is off would use up the whole time.
    """
    wanted = {} if names_session(url) else {"target_session_attrs": "read-write"}
    options = {"timeout": CONNECT_SECONDS} | wanted | options
    hosts = hosts_of(url)
    if len(hosts) == 1:
        return await asyncpg.connect(url, **options)
    attempts = [
        asyncio.create_task(asyncpg.connect(url, host=host, port=port, **options)) for host, port in hosts
    ]
    chosen: asyncio.Task[Connection] | None = None
    try:
        pending = set(attempts)
        while pending:
            done, pending = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
            chosen = next((attempt for attempt in done if attempt.exception() is None), None)
            if chosen is not None:
                return chosen.result()
    finally:
        await _abandon([attempt for attempt in attempts if attempt is not chosen])
    # A server that answered and refused says more than one that did not answer.
    errors = [error for attempt in attempts if (error := attempt.exception()) is not None]
    raise next((error for error in errors if not isinstance(error, OSError)), errors[0])


async def _abandon(attempts: list[asyncio.Task[Connection]]) -> None:
    """Cancel attempts to connect, and close what has come of them all the same."""
    for attempt in attempts:
        attempt.cancel()
    for result in await asyncio.gather(*attempts, return_exceptions=True):
        if isinstance(result, asyncpg.Connection):
            result.terminate()


async def connect(url: str, **settings: str) -> Connection:
    """One connection outside the pools; a failure is one line that says what to do."""
    place = place_of(url)
    try:
        return await open_connection(url, server_settings={**_COMMON, **settings})
    except (asyncpg.InvalidPasswordError, asyncpg.InvalidAuthorizationSpecificationError) as error:
        raise DatabaseUnusable(
            f"PostgreSQL at {place} refuses the user: {error}; check user and password in the URL"
        ) from None
    except asyncpg.InvalidCatalogNameError as error:
        raise DatabaseUnusable(f"PostgreSQL at {place}: {error}; create it or name another") from None
    except asyncpg.TargetServerAttributeNotMatched:
        raise DatabaseUnusable(
            f"PostgreSQL at {place} is read-only; give the URL of the primary, or name all servers:"
            " postgresql://user:password@one:5432,two:5432/database"
        ) from None
    except (ValueError, PostgresError, asyncpg.ClientConfigurationError) as error:
        raise DatabaseUnusable(
            f"the PostgreSQL URL is not usable: {error}; write postgresql://user:password@host:5432/database"
        ) from None
    except (OSError, TimeoutError, asyncpg.PostgresError, asyncpg.InterfaceError) as error:
        raise DatabaseUnusable(
            f"no PostgreSQL answers at {place}: {str(error) or type(error).__name__}; "
            "is it running, and are host and port right?"
        ) from None


async def prepare(url: str) -> None:
    """Check the server's version and our rights, and apply what is missing of the schema, under a lock."""
    connection = await connect(url)
    try:
        version = int(await connection.fetchval("show server_version_num"))
        if version < OLDEST_SERVER:
            raise DatabaseUnusable(f"PostgreSQL {version // 10000} is too old; Queenstream needs 15 or newer")
        await connection.execute(f"set lock_timeout = '{PREPARE_SECONDS:g}s'")
        await connection.execute("select pg_advisory_lock(72000)")  # to the end of the connection
        await connection.execute(f"set lock_timeout = '{MIGRATION_LOCK_SECONDS:g}s'")
        await _repeat_while_locked(connection, _make_schema)
        applied = await _check_schema(connection)
        for migration in sql.MIGRATIONS:
            if migration.number > applied:
                await _repeat_while_locked(connection, partial(_migrate, migration=migration))
        await _repeat_while_locked(connection, _install_functions)
    except asyncpg.InsufficientPrivilegeError as error:
        raise DatabaseUnusable(
            f"the PostgreSQL user lacks a right: {error}; "
            "grant it CREATE on the database (and ownership of the schema queen)"
        ) from None
    except asyncpg.ReadOnlySQLTransactionError:
        raise DatabaseUnusable(
            f"PostgreSQL at {place_of(url)} is read-only; give the URL of the primary"
        ) from None
    except asyncpg.LockNotAvailableError:
        raise DatabaseUnusable(
            f"another broker has been changing the schema for {PREPARE_SECONDS:g} s; "
            "wait for it, then start again"
        ) from None
    finally:
        await connection.close(timeout=5)


async def _repeat_while_locked(connection: Any, step: Callable[[Any], Awaitable[None]]) -> None:
    """Run a step in a transaction that waits for locks a moment only, again and again, with pauses.

    A statement that waits for a lock on a table keeps all later ones from it: brokers at work would stand
    still behind a migration that itself waits for somebody's long transaction.
    """
    deadline = time.monotonic() + MIGRATE_SECONDS
    pause = 0.1
    while True:
        try:
            async with connection.transaction():
                await step(connection)
            return
        except (asyncpg.LockNotAvailableError, asyncpg.DeadlockDetectedError) as error:
            if time.monotonic() > deadline:
                raise DatabaseUnusable(
                    f"the schema could not be changed in {MIGRATE_SECONDS:g} s, as other transactions hold "
                    f"its tables ({error}); queen doctor names them: end them, then start again"
                ) from None
            log.info("the schema is in use; trying again in %.1f s: %s", pause, error)
        await asyncio.sleep(pause)
        pause = min(pause * 2, 3.0)


async def _make_schema(connection: Any) -> None:
    if await connection.fetchval("select to_regclass('queen.migrations')") is None:
        await connection.execute("create schema if not exists queen")
        await connection.execute(
            "create table queen.migrations (number integer primary key, name text not null, "
            "functions text not null, applied_at timestamptz not null default now())"
        )


async def _check_schema(connection: Any) -> int:
    """The number of the newest migration applied; refuses a schema that this release cannot work with."""
    known = sql.MIGRATIONS[-1].number
    row = await connection.fetchrow(
        # As JSON: the column compatible_from came later.
        "select coalesce(max(number), 0) as applied, "
        "max(coalesce((to_jsonb(m) ->> 'compatible_from')::integer, number)) "
        "filter (where number > $1) as needed from queen.migrations m",
        known,
    )
    if row["needed"] is not None and row["needed"] > known:
        raise DatabaseUnusable(
            f"the database's schema is {row['applied']}, this version knows {known}; upgrade Queenstream"
        )
    return int(row["applied"])


async def _migrate(connection: Any, migration: sql.Migration) -> None:
    await connection.execute(migration.text)
    await connection.execute(
        "insert into queen.migrations (number, name, functions) values ($1, $2, '')",
        migration.number,
        migration.name,
    )
    if migration.number >= FIRST_WITH_COMPATIBILITY:
        await connection.execute(
            "update queen.migrations set compatible_from = $2 where number = $1",
            migration.number,
            migration.compatible_from,
        )


async def _install_functions(connection: Any) -> None:
    """Make this release's functions if they are not there, and note that they are used.

    Those of other releases stay as they are: their brokers may be running. The functions with plain names go
    to the newest release.
    """
    newest = sql.MIGRATIONS[-1].number
    takes_interface = False
    there = await connection.fetchval(
        "select count(*) from pg_proc where pronamespace = 'queen'::regnamespace "
        "and right(proname, length($1) + 1) = '_' || $1",
        sql.FUNCTION_SET,
    )
    if there != sql.FUNCTION_COUNT:
        await connection.execute(sql.FUNCTIONS)
        owner = await connection.fetchval("select max(schema) from queen.function_sets where interface")
        takes_interface = owner is None or owner <= newest
    if takes_interface:
        await connection.execute(sql.INTERFACE)
        await connection.execute("update queen.function_sets set interface = false")
    await connection.execute(
        "insert into queen.function_sets as s (name, version, schema, interface) values ($1, $2, $3, $4) "
        "on conflict (name) do update set used_at = clock_timestamp(), interface = s.interface or $4",
        sql.FUNCTION_SET, package_version("queenstream"), newest, takes_interface,
    )  # fmt: skip
