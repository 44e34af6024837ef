"""What needs no node: descriptions, types against the driver's own, and the tables that schemas make."""

from __future__ import annotations

import decimal
import doctest
from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta
from typing import Any

import pytest
from cassandra import cqltypes
from hypothesis import given
from hypothesis import strategies as st

from queenstream.connectors.cassandra import connection, reader, schemas, types
from queenstream.connectors.cassandra import rows as _cassandra_rows
from queenstream.connectors.cassandra.rows import Column, Rows
from queenstream.connectors.cassandra.schemas import created
from queenstream.connectors.cassandra.types import decoder, encoder
from queenstream.core.schemas import RecordError, Schema
from queenstream.core.schemas.coercion import Misfit
from queenstream.errors import ConfigError
from queenstream.pipeline.endpoints import Cassandra

PROTOCOL = 5


@pytest.mark.parametrize(
    "module",
    [connection, reader, _cassandra_rows, schemas, types],
    ids=lambda module: module.__name__,
)
def test_the_examples_in_the_docstrings_hold(module: Any) -> None:
    assert doctest.testmod(module).failed == 0


# Descriptions


def test_a_table_may_be_named_with_its_keyspace_and_names_may_stand_alone() -> None:
    short = Cassandra("plant.metrics", hosts="db1", partition_key="name", clustering_key=["at"], ttl="1d")
    assert short == Cassandra(
        "metrics",
        keyspace="plant",
        hosts=("db1",),
        partition_key=("name",),
        clustering_key=("at",),
        ttl=timedelta(days=1),
    )
    assert short.title == "cassandra plant.metrics"
    assert Cassandra("t", partition_key="a", timestamp_by="b.at").needs == ("a", "b.at")


@pytest.mark.parametrize(
    ("make", "expected"),
    [
        (lambda: Cassandra('t"; drop table x; --'), "names no table or keyspace of Cassandra"),
        (lambda: Cassandra("a.b.c"), "'b.c' names no table"),
        (lambda: Cassandra("k.t", keyspace="x" * 49), "names no table"),
        (lambda: Cassandra("t", ttl="500ms"), "ttl is from 1s to 7300d"),
        (lambda: Cassandra("t", ttl="1100w"), "ttl is from 1s to 7300d"),
        (lambda: Cassandra("t", consistency="most"), "consistency is 'most'; write one of one, two"),  # type: ignore[arg-type]
        (lambda: Cassandra("t", concurrency=0), "concurrency and create_keyspace are 1 or more"),
        (lambda: Cassandra("t", create_keyspace=0), "concurrency and create_keyspace are 1 or more"),
    ],
)
def test_what_cannot_be_is_said_when_it_is_written(make: Callable[[], Cassandra], expected: str) -> None:
    with pytest.raises(ConfigError, match=expected):
        make()


# Types

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
TIMES = st.integers(-(10**13), 10**13).map(lambda ms: EPOCH + timedelta(milliseconds=ms))
DECIMALS: st.SearchStrategy[decimal.Decimal] = st.decimals(allow_nan=False, allow_infinity=False).filter(
    lambda number: abs(number.as_tuple().exponent) < 500  # type: ignore[arg-type]
)
ROUND: dict[str, tuple[Any, st.SearchStrategy[Any]]] = {
    "text": (cqltypes.UTF8Type, st.text()),
    "int": (cqltypes.Int32Type, st.integers(-(1 << 31), (1 << 31) - 1)),
    "bigint": (cqltypes.LongType, st.integers(-(1 << 63), (1 << 63) - 1)),
    "varint": (cqltypes.IntegerType, st.integers(-(1 << 300), 1 << 300)),
    "decimal": (cqltypes.DecimalType, DECIMALS),
    "double": (cqltypes.DoubleType, st.floats(allow_nan=False)),
    "boolean": (cqltypes.BooleanType, st.booleans()),
    "timestamp": (cqltypes.DateType, TIMES),
    "uuid": (cqltypes.UUIDType, st.uuids().map(str)),
    "inet": (cqltypes.InetAddressType, st.ip_addresses(v=4).map(str)),
    "blob": (cqltypes.BytesType, st.binary()),
    "list": (
        cqltypes.ListType.apply_parameters([cqltypes.UTF8Type]),
        st.lists(st.text(), min_size=1, max_size=5),
    ),
    "map": (
        cqltypes.MapType.apply_parameters([cqltypes.UTF8Type, cqltypes.LongType]),
        st.dictionaries(st.text(), st.integers(0, 9), min_size=1, max_size=5),
    ),
}


@pytest.mark.parametrize("name", ROUND)
def test_what_is_written_is_what_is_read(name: str) -> None:
    kind, values = ROUND[name]
    encode = encoder(kind, PROTOCOL, name)
    decode = decoder(kind) or (lambda value: value)

    @given(values)
    def check(value: Any) -> None:
        assert decode(kind.deserialize(encode(value), PROTOCOL)) == value

    check()


@pytest.mark.parametrize(
    ("kind", "value", "expected"),
    [
        (cqltypes.FloatType, 1e300, "a number that fits a float"),
        (cqltypes.DecimalType, "NaN", "a number"),
        (cqltypes.DecimalType, "1e999999", "a number"),
        (cqltypes.DecimalType, decimal.Decimal("1e-999999"), "absurd"),
        (cqltypes.IntegerType, 1.5, "a whole number"),
        (cqltypes.IntegerType, True, "a number"),
        (cqltypes.AsciiType, "ä", "ASCII text"),
        (cqltypes.TimeUUIDType, "8c1f3c1a-5d2b-4b0e-9d0c-0123456789ab", "version 1"),
        (cqltypes.UUIDType, 7, "a UUID"),
        (cqltypes.InetAddressType, "300.1.1.1", "an address"),
        (cqltypes.TimeType, "noon", "a time of day"),
        (cqltypes.SimpleDateType, datetime(2026, 1, 31, tzinfo=UTC), "a date"),
        (cqltypes.CounterColumnType, 1, "values of the type counter are not known here"),
    ],
)
def test_what_does_not_fit_a_column_is_a_misfit(kind: Any, value: Any, expected: str) -> None:
    with pytest.raises(Misfit, match=expected):
        encoder(kind, PROTOCOL, "")(value)


def test_a_default_fills_what_a_record_has_not() -> None:
    rows = Rows([Column("k", str.encode, True), Column("v", str.encode, False, "none")], None)
    assert rows.values({"k": "a"}) == rows.values({"k": "a", "v": None}) == [b"a", b"none"]
    with pytest.raises(RecordError, match="k must be there"):
        rows.values({"v": "x"})


# Tables


def test_a_schema_becomes_a_table_with_its_types_and_every_name_is_quoted() -> None:
    schema = Schema.of({'odd " name': "text", "at": "timestamp", "spots": "list<struct<x: int, on: date>>"})
    assert created("k", "t", schema.fields, ('odd " name',), ("at",)) == [
        'create type if not exists "k"."t_spots_0" ("x" int, "on" date)',
        'create table if not exists "k"."t" ("odd "" name" text, "at" timestamp, '
        '"spots" frozen<list<frozen<"k"."t_spots_0">>>, primary key (("odd "" name"), "at"))',
    ]


def test_a_date_before_1970_is_a_date() -> None:
    encode = encoder(cqltypes.SimpleDateType, PROTOCOL, "date")
    assert cqltypes.SimpleDateType.deserialize(encode("1969-12-31"), PROTOCOL).date() == date(1969, 12, 31)
