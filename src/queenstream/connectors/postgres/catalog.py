"""Tables of PostgreSQL as their own catalogue describes them: names, columns, keys, types.

A table is named as people write it, ``orders`` or ``sales.orders``; case counts, and a name with a dot or a
capital is put in double quotes: ``sales."Orders.2026"``.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import asyncpg

from queenstream.core.schemas import Field, Schema, types
from queenstream.core.schemas.types import Decimal, List, Type
from queenstream.errors import ConfigError, DatabaseUnusable

_PARTS = re.compile(r'(?:"((?:[^"]|"")+)"|([^".\s]+))(?:\.|$)')
_LONGEST = 63  # bytes of a name; what is longer PostgreSQL cuts off

VIEWS = ("v", "m", "f")  # kinds of relations behind which are others, or another server

KINDS: dict[str, Type] = {
    **dict.fromkeys(("text", "character varying", "character", "name", "citext", "uuid"), types.STRING),
    "boolean": types.BOOLEAN,
    "smallint": types.SMALLINT,
    "integer": types.INT,
    "bigint": types.BIGINT,
    "real": types.FLOAT,
    "double precision": types.DOUBLE,
    "numeric": Decimal(),
    **dict.fromkeys(("timestamp with time zone", "timestamp without time zone"), types.TIMESTAMP),
    "date": types.DATE,
    "bytea": types.BINARY,
    **dict.fromkeys(("json", "jsonb"), types.VARIANT),
}
_WRITTEN: dict[Type, str] = {
    types.STRING: "text",
    types.BOOLEAN: "boolean",
    types.TINYINT: "smallint",
    types.SMALLINT: "smallint",
    types.INT: "integer",
    types.BIGINT: "bigint",
    types.FLOAT: "real",
    types.DOUBLE: "double precision",
    types.TIMESTAMP: "timestamp with time zone",
    types.DATE: "date",
    types.BINARY: "bytea",
}

_FIND = """
    select c.oid, n.nspname as schema, c.relname as name, c.relkind::text as kind
    from pg_class c join pg_namespace n on n.oid = c.relnamespace where c.oid = to_regclass($1)
"""
_COLUMNS = """
    select a.attname as name, format_type(a.atttypid, a.atttypmod) as type,
        format_type(coalesce(nullif(t.typbasetype, 0), t.oid), null) as bare, a.atttypmod as modifier,
        a.attnotnull as required, a.attgenerated <> '' or a.attidentity = 'a' as computed
    from pg_attribute a join pg_type t on t.oid = a.atttypid
    where a.attrelid = $1 and a.attnum > 0 and not a.attisdropped order by a.attnum
"""
_KEYS = """
    select array_agg(a.attname::text order by k.place) as columns
    from pg_index i, unnest(i.indkey[0:i.indnkeyatts - 1]) with ordinality k (number, place), pg_attribute a
    where i.indrelid = $1 and a.attrelid = $1 and a.attnum = k.number and i.indisunique and i.indisvalid
        and i.indimmediate and i.indpred is null and i.indexprs is null
    group by i.indexrelid, i.indisprimary order by i.indisprimary desc, i.indexrelid
"""


def quoted(name: str) -> str:
    """A name as SQL takes it, whatever is in it.

    >>> quoted('o"k')
    '"o""k"'
    """
    return '"' + name.replace('"', '""') + '"'


def table_name(written: str) -> str:
    """A table's name as SQL takes it.

    >>> table_name("sales.orders"), table_name('"Or.ders"')
    ('"sales"."orders"', '"Or.ders"')
    """
    found: list[str] = []
    at = 0
    while at < len(written) and (part := _PARTS.match(written, at)):
        found.append(part[2] or part[1].replace('""', '"'))
        at = part.end()
    whole = at == len(written) and 1 <= len(found) <= 2 and not written.endswith(".")
    if not whole or any(len(part.encode()) > _LONGEST or "\0" in part for part in found):
        raise ConfigError(f"{written!r} is no table; write a name, or schema.name")
    return ".".join(map(quoted, found))


@dataclass(frozen=True, slots=True)
class Column:
    """A column. ``type`` is PostgreSQL's own word for it; ``bare`` is without a length, and a domain's base.

    ``computed``: the table gives the value, and takes none.
    """

    name: str
    type: str
    bare: str
    modifier: int
    required: bool
    computed: bool

    @property
    def kind(self) -> Type | None:
        """Our type of its values; None: what only PostgreSQL knows."""
        return KINDS.get(self.bare)

    @property
    def selected(self) -> str:
        """What to select for a value that Python has a type for; everything else comes as text."""
        name = quoted(self.name)
        if self.bare == "timestamp without time zone":  # as everywhere with us: it is UTC
            return f"{name} at time zone 'UTC'"
        of = self.bare.removesuffix("[]")
        plain = of in KINDS and of not in ("uuid", "timestamp without time zone")
        return name if plain else f"{name}::text"


@dataclass(frozen=True, slots=True)
class Table:
    """A table that is there. ``keys``: the columns of each unique index, the primary key's first."""

    oid: int
    schema: str
    name: str
    kind: str
    columns: dict[str, Column]
    keys: tuple[tuple[str, ...], ...]

    @property
    def sql(self) -> str:
        """Its whole name, quoted."""
        return f"{quoted(self.schema)}.{quoted(self.name)}"

    @property
    def order(self) -> tuple[str, ...]:
        """Columns that tell every row from every other: the primary key, or a unique one without null."""
        for key in self.keys:
            if all(self.columns[name].required for name in key):
                return key
        return ()

    def column(self, name: str) -> Column:
        """The column of that name; ``ConfigError`` with those that there are."""
        if name not in self.columns:
            raise ConfigError(
                f"the table {self.name} has no column {name!r}; it has {', '.join(self.columns)}"
            )
        return self.columns[name]


async def find(connection: asyncpg.Connection[Any], written: str) -> Table:
    """A table that has to be there, as the catalogue describes it."""
    row = await connection.fetchrow(_FIND, table_name(written))
    if row is None:
        raise DatabaseUnusable(
            f"there is no table {written}; create it, check the name and the search_path, "
            "or write create_table=True where it is written"
        )
    columns = [
        Column(each["name"], each["type"], each["bare"], each["modifier"], each["required"], each["computed"])
        for each in await connection.fetch(_COLUMNS, row["oid"])
    ]
    keys = tuple(tuple(each["columns"]) for each in await connection.fetch(_KEYS, row["oid"]))
    by_name = {column.name: column for column in columns}
    return Table(row["oid"], row["schema"], row["name"], row["kind"], by_name, keys)


def create_statement(written: str, schema: Schema, key: Sequence[str]) -> str:
    """The table of a schema; with a key, that is its primary key.

    >>> print(create_statement("totals", Schema.of("user string, n bigint"), ["user"]))
    create table if not exists "totals" ("user" text not null, "n" bigint, primary key ("user"))
    """
    for name in key:
        if name not in schema.names:
            raise ConfigError(f"the key {name!r} is not in the schema, which has {', '.join(schema.names)}")
    columns = [_column(field, required=field.name in key) for field in schema.fields]
    if key:
        columns.append(f"primary key ({', '.join(map(quoted, key))})")
    return f"create table if not exists {table_name(written)} ({', '.join(columns)})"


def _column(field: Field, *, required: bool) -> str:
    nullable = field.nullable and not required
    return f"{quoted(field.name)} {written_type(field.type)}{'' if nullable else ' not null'}"


def written_type(kind: Type) -> str:
    """PostgreSQL's type for one of ours: what has parts and is no list of plain values is ``jsonb``.

    >>> written_type(Decimal(10, 2)), written_type(List(types.INT)), written_type(List(types.VARIANT))
    ('numeric(10,2)', 'integer[]', 'jsonb')
    """
    if isinstance(kind, Decimal):
        return f"numeric({kind.precision},{kind.scale})"
    if isinstance(kind, List) and (isinstance(kind.of, Decimal) or kind.of in _WRITTEN):
        return f"{written_type(kind.of)}[]"
    return _WRITTEN.get(kind, "jsonb")
