"""Spark's sink ``queen``: rows into a queue, against COPY by one connection for each task."""

from __future__ import annotations

import argparse
import secrets
from datetime import UTC, datetime
from multiprocessing.synchronize import Barrier

import pyarrow as pa

from harness import databases, report, sparks
from queenstream.engines.spark.datasource.database import connected

QUESTION = "rows into a queue by Spark, exactly once, against COPY of the same rows by one connection a task"
PARTITIONS = 64


def run(out: report.Report, options: argparse.Namespace) -> None:
    rows, rounds = (100_000, 3) if options.quick else (1_000_000, 5)
    with sparks.server() as server:
        report.postgres_version(out, server.url)
        databases.check_durable(server.url)
        spark = sparks.start()
        frame = spark.range(rows).selectExpr(
            "to_json(named_struct('user', concat('user-', id % 5000), 'action', 'click', "
            "'value', id % 1000 + 0.5, 'n', id, 'page', concat('/products/', id % 300))) as data",
            f"concat('user-', id % {PARTITIONS}) as partition",
        )
        frame = frame.repartition(sparks.CORES, "partition").persist()
        write = frame.write.format("queen").options(queue="out", pg=server.url).mode("append")
        for _ in range(2):  # starts the workers, and makes the partitions
            write.save()
        ours: list[float] = []
        theirs: list[float] = []
        for number in range(rounds):
            databases.query(server.url, "truncate queen.messages", "checkpoint")
            ours.append(rows / sparks.seconds(write.save))
            stored = databases.query(server.url, "select count(*) from queen.messages")[0][0]
            assert stored == rows, f"{stored} of {rows} messages are stored"
            databases.query(
                server.url,
                f"create table queen.limit_{number} (like queen.messages including all)",
                "truncate queen.messages",
                "checkpoint",
            )
            share = rows // sparks.CORES
            tasks = [(server.url, f"limit_{number}", at * share, share) for at in range(sparks.CORES)]
            theirs.append(share * sparks.CORES / sparks.side_by_side(_copy, tasks))
            databases.query(server.url, f"drop table queen.limit_{number}")
        spark.stop()
    out.table(
        ["", "rows/s", "lowest", "highest"],
        [
            ["queen", report.median(ours), min(ours), max(ours)],
            ["COPY", report.median(theirs), min(theirs), max(theirs)],
        ],
    )
    out.figures = {"rows": rows, "queen": report.median(ours), "copy": report.median(theirs)}
    out.note("the rows for COPY are ready in memory; Spark's come out of its cache, through Python")
    ratio = report.median([a / b for a, b in zip(ours, theirs, strict=True)])
    out.at_least("sink against COPY, a connection for each task", ratio, 0.5)


def _copy(barrier: Barrier, url: str, table: str, first: int, rows: int) -> None:
    """One connection: all rows by one COPY, into a table with the columns and indexes of the messages."""
    batch = _batch(first, rows)
    with connected(url) as database:
        barrier.wait(120)
        database.copy(table, batch)


def _batch(first: int, rows: int) -> pa.RecordBatch:
    numbers = range(first, first + rows)
    payloads = [
        b'{"user":"user-%d","action":"click","value":%d.5,"n":%d,"page":"/products/%d"}'
        % (n % 5000, n % 1000, n, n % 300)
        for n in numbers
    ]
    ids = secrets.token_hex(16 * rows)
    return pa.RecordBatch.from_pydict(
        {
            "partition_id": [n % PARTITIONS for n in numbers],
            "id": list(numbers),
            "seq": list(numbers),
            "created_at": pa.array([datetime.now(UTC)] * rows, pa.timestamp("us", "UTC")),
            "transaction_id": [ids[at * 32 : at * 32 + 32] for at in range(rows)],
            "payload": payloads,
        }
    )


if __name__ == "__main__":
    report.main(QUESTION, run)
