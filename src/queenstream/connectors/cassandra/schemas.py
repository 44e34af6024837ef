"""Tables of Cassandra made from schemas: which column a field gets.

A struct becomes a type of the keyspace, named after the table and the field; what has parts is frozen within
something else. The driver is not needed here.
"""

from __future__ import annotations

from collections.abc import Sequence

from queenstream.core.schemas import types
from queenstream.core.schemas.types import Decimal, Field, List, Map, Struct, Type
from queenstream.errors import ConfigError

_COLUMNS: dict[Type, str] = {
    types.STRING: "text",
    types.BOOLEAN: "boolean",
    types.TINYINT: "tinyint",
    types.SMALLINT: "smallint",
    types.INT: "int",
    types.BIGINT: "bigint",
    types.FLOAT: "float",
    types.DOUBLE: "double",
    types.TIMESTAMP: "timestamp",
    types.DATE: "date",
    types.BINARY: "blob",
}


def quoted(name: str) -> str:
    """A name as CQL takes any.

    >>> quoted('a "b"')
    '"a ""b\"""'
    """
    return '"' + name.replace('"', '""') + '"'


def created(
    keyspace: str,
    table: str,
    fields: Sequence[Field],
    partition_key: Sequence[str],
    clustering: Sequence[str],
) -> list[str]:
    """The statements that make a table, and before it the types that its structs need."""
    statements: list[str] = []
    columns = []
    keys = {*partition_key, *clustering}
    for field in fields:
        if field.name in keys and isinstance(field.type, List | Map | Struct):
            raise ConfigError(
                f"{field.name} is {field.type}, and a key is a single value; take another field"
            )
        column = _column(keyspace, table, (field.name,), field.type, statements)
        columns.append(f"{quoted(field.name)} {column}")
    missing = sorted(keys - {field.name for field in fields})
    if missing:
        raise ConfigError(f"the key has {', '.join(missing)}, which the schema has not; add it to the schema")
    key = f"({', '.join(map(quoted, partition_key))})"
    primary = ", ".join([key, *map(quoted, clustering)])
    place = f"{quoted(keyspace)}.{quoted(table)}"
    body = ", ".join([*columns, f"primary key ({primary})"])
    return [*statements, f"create table if not exists {place} ({body})"]


def _column(keyspace: str, table: str, path: tuple[str, ...], kind: Type, statements: list[str]) -> str:
    """The type of a column, or of a part of one, which is frozen if it has parts itself."""
    found = _COLUMNS.get(kind)
    if found is not None:
        return found
    if isinstance(kind, Decimal):
        return "decimal"
    if isinstance(kind, Struct):
        name = "_".join((table, *path))
        members = [
            f"{quoted(each.name)} {_column(keyspace, table, (*path, each.name), each.type, statements)}"
            for each in kind.fields
        ]
        whole = f"{quoted(keyspace)}.{quoted(name)}"
        statements.append(f"create type if not exists {whole} ({', '.join(members)})")
        return f"frozen<{whole}>"
    if isinstance(kind, List | Map):
        parts = [kind.of] if isinstance(kind, List) else [kind.key, kind.value]
        inner = ", ".join(
            _column(keyspace, table, (*path, str(at)), each, statements) for at, each in enumerate(parts)
        )
        if isinstance(kind, List):  # one that is not frozen would be longer after a repeat
            return f"frozen<list<{inner}>>"
        return f"map<{inner}>" if len(path) == 1 else f"frozen<map<{inner}>>"
    raise ConfigError(
        f"{'.'.join(path)} is any JSON, for which Cassandra has no column; give it a type, or make it text"
    )
