"""Our types as Spark's and as Arrow's."""

from __future__ import annotations

import pyarrow as pa

from queenstream.core import paths
from queenstream.core.schemas import types
from queenstream.core.schemas.types import Field, Type


def spark_type(kind: Type | None) -> str:
    """A type as Spark writes it. Our floats are doubles, as in Python.

    >>> spark_type(types.List(types.FLOAT))
    'array<double>'
    """
    if kind is None:
        return "void"
    if kind == types.FLOAT:
        return "double"
    if isinstance(kind, types.List):
        return f"array<{spark_type(kind.of)}>"
    if isinstance(kind, types.Map):
        return f"map<{spark_type(kind.key)},{spark_type(kind.value)}>"
    if isinstance(kind, types.Struct):
        inside = ",".join(f"{paths.quote(each.name)}:{spark_type(each.type)}" for each in kind.fields)
        return f"struct<{inside}>"
    return str(kind)


def arrow_type(kind: Type) -> pa.DataType:
    """The Arrow type of a column."""
    if isinstance(kind, types.Decimal):
        return pa.decimal128(kind.precision, kind.scale)
    if isinstance(kind, types.List):
        return pa.list_(arrow_type(kind.of))
    if isinstance(kind, types.Map):
        return pa.map_(arrow_type(kind.key), arrow_type(kind.value))
    if isinstance(kind, types.Struct):
        return pa.struct([(each.name, arrow_type(each.type)) for each in kind.fields])
    return SIMPLE[kind]


SIMPLE: dict[Type, pa.DataType] = {
    types.STRING: pa.string(),
    types.BOOLEAN: pa.bool_(),
    types.TINYINT: pa.int8(),
    types.SMALLINT: pa.int16(),
    types.INT: pa.int32(),
    types.BIGINT: pa.int64(),
    types.FLOAT: pa.float64(),
    types.DOUBLE: pa.float64(),
    types.TIMESTAMP: pa.timestamp("us", "UTC"),
    types.DATE: pa.date32(),
    types.BINARY: pa.binary(),
}


def is_bare(fields: tuple[Field, ...], *, top: bool = True) -> bool:
    """Whether columns say all of a schema: no defaults, and below the top nothing that must be there."""
    return all(
        each.default is None
        and (top or not each.required)
        and all(is_bare(inner.fields, top=False) for inner in _structs(each.type))
        for each in fields
    )


def _structs(kind: Type) -> list[types.Struct]:
    """The structs in a type that lie in no other."""
    if isinstance(kind, types.Struct):
        return [kind]
    return [found for part in parts_of(kind) for found in _structs(part)]


def parts_of(kind: Type) -> list[Type]:
    """The types that a type is made of."""
    if isinstance(kind, types.List):
        return [kind.of]
    if isinstance(kind, types.Map):
        return [kind.key, kind.value]
    return [each.type for each in kind.fields] if isinstance(kind, types.Struct) else []
