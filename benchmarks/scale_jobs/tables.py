"""Tables of PostgreSQL: windows over one into another, and a copy, against Spark's JDBC source and sink."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql import functions as f

from harness import databases, sparks
from queenstream.core import aggregates
from queenstream.pipeline.builder import Pipeline
from queenstream.pipeline.endpoints import Postgres
from queenstream.pipeline.shorthand import count, tumbling
from scale_jobs import Job, Setup

SCHEMA = "id bigint, shop string, amount double, note string, at timestamp"
SHOPS = 1_000
SPAN_SECONDS = 6 * 3_600  # that the sales cover

_FILL = f"""
insert into sales select i, 'shop-' || i % {SHOPS}, i % 1000 + 0.5, md5(i::text),
    timestamptz '2026-01-01 00:00Z' + i * interval '{SPAN_SECONDS} seconds' / $rows$
from generate_series(0, $rows$ - 1) i"""
_TOTALS = "window_start timestamptz, window_end timestamptz, shop text, n bigint, total double precision"


def jobs(setup: Setup) -> list[Job]:
    """From a table into a table: windows by shop, and most of the rows."""
    url = setup.closing.enter_context(sparks.server()).tcp_url
    assert url is not None
    rows = setup.size(5_000_000)
    databases.query(
        url,
        "create table sales (id bigint primary key, shop text, amount double precision, note text, "
        "at timestamptz)",
        _FILL.replace("$rows$", str(rows)),
        *(f"create table {way}_totals ({_TOTALS})" for way in ("our", "hand")),
        *(f"create table {way}_copies (id bigint, amount double precision)" for way in ("our", "hand")),
        "vacuum (freeze, analyze) sales",
        "select count(*) from sales",
    )
    account, _, place = url.removeprefix("postgresql://").partition("@")
    user, _, password = account.partition(":")
    jdbc, driver = f"jdbc:postgresql://{place}?reWriteBatchedInserts=true", "org.postgresql.Driver"
    properties = {"user": user, "password": password, "driver": driver}

    def read() -> DataFrame:
        return setup.spark.read.jdbc(
            jdbc, "sales", column="id", lowerBound=0, upperBound=rows, numPartitions=sparks.CORES,
            properties={**properties, "fetchsize": "10000"},
        )  # fmt: skip

    def write(frame: DataFrame, table: str) -> None:
        frame.write.mode("append").jdbc(jdbc, table, properties={**properties, "batchsize": "10000"})

    def our_sales(name: str) -> Pipeline[Any]:
        return Pipeline(name).source(Postgres("sales", url=url, schema=SCHEMA))

    def our_windows(folder: Path) -> None:
        sales = our_sales("windows").event_time("at").key_by("shop").window(tumbling("10m"))
        totals = sales.aggregate(n=count(), total=aggregates.sum_("amount"))
        totals.to(Postgres("our_totals", url=url)).run(checkpoint=str(folder / "state"))

    def windows_by_hand(folder: Path) -> None:
        del folder
        windows = read().groupBy(f.window("at", "10 minutes"), "shop")
        totals = windows.agg(f.count("*").alias("n"), f.sum("amount").alias("total"))
        columns = ("window.start as window_start", "window.end as window_end", "shop", "n", "total")
        write(totals.selectExpr(*columns), "hand_totals")

    def our_copy(folder: Path) -> None:
        copies = our_sales("copy").filter("amount > 100").select("id", "amount")
        copies.to(Postgres("our_copies", url=url)).run(checkpoint=str(folder / "state"))

    def copy_by_hand(folder: Path) -> None:
        del folder
        write(read().where("amount > 100").select("id", "amount"), "hand_copies")

    def summed(table: str, columns: str) -> Any:
        def found(folder: Path, way: str) -> tuple[Any, ...]:
            del folder
            name = f"{'our' if way == 'ours' else 'hand'}_{table}"
            row = tuple(databases.query(url, f"select {columns} from {name}")[0])
            databases.query(url, f"truncate {name}", "checkpoint", "select 1")
            return row

        return found

    totals = summed("totals", "count(*), sum(n), sum(total), min(window_start), max(window_end)")
    copies = summed("copies", "count(*), count(distinct id), sum(amount)")
    return [
        Job("table → windows → table", 1.0, our_windows, windows_by_hand, totals),
        Job("table → filter → table", 1.0, our_copy, copy_by_hand, copies),
    ]
