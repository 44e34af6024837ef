"""Rows of a table of PostgreSQL by their key, many with one query."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import asyncpg

from queenstream.client._base.payloads import encode
from queenstream.connectors.base import Context
from queenstream.connectors.lookups import Key
from queenstream.connectors.postgres import catalog as tables
from queenstream.connectors.postgres.catalog import Column, Table, quoted
from queenstream.connectors.postgres.connection import Link, is_of_row, url_of
from queenstream.connectors.postgres.writer import fix_for
from queenstream.core.schemas.coercion import Misfit
from queenstream.errors import DatabaseUnusable, PayloadInvalid
from queenstream.pipeline.endpoints import Postgres
from queenstream.pipeline.lookups import Found
from queenstream.pipeline.plan import nodes


class PostgresLookup:
    """Looks keys up by a unique index of the table."""

    def __init__(self, node: nodes.Lookup, context: Context) -> None:
        assert isinstance(node.table, Postgres)
        self._source = node.table
        self._on = [theirs for _, theirs in node.on]
        self._wanted = None if node.fields is None else [theirs for _, theirs in node.fields]
        self._link = Link(url_of(node.table.url, node.table.title), context.node)

    async def open(self) -> None:
        await self._link.open(self._prepare)

    async def _prepare(self, connection: asyncpg.Connection[Any]) -> None:
        table = await tables.find(connection, self._source.table)
        keys = [table.column(name) for name in self._on]
        if not any(set(key) <= set(self._on) for key in table.keys):
            raise DatabaseUnusable(
                f"the table {self._source.table} may have several rows for one key; create unique index "
                f"on {table.sql} ({', '.join(map(quoted, self._on))})"
            )
        columns = [table.column(name) for name in self._wanted or table.columns]
        self._fixes = [fix_for(column) for column in keys]
        self._names = [column.name for column in columns]
        self._query = _query(table, keys, columns)

    async def fetch(self, keys: Sequence[Key]) -> list[Found]:
        found: list[Found] = [None] * len(keys)
        asked: dict[int, dict[str, Any]] = {}
        for index, key in enumerate(keys):
            try:
                asked[index] = {"i": index, **self._fitted(key)}
            except PayloadInvalid as error:
                found[index] = error
        await self._link.attempt(lambda connection: self._ask(connection, list(asked.values()), found))
        return found

    def _fitted(self, key: Key) -> dict[str, Any]:
        row: dict[str, Any] = {}
        for place, (name, fix, value) in enumerate(zip(self._on, self._fixes, key, strict=True)):
            try:
                row[f"k{place}"] = value if fix is None else fix(value)
            except Misfit as misfit:
                raise PayloadInvalid(f"{misfit.under(name)}") from None
        encode(row)  # what JSON does not hold, nothing can be found for
        return row

    async def _ask(
        self, connection: asyncpg.Connection[Any], asked: list[dict[str, Any]], found: list[Found]
    ) -> None:
        """Fill in what is there. A key that the table's types do not take is found by halving."""
        try:
            rows = await connection.fetch(self._query, encode(asked).decode())
        except asyncpg.PostgresError as error:
            if not is_of_row(error):
                raise
            if len(asked) == 1:
                found[asked[0]["i"]] = PayloadInvalid(f"{self._source.title}: {error}")
                return
            middle = len(asked) // 2
            await self._ask(connection, asked[:middle], found)
            await self._ask(connection, asked[middle:], found)
            return
        for index, *values in rows:
            found[index] = dict(zip(self._names, values, strict=True))

    async def close(self) -> None:
        await self._link.close()


def _query(table: Table, keys: Sequence[Column], columns: Sequence[Column]) -> str:
    # The alias is none that a table of somebody's has.
    typed = ", ".join(f"k{place} {column.type}" for place, column in enumerate(keys))
    equal = " and ".join(f"{quoted(column.name)} = queen_asked.k{place}" for place, column in enumerate(keys))
    selected = ", ".join(column.selected for column in columns)
    return (
        f"select queen_asked.i, queen_found.* from json_to_recordset($1::text::json) "  # noqa: S608 - quoted
        f"queen_asked (i int, {typed}) cross join lateral "
        f"(select {selected} from {table.sql} where {equal}) queen_found"
    )
