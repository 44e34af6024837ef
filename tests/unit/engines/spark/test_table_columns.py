"""Which types of PostgreSQL are known on the way through ADBC: those of the connector."""

from __future__ import annotations

import pyarrow as pa

from queenstream.connectors.postgres.catalog import KINDS
from queenstream.core.schemas import Schema
from queenstream.engines.spark.sources.tables.columns import KNOWN, TableColumn


def test_the_types_are_those_of_the_connector() -> None:
    assert KINDS.keys() == KNOWN


def test_a_column_that_may_not_fit_is_not_left_out() -> None:
    def fits(kind: str, field: str, *, required: bool = False) -> bool:
        return TableColumn("c", kind, required).always_fits(Schema.of(f"c {field}").fields[0])

    assert fits("integer", "bigint")
    assert fits("real", "double")
    assert fits("uuid", "string")
    assert fits("text", "string not null", required=True)
    assert not fits("text", "string not null")
    assert not fits("bigint", "int")
    assert not fits("integer", "string")
    assert not fits("numeric", "decimal(10,2)")
    assert not fits("integer[]", "array<int>")


def test_a_value_that_does_not_fit_is_left_to_python() -> None:
    column, [field] = TableColumn("c", "bigint", required=False), Schema.of("c int").fields
    typed = column.typed(pa.array([1, None], pa.int64()), field)
    assert typed is not None
    assert typed.type == pa.int32()
    assert column.typed(pa.array([1 << 40], pa.int64()), field) is None
