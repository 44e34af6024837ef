"""The one Spark session of a process of tests."""

from __future__ import annotations

from pyspark.sql import SparkSession

from queenstream.spark import session

QUICK = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
"""Options of a JVM that starts sooner: what tests give it to do is over before better code pays."""


def local_session() -> SparkSession:
    """The session that runs, or the first: starting one takes longer than most tests."""
    few = {"spark.sql.shuffle.partitions": "2", "spark.driver.extraJavaOptions": QUICK}
    return session("tests", "local[2]", conf=few)
