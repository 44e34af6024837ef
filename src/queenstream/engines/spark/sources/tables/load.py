"""Tables as data frames of a query."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import DataSource
from pyspark.sql.types import StructType

from queenstream.connectors.validation import schema_of
from queenstream.engines.spark.session.executors import cores_of
from queenstream.engines.spark.sources.tables.cassandra import CassandraSource, check_table, options_of
from queenstream.engines.spark.sources.tables.options import Limits, packed_value
from queenstream.engines.spark.sources.tables.postgres import PostgresSource, plan_of
from queenstream.pipeline.endpoints import Cassandra, Postgres
from queenstream.pipeline.engine_api import RunOptions

_MOST = (2_000_000, 256 << 20)  # rows and bytes of a batch, unless the run says otherwise: they pass through
_MOST_IN_PYTHON = (100_000, 64 << 20)  # the same, where each row is a record of Python

_MISFIT = ", misfit BINARY"

Table = Postgres | Cassandra


def read_table(
    spark: SparkSession, source: Table, node: str, told: RunOptions, columns: str, *, typed: bool
) -> DataFrame:
    """The rows of a table, in columns as ``sources.FED`` has them; ``node`` is the step that reads.

    Where the types of the table say that every row fits the schema, there is no column ``misfit``.
    """
    kind, options = _source(spark, source, node, told, typed=typed)
    if isinstance(source, Postgres):
        if _check(options, columns) and typed:
            columns = columns.removesuffix(_MISFIT)
    else:
        check_table(source, schema_of(source.schema))
    reader = spark.readStream.schema(columns)
    return reader.format(kind.name()).options(**options).load()


def batch_of_table(
    spark: SparkSession, source: Table, node: str, told: RunOptions, columns: str, start: Any, end: Any
) -> DataFrame:
    """The rows between two offsets, as they are now: a batch that was read before."""
    kind, options = _source(spark, source, node, told, typed=True)
    options |= {"start": json.dumps(start), "end": json.dumps(end)}
    return spark.read.schema(columns).format(kind.name()).options(**options).load()


def _source(
    spark: SparkSession, source: Table, node: str, told: RunOptions, *, typed: bool
) -> tuple[type[DataSource], dict[str, str]]:
    rows, size = _MOST if typed else _MOST_IN_PYTHON
    limits = Limits(
        told.max_batch_rows or rows,
        told.max_batch_bytes or size,
        told.partitions or cores_of(spark),
        told.max_batch_rows is None and told.max_batch_bytes is None,
    )
    options = {"node": node, "schema": packed_value(schema_of(source.schema)), **limits.options()}
    if told.until == "caught_up":
        options["final"] = "true"
    if isinstance(source, Postgres):
        from queenstream.connectors.postgres.connection import (
            url_of,  # with its driver: not for who has no table
        )

        kind: type[DataSource] = PostgresSource
        options |= {"table": source.table, "pg": url_of(source.url, source.title)}
        if source.cursor is not None:
            options["cursor"] = source.cursor
    else:
        kind = CassandraSource
        options |= options_of(source)
    spark.dataSource.register(kind)
    return kind, options


def _check(options: dict[str, str], columns: str) -> bool:
    """What is wrong with a table is said before anything runs. Gives whether all its rows fit the schema."""
    lower = {name.lower(): value for name, value in options.items()}
    schema = StructType.fromDDL(columns)
    assert isinstance(schema, StructType), "columns are several"
    plan = plan_of(lower, schema)
    with ThreadPoolExecutor(1) as thread:  # a notebook's own event loop may run in this one
        thread.submit(plan.check).result()
    return plan.always_fits
