"""Rows of a table of PostgreSQL: all of them as of one moment, or by a column that only grows."""

# ruff: noqa: S608 - names are from the catalogue and quoted, values are parameters

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from typing import Any

import asyncpg

from queenstream.connectors.base import Context, Positions, Reader
from queenstream.connectors.broker.connection import log
from queenstream.connectors.postgres import catalog as tables
from queenstream.connectors.postgres.catalog import Table
from queenstream.connectors.postgres.connection import Away, Link, url_of
from queenstream.connectors.postgres.keys import KeyOrder, cast
from queenstream.connectors.postgres.settled import Rule, SettledTop, Settling, check_cursor
from queenstream.connectors.validation import fit, schema_of
from queenstream.core.batches import Batch
from queenstream.errors import ConfigError
from queenstream.pipeline.endpoints import Postgres

LOOK_SECONDS = 0.2  # how often a table is looked at for new rows
SETTLE_SECONDS = 0.02  # and how often for the end of those who write
PATIENCE_SECONDS = 10.0  # how long somebody may write before it is told
LAG_SECONDS = 10.0
MOST_COUNTED = 100_000  # rows behind that are counted; more is not known
_PART = "rows"


def postgres_reader(source: Postgres, context: Context) -> Reader:
    """What reads a table: to its end, or without one."""
    return SnapshotReader(source, context) if source.cursor is None else CursorReader(source, context)


class _TableReader:
    """What both ways to read a table have in common."""

    def __init__(self, source: Postgres, context: Context) -> None:
        self._source = source
        self._context = context
        self._schema = schema_of(source.schema)
        self._link = Link(url_of(source.url, source.title), context.node)
        self._told: Any = None
        self._position: Any = None

    def _look_at(self, table: Table) -> None:
        """Which columns are read: those of the schema, or all."""
        self._table = table
        names = self._schema.names if self._schema is not None else tuple(table.columns)
        chosen = [table.column(name) for name in names]
        self._names = [column.name for column in chosen]
        self._selected = [column.selected for column in chosen]

    def _batch(self, rows: Sequence[asyncpg.Record]) -> Batch:
        names = self._names
        # What tells where a row stands comes after its columns.
        return fit(self._schema, [dict(zip(names, row.values(), strict=False)) for row in rows])

    def changes(self) -> dict[str, Any]:
        if self._position == self._told:
            return {}
        self._told = self._position
        return {_PART: self._position}

    async def close(self) -> None:
        await self._link.close()


class SnapshotReader(_TableReader):
    """Reads a table to its end, all of it as of one moment, in pages of a server-side cursor.

    A position is the key of the last row that was given, and whether it was the last one of all. The moment
    is that of a transaction, which a restart does not survive: it goes on after that key, as of then.
    """

    def __init__(self, source: Postgres, context: Context) -> None:
        super().__init__(source, context)
        self._after: list[str] | None = None
        self._taken = False
        self._done = False
        self._rows: Any = None  # the server-side cursor
        self._next: list[asyncpg.Record] = []  # one row ahead: so the last one is known as that

    async def open(self, positions: Positions) -> None:
        known = positions.get(_PART)
        if known is not None:
            self._after, self._done, self._taken = known["after"], known["done"], True
            self._position = self._told = known
        await self._link.open(self._prepare)

    async def _prepare(self, connection: asyncpg.Connection[Any]) -> None:
        self._look_at(await tables.find(connection, self._source.table))
        self._refuse_in_the_middle()

    def _refuse_in_the_middle(self) -> None:
        if self._taken and not self._done and not self._table.order:
            raise ConfigError(
                f"reading {self._source.title} was interrupted, and without a primary key nobody can say "
                "where; add one, or start with a new checkpoint"
            )

    async def read(self, most: int, wait_seconds: float) -> Batch | None:
        if self._done:
            return None
        try:
            rows = await self._link.attempt(lambda connection: self._fetch(connection, most))
        except Away as error:
            if not error.waits:
                raise
            self._rows, self._next = None, []
            self._refuse_in_the_middle()
            await self._link.wait(error, wait_seconds)
            return Batch([])
        if not self._next:
            self._done = True
            await self._link.close()  # and with it the transaction
        keys = len(self._table.order)
        if rows and keys:
            self._after = list(tuple(rows[-1].values())[-keys:])
        self._taken = self._taken or bool(rows)
        self._position = {"after": self._after, "done": self._done}
        return self._batch(rows) if rows else None

    async def _fetch(self, connection: asyncpg.Connection[Any], most: int) -> list[asyncpg.Record]:
        if self._rows is None:
            await connection.transaction(isolation="repeatable_read", readonly=True).start()
            self._rows = await connection.cursor(self._query(), *(self._after or ()))
        found: list[asyncpg.Record] = self._next + await self._rows.fetch(most + 1 - len(self._next))
        self._next = found[most:]
        return found[:most]

    def _query(self) -> str:
        if not self._table.order:
            return f"select {', '.join(self._selected)} from {self._table.sql} r"
        order = KeyOrder(self._table, tuple(self._table.columns[name] for name in self._table.order))
        return (
            f"select {', '.join([*self._selected, order.marks])} from {self._table.sql} r "
            f"where {order.beyond(self._after)} order by {order.ordered}"
        )

    async def commit(self) -> None:
        """There is nobody to tell."""

    def drained(self) -> bool:
        return True

    def lag(self) -> float | None:
        return None


class CursorReader(_TableReader):
    """Reads a table in the order of a column that only grows, and goes on with what is added.

    It never reads past a row that may still be committed (``Settling``). A position is the column's value,
    and the key of the row among those that share it.
    """

    def __init__(self, source: Postgres, context: Context) -> None:
        super().__init__(source, context)
        self._top: str | None = None  # up to which everything is committed that ever will be
        self._warned = False
        self._lag: float | None = None
        self._lag_known = 0.0

    async def open(self, positions: Positions) -> None:
        self._position = self._told = positions.get(_PART)
        await self._link.open(self._prepare)

    async def _prepare(self, connection: asyncpg.Connection[Any]) -> None:
        table = await tables.find(connection, self._source.table)
        self._look_at(table)
        self._rule, self._order = await growing(connection, table, self._source)
        self._settled = SettledTop(self._rule, self._order)
        await self._measure(connection)

    async def read(self, most: int, wait_seconds: float) -> Batch | None:
        ends = time.monotonic() + wait_seconds
        while True:
            try:
                rows = await self._link.attempt(lambda connection: self._page(connection, most))
            except Away as error:
                if not error.waits:
                    raise
                self._settled.forget()
                await self._link.wait(error, wait_seconds)
                return Batch([])
            if rows:
                marks = list(rows[-1].values())[len(self._names) :]
                self._position = [marks[0], marks[1:]]
                return self._batch(rows)
            left = ends - time.monotonic()
            if left <= 0:
                return Batch([])
            await asyncio.sleep(min(left, LOOK_SECONDS if self._settled.waiting is None else SETTLE_SECONDS))

    async def _page(self, connection: asyncpg.Connection[Any], most: int) -> list[asyncpg.Record]:
        if self._top is None and not await self._find_top(connection):
            return []
        given, order = self._given(), self._order
        beyond = order.beyond(given)
        number = len(given or ()) + 1
        up_to = f"{order.leading} <= {cast(order.columns[0], number)}"
        rows = await connection.fetch(
            f"select {', '.join([*self._selected, order.marks])} from {self._table.sql} r "
            f"where {beyond} and {up_to} order by {order.ordered} limit ${number + 1}",
            *(given or ()),
            self._top,
            most,
        )
        if len(rows) < most:
            self._top = None
        return list(rows)

    async def _find_top(self, connection: asyncpg.Connection[Any]) -> bool:
        """Up to where can be read now; False: there is nothing new, or not yet."""
        if self._settled.waiting is None:
            self._warned = False
        self._top = await self._settled.find(connection, self._given())
        if self._settled.waiting is not None:
            self._warn(self._settled.waiting)
        return self._top is not None

    def _given(self) -> list[str] | None:
        return None if self._position is None else [self._position[0], *self._position[1]]

    def _warn(self, waiting: Settling) -> None:
        if not self._warned and waiting.seconds > PATIENCE_SECONDS:
            self._warned = True
            log.warning(waits_for(self._context.node, waiting, self._rule))

    async def commit(self) -> None:
        if time.monotonic() - self._lag_known > LAG_SECONDS:
            try:
                await self._link.attempt(self._measure)
            except Away as error:
                log.warning("%s does not know its lag: %s", self._context.node, error)

    async def _measure(self, connection: asyncpg.Connection[Any]) -> None:
        self._lag_known = time.monotonic()
        counted = await rows_behind(connection, self._order, self._given())
        self._lag = None if counted > MOST_COUNTED else counted

    def drained(self) -> bool:
        waiting = self._settled.waiting
        return waiting is None or waiting.seconds > PATIENCE_SECONDS

    def lag(self) -> float | None:
        return self._lag


async def growing(
    connection: asyncpg.Connection[Any], table: Table, source: Postgres
) -> tuple[Rule, KeyOrder]:
    """How a table grows that is read by its cursor, and in which order; ``ConfigError`` if it cannot be."""
    assert source.cursor is not None, "else it is a snapshot"
    cursor = table.column(source.cursor)
    rule = await check_cursor(connection, table, cursor)
    ties = [table.columns[name] for name in (() if rule.unique else table.order)]
    return rule, KeyOrder(table, (cursor, *ties), nullable=True)


async def rows_behind(
    connection: asyncpg.Connection[Any], order: KeyOrder, after: Sequence[str] | None
) -> int:
    """How many rows there are after a position; one more than ``MOST_COUNTED`` stands for any more."""
    counted: int = await connection.fetchval(
        f"select count(*) from (select from {order.table.sql} r where {order.beyond(after)} "
        f"limit {MOST_COUNTED + 1}) behind",
        *(after or ()),
    )
    return counted


def waits_for(node: str, waiting: Settling, rule: Rule) -> str:
    """What the log says of a reader that is held up."""
    return (
        f"{node} waits for {len(waiting.writers)} transactions that may still add rows before those that "
        f"are there: {rule.told}"
    )
