"""Spark's source ``queen``: messages counted by window, against Spark's JDBC source and ADBC alone."""

from __future__ import annotations

import argparse
from multiprocessing.synchronize import Barrier
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sql
from pyspark.sql.types import StructType

from harness import report, sparks
from queenstream.engines.spark.datasource.database import connected
from queenstream.engines.spark.datasource.options import source_options
from queenstream.engines.spark.datasource.planner import Part
from queenstream.engines.spark.datasource.readers import QueenReader
from queenstream.engines.spark.datasource.task_reader import MESSAGE_COLUMNS, message_query

QUESTION = "5 million messages, counted by window: format(queen) against JDBC and against ADBC without Spark"
PAYLOAD = "user STRING, action STRING, value DOUBLE, n BIGINT, page STRING"


def run(out: report.Report, options: argparse.Namespace) -> None:
    messages, rounds = (1_500_000, 3) if options.quick else (5_000_000, 3)
    with sparks.server() as server:
        report.postgres_version(out, server.url)
        assert server.tcp_url is not None
        sparks.fill(server.url, messages)
        spark = sparks.start(sparks.jdbc_driver())
        parts = _parts(server.tcp_url)
        ours = Ours(spark, server.tcp_url)
        theirs = Jdbc(spark, server.tcp_url, parts)
        _same(ours.times(), theirs.times(), messages)
        rows: dict[str, list[float]] = {}
        for _ in range(rounds):
            for name, work in (
                ("queen", lambda: _count(ours.times())),
                ("jdbc", lambda: _count(theirs.times())),
                ("queen, payload", lambda: _sum(ours.payloads())),
                ("jdbc, payload", lambda: _sum(theirs.payloads())),
                ("adbc", lambda: _adbc(server.tcp_url or "", parts, ("created_at",))),
                ("adbc, all", lambda: _adbc(server.tcp_url or "", parts, tuple(MESSAGE_COLUMNS))),
                ("queen, all", lambda: _touch(ours.everything())),
            ):
                rows.setdefault(name, []).append(_rate(name, work, messages))
        spark.stop()
    middle = {name: report.median(rates) for name, rates in rows.items()}
    out.table(
        ["", "messages/s", "a core"], [[name, rate, rate / sparks.CORES] for name, rate in middle.items()]
    )
    out.figures = {"messages": messages, "rates": middle}
    out.note(
        "both sources read the columns that the query needs: JDBC prunes, ours is told by the option columns"
    )
    out.at_least("count by window, against JDBC", _ratio(rows, "queen", "jdbc"), 1.0)
    out.at_least("a core, against ADBC (all columns)", _ratio(rows, "queen, all", "adbc, all"), 0.4)
    out.figures["payload_against_jdbc"] = _ratio(rows, "queen, payload", "jdbc, payload")
    out.figures["times_against_adbc"] = _ratio(rows, "queen", "adbc")


class Ours:
    """Data frames by ``format("queen")``."""

    def __init__(self, spark: SparkSession, url: str) -> None:
        self._read = spark.read.format("queen").options(
            queue="events", pg=url, numPartitions=str(sparks.CORES)
        )

    def times(self) -> DataFrame:
        return self._read.option("columns", "created_at").load()

    def payloads(self) -> DataFrame:
        return self._read.option("columns", "data").option("schema", PAYLOAD).load()

    def everything(self) -> DataFrame:
        columns = ",".join(MESSAGE_COLUMNS)
        return self._read.option("columns", columns).option("schema", "STRING").load()


class Jdbc:
    """The same by Spark's JDBC source, with the same tasks."""

    def __init__(self, spark: SparkSession, url: str, parts: list[Part]) -> None:
        account, _, place = url.removeprefix("postgresql://").partition("@")
        user, _, password = account.partition(":")
        lists = [",".join(str(span.partition_id) for span in part.spans) for part in parts]
        self._frame = spark.read.jdbc(
            f"jdbc:postgresql://{place}",
            "(select created_at, convert_from(payload, 'UTF8') as data, partition_id from queen.messages) m",
            predicates=[f"partition_id in ({numbers})" for numbers in lists],
            properties={
                "user": user,
                "password": password,
                "fetchsize": "10000",
                "driver": "org.postgresql.Driver",
            },
        )

    def times(self) -> DataFrame:
        return self._frame.select("created_at")

    def payloads(self) -> DataFrame:
        return self._frame.select(sql.from_json("data", PAYLOAD).alias("data"))


def _count(frame: DataFrame) -> None:
    frame.groupBy(sql.window("created_at", "1 minute")).count().write.format("noop").mode("overwrite").save()


def _sum(frame: DataFrame) -> None:
    totals = frame.agg(sql.sum("data.value"), sql.max("data.user"), sql.sum("data.n"), sql.max("data.page"))
    totals.write.format("noop").mode("overwrite").save()


def _touch(frame: DataFrame) -> None:
    frame.write.format("noop").mode("overwrite").save()


def _parts(url: str) -> list[Part]:
    """The tasks that our source makes, for the others to read the same."""
    options = source_options({"queue": "events", "pg": url, "numPartitions": str(sparks.CORES)})
    return [
        part
        for part in QueenReader(options, StructType(), sparks.CORES).partitions()
        if isinstance(part, Part)
    ]


def _adbc(url: str, parts: list[Part], columns: tuple[str, ...]) -> float:
    """A process for each task, without Spark: the time it takes."""
    return sparks.side_by_side(_read, [(url, message_query(part, columns)) for part in parts])


def _read(barrier: Barrier, url: str, query: str) -> None:
    with connected(url) as database:
        barrier.wait(120)
        for _ in database.batches(query):
            pass


def _rate(name: str, work: Any, messages: int) -> float:
    taken = work() if name.startswith("adbc") else sparks.seconds(work)
    return messages / taken


def _ratio(rows: dict[str, list[float]], one: str, other: str) -> float:
    return report.median([a / b for a, b in zip(rows[one], rows[other], strict=True)])


def _same(one: DataFrame, other: DataFrame, messages: int) -> None:
    """Both see all messages; this warms them up, too."""
    for frame in (one, other):
        assert frame.count() == messages
        _count(frame)


if __name__ == "__main__":
    report.main(QUESTION, run)
