"""Events in Parquet files: a filter, and windows by user."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from queenstream.core import aggregates
from queenstream.pipeline.builder import Pipeline
from queenstream.pipeline.endpoints import Files
from queenstream.pipeline.shorthand import count, tumbling
from scale_jobs import Job, Setup, stream_to_end

EVENTS = "user string, n bigint, value double, at timestamp"
FILES = 20
USERS = 1_000
SPAN_SECONDS = 6 * 3_600  # that the events of a file set cover


def make_events(spark: SparkSession, folder: Path, rows: int) -> None:
    """Events in the order of time, in files of equal size."""
    spark.range(rows, numPartitions=FILES).selectExpr(
        f"concat('user-', id % {USERS}) as user",
        "id as n",
        "double(id % 1000) + 0.5D as value",
        f"timestamp_micros(1767225600000000 + id * {SPAN_SECONDS * 1_000_000} div {rows}) as at",
    ).write.parquet(str(folder))


def jobs(setup: Setup) -> list[Job]:
    """Parquet to Parquet, with a filter, and with windows by user."""
    spark, events = setup.spark, str(setup.base / "events")
    make_events(spark, setup.base / "events", setup.size(20_000_000))

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
