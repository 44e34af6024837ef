"""Pipelines on Spark against the same jobs by hand in PySpark, with as many rows as fill the cores."""

from __future__ import annotations

import argparse
import os
import shutil
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from harness import databases, report, sparks
from queenstream import aggregates
from queenstream.pipeline.builder import Pipeline
from queenstream.pipeline.endpoints import Files, Queue
from queenstream.pipeline.shorthand import count, tumbling
from queenstream.testing.brokers import TemporaryBroker, TemporaryBrokers

QUESTION = "pipelines on Spark against the same jobs by hand in PySpark: rows in files, messages in queues"
EVENTS = "user string, n bigint, value double, at timestamp"
MESSAGES = "user string, action string, value double, n bigint, page string"
FILES_OF_EVENTS = 20
USERS = 1_000
SPAN_SECONDS = 6 * 3_600  # that the events of a file set cover


@dataclass(frozen=True)
class Job:
    """A job done in two ways. Each takes the folder that it writes into; ``rows`` counts what it wrote."""

    name: str
    target: float
    ours: Callable[[Path], None]
    by_hand: Callable[[Path], None]
    rows: Callable[[Path, str], Any]


def run(out: report.Report, options: argparse.Namespace) -> None:
    rows, messages, rounds = (2_000_000, 500_000, 1) if options.quick else (20_000_000, 5_000_000, 3)
    base = Path(tempfile.mkdtemp(prefix="queenstream-scale-"))
    try:
        with TemporaryBrokers() as brokers, brokers.start() as broker:
            report.postgres_version(out, broker.database_url)
            os.environ["QUEEN_PG"] = broker.database_url
            spark = sparks.start()
            make_events(spark, base / "events", rows)
            sparks.fill(broker.database_url, messages)
            jobs = [*file_jobs(spark, base), *queue_jobs(spark, broker)]
            for job in jobs:
                measure(out, job, base, rounds)
            spark.stop()
    finally:
        shutil.rmtree(base, ignore_errors=True)
    out.figures |= {"rows": rows, "messages": messages}


def measure(out: report.Report, job: Job, base: Path, rounds: int) -> None:
    """Each way once in every round, after a round that warms up; both must have written the same."""
    taken: dict[str, list[float]] = {"ours": [], "by hand": []}
    for number in range(rounds + 1):
        found = {}
        for name, way in (("ours", job.ours), ("by hand", job.by_hand)):
            folder = base / f"{job.name}-{name}-{number}".replace(" ", "-")
            folder.mkdir()
            seconds = sparks.seconds(lambda way=way, folder=folder: way(folder))  # type: ignore[misc]
            found[name] = job.rows(folder, name)
            if number:
                taken[name].append(seconds)
            shutil.rmtree(folder)
        assert found["ours"] == found["by hand"], f"{job.name}: not the same: {found}"
    ratio = report.median([b / a for a, b in zip(taken["ours"], taken["by hand"], strict=True)])
    middle = {name: report.median(each) for name, each in taken.items()}
    out.table([job.name, "seconds"], [[name, seconds] for name, seconds in middle.items()])
    out.figures[job.name] = middle
    out.at_least(f"{job.name}, against by hand", ratio, job.target)


def make_events(spark: SparkSession, folder: Path, rows: int) -> None:
    """Events in the order of time, in files of equal size."""
    spark.range(rows, numPartitions=FILES_OF_EVENTS).selectExpr(
        f"concat('user-', id % {USERS}) as user",
        "id as n",
        "double(id % 1000) + 0.5D as value",
        f"timestamp_micros(1767225600000000 + id * {SPAN_SECONDS * 1_000_000} div {rows}) as at",
    ).write.parquet(str(folder))


def stream_to_end(frame: DataFrame, folder: Path, output: Callable[[Any], Any]) -> None:
    """Run a query of one's own over all that is there."""
    writer = frame.writeStream.option("checkpointLocation", str(folder / "checkpoint"))
    output(writer).trigger(availableNow=True).start().awaitTermination()


# Files


def file_jobs(spark: SparkSession, base: Path) -> list[Job]:
    """Parquet to Parquet, with a filter, and with windows by user."""
    events = str(base / "events")

    def read() -> DataFrame:
        return spark.readStream.schema(EVENTS).parquet(events)

    def our_events(name: str) -> Pipeline[Any]:
        return Pipeline(name).source(Files(events, format="parquet", schema=EVENTS)).filter("value > 100")

    def our_filter(folder: Path) -> None:
        our_events("filter").to(Files(folder / "out", format="parquet")).run()

    def filter_by_hand(folder: Path) -> None:
        stream_to_end(
            read().where("value > 100"),
            folder,
            lambda writer: writer.format("parquet").option("path", str(folder / "out")),
        )

    def our_windows(folder: Path) -> None:
        rows = our_events("windows").event_time("at").key_by("user").window(tumbling("10m"))
        totals = rows.aggregate(n=count(), total=aggregates.sum_("value"))
        totals.to(Files(folder / "out", format="parquet")).run()

    def windows_by_hand(folder: Path) -> None:
        totals = (
            read()
            .where("value > 100")
            .withWatermark("at", "0 seconds")
            .groupBy(f.window("at", "10 minutes"), "user")
            .agg(f.count("*").alias("n"), f.sum("value").alias("total"))
            .select("window.start", "window.end", "user", "n", "total")
        )
        stream_to_end(
            totals, folder, lambda writer: writer.format("parquet").option("path", str(folder / "out"))
        )

    return [
        Job("Parquet → filter → Parquet", 0.8, our_filter, filter_by_hand, rows_in_files),
        Job("Parquet → filter → windows → Parquet", 0.8, our_windows, windows_by_hand, closed_windows),
    ]


def rows_in_files(folder: Path, way: str) -> int:
    """How many rows are there."""
    del way
    return int(ds.dataset(folder / "out", format="parquet").count_rows())


def closed_windows(folder: Path, way: str) -> tuple[int, int]:
    """How many windows, and of how many events, without the last window: by hand, nothing closes that one."""
    table = ds.dataset(folder / "out", format="parquet").to_table()
    start = table.column("window_start" if way == "ours" else "start")
    last = pa.scalar(1767225600_000_000 + (SPAN_SECONDS - 600) * 1_000_000, pa.int64())
    whole = table.filter(pa.compute.less(start.cast(pa.timestamp("us", "UTC")).cast(pa.int64()), last))
    return whole.num_rows, int(pa.compute.sum(whole.column("n")).as_py())


# Queues


def queue_jobs(spark: SparkSession, broker: TemporaryBroker) -> list[Job]:
    """From a queue into a queue: expressions, and a function in Python."""
    url = broker.database_url
    source = Queue("events", schema=MESSAGES)

    def read() -> DataFrame:
        options = {
            "queue": "events", "pg": url, "schema": MESSAGES, "columns": "data,id,partition,created_at",
            "maxRowsPerBatch": "200000", "maxBytesPerBatch": str(64 << 20),
        }  # fmt: skip
        return spark.readStream.format("queen").options(**options).load().select("data.*")

    def write(frame: DataFrame, folder: Path) -> None:
        stream_to_end(
            frame, folder, lambda writer: writer.format("queen").option("queue", "hand").option("pg", url)
        )

    def our_filter(folder: Path) -> None:
        rows = Pipeline("filter").source(source).filter("value > 100")
        rows.to(Queue("ours")).run(until="caught_up", url=broker.address, checkpoint=str(folder / "state"))

    def filter_by_hand(folder: Path) -> None:
        write(read().where("value > 100"), folder)

    def double(row: dict[str, Any]) -> dict[str, Any]:
        return {**row, "value": row["value"] * 2}

    def our_function(folder: Path) -> None:
        rows = Pipeline("function").source(source).map(double)
        rows.to(Queue("ours")).run(until="caught_up", url=broker.address, checkpoint=str(folder / "state"))

    def function_by_hand(folder: Path) -> None:
        def doubled(batches: Any) -> Any:
            for batch in batches:
                rows = [double(row) for row in batch.to_pylist()]
                yield pa.RecordBatch.from_pylist(rows, schema=batch.schema)

        write(read().mapInArrow(doubled, MESSAGES), folder)

    def stored(folder: Path, way: str) -> int:
        del folder
        queue = "ours" if way == "ours" else "hand"
        of_queue = (
            "(select p.id from queen.partitions p join queen.queues q on q.id = p.queue_id where q.name = "
        )
        condition = f"partition_id in {of_queue}'{queue}')"
        found = databases.query(url, f"select count(*) from queen.messages where {condition}")[0][0]
        databases.query(url, f"delete from queen.messages where {condition}", "vacuum queen.messages")
        return int(found)

    return [
        Job("queue → filter → queue", 0.8, our_filter, filter_by_hand, stored),
        Job("queue → function → queue", 0.9, our_function, function_by_hand, stored),
    ]


if __name__ == "__main__":
    report.main(QUESTION, run)
