"""Checkpoints in PostgreSQL: one schema for all pipelines, an advisory lock for each."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import logging
from collections.abc import AsyncGenerator, Iterator, Sequence
from typing import Any
from urllib.parse import urlsplit

import asyncpg

from queenstream.engines.local.checkpoints.backend import (
    PAGE,
    SCHEMA,
    Action,
    Forget,
    Insert,
    Query,
    Superseded,
    in_use,
)
from queenstream.errors import CheckpointError

NAMESPACE = "queen_checkpoints"
LOCK_SECONDS = 3.0  # a server takes a moment to see that the run before was killed
AWAY_SECONDS = 60.0  # how long a run waits for a server that is away
_LOST = (
    asyncpg.PostgresConnectionError,
    asyncpg.CannotConnectNowError,
    asyncpg.AdminShutdownError,
    asyncpg.InterfaceError,
    asyncpg.InternalClientError,  # what the next call gets if the server hung up between two
    OSError,
)
log = logging.getLogger("queenstream.local")


class _Away(CheckpointError):
    """The server does not answer."""


class PostgresHome:
    """One connection: the lock belongs to it. A server that goes away for a while is waited for."""

    def __init__(self, url: str, pipeline: str) -> None:
        self._url = url
        self._pipeline = pipeline
        parts = urlsplit(url)  # without the password
        self.where = f"PostgreSQL (database {parts.path[1:]} at {parts.hostname or 'its socket'})"
        self._connection: asyncpg.Connection[Any] | None = None
        self._locked = False
        self._made = False

    async def open(self) -> bool:
        await self._connect()
        self._made = bool(await self._live().fetchval("select to_regclass($1) is not null", "items"))
        return self._made

    async def _connect(self) -> None:
        if self._connection is not None and not self._connection.is_closed():
            return
        try:
            self._connection = await asyncpg.connect(
                self._url,
                timeout=10,
                server_settings={
                    "search_path": NAMESPACE,
                    "synchronous_commit": "on",
                    "application_name": f"queen {self._pipeline}"[:60],
                },
            )
        except (*_LOST, asyncpg.PostgresError, TimeoutError, ValueError) as error:
            raise _away(error) from error

    def _live(self) -> asyncpg.Connection[Any]:
        assert self._connection is not None
        return self._connection

    async def create(self) -> None:
        connection = self._live()
        try:
            async with connection.transaction():
                # Two that start at once would both find nothing there.
                await connection.execute("select pg_advisory_xact_lock($1)", _number(NAMESPACE))
                await connection.execute(f"create schema if not exists {NAMESPACE}")
                for statement in SCHEMA:
                    await connection.execute(statement)
        except asyncpg.InsufficientPrivilegeError as error:
            raise CheckpointError(
                f"the schema {NAMESPACE} cannot be made ({error}); grant create on the database"
            ) from error
        self._made = True

    async def lock(self, holder: str) -> None:  # noqa: ARG002 - the store keeps it in the pipeline's row
        ends = asyncio.get_running_loop().time() + LOCK_SECONDS
        taken = "select pg_try_advisory_lock($1)"
        while not await self._live().fetchval(taken, _number(f"{NAMESPACE}:{self._pipeline}")):
            if asyncio.get_running_loop().time() > ends:
                raise in_use(self._pipeline, await self._holder())
            await asyncio.sleep(0.05)
        self._locked = True

    async def _holder(self) -> str:
        if not self._made:
            return "another process"
        said = await self._live().fetchval("select holder from pipelines where name = $1", self._pipeline)
        return str(said or "another process")

    async def fetch(self, sql: str, *arguments: Any) -> list[Sequence[Any]]:
        with self._explained():
            return [tuple(row) for row in await self._live().fetch(sql, *arguments)]

    async def pages(self, sql: str, *arguments: Any) -> AsyncGenerator[list[Sequence[Any]], None]:
        connection = self._live()
        with self._explained():
            async with connection.transaction(readonly=True):
                cursor = await connection.cursor(sql, *arguments)
                while page := await cursor.fetch(PAGE):
                    yield [tuple(row) for row in page]

    async def transact(self, actions: Sequence[Action], done: Query | None = None) -> None:
        try:
            with self._explained():
                async with self._live().transaction():
                    for action in actions:
                        await self._act(self._live(), action)
        except _Away as error:
            # Whether it was committed is not known; whoever has the lock can look.
            await self._recover(error)
            if done is None or not await self.fetch(*done):
                await self.transact(actions, done)

    async def _act(self, connection: asyncpg.Connection[Any], action: Action) -> None:
        if isinstance(action, Insert):
            if action.rows:
                await connection.copy_records_to_table(
                    action.table, records=action.rows, columns=action.columns, schema_name=NAMESPACE
                )
        elif isinstance(action, Forget):
            await connection.execute(
                "delete from items where part = $1 and key = any ($2::bytea[]) "
                "and epoch > $3 and epoch <= $4",
                action.part,
                action.keys,
                action.after,
                action.until,
            )
        elif (await connection.execute(action.sql, *action.arguments)).endswith(" 0") and action.must:
            raise Superseded

    async def _recover(self, lost: _Away) -> None:
        """Connect again, with the lock, or give up after a while."""
        log.warning("the checkpoint waits for its PostgreSQL: %s", lost)
        ends = asyncio.get_running_loop().time() + AWAY_SECONDS
        while True:
            await self._drop()
            try:
                await self._connect()
                if self._locked:
                    with self._explained():
                        await self.lock("")
                return
            except _Away:
                if asyncio.get_running_loop().time() > ends:
                    raise
            await asyncio.sleep(0.2)

    @contextlib.contextmanager
    def _explained(self) -> Iterator[None]:
        """What PostgreSQL says, with what to do about it."""
        try:
            yield
        except _LOST as error:
            raise _away(error) from error
        except asyncpg.PostgresError as error:
            raise CheckpointError(
                f"the checkpoint in {self.where} cannot be used: {error}; see the server's log"
            ) from error

    async def _drop(self) -> None:
        if self._connection is not None:
            self._connection.terminate()
            self._connection = None

    async def close(self) -> None:
        if self._connection is not None:
            with contextlib.suppress(*_LOST, TimeoutError):
                await self._connection.close(timeout=5)
            await self._drop()


def _away(error: Exception) -> _Away:
    return _Away(
        f"the checkpoint's PostgreSQL does not answer ({str(error) or type(error).__name__}); "
        "start the server, or check the URL"
    )


def _number(name: str) -> int:
    """A lock's number: the first 63 bits of a digest of its name."""
    return int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "big") >> 1
