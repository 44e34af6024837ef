"""Spark's columns against the closures of the local engine: the same values, for many expressions at once."""

from __future__ import annotations

import math
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyspark.sql import SparkSession
from pyspark.sql import functions as f

from queenstream.core.schemas import Schema
from queenstream.core.schemas.types import Struct
from queenstream.engines.spark.native.expressions import RECORD, Compiler, NotNative
from queenstream.engines.spark.types import arrow_type, spark_type
from queenstream.pipeline.expr.expressions import Column, Expr
from queenstream.pipeline.expr.parser import parse
from tests.unit.pipeline.expressions_strategy import expressions

pytestmark = pytest.mark.timeout(600)
SCHEMA = Schema.of(
    "i bigint, n int, x double, t string, b boolean, at timestamp, day date, price decimal(10,2), "
    "tags array<string>, user struct<name: string, age: int>, m map<string,double>"
)
NOON = datetime(2025, 11, 3, 12, 30, 15, 250_000, tzinfo=UTC)
MOON = datetime(1969, 7, 20, tzinfo=UTC)
ROWS: list[dict[str, Any]] = [
    {"i": 7, "n": -3, "x": 2.5, "t": "Ann", "b": True, "at": NOON, "day": date(2025, 2, 28)},
    {
        "i": -(2**63),
        "n": 2**31 - 1,
        "x": math.nan,
        "t": " 42 ",
        "b": False,
        "at": MOON,
    },
    {"i": 2**63 - 1, "n": 0, "x": -math.inf, "t": "2025-11-03T10:00:00+0100", "price": Decimal("2.50")},
    {
        "i": 0,
        "x": 2.675,
        "t": "1.5e3",
        "tags": ["a", "b"],
        "user": {"name": "Öz", "age": 30},
        "m": {"a": 1.5},
    },
    {
        "i": 15,
        "x": -0.5,
        "t": "true",
        "day": date(1900, 1, 1),
        "tags": [],
        "user": {"name": None, "age": None},
    },
    {"i": 2, "x": 1e300, "t": "100%_\\", "price": Decimal("-0.01"), "user": {"name": "x", "age": 1}},
    {},
]
WRITTEN = r"""
i + n | i - 1 | i * 2 | i / n | i % 4 | i % -4 | -i | x % 2 | x / 0 | -x | i + x | price * 2 | i / 0
i > n | x > 1 | x = x | x != 2.5 | t < 'B' | b = true | at > '2025-11-03'
at = '2025-11-03T12:30:15.25Z' | t = 7 | i = 't' | day < at | day = '2025-02-28' | price >= 2.5
i in (7, 15, null) | t in ('Ann', 'x') | x in (2.5) | b and i > 0 | b or null | not b | b and t
i is null | user.name is not null | i between 0 and 10 | abs(i) | abs(x) | ceil(x) | floor(x) | round(x)
round(x, 2) | round(price, 1) | ceil(i) | floor(t) | lower(t) | upper(user.name) | length(t) | trim(t)
concat(t, '!', user.name) | contains(t, 'n') | starts_with(t, 'A') | ends_with(t, 'n') | substring(t, 2)
substring(t, -2) | substring(t, 2, 3) | substring(t, 0, 2) | substring(t, -9, 8) | t like 'A%'
t like '%5%' | t like '100\%\_%' | year(at) | month(day) | day(t) | hour(at) | minute(t) | weekday(at)
plus(at, '1h') | minus(day, '1d') | to_timestamp(i) | to_timestamp(i, 'ms') | to_timestamp(x)
to_timestamp(t) | cast(t as int) | cast(x as int) | cast(b as int) | cast(at as int) | cast(i as double)
cast(t as double) | cast(at as double) | cast(i as text) | cast(b as text) | cast(at as text)
cast(day as text) | cast(t as bool) | cast(i as bool) | cast(x as bool) | cast(t as timestamp)
cast(i as timestamp) | cast(price as text) | coalesce(user.name, t, 'nobody') | coalesce(n, i)
case when i > 5 then 'big' when i > 0 then 'small' else t end | case when b then x end
tags.0 | tags.5 | user.age | m.a | m.z | length(tags.1) | user.age + m.a
"""


def typed(spark: SparkSession, rows: list[dict[str, Any]]) -> Any:
    """Rows as one struct column; a missing field is null."""
    import pyarrow as pa

    kind = arrow_type(Struct(SCHEMA.fields))
    whole = [{name: row.get(name) for name in SCHEMA.names} for row in rows]
    return spark.createDataFrame(
        pa.table({RECORD: pa.array(whole, kind), "at": pa.array(range(len(rows)), pa.int64())})
    ).select(f.col(RECORD).cast(spark_type(Struct(SCHEMA.fields))).alias(RECORD), "at")


def compared(spark: SparkSession, exprs: list[Expr]) -> int:
    """Evaluate all in one query, and compare each with its closure; how many were native."""
    native: list[tuple[Expr, Any]] = []
    for expr in exprs:
        try:
            native.append((expr, Compiler(SCHEMA).of(expr).column))
        except NotNative:
            continue
    columns = [column.alias(f"c{number}") for number, (_, column) in enumerate(native)]
    table = typed(spark, ROWS).select("at", *columns).orderBy("at").toArrow()
    differing = {}
    for number, (expr, _) in enumerate(native):
        wanted = [expr.evaluate({name: row.get(name) for name in SCHEMA.names}) for row in ROWS]
        found = table.column(f"c{number}").to_pylist()
        if [*map(shown, found)] != [*map(shown, wanted)]:
            differing[str(expr)] = (found, wanted)
    assert differing == {}
    return len(native)


def shown(value: Any) -> Any:
    """Numbers by value, times in UTC; a float to the digits that both sides have."""
    if isinstance(value, bool) or value is None:
        return value
    if isinstance(value, Decimal):
        value = float(value)
    if isinstance(value, int | float):
        return f"{float(value) + 0.0:.12g}" if abs(value) < 2**53 or isinstance(value, float) else value
    if isinstance(value, datetime):
        return (value if value.tzinfo else value.replace(tzinfo=UTC)).astimezone(UTC)
    return value


def test_every_operator_and_function_means_the_same_on_spark(spark: SparkSession) -> None:
    exprs = [parse(text.strip()) for line in WRITTEN.strip().splitlines() for text in line.split(" | ")]
    assert compared(spark, exprs) == len(exprs)


COLUMNS: st.SearchStrategy[Expr] = st.sampled_from(
    ["i", "n", "x", "t", "b", "at", "day", "price", "user.age"]
).map(Column)


@settings(max_examples=2, deadline=None, database=None, suppress_health_check=list(HealthCheck))
@given(exprs=st.lists(expressions(COLUMNS), min_size=60, max_size=60))
def test_any_expression_means_the_same_on_spark(spark: SparkSession, exprs: list[Expr]) -> None:
    compared(spark, exprs)


@pytest.mark.parametrize("expr", [parse("coalesce(i, t)"), parse("case when b then i else t end")])
def test_values_of_several_types_in_one_column_are_left_to_python(spark: SparkSession, expr: Expr) -> None:
    with pytest.raises(NotNative):
        Compiler(SCHEMA).of(expr)
