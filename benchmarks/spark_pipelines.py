"""Pipelines on Spark: against the same query by hand, functions against expressions, one row at a time."""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from collections.abc import Callable
from functools import partial
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sql
from pyspark.sql.streaming.query import StreamingQuery

from harness import report, sparks
from queenstream.core import aggregates
from queenstream.engines.spark.run import SparkRun
from queenstream.pipeline.builder import Pipeline
from queenstream.pipeline.endpoints import Function, Queue
from queenstream.pipeline.shorthand import count, tumbling
from queenstream.testing.brokers import TemporaryBroker, TemporaryBrokers

QUESTION = "pipelines on Spark: compiled or by hand, functions or expressions, and how long one row takes"
PAYLOAD = "user string, action string, value double, n bigint, page string"
COLUMNS = "data,id,partition,created_at"
# What a pipeline takes for a temporary folder: so do the queries by hand.
FILES = "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
Row = dict[str, Any]


def run(out: report.Report, options: argparse.Namespace) -> None:
    messages, rounds, ticks = (300_000, 2, 8) if options.quick else (3_000_000, 5, 20)
    with TemporaryBrokers() as brokers, brokers.start() as broker:
        report.postgres_version(out, broker.database_url)
        os.environ["QUEEN_PG"] = broker.database_url
        sparks.fill(broker.database_url, messages)
        spark = sparks.start()
        spark.conf.set("spark.sql.streaming.checkpointFileManagerClass", FILES)
        rates = _many(spark, broker, messages, rounds)
        ours, theirs = _in_turn(spark, broker, ticks, 3)
        spark.stop()
    middle = {name: report.median(found) for name, found in rates.items()}
    out.table(
        ["", "messages/s", "a core"], [[name, rate, rate / sparks.CORES] for name, rate in middle.items()]
    )
    out.table(
        ["one row", "ms", "highest"],
        [
            ["queue → window → queue", report.median(ours), max(ours)],
            ["rate → window → noop", report.median(theirs), max(theirs)],
        ],
    )
    out.figures = {"messages": messages, "rates": middle, "one_row_ms": report.median(ours)}
    out.figures["function_against_expression"] = _ratio(rates, "function", "expression")
    out.note(f"a function does {_ratio(rates, 'function', 'expression'):.2f} of what an expression does")
    out.at_least("compiled against by hand", _ratio(rates, "compiled", "by hand"), 0.95)
    out.at_most("one row, against rate", report.median(ours) / report.median(theirs), 1.5)


# Many


def _many(spark: SparkSession, broker: TemporaryBroker, messages: int, rounds: int) -> dict[str, list[float]]:
    """Messages a second, each way once in every round, after one that warms up."""
    ways: dict[str, Callable[[list[Row]], None]] = {
        "compiled": lambda to: _compiled(broker, to),
        "by hand": lambda to: _by_hand(spark, broker, to),
        "expression": lambda to: _expression(broker, to),
        "function": lambda to: _function(broker, to),
    }
    found: dict[str, list[float]] = {name: [] for name in ways}
    for number in range(rounds + 1):
        rows: dict[str, list[Row]] = {name: [] for name in ways}
        for name, way in ways.items():
            taken = sparks.seconds(partial(way, rows[name]))
            if number:
                found[name].append(messages / taken)
        _same(rows["compiled"], rows["by hand"])
        _same(rows["expression"], rows["function"])
    return found


def _events(name: str) -> Pipeline[Any]:
    return Pipeline(name).source(Queue("events", schema=PAYLOAD))


def _into(to: list[Row]) -> Function:
    return Function(to.extend, name="out", batch=True)


def _compiled(broker: TemporaryBroker, to: list[Row]) -> None:
    (
        _events("compiled")
        .filter("value > 100")
        .key_by("page")
        .window(tumbling("1m"))
        .aggregate(n=count(), total=aggregates.sum_("value"))
        .to(_into(to))
        .run(until="caught_up", url=broker.address)
    )


def _by_hand(spark: SparkSession, broker: TemporaryBroker, to: list[Row]) -> None:
    def write(batch: DataFrame, _: int) -> None:
        to.extend(batch.toArrow().to_pylist())

    source = spark.readStream.format("queen").options(
        queue="events", pg=broker.database_url, columns=COLUMNS, schema=PAYLOAD
    )
    totals = (
        source.load()
        .where("data.value > 100")
        .withWatermark("created_at", "0 seconds")
        .groupBy(sql.window("created_at", "1 minute"), sql.col("data.page").alias("page"))
        .agg(sql.count("*").alias("n"), sql.sum("data.value").alias("total"))
        .select(
            sql.col("window.start").alias("window_start"), sql.col("window.end").alias("window_end"),
            "page", "n", "total",
        )
    )  # fmt: skip
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        writer = totals.writeStream.foreachBatch(write).option("checkpointLocation", folder)
        writer.trigger(availableNow=True).start().awaitTermination()


def _expression(broker: TemporaryBroker, to: list[Row]) -> None:
    steps = _events("expression").with_columns(score="value * 2 + n % 7").filter("score > 2000")
    steps.select("user", "score").to(_into(to)).run(until="caught_up", url=broker.address)


def _function(broker: TemporaryBroker, to: list[Row]) -> None:
    steps = _events("function").transform("score", _scored).filter(lambda record: record["score"] > 2000)
    steps.select("user", "score").to(_into(to)).run(until="caught_up", url=broker.address)


def _scored(record: Row) -> Row:
    return {**record, "score": record["value"] * 2 + record["n"] % 7}


def _same(one: list[Row], other: list[Row]) -> None:
    def told(rows: list[Row]) -> list[str]:
        return sorted(str(sorted((name, str(value)[:19]) for name, value in row.items())) for row in rows)

    assert one, "a benchmark without rows says nothing"
    assert told(one) == told(other), "they do not do the same"


def _ratio(rates: dict[str, list[float]], one: str, other: str) -> float:
    return report.median([a / b for a, b in zip(rates[one], rates[other], strict=True)])


# One row


def _in_turn(
    spark: SparkSession, broker: TemporaryBroker, ticks: int, rounds: int
) -> tuple[list[float], list[float]]:
    """Milliseconds for batches of one row, ours and those of Spark's own source, after a round to warm up."""
    ours: list[float] = []
    theirs: list[float] = []
    for number in range(rounds + 1):
        one, other = _one_by_one(broker, f"ticks-{number}", ticks), _by_rate(spark, ticks)
        if number:
            ours += one
            theirs += other
    return ours, theirs


def _one_by_one(broker: TemporaryBroker, name: str, ticks: int) -> list[float]:
    """Batches of one message, one a second: from a queue, through a window, into a queue."""
    with broker.client() as queen:
        queen.queue(name).push({"n": 0})
        source = Queue(name, schema="n bigint")
        counts = Pipeline(name).source(source).window(tumbling("1s")).aggregate(n=count())
        run = counts.to(Queue("counts")).start(url=broker.address)
        try:
            assert isinstance(run, SparkRun)
            query = run.query
            _taken(query, 1)
            for number in range(1, ticks):
                time.sleep(1 - time.time() % 1)
                queen.queue(name).push({"n": number})
                _taken(query, number + 1)
            return _durations(query)
        finally:
            run.stop()
            run.wait()


def _by_rate(spark: SparkSession, ticks: int) -> list[float]:
    """The same for Spark's own source of one row a second, into nothing."""
    rows = spark.readStream.format("rate").option("rowsPerSecond", 1).load()
    counts = rows.withWatermark("timestamp", "0 seconds").groupBy(sql.window("timestamp", "1 second")).count()
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        query = counts.writeStream.format("noop").option("checkpointLocation", folder).start()
        try:
            _taken(query, ticks)
            return _durations(query)
        finally:
            query.stop()


def _taken(query: StreamingQuery, rows: int) -> None:
    """Wait until a query has had so many rows.

    To ask for all its progress keeps the cores from the query: that is done only when there is more.
    """
    end = time.monotonic() + 120
    seen = None
    while True:
        last = query.lastProgress
        if last is not None and last["batchId"] != seen:
            seen = last["batchId"]
            if sum(each["numInputRows"] for each in query.recentProgress) >= rows:
                return
        assert time.monotonic() < end, f"{query.name} had no {rows} rows in two minutes"
        time.sleep(0.05)


def _durations(query: StreamingQuery) -> list[float]:
    """Of the batches of one row; not the first third, which warms up."""
    single = [each for each in query.recentProgress if each["numInputRows"] == 1]
    return [float(each["durationMs"]["triggerExecution"]) for each in single[len(single) // 3 :]]


if __name__ == "__main__":
    report.main(QUESTION, run)
