"""Rows into a table of PostgreSQL, each epoch once."""

# ruff: noqa: S608 - names are from the catalogue and quoted, values are parameters

from __future__ import annotations

import asyncio
import decimal
import functools
import hashlib
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC
from typing import Any, TypeAlias

import asyncpg
import msgspec

from queenstream.client._base.payloads import encode
from queenstream.connectors.base import Context, Refusal
from queenstream.connectors.postgres import catalog as tables
from queenstream.connectors.postgres.catalog import Column, quoted
from queenstream.connectors.postgres.connection import Link, is_of_row, url_of
from queenstream.connectors.postgres.sinks import SinkTable
from queenstream.connectors.provenance import Provenance
from queenstream.connectors.validation import schema_of
from queenstream.core.records import as_row, hashable
from queenstream.core.schemas import coercion, types
from queenstream.core.schemas.coercion import Misfit
from queenstream.core.schemas.types import Decimal
from queenstream.errors import ConfigError, DatabaseUnusable, PayloadInvalid
from queenstream.pipeline.endpoints import Postgres

DELIVERIES = "queen_deliveries"
KEPT = 1_000  # epochs of a sink that are remembered: of Spark, the parts of a batch that may come again
_TRIM_EVERY = 50
MOST_ROWS = 5_000  # in one statement
MOST_BYTES = 4 << 20
_LONGEST = 500  # characters of what is remembered of a refusal
_SHAPES = 1_000  # sets of fields that are remembered

Fix: TypeAlias = Callable[[Any], Any]


_Part: TypeAlias = tuple[int, dict[str, Any]]


@dataclass(slots=True)
class _Item:
    """A row on its way: its fields, its JSON, and the rows that it is made of: those of one key are one."""

    parts: list[_Part]
    shape: tuple[str, ...]
    body: bytes


class PostgresWriter:
    """Appends rows to a table, or keeps one for each key. Rows and the epoch's name are one transaction."""

    def __init__(self, sink: Postgres, context: Context) -> None:
        self._sink = sink
        self._context = context
        self._schema = schema_of(sink.schema)
        self._link = Link(url_of(sink.url, sink.title), context.node)
        self._shapes: dict[tuple[str, ...], tuple[str, ...]] = {}
        self._epochs = 0
        self._statement = functools.cache(self._made)

    async def open(self) -> None:
        await self._link.open(self._prepare)

    async def _prepare(self, connection: asyncpg.Connection[Any]) -> None:
        sink = self._sink
        if sink.create_table:
            if self._schema is None:
                raise ConfigError(f"{sink.title} cannot be created: its fields are not known; give a schema")
            statement = tables.create_statement(sink.table, self._schema, sink.key)
            await create(connection, tables.table_name(sink.table), statement)
        table = self._table = await tables.find(connection, sink.table)
        for name in sink.key:
            table.column(name)
        if sink.key and not any(set(key) == set(sink.key) for key in table.keys):
            columns = ", ".join(map(quoted, sink.key))
            raise DatabaseUnusable(
                f"the table {sink.table} has no unique index on its key; "
                f"create unique index on {table.sql} ({columns})"
            )
        self._fixes = [
            (column.name, fix) for column in table.columns.values() if (fix := fix_for(column)) is not None
        ]
        self._deliveries = f"{quoted(table.schema)}.{quoted(DELIVERIES)}"
        await create(connection, self._deliveries, _DELIVERIES.format(table=self._deliveries))
        self._sinks = SinkTable(table.schema)
        if self._context.claim is not None:
            await create(connection, self._sinks.name, self._sinks.statement)

    async def write(self, epoch: str, rows: Sequence[Any]) -> list[Refusal]:
        items, refused = await asyncio.to_thread(self._items, rows)
        name = self._context.delivery(epoch)
        self._epochs += 1
        return await self._link.run(lambda connection: self._deliver(connection, name, items, refused))

    async def provenance(self) -> Provenance | None:
        query = f"select refused from {self._deliveries} where delivery = $1"
        found = await self._link.run(lambda connection: connection.fetchval(query, self._own_row))
        return None if found is None else msgspec.convert(found, Provenance)

    async def store_provenance(self, provenance: Provenance) -> None:
        """In a row of ``queen_deliveries`` that is no delivery: who may not create tables has that one."""
        statement = (
            f"insert into {self._deliveries} (delivery, sink, refused) values ($1, $1, $2) "
            "on conflict (delivery) do update set refused = excluded.refused"
        )
        told = msgspec.to_builtins(provenance)
        await self._link.run(lambda connection: connection.execute(statement, self._own_row, told))

    @property
    def _own_row(self) -> str:
        table = self._table
        return f"checkpoint of {self._context.pipeline}:{self._context.node} in {table.schema}.{table.name}"

    async def close(self) -> None:
        await self._link.close()

    # Rows to items

    def _items(self, rows: Sequence[Any]) -> tuple[list[_Item], list[Refusal]]:
        """What is to be stored, and what cannot be. The rows of one key are put together."""
        kept: dict[Any, list[_Part]] = {}
        refused: list[Refusal] = []
        keyed = bool(self._sink.key)
        for index, record in enumerate(rows):
            try:
                row = self._fitted(record)
                kept.setdefault(self._key_of(row) if keyed else index, []).append((index, row))
            except (PayloadInvalid, TypeError) as error:
                refused.append((index, error))
        items: list[_Item] = []
        for parts in kept.values():
            try:
                items.append(self._item(parts))
            except PayloadInvalid:
                good, bad = _encodable(parts)
                refused += bad
                items += [self._item(good)] if good else []
        return items, refused

    def _item(self, parts: list[_Part]) -> _Item:
        """One row: later ones over earlier ones, which is as if they had come one after the other."""
        row = parts[0][1]
        for _, later in parts[1:]:
            row = {**row, **later}
        return _Item(parts, self._shape(row), encode(row))

    def _fitted(self, record: Any) -> dict[str, Any]:
        row = as_row(record) if self._schema is None else self._schema.coerce(record)
        self._shape(row)
        changed: dict[str, Any] = {}
        for name, fix in self._fixes:
            value = row.get(name)
            if value is not None:
                try:
                    fixed = fix(value)
                except Misfit as misfit:
                    raise PayloadInvalid(f"{misfit.under(name)}") from None
                if fixed is not value:
                    changed[name] = fixed
        return {**row, **changed} if changed else row

    def _shape(self, row: Mapping[str, Any]) -> tuple[str, ...]:
        """The fields of a row, in the table's order; ``PayloadInvalid`` if the table does not take one."""
        names = tuple(row)
        known = self._shapes.get(names)
        if known is None:
            columns = self._table.columns
            for name in names:
                if name not in columns:
                    raise PayloadInvalid(
                        f"the table {self._table.name} has no column {name!r}; add it, or .select(…) others"
                    )
                if columns[name].computed:
                    raise PayloadInvalid(f"the table computes {name!r} itself; leave it out with .select(…)")
            known = tuple(name for name in columns if name in row)
            if len(self._shapes) >= _SHAPES:
                self._shapes.clear()
                self._statement.cache_clear()
            self._shapes[names] = known
        return known

    def _key_of(self, row: Mapping[str, Any]) -> Any:
        for name in self._sink.key:
            if row.get(name) is None:
                raise PayloadInvalid(f"the row has no {name}, which is its key; add it, or filter such rows")
        return hashable(tuple(row[name] for name in self._sink.key))

    # Items to the table

    async def _deliver(
        self, connection: asyncpg.Connection[Any], name: str, items: list[_Item], refused: list[Refusal]
    ) -> list[Refusal]:
        async with connection.transaction():
            if self._context.claim is not None:
                await self._sinks.check(connection, self._context.claim)
            # First: another try of the same epoch that is still under way somewhere is waited for here.
            sink = f"{self._context.pipeline}:{self._context.node}"
            new = await connection.execute(
                f"insert into {self._deliveries} (delivery, sink) values ($1, $2) on conflict do nothing",
                name,
                sink,
            )
            if new.endswith(" 0"):
                return await self._remembered(connection, name)
            await connection.execute("set constraints all immediate")  # what is deferred has no row to blame
            found = [*refused]
            for chunk in _chunks(items):
                found += await self._store(connection, chunk)
            found.sort(key=lambda refusal: refusal[0])
            if found:
                told = [[index, _storable(error)] for index, error in found]
                await connection.execute(
                    f"update {self._deliveries} set refused = $2 where delivery = $1", name, told
                )
            if self._epochs % _TRIM_EVERY == 0:
                await connection.execute(TRIM.format(table=self._deliveries), sink, KEPT)
        return found

    async def _remembered(self, connection: asyncpg.Connection[Any], name: str) -> list[Refusal]:
        """What was refused when the epoch was delivered: whoever asks again has to be told again."""
        told = await connection.fetchval(f"select refused from {self._deliveries} where delivery = $1", name)
        return [(index, PayloadInvalid(why)) for index, why in told]

    async def _store(self, connection: asyncpg.Connection[Any], items: list[_Item]) -> list[Refusal]:
        """All, or what can be; what the table does not take is found by halving."""
        try:
            async with connection.transaction():  # a savepoint
                for shape, alike in _by_shape(items).items():
                    rows = b",".join([item.body for item in alike]).decode()
                    await connection.execute(self._statement(shape), f"[{rows}]")
        except asyncpg.PostgresError as error:
            if not is_of_row(error):
                raise
            if len(items) > 1:
                middle = len(items) // 2
                halves = items[:middle], items[middle:]
                return [refusal for half in halves for refusal in await self._store(connection, half)]
            return await self._refuse(connection, items[0], error)
        return []

    async def _refuse(
        self, connection: asyncpg.Connection[Any], item: _Item, error: asyncpg.PostgresError
    ) -> list[Refusal]:
        if len(item.parts) == 1:
            return [(item.parts[0][0], PayloadInvalid(_told(error)))]
        # One of several rows of a key: one after the other, so that only the bad ones are left out.
        alone = [self._item([part]) for part in item.parts]
        return [refusal for each in alone for refusal in await self._store(connection, [each])]

    def _made(self, shape: tuple[str, ...]) -> str:
        """The statement for rows with these fields. They travel as JSON, and the table's types take them."""
        columns = self._table.columns
        names = ", ".join(map(quoted, shape))
        typed = ", ".join(f"{quoted(name)} {columns[name].type}" for name in shape)
        if not shape:
            return f"insert into {self._table.sql} select from json_array_elements($1::text::json)"
        rows = f"select {names} from json_to_recordset($1::text::json) r ({typed})"
        insert = f"insert into {self._table.sql} ({names}) {rows}"
        key = self._sink.key
        if not key:
            return insert
        changed = ", ".join(f"{quoted(name)} = excluded.{quoted(name)}" for name in shape if name not in key)
        then = f"update set {changed}" if changed else "nothing"
        return f"{insert} on conflict ({', '.join(map(quoted, key))}) do {then}"


_DELIVERIES = """
    create table if not exists {table} (
        delivery text primary key, sink text not null, refused jsonb not null default '[]',
        delivered_at timestamptz not null default clock_timestamp()
    )
"""
TRIM = """
    delete from {table} where sink = $1 and delivery in (
        select delivery from {table} where sink = $1 order by delivered_at desc offset $2
    )
"""


async def create(connection: asyncpg.Connection[Any], table: str, statement: str) -> None:
    """Create a table, unless it is there. Two runs that start at once do not meet.

    A user who may not create tables can use one that is there, where ``if not exists`` would be refused.
    """
    if await connection.fetchval("select to_regclass($1)", table) is not None:
        return
    number = int.from_bytes(hashlib.sha256(DELIVERIES.encode()).digest()[:8], "big") >> 1
    try:
        async with connection.transaction():
            await connection.execute("select pg_advisory_xact_lock($1)", number)
            await connection.execute(statement)
    except asyncpg.InsufficientPrivilegeError as error:
        text = " ".join(statement.split())
        raise DatabaseUnusable(f"{error}; grant create on the schema, or let somebody run: {text}") from error


def _encodable(parts: list[_Part]) -> tuple[list[_Part], list[Refusal]]:
    """The rows that JSON can hold, and the others."""
    good: list[_Part] = []
    bad: list[Refusal] = []
    for index, row in parts:
        try:
            encode(row)
        except PayloadInvalid as error:
            bad.append((index, error))
        else:
            good.append((index, row))
    return good, bad


def _storable(error: Exception) -> str:
    """What an error says, as far as a database can hold it: no NUL, nothing that is no text."""
    return str(error)[:_LONGEST].replace("\0", "").encode("utf-8", "replace").decode()


def _chunks(items: list[_Item]) -> Iterator[list[_Item]]:
    chunk: list[_Item] = []
    size = 0
    for item in items:
        if chunk and (len(chunk) >= MOST_ROWS or size + len(item.body) > MOST_BYTES):
            yield chunk
            chunk, size = [], 0
        chunk.append(item)
        size += len(item.body)
    if chunk:
        yield chunk


def _by_shape(items: Sequence[_Item]) -> dict[tuple[str, ...], list[_Item]]:
    found: dict[tuple[str, ...], list[_Item]] = {}
    for item in items:
        found.setdefault(item.shape, []).append(item)
    return found


def _told(error: asyncpg.PostgresError) -> str:
    detail = getattr(error, "detail", None)
    return f"the table refuses the row: {error}{f' ({detail})' if detail else ''}"


def fix_for(column: Column) -> Fix | None:
    """What makes a value one that JSON carries into the column, by the rules of schemas, if anything must."""
    kind = column.kind
    if kind is None or kind == types.VARIANT or column.bare == "uuid":
        return None
    if isinstance(kind, Decimal):
        return _number
    fit = coercion.coercer(kind)
    if kind in types.FRACTIONS:
        return lambda value: _number(fit(value))
    if kind == types.BINARY:
        return lambda value: f"\\x{fit(value).hex()}"
    if column.bare == "timestamp without time zone":
        return lambda value: fit(value).astimezone(UTC).replace(tzinfo=None)
    return fit


def _number(value: Any) -> Any:
    """JSON has neither infinity nor numbers of any length; PostgreSQL reads both as text."""
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    if isinstance(value, int | decimal.Decimal) and not isinstance(value, bool):
        return str(value)
    return value
