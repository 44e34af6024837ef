"""Plans how a table of PostgreSQL is read: how far each batch goes, and which rows are for which task.

- With ``cursor``, a batch goes to its limit, at most to where nobody can commit a row (``SettledTop``).
- Otherwise the table is a snapshot: a transaction that stays open here, which the tasks share. A restart
  takes a new one, and goes on after the last row of the batches that are done.

Rows are cut by their key, which is read from the index. A table without one is cut by its blocks, which say
nothing once the snapshot is gone; what has no blocks either (a view) is one batch.
"""

# ruff: noqa: S608 - names are from the catalogue and quoted, values are parameters or quoted

from __future__ import annotations

import asyncio
import json
import math
import time
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

import asyncpg

from queenstream.connectors.broker.connection import log
from queenstream.connectors.postgres.catalog import Table, find, quoted
from queenstream.connectors.postgres.connection import Away, Link
from queenstream.connectors.postgres.keys import KeyOrder, cast, literal
from queenstream.connectors.postgres.reader import (
    LAG_SECONDS,
    LOOK_SECONDS,
    MOST_COUNTED,
    PATIENCE_SECONDS,
    SETTLE_SECONDS,
    growing,
    rows_behind,
    waits_for,
)
from queenstream.connectors.postgres.settled import Rule, SettledTop
from queenstream.core.schemas import Schema
from queenstream.engines.spark.datasource.database import AGAIN
from queenstream.engines.spark.sources.tables.columns import TableColumn, Task
from queenstream.engines.spark.sources.tables.options import BEGINNING, Limits, Offset
from queenstream.errors import ConfigError, Unavailable
from queenstream.pipeline.endpoints import Postgres

T = TypeVar("T")

LEAST_ROWS = 5_000  # a task of its own is not worth it for fewer
AWAY_SECONDS = 30.0  # how long a batch waits for a server that is away
_SAMPLE_ROWS = 100
_SAMPLE_BLOCKS = 16
_MOST_BLOCKS = 1 << 14  # in a batch, however little is in them
_PLACES_BITS = 12  # of a block's number: a block has fewer rows


@dataclass(frozen=True)
class Range:
    """Rows for a task: a condition with constants in it, and the place of the first row."""

    condition: str
    first: int


class Ranges(Protocol):
    """Cuts a table into batches and tasks."""

    restarts: bool
    """Whether what comes after an offset is known in another snapshot, too."""
    ordered: str
    """For ``order by``; empty: as the rows come."""

    async def end(self, connection: Any, start: Offset, limits: Limits, top: str | None) -> Offset | None:
        """How far a batch goes, at most to ``top``; None: there is nothing."""
        ...

    async def split(self, connection: Any, start: Offset, end: Offset, tasks: int) -> list[Range]:
        """The rows between two offsets, in order."""
        ...


class KeyRanges:
    """By the columns of a key. All of it is found in the index, no row is looked at."""

    restarts = True

    def __init__(self, order: KeyOrder, selected: str) -> None:
        self._order = order
        self._selected = selected
        self._last_cut: tuple[Offset, Offset, list[list[str]]] | None = None
        self.ordered = order.ordered

    async def end(
        self,
        connection: asyncpg.Connection[Any],
        start: Offset,
        limits: Limits,
        top: str | None = None,
    ) -> Offset | None:
        order, given = self._order, [*(start["after"] or ())]
        where, values = order.beyond(start["after"]), given
        if top is not None:
            where += f" and {order.leading} <= {cast(order.columns[0], len(given) + 1)}"
            values = [*given, top]
        found = f"{order.table.sql} r where {where}"
        row_bytes = await connection.fetchval(
            f"select avg(octet_length(x::text))::float8 from "
            f"(select {self._selected} from {found} order by {order.ordered} limit {_SAMPLE_ROWS}) x",
            *values,
        )
        if row_bytes is None:
            return None
        most = limits.most(row_bytes)
        tasks = _tasks_for(most, limits.tasks)
        share = most // tasks
        up_to = "true" if top is None else f"{order.leading} <= {cast(order.columns[0], len(given) + 1)}"
        cuts = await self._cuts(connection, start["after"], up_to, values, share, tasks)
        if len(cuts) == tasks:
            after = cuts.pop()
            beyond, values = order.beyond(after), [*after]
            if top is not None:
                beyond += f" and {order.leading} <= {cast(order.columns[0], len(after) + 1)}"
                values.append(top)
            is_last = not await connection.fetchval(
                f"select exists (select from {order.table.sql} r where {beyond})", *values
            )
            end: Offset = {"after": after, "seq": start["seq"] + share * tasks, "done": is_last}
            self._last_cut = (start, end, cuts)  # so that the index is read once
            return end
        last = await connection.fetchrow(
            f"select (select count(*) from {found}), {order.marks} from {found} "
            f"order by {order.reversed} limit 1",
            *values,
        )
        if last is None:  # they were deleted meanwhile
            return None
        rows, *after = last
        return {"after": after, "seq": start["seq"] + rows, "done": True}

    async def split(
        self, connection: asyncpg.Connection[Any], start: Offset, end: Offset, tasks: int
    ) -> list[Range]:
        rows, after, upto = end["seq"] - start["seq"], start["after"], end["after"]
        if upto is None or upto == after:
            return []
        tasks = _tasks_for(rows, tasks)
        share = math.ceil(rows / tasks)
        if self._last_cut is not None and _is_between(self._last_cut, start, end):
            cuts = self._last_cut[2]
        else:
            number = len(after or ()) + 1
            order = self._order
            up_to = order.up_to([cast(each, number + at) for at, each in enumerate(order.columns)])
            cuts = await self._cuts(connection, after, up_to, [*(after or ()), *upto], share, tasks - 1)
        inside = [cut for cut in cuts if cut != upto]
        edges, ends = [after, *inside], [*inside, upto]
        return [
            Range(self._condition(low, high), start["seq"] + number * share)
            for number, (low, high) in enumerate(zip(edges, ends, strict=True))
        ]

    async def _cuts(
        self,
        connection: asyncpg.Connection[Any],
        after: Sequence[str] | None,
        up_to: str,
        values: Sequence[str],
        share: int,
        number: int,
    ) -> list[list[str]]:
        """The position of each ``share``-th row, up to ``number`` of them.

        ``up_to``: a condition, ``values``: the parameters, those of ``after`` first.
        """
        if number == 0:
            return []
        order = self._order
        keys = ", ".join(f"r.{quoted(column.name)} as k{at}" for at, column in enumerate(order.columns))
        names = [f"k{at}" for at in range(len(order.columns))]

        def one(beyond: str) -> str:
            return (
                f"select {keys} from {order.table.sql} r where {beyond} and {up_to} "
                f"order by {order.ordered} offset {share - 1} limit 1"
            )

        rows = await connection.fetch(
            f"with recursive cut as (select 1 as n, x.* from ({one(order.beyond(after))}) x union all "
            f"select c.n + 1, x.* from cut c cross join lateral "
            f"({one(order.after([f'c.{name}' for name in names]))}) x where c.n < {number}) "
            f"select {', '.join(f'{name}::text' for name in names)} from cut order by n",
            *values,
        )
        return [[*row] for row in rows]

    def _condition(self, after: Sequence[str] | None, upto: Sequence[str]) -> str:
        order = self._order
        beyond = order.beyond(None) if after is None else order.after(self._literals(after))
        return f"{beyond} and {order.up_to(self._literals(upto))}"

    def _literals(self, values: Sequence[str]) -> list[str]:
        return [literal(column, value) for column, value in zip(self._order.columns, values, strict=True)]


def _tasks_for(rows: int, most: int) -> int:
    """How many tasks read so many rows."""
    return max(1, min(most, rows // LEAST_ROWS))


def _is_between(cut: tuple[Offset, Offset, Any], start: Offset, end: Offset) -> bool:
    return cut[0]["after"] == start["after"] and cut[1]["after"] == end["after"]


class BlockRanges:
    """By the blocks of a table's file."""

    restarts = False
    ordered = ""

    def __init__(self, table: Table, selected: str) -> None:
        self._table = table
        self._selected = selected

    async def end(
        self,
        connection: asyncpg.Connection[Any],
        start: Offset,
        limits: Limits,
        top: str | None = None,  # noqa: ARG002 - a table without a key has no cursor
    ) -> Offset | None:
        begin = _block(start)
        blocks = await connection.fetchval(
            "select pg_relation_size($1::oid::regclass) / current_setting('block_size')::bigint",
            self._table.oid,
        )
        if begin >= blocks:
            return None
        sampled = min(_SAMPLE_BLOCKS, blocks - begin)
        sample = await connection.fetchrow(
            f"select count(*), avg(octet_length(x::text))::float8 from (select {self._selected} from "
            f"{self._table.sql} r where {_of_blocks(begin, begin + sampled)}) x"
        )
        assert sample is not None, "it counts"
        rows, row_bytes = sample
        taken = _MOST_BLOCKS
        if rows:
            taken = min(taken, max(1, int(limits.most(row_bytes) * sampled / rows)))
        upto = min(blocks, begin + taken)
        return {"after": [str(upto)], "seq": upto << _PLACES_BITS, "done": upto == blocks}

    async def split(
        self,
        connection: asyncpg.Connection[Any],  # noqa: ARG002 - blocks need no look
        start: Offset,
        end: Offset,
        tasks: int,
    ) -> list[Range]:
        begin, upto = _block(start), _block(end)
        share = max(1, math.ceil((upto - begin) / tasks))
        return [
            Range(_of_blocks(first, min(upto, first + share)), first << _PLACES_BITS)
            for first in range(begin, upto, share)
        ]


def _block(offset: Offset) -> int:
    return 0 if offset["after"] is None else int(offset["after"][0])


def _of_blocks(first: int, end: int) -> str:
    return f"r.ctid >= '({first},0)'::tid and r.ctid < '({end},0)'::tid"


class WholeRange:
    """All rows at once: of a view, of a table elsewhere, of a partitioned one without a key."""

    restarts = False
    ordered = ""

    async def end(
        self,
        connection: asyncpg.Connection[Any],  # noqa: ARG002 - nothing is known before it is read
        start: Offset,
        limits: Limits,  # noqa: ARG002
        top: str | None = None,  # noqa: ARG002
    ) -> Offset | None:
        return {**start, "done": True}

    async def split(
        self,
        connection: asyncpg.Connection[Any],  # noqa: ARG002
        start: Offset,
        end: Offset,  # noqa: ARG002
        tasks: int,  # noqa: ARG002
    ) -> list[Range]:
        return [Range("true", start["seq"])]


class TablePlan:
    """Plans the batches of one table; holds a connection, and of a snapshot its transaction.

    ``wanted``: the fields that the query looks at, if records are typed columns.
    """

    def __init__(
        self, source: Postgres, url: str, node: str, wanted: Sequence[str] | None, limits: Limits
    ) -> None:
        self._source = source
        self._node = node
        self._wanted = wanted
        self._limits = limits
        self._link = Link(url, node)
        self._loop = asyncio.new_event_loop()
        self._table: Table | None = None
        self._ranges: Ranges
        self.columns: tuple[TableColumn, ...] = ()
        self.always_fits = False  # every row, as the types of the columns say
        self._select = ""
        # Of a snapshot
        self._held: tuple[Any, str] | None = None
        self._planned: set[str] = set()
        # Of a table that grows
        self._rule: Rule
        self._settled: SettledTop
        self._order: KeyOrder | None = None
        self._top: str | None = None  # up to which everything is committed that ever will be
        self._looked = 0.0
        self._warned = False
        self._final = False  # ``_top`` stays: what comes later is for another run
        self._behind = 0
        self._counted = -math.inf

    # What the data source asks

    def check(self) -> None:
        """Look at the table; what is wrong with it is an error, and so is a server that does not answer.

        It plans nothing after that.
        """
        try:
            self._run(self._link.open(self._look))
        finally:
            self.end()

    def finalize(self) -> None:
        """What is there now is read, nothing that comes later."""
        if self._source.cursor is not None:
            self._patiently(self._finalize)

    def advance(self, start: Offset, limits: Limits) -> Offset:
        """How far the next batch goes; where it is, if there is nothing new."""
        if start["done"]:
            self.close()
            return start
        if self._is_too_early:
            return start
        self._looked = time.monotonic()
        try:
            return self._run(self._link.attempt(lambda connection: self._advance(connection, start, limits)))
        except Away as error:
            self._forget()
            if not error.waits:
                raise
            self._run(self._link.wait(error, 1.0))
            return start
        except BaseException:
            self._forget()
            raise

    @property
    def behind(self) -> int:
        """About how many rows there are after the last batch."""
        return self._behind

    def tasks(self, start: Offset, end: Offset, *, again: bool = False) -> list[Task]:
        """The tasks of a batch. ``again``: it is only looked at once more, as it is now."""
        found: list[Task] = self._patiently(
            lambda connection: self._split(connection, start, end, again=again)
        )
        return found

    def close(self) -> None:
        """Let go of the connection, and of the snapshot."""
        self._held = None
        self._run(self._link.close())

    def end(self) -> None:
        """The same, for good: it plans nothing after that."""
        self.close()
        self._loop.close()

    # How

    @property
    def _is_too_early(self) -> bool:
        """Spark asks more often than there is something to say."""
        if self._source.cursor is None or self._final or self._top is not None or self._table is None:
            return False
        pause = LOOK_SECONDS if self._settled.waiting is None else SETTLE_SECONDS
        return time.monotonic() < self._looked + pause

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        return self._loop.run_until_complete(work)

    def _patiently(self, work: Callable[[asyncpg.Connection[Any]], Awaitable[T]]) -> T:
        ends = time.monotonic() + AWAY_SECONDS
        while True:
            try:
                return self._run(self._link.attempt(work))
            except Away as error:
                self._forget()
                if not error.waits or time.monotonic() > ends:
                    raise Unavailable(f"{error}; {AGAIN}") from None
                self._run(self._link.wait(error, 1.0))
            except BaseException:
                self._forget()
                raise

    def _forget(self) -> None:
        """The connection is gone, or good for nothing, and what was known by it."""
        self.close()
        if self._table is not None and self._source.cursor is not None:
            self._settled.forget()

    async def _look(self, connection: asyncpg.Connection[Any]) -> Table:
        if self._table is not None:
            return self._table
        source = self._source
        table = await find(connection, source.table)
        schema = None if source.schema is None else Schema.of(source.schema)
        names = tuple(table.columns) if schema is None else schema.names
        found = [table.column(name) for name in names]
        columns = {each.name: TableColumn(each.name, each.bare, each.required) for each in found}
        # What cannot fail to fit need not come here only to be looked at.
        fits = schema is not None and all(columns[each.name].always_fits(each) for each in schema.fields)
        self.always_fits = fits
        if fits and self._wanted is not None:
            names = tuple(name for name in names if name in self._wanted)
        self.columns = tuple(columns[name] for name in names)
        expressions = [
            f"{columns[name].selected(f'r.{quoted(name)}')} as c{at}" for at, name in enumerate(names)
        ]
        self._select = ", ".join(expressions)
        if source.cursor is not None:
            self._rule, self._order = await growing(connection, table, source)
            self._settled = SettledTop(self._rule, self._order)
            self._ranges = KeyRanges(self._order, self._select)
        elif table.order:
            self._order = KeyOrder(table, tuple(table.columns[name] for name in table.order))
            self._ranges = KeyRanges(self._order, self._select)
        else:
            # Of a table with heirs the rows are in several files.
            heirs = await connection.fetchval(
                "select exists (select from pg_inherits where inhparent = $1::oid)", table.oid
            )
            has_blocks = table.kind in ("r", "m") and not heirs
            self._ranges = BlockRanges(table, self._select) if has_blocks else WholeRange()
        self._table = table
        return table

    async def _advance(self, connection: asyncpg.Connection[Any], start: Offset, limits: Limits) -> Offset:
        await self._look(connection)
        if self._source.cursor is None:
            if start != BEGINNING and not self._holds(connection):
                self._refuse_in_the_middle()
            await self._hold(connection)
            end = await self._ranges.end(connection, start, limits, None) or {**start, "done": True}
            self._planned.add(json.dumps(end))
        else:
            found = await self._grown(connection, start, limits)
            if found is None:
                self._behind = 0 if self._settled.waiting is None else self._behind
                return start
            end = found
        await self._measure(connection, start, end)
        return end

    async def _grown(
        self, connection: asyncpg.Connection[Any], start: Offset, limits: Limits
    ) -> Offset | None:
        if self._top is None and not self._final:
            self._top = await self._settled.find(connection, start["after"])
            self._warn()
        if self._top is None:
            return None
        end = await self._ranges.end(connection, start, limits, self._top)
        if (end is None or end["done"]) and not self._final:
            self._top = None
        return None if end is None else {**end, "done": False}

    def _warn(self) -> None:
        waiting = self._settled.waiting
        if waiting is None:
            self._warned = False
        elif not self._warned and waiting.seconds > PATIENCE_SECONDS:
            self._warned = True
            log.warning(waits_for(self._node, waiting, self._rule))

    async def _finalize(self, connection: asyncpg.Connection[Any]) -> None:
        """As the local engine does that catches up: who writes for long is not waited for."""
        await self._look(connection)
        self._top, ends = None, time.monotonic() + PATIENCE_SECONDS
        while self._top is None:
            self._top = await self._settled.find(connection, None)
            if self._settled.waiting is None or time.monotonic() > ends:
                break
            await asyncio.sleep(SETTLE_SECONDS)
        self._final = True

    async def _measure(self, connection: asyncpg.Connection[Any], start: Offset, end: Offset) -> None:
        """How much is left, counted now and then."""
        self._behind = max(0, self._behind - (end["seq"] - start["seq"]))
        if self._order is not None and time.monotonic() > self._counted + LAG_SECONDS:
            self._counted = time.monotonic()
            self._behind = min(MOST_COUNTED, await rows_behind(connection, self._order, end["after"]))

    async def _hold(self, connection: asyncpg.Connection[Any]) -> str:
        """The snapshot that the tasks share, taken if there is none."""
        if self._held is not None and self._holds(connection):
            return self._held[1]
        assert self._table is not None, "it was looked at"
        await connection.transaction(isolation="repeatable_read", readonly=True).start()
        await connection.execute("set local idle_in_transaction_session_timeout = 0")
        await connection.execute(f"select from {self._table.sql} limit 0")  # nobody may rewrite it meanwhile
        snapshot: str = await connection.fetchval("select pg_export_snapshot()")
        self._held = (connection, snapshot)
        return snapshot

    def _holds(self, connection: asyncpg.Connection[Any]) -> bool:
        return self._held is not None and self._held[0] is connection

    def _refuse_in_the_middle(self) -> None:
        if not self._ranges.restarts:
            raise ConfigError(
                f"reading {self._source.title} was interrupted, and without a primary key nobody can say "
                "where; add one, or start with a new checkpoint"
            )

    async def _split(
        self, connection: asyncpg.Connection[Any], start: Offset, end: Offset, *, again: bool
    ) -> list[Task]:
        table = await self._look(connection)
        snapshot = None
        if self._source.cursor is None and not again:
            whole = start == BEGINNING and end["done"]
            if json.dumps(end) not in self._planned and not whole:
                self._refuse_in_the_middle()
            snapshot = await self._hold(connection)
        found = await self._ranges.split(connection, start, end, self._limits.tasks)
        ordered = f" order by {self._ranges.ordered}" if self._ranges.ordered else ""
        return [
            Task(
                f"select {self._select} from {table.sql} r where {each.condition}{ordered}",
                snapshot,
                each.first,
                self.columns,
            )
            for each in found
        ]
