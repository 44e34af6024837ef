"""The sink for Cassandra against ``execute_concurrent_with_args`` by hand: the same rows, the same table."""

from __future__ import annotations

import argparse
import asyncio
import sys
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from cassandra import ConsistencyLevel
from cassandra.cluster import Session
from cassandra.concurrent import execute_concurrent_with_args

from harness import report
from harness.servers import CannotRun
from queenstream import Cassandra
from queenstream.connectors import Context, Writer, writer_for

sys.path.append(str(Path(__file__).parents[1]))  # the tests know how to start a node
from tests.servers import cache, maven
from tests.servers.cassandra import PASSWORD, USER, Node, running

QUESTION = "rows into a table, checked and repeatable, against prepared statements of the driver by hand"
CONCURRENCY = 64
DAY = 86_400
BEGIN = datetime(2026, 1, 31, tzinfo=UTC)
SHAPES = {"a partition for each row": None, "rows of 100 partitions": 100}

Row = dict[str, Any]


def run(out: report.Report, options: argparse.Namespace) -> None:
    rows, rounds = (5_000, 3) if options.quick else (50_000, 5)
    try:
        jars = maven.jars("cassandra")
    except cache.Unavailable as error:
        raise CannotRun(str(error)) from error
    with running(jars, quick=True) as node, node.connected() as session:
        out.machine["cassandra"] = session.execute("select release_version from system.local").one()[
            "release_version"
        ]
        for number, (shape, partitions) in enumerate(SHAPES.items()):
            records = [_row(n, partitions or rows) for n in range(rows)]
            ours, theirs = asyncio.run(_shape(node, session, f"shape_{number}", records, rounds))
            out.table(
                [shape, "rows/s", "lowest", "highest"],
                [
                    ["the sink", report.median(ours), min(ours), max(ours)],
                    ["by hand", report.median(theirs), min(theirs), max(theirs)],
                ],
            )
            out.figures[shape] = {"sink": report.median(ours), "by hand": report.median(theirs)}
            ratio = report.median([a / b for a, b in zip(ours, theirs, strict=True)])
            out.at_least(f"the sink against the driver by hand, {shape}", ratio, 0.9)
    out.note(f"both send {CONCURRENCY} requests at once; by hand every row travels alone")
    out.note("the node is on this machine, and takes its share of it")


def _row(n: int, partitions: int) -> Row:
    tags = {"host": f"web-{n % 50}", "zone": "a"}
    at = BEGIN + timedelta(milliseconds=n)
    return {"timestamp": at, "metric_name": f"metric-{n % partitions}", "value": n * 0.5, "tags": tags}


async def _shape(
    node: Node, session: Session, table: str, records: list[Row], rounds: int
) -> tuple[list[float], list[float]]:
    """Rows a second of both, in turn; the first round warms up."""
    sink = Cassandra(
        table,
        keyspace="bench",
        port=node.port,
        user=USER,
        password=PASSWORD,
        schema={
            "timestamp": "timestamp",
            "metric_name": "text",
            "value": "double",
            "tags": "map<text, text>",
        },
        partition_key="metric_name",
        clustering_key="timestamp",
        ttl=DAY,
        concurrency=CONCURRENCY,
        create_table=True,
        create_keyspace=1,
    )
    writer = writer_for(sink, Context("bench", table))
    await writer.open()
    ours: list[float] = []
    theirs: list[float] = []
    for number in range(rounds + 1):
        for seconds, rates in (
            (await _written(writer, f"bench-{number:010}", records), ours),
            (await asyncio.to_thread(_by_hand, session, sink, records), theirs),
        ):
            [count] = session.execute(f"select count(*) as n from bench.{table}", timeout=300)
            assert count["n"] == len(records), f"{count['n']} of {len(records)} rows are stored"
            if number:
                rates.append(len(records) / seconds)
    await writer.close()
    return ours, theirs


async def _written(writer: Writer, epoch: str, records: list[Row]) -> float:
    begun = time.perf_counter()
    refused = await writer.write(epoch, records)
    seconds = time.perf_counter() - begun
    assert not refused, refused[0]
    return seconds


def _by_hand(session: Session, sink: Cassandra, records: list[Row]) -> float:
    statement = session.prepare(
        f"insert into bench.{sink.table} (timestamp, metric_name, value, tags) values (?, ?, ?, ?) "
        "using timestamp ? and ttl ?"
    )
    statement.consistency_level = ConsistencyLevel.LOCAL_QUORUM
    now = time.time_ns() // 1_000
    values = [(row["timestamp"], row["metric_name"], row["value"], row["tags"], now, DAY) for row in records]
    begun = time.perf_counter()
    results = execute_concurrent_with_args(session, statement, values, concurrency=CONCURRENCY)
    seconds = time.perf_counter() - begun
    assert all(success for success, _ in results)
    return seconds


if __name__ == "__main__":
    report.main(QUESTION, run)
