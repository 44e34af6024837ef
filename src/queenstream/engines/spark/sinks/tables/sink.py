"""The driver's part of a table as a sink: makes the staging table, and moves staged rows into the table.

A staging table belongs to one step of one run's checkpoint. It is unlogged: a crash of PostgreSQL empties it,
which the commit finds out (``StagingLost``), and then the batch is staged again. When a batch is stored, the
table is emptied, and when the run ends, it is dropped. Those of runs that were killed for good are dropped by
later runs, some days later.
"""

# ruff: noqa: S608 - names are from the catalogue and quoted, values are parameters

from __future__ import annotations

import contextlib
import hashlib
import logging
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, TypeVar

import asyncpg
from pyspark.sql.types import StructType

from queenstream.connectors import Context
from queenstream.connectors.base import SinkClaim
from queenstream.connectors.event_loop import Events
from queenstream.connectors.postgres.catalog import Table, find, quoted
from queenstream.connectors.postgres.connection import Away, Link, is_of_row, url_of
from queenstream.connectors.postgres.sinks import SinkTable
from queenstream.connectors.postgres.writer import DELIVERIES, KEPT, TRIM, create
from queenstream.connectors.validation import schema_of
from queenstream.core.schemas import Field, Schema, types
from queenstream.core.schemas.types import Type
from queenstream.engines.spark.native.expressions import Wide
from queenstream.engines.spark.sinks.owner import Owner
from queenstream.engines.spark.sinks.stage import StageOptions
from queenstream.engines.spark.sinks.tables.readback import Readback, StagedQuery, column_of
from queenstream.engines.spark.sinks.tables.staging_table import ATTEMPT, PLACE, TableColumns, staged_type
from queenstream.engines.spark.sinks.two_phase import (
    ColumnStage,
    RowsRefused,
    StagedPart,
    StagingLost,
    TwoPhaseSink,
)
from queenstream.pipeline.endpoints import Postgres

T = TypeVar("T")

log = logging.getLogger("queenstream.spark")

_PREFIX = "queen_staged_"
_TRIM_EVERY = 50  # batches
_STATEMENT_SECONDS = 86_400.0  # that moving a batch may take
_WAIT_SECONDS = 5.0
_LOCK_SECONDS = 1  # that an attempt which is still at work may keep the staging table
_DAY_SECONDS = 86_400
_ABANDONED_DAYS = 7
_COLUMNS = """
    select a.attname::text, format_type(a.atttypid, a.atttypmod) from pg_attribute a
    where a.attrelid = to_regclass($1) and a.attnum > 0 and not a.attisdropped order by a.attnum
"""
_COUNTS = "select {attempt}, count(*) from {staging} where {attempt} = any($1::bigint[]) group by 1"
_ABANDONED = """
    select c.relname::text from pg_class c join pg_namespace n on n.oid = c.relnamespace
    where n.nspname = $1 and starts_with(c.relname, $2) and c.relpersistence = 'u'
        and obj_description(c.oid, 'pg_class')::date < current_date - $3::int
"""


class PostgresTable(TwoPhaseSink):
    """A table into whose database tasks send columns. ``generation`` tells the run's batches from others."""

    def __init__(
        self,
        sink: Postgres,
        context: Context,
        generation: str,
        events: Events,
        stopping: Callable[[], bool],
    ) -> None:
        self._sink = sink
        self._context = context
        self._generation = generation
        self._events = events
        self._stopping = stopping
        self._url = url_of(sink.url, sink.title)
        self._link = Link(self._url, context.node)
        self._schema = schema_of(sink.schema)
        self._stages: dict[Schema, TableColumns | None] = {}
        self._commits = 0
        self._table: Table = self._run(self._look)
        name = hashlib.sha256(f"{context.pipeline}:{context.node}:{generation}".encode()).hexdigest()
        self.staging = f"{_PREFIX}{name[:24]}"
        self._deliveries = f"{quoted(self._table.schema)}.{quoted(DELIVERIES)}"
        self._sinks = SinkTable(self._table.schema)
        self._temporary = False
        self._marked = 0.0

    @property
    def _staging_sql(self) -> str:
        return f"{quoted(self._table.schema)}.{quoted(self.staging)}"

    # The run that owns the sink

    def claim(self, owner: Owner, *, temporary: bool) -> None:
        claim = self._claim()
        self._temporary = temporary

        async def work(connection: asyncpg.Connection[Any]) -> None:
            await create(connection, self._sinks.name, self._sinks.statement)
            async with connection.transaction():
                await self._sinks.claim(connection, claim, owner.epoch, owner.name, temporary=temporary)

        self._run(work)

    def begin(self, batch: int) -> None:
        async def work(connection: asyncpg.Connection[Any]) -> None:
            async with connection.transaction():
                await self._sinks.begin(connection, self._claim(), batch)

        self._run(work)

    def _claim(self) -> SinkClaim:
        assert self._context.claim is not None, "a run claims its sinks"
        return self._context.claim

    # Stage

    def column_stage(self, schema: Schema, columns: Callable[[], StructType]) -> ColumnStage | None:
        del columns
        if schema not in self._stages:
            self._stages[schema] = self._stage_of(schema)
        return self._stages[schema]

    def _stage_of(self, schema: Schema) -> TableColumns | None:
        """How to stage rows of these fields; None: the table's types ask for the writer."""
        found = staged_types(schema, self._schema, self._table)
        if found is None or not set(self._sink.key) <= found.keys():
            return None
        wanted = {ATTEMPT: "bigint", PLACE: "bigint", **found}

        async def make(connection: asyncpg.Connection[Any]) -> bool:
            try:
                await self._make(connection, wanted)
            except asyncpg.InsufficientPrivilegeError as error:
                log.info(
                    "%s: rows go through files of the checkpoint, for there can be no staging table: %s",
                    self._context.node, error,
                )  # fmt: skip
                return False
            return True

        if not self._run(make):
            return None
        required = (
            () if self._schema is None else [each.name for each in self._schema.fields if each.required]
        )
        return TableColumns(
            self._url,
            self._table.schema,
            self.staging,
            found,
            tuple(self._sink.key),
            tuple(dict.fromkeys((*self._sink.key, *required))),
        )

    async def _make(self, connection: asyncpg.Connection[Any], wanted: Mapping[str, str]) -> None:
        """The staging table with these columns. What is in one of other columns belongs to no batch."""
        staging = self._staging_sql
        there = dict(tuple(row) for row in await connection.fetch(_COLUMNS, staging))
        if there != dict(wanted):
            columns = ", ".join(f"{quoted(name)} {kind}" for name, kind in wanted.items())
            async with connection.transaction():
                await connection.execute(f"drop table if exists {staging}")
                await connection.execute(f"create unlogged table {staging} ({columns})")
        await self._mark(connection)
        await self._drop_abandoned(connection)

    async def _mark(self, connection: asyncpg.Connection[Any]) -> None:
        """Note on the staging table when it was last in use."""
        today = await connection.fetchval("select current_date::text")
        await connection.execute(f"comment on table {self._staging_sql} is '{today}'")
        self._marked = time.monotonic()

    async def _drop_abandoned(self, connection: asyncpg.Connection[Any]) -> None:
        schema = self._table.schema
        for (name,) in await connection.fetch(_ABANDONED, schema, _PREFIX, _ABANDONED_DAYS):
            with contextlib.suppress(asyncpg.PostgresError):  # somebody else's, or dropped meanwhile
                await connection.execute(f"drop table if exists {quoted(schema)}.{quoted(name)}")

    def clean(self, batch: int) -> None:  # noqa: ARG002
        self._run(self._empty)

    async def _empty(self, connection: asyncpg.Connection[Any]) -> None:
        """Delete what is staged. What cannot be deleted now does no harm: no batch names its attempt."""
        staging = self._staging_sql
        if not await connection.fetch(_COLUMNS, staging):
            self._stages.clear()  # it is made when it is needed
            return
        with contextlib.suppress(asyncpg.LockNotAvailableError, asyncpg.DeadlockDetectedError):
            if await connection.fetchval(f"select exists (select from {staging})"):
                async with connection.transaction():
                    await connection.execute(f"set local lock_timeout = '{_LOCK_SECONDS}s'")
                    await connection.execute(f"truncate {staging}")

    # Commit

    def commit(self, parts: Sequence[StagedPart], batch: int) -> int:
        """Move what the tasks have staged into the table, with the name of the batch.

        ``RowsRefused``: the table does not take one of the rows, and nothing was stored.
        """
        rows = {int(each.name): each.rows for each in parts}
        name = self._context.delivery(f"{self._generation}-{batch:010}-staged")
        self._run(lambda connection: self._commit(connection, name, rows))
        self._run(self._empty)
        return sum(rows.values())

    async def _commit(self, connection: asyncpg.Connection[Any], name: str, rows: Mapping[int, int]) -> None:
        sink = f"{self._context.pipeline}:{self._context.node}"
        async with connection.transaction():
            await self._sinks.check(connection, self._claim())
            new = await connection.execute(
                f"insert into {self._deliveries} (delivery, sink) values ($1, $2) on conflict do nothing",
                name,
                sink,
            )
            if new.endswith(" 0"):
                return
            names = await self._staged_names(connection, rows)
            await connection.execute("set constraints all immediate")
            await connection.execute("set local work_mem = '64MB'")
            try:
                await connection.execute(self._insert(names), [*rows], timeout=_STATEMENT_SECONDS)
            except asyncpg.PostgresError as error:
                if is_of_row(error):
                    raise RowsRefused(str(error)) from error
                raise
            self._commits += 1
            if self._commits % _TRIM_EVERY == 0:
                await connection.execute(TRIM.format(table=self._deliveries), sink, KEPT)
        if time.monotonic() > self._marked + _DAY_SECONDS:
            await self._mark(connection)

    async def _staged_names(self, connection: asyncpg.Connection[Any], rows: Mapping[int, int]) -> list[str]:
        """The columns that are staged; ``StagingLost`` if not all rows are there."""
        staging = self._staging_sql
        names = [name for name, _ in await connection.fetch(_COLUMNS, staging)]
        found: dict[int, int] = {}
        if names:
            counts = _COUNTS.format(attempt=ATTEMPT, staging=staging)
            counted = await connection.fetch(counts, [*rows], timeout=_STATEMENT_SECONDS)
            found = dict(tuple(row) for row in counted)
        if found != dict(rows):
            raise StagingLost(
                f"{self._context.node}: {sum(rows.values()) - sum(found.values())} staged rows are gone "
                "(did PostgreSQL crash?); the batch must run again"
            )
        return [name for name in names if name not in (ATTEMPT, PLACE)]

    def _insert(self, names: Sequence[str]) -> str:
        """The statement that moves the rows of some attempts. Of the rows of a key the last one stays."""
        listed = ", ".join(map(quoted, names))
        rows = f"from {self._staging_sql} where {ATTEMPT} = any($1::bigint[])"
        key = self._sink.key
        if not key:
            return f"insert into {self._table.sql} ({listed}) select {listed} {rows}"
        keys = ", ".join(map(quoted, key))
        changed = ", ".join(f"{quoted(name)} = excluded.{quoted(name)}" for name in names if name not in key)
        then = f"update set {changed}" if changed else "nothing"
        return (
            f"insert into {self._table.sql} ({listed}) select distinct on ({keys}) {listed} {rows} "
            f"order by {keys}, {PLACE} desc on conflict ({keys}) do {then}"
        )

    def readback(
        self, options: StageOptions, parts: Sequence[StagedPart]
    ) -> tuple[Readback, list[StagedQuery]]:
        """What brings staged rows into files of the checkpoint, and the rows of each part."""

        async def columns(connection: asyncpg.Connection[Any]) -> list[tuple[str, str]]:
            return [(name, kind) for name, kind in await connection.fetch(_COLUMNS, self._staging_sql)]

        found = tuple((name, kind) for name, kind in self._run(columns) if name not in (ATTEMPT, PLACE))
        selected = ", ".join(
            f"{column_of(kind).selected(quoted(name))} as {quoted(name)}" for name, kind in found
        )
        source = f"from {self._staging_sql} where {ATTEMPT} ="
        queries = [
            StagedQuery(each.task, f"select {selected} {source} {int(each.name)} order by {PLACE}", found)
            for each in parts
        ]
        return Readback(options, self._context.node, self._url), queries

    def close(self) -> None:
        """Drop the staging table, unless it has rows of a batch that is prepared."""
        with contextlib.suppress(Exception):  # it is dropped some days later
            self._events.run(self._link.attempt(self._drop))
        if self._temporary:
            with contextlib.suppress(Exception):  # it is deleted some days later
                self._events.run(self._link.attempt(self._forget))
        self._events.run(self._link.close())

    async def _forget(self, connection: asyncpg.Connection[Any]) -> None:
        await self._sinks.forget(connection, self._claim())

    async def _drop(self, connection: asyncpg.Connection[Any]) -> None:
        staging = self._staging_sql
        if not await connection.fetch(_COLUMNS, staging):
            return
        async with connection.transaction():
            await connection.execute(f"set local lock_timeout = '{_LOCK_SECONDS}s'")
            await connection.execute(f"lock table {staging} in access exclusive mode")
            if not await connection.fetchval(f"select exists (select from {staging})"):
                await connection.execute(f"drop table {staging}")

    # The connection

    async def _look(self, connection: asyncpg.Connection[Any]) -> Table:
        return await find(connection, self._sink.table)

    def _run(self, work: Callable[[asyncpg.Connection[Any]], Awaitable[T]]) -> T:
        """Do it, however long the server is away, until the run is told to stop."""
        while True:
            try:
                return self._events.run(self._link.attempt(work))
            except Away as error:
                if not error.waits or self._stopping():
                    raise
                self._events.run(self._link.wait(error, _WAIT_SECONDS))


def staged_types(fields: Schema, own: Schema | None, table: Table) -> dict[str, str] | None:
    """The staged type of each column, for rows of these fields; None: they must go by the writer.

    ``own``: the schema that the sink names. Rows must fit it as they are.
    """
    chosen: tuple[Field, ...] = fields.fields
    if own is not None:
        known = {each.name: each for each in fields.fields}
        if any(
            each.name not in known
            or each.default is not None
            or not _is_same(known[each.name].type, each.type)
            for each in own.fields
        ):
            return None
        chosen = tuple(known[each.name] for each in own.fields)
    found: dict[str, str] = {}
    for each in chosen:
        column = table.columns.get(each.name)
        if column is None or column.computed or each.name in (ATTEMPT, PLACE):
            return None
        if own is not None and isinstance(each.type, Wide) and column.bare not in _WHOLE:
            return None
        kind = staged_type(each.type, column.bare)
        if kind is None:
            return None
        found[each.name] = kind
    return found or None


_WHOLE = ("smallint", "integer", "bigint")


def _is_same(given: Type, wanted: Type) -> bool:
    """Whether values of a type are what the sink's schema makes of them."""
    if isinstance(given, Wide):
        return wanted == types.BIGINT
    return given == wanted or (given in types.FRACTIONS and wanted in types.FRACTIONS)
