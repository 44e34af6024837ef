"""Which rows of a growing table may be read: those before which no other can be committed any more.

A row's number is drawn when it is inserted and seen when it is committed, and the order of the one is not
that of the other. Whoever remembers the highest number seen would pass over a row that got a lower one and
was committed later. So, once a highest value is seen, all transactions are waited for that may have drawn a
lower one; they are those that are writing into the table at that moment. Nobody is locked out, nothing is
written: PostgreSQL's list of locks says who is there, and who comes later draws higher values.

- Numbers are drawn by the statement that inserts, under its lock on the table: those who hold one count.
- Times are drawn when a transaction begins (``now()``), maybe long before it inserts: all transactions of
  the database count that are running.
"""

# ruff: noqa: S608 - names are from the catalogue and quoted, values are parameters

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import asyncpg

from queenstream.connectors.postgres.catalog import VIEWS, Column, Table, quoted
from queenstream.connectors.postgres.keys import KeyOrder
from queenstream.errors import ConfigError

_WRITERS = """
    with recursive parts as (
        select $1::oid as oid
        union select i.inhrelid from pg_inherits i join parts p on p.oid = i.inhparent
    )
    select distinct virtualtransaction from pg_locks
    where locktype = 'relation' and granted and pid is distinct from pg_backend_pid()
        and database = (select oid from pg_database where datname = current_database())
        and relation in (select oid from parts)
        and mode in ('RowExclusiveLock', 'ShareRowExclusiveLock', 'ExclusiveLock', 'AccessExclusiveLock')
"""
_RUNNING = """
    select l.virtualtransaction from pg_locks l join pg_stat_activity a on a.pid = l.pid
    where l.locktype = 'virtualxid' and l.granted and l.mode = 'ExclusiveLock'
        and a.datname = current_database() and a.pid <> pg_backend_pid()
        and a.backend_type is distinct from 'autovacuum worker' -- of another user's it is null to us
    union all select 'prepared ' || transaction::text from pg_prepared_xacts
    where database = current_database()
"""
_SEQUENCE = """
    select s.seqcache from pg_sequence s
    where s.seqrelid = to_regclass(pg_get_serial_sequence($1, $2))
"""

_NUMBERS = ("smallint", "integer", "bigint", "numeric")
_TIMES = ("timestamp with time zone", "timestamp without time zone")
_MICROSECONDS = (-1, 6)  # how a column with all of them is declared


@dataclass(frozen=True, slots=True)
class Rule:
    """How a table's cursor column grows. ``unique``: no two rows share a value.

    ``holds_highest``: more rows of the highest value may come, so these wait until there is a higher one.
    """

    oid: int
    by_time: bool
    unique: bool

    @property
    def holds_highest(self) -> bool:
        return not self.unique and not self.by_time

    @property
    def told(self) -> str:
        """What is waited for."""
        if self.by_time:
            return "all that began before, as the cursor is a time; look at pg_stat_activity"
        return "those that write into the table; look at pg_locks"

    async def writers(self, connection: asyncpg.Connection[Any]) -> frozenset[str]:
        """The transactions that may have drawn a value and are not over."""
        if self.by_time:
            rows = await connection.fetch(_RUNNING)
        else:
            rows = await connection.fetch(_WRITERS, self.oid)
        return frozenset(row[0] for row in rows)


class Settling:
    """A highest value, and those that may still commit a lower one."""

    def __init__(self, top: str, writers: frozenset[str]) -> None:
        self.top = top
        self.writers = writers
        self._since = time.monotonic()

    def saw(self, running: frozenset[str]) -> None:
        """Who is there now; who was not there then does not count."""
        self.writers &= running

    @property
    def seconds(self) -> float:
        """How long it has been waited."""
        return time.monotonic() - self._since


class SettledTop:
    """Finds the highest value of a growing table up to which every row is committed that ever will be.

    ``waiting``: a value was seen, and somebody may still commit a lower one.
    """

    def __init__(self, rule: Rule, order: KeyOrder) -> None:
        self._rule = rule
        self._order = order
        self.waiting: Settling | None = None

    async def find(self, connection: asyncpg.Connection[Any], after: Sequence[str] | None) -> str | None:
        """Up to where can be read now; None: there is nothing new after this position, or not yet."""
        if self.waiting is None:
            top = await self._highest(connection, after)
            if top is None:
                return None
            self.waiting = Settling(top, await self._rule.writers(connection))
        elif self.waiting.writers:
            self.waiting.saw(await self._rule.writers(connection))
        if self.waiting.writers:
            return None
        found, self.waiting = self.waiting.top, None
        return found

    def forget(self) -> None:
        """Begin again: the server was away, and so its list of who writes is void."""
        self.waiting = None

    async def _highest(self, connection: asyncpg.Connection[Any], after: Sequence[str] | None) -> str | None:
        order, name = self._order, self._order.leading
        table = f"{order.table.sql} r"
        beyond = f"select {name} from {table} where {order.beyond(after)} order by {name} desc limit 1"
        query = f"select ({beyond})::text"
        if self._rule.holds_highest:  # more rows of the highest value may come: the one before it
            lower = f"select max({name}) from {table} where {name} < ({beyond}) and {order.beyond(after)}"
            query = f"select ({lower})::text"
        found = await connection.fetchval(query, *(after or ()))
        return None if found is None else str(found)


async def check_cursor(connection: asyncpg.Connection[Any], table: Table, cursor: Column) -> Rule:
    """How the column grows; ``ConfigError`` if rows could be passed over, or if nobody can say."""
    where = f"the cursor {cursor.name} of {table.name}"
    if table.kind in VIEWS:
        raise ConfigError(f"{where} is of a view or a foreign table; read the table itself")
    if await connection.fetchval("select pg_is_in_recovery()"):
        raise ConfigError(f"{where} cannot be followed on a standby, which does not see who writes; "
                          "use the primary's url")  # fmt: skip
    by_time = cursor.bare in _TIMES
    if not by_time and cursor.bare not in _NUMBERS:
        raise ConfigError(f"{where} is {cursor.type}; take a number that a sequence draws, or a timestamp")
    if by_time and cursor.modifier not in _MICROSECONDS:
        raise ConfigError(
            f"{where} has no microseconds ({cursor.type}), so that rows of one value come one after the "
            "other; take a column with them, or a number"
        )
    cache = await connection.fetchval(_SEQUENCE, table.sql, cursor.name)
    if cache is not None and cache > 1:
        raise ConfigError(
            f"{where} is drawn from a sequence with a cache of {cache}, so lower values come after higher "
            f"ones; alter sequence … cache 1"
        )
    unique = (cursor.name,) in table.keys
    if not unique and not table.order:
        raise ConfigError(
            f"{where} is not unique, and the table has no primary key to tell rows of one value apart; "
            f"add one, or create unique index on {table.sql} ({quoted(cursor.name)})"
        )
    return Rule(table.oid, by_time, unique)
