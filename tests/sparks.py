"""The one Spark session of a process of tests."""

from __future__ import annotations

from pyspark.sql import DataFrame, SparkSession

from queenstream.core.schemas import Schema
from queenstream.engines.spark.native.planner import native
from queenstream.engines.spark.native.steps import source_columns
from queenstream.pipeline.plan.nodes import Read
from queenstream.pipeline.plan.planner import Plan
from queenstream.spark import session

QUICK = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
"""Options of a JVM that starts sooner: what tests give it to do is over before better code pays."""


def local_session() -> SparkSession:
    """The session that runs, or the first: starting one takes longer than most tests."""
    few = {"spark.sql.shuffle.partitions": "2", "spark.driver.extraJavaOptions": QUICK}
    return session("tests", "local[2]", conf=few)


def is_native(plan: Plan, spark: SparkSession) -> bool:
    """Whether a plan runs without Python."""

    def empty(read: Read, schema: Schema | None) -> DataFrame:
        plain = "data STRING, id LONG, created_at TIMESTAMP"
        return spark.createDataFrame([], plain if schema is None else source_columns(read, schema))

    return native(plan, empty) is not None
