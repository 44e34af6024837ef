"""Anomalies and patterns: events a second on both engines, on Spark against state that only counts."""

from __future__ import annotations

import argparse
import asyncio
import gc
import hashlib
import os
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql.streaming.stateful_processor import (
    StatefulProcessor,
    StatefulProcessorHandle,
    TimerValues,
)
from pyspark.sql.types import LongType, StructField, StructType

from harness import report, sparks
from queenstream.core.batches import Batch
from queenstream.engines.local.engine import Engine
from queenstream.pipeline.builder import Pipeline
from queenstream.pipeline.endpoints import Function, Queue
from queenstream.testing.brokers import TemporaryBroker, TemporaryBrokers

QUESTION = "anomalies and patterns: events a second on both engines, on Spark against a bare count per key"
PAYLOAD = "user string, action string, value double, n bigint, page string"
USERS = 5_000
CLICKS = "COUNT(*) > 10 IN 30s WHERE action = 'click'"
Record = dict[str, Any]

# A user has an event every ten seconds. Values are noise, and some are spikes; now and then somebody clicks
# twelve times at once. The same in SQL, for the queue, and in Python, for the local engine.
EVERY, AT_ONCE, SPIKES, SEED = 10_000, 12, 997, "7:"
USER_SQL = f"case when i % {EVERY} < {AT_ONCE} then i / {EVERY} % {USERS} else i % {USERS} end"
VALUE_SQL = (
    f"('x' || left(md5('{SEED}' || i), 7))::bit(28)::int % 10000 / 1000.0"
    f" + case when i % {SPIKES} = 0 then 100 else 0 end"
)


def run(out: report.Report, options: argparse.Namespace) -> None:
    events, rounds = (100_000, 1) if options.quick else (1_000_000, 5)
    here = {name: [local_rate(name, events) for _ in range(rounds)] for name in ("zscore", "clicks")}
    middle = {name: report.median([rate for rate, _ in runs]) for name, runs in here.items()}
    found = {name: runs[0][1] for name, runs in here.items()}
    out.table(["local engine", "events/s of CPU"], [[name, rate] for name, rate in middle.items()])
    with TemporaryBrokers() as brokers, brokers.start() as broker:
        report.postgres_version(out, broker.database_url)
        os.environ["QUEEN_PG"] = broker.database_url
        sparks.fill(broker.database_url, events, USER_SQL, VALUE_SQL)
        spark = sparks.start()
        rates = spark_rates(spark, broker, found, events, rounds)
        spark.stop()
    on_spark = {name: report.median(found) for name, found in rates.items()}
    out.table(
        ["Spark", "events/s", "a core"],
        [[name, rate, rate / sparks.CORES] for name, rate in on_spark.items()],
    )
    out.figures = {"events": events, "found": found, "local": middle, "spark": on_spark}
    for name in ("zscore", "clicks"):
        ratios = [ours / bare for ours, bare in zip(rates[name], rates["bare count"], strict=True)]
        out.at_least(f"{name} against a bare count", report.median(ratios), 0.5)


def _looking(name: str, pipeline: Pipeline[Any]) -> Pipeline[Any]:
    if name == "zscore":
        return pipeline.anomalies("value", by="user", window="10m", threshold=4)
    return pipeline.patterns(rapid=CLICKS, by="user")


# The local engine, without source and sink


def local_rate(name: str, events: int) -> tuple[float, int]:
    """Events for each second of the processor, in batches of 10,000; and how much was found."""
    source = Pipeline("here").source(Queue("in")).event_time("at")
    engine = Engine(_looking(name, source).to(Function(print)).plan())
    gc.collect()

    async def work() -> tuple[float, int]:
        taken, found = 0.0, 0
        for first in range(0, events, 10_000):
            batch = Batch([_event(n) for n in range(first, first + 10_000)])
            started = time.process_time()
            rows = await engine.process({"queue:in": batch})
            taken += time.process_time() - started
            found += len(rows)
        return events / taken, found

    return asyncio.run(work())


def _event(n: int) -> Record:
    """As the queue has them."""
    user = n // EVERY % USERS if n % EVERY < AT_ONCE else n % USERS
    noise = int(hashlib.md5(f"{SEED}{n}".encode(), usedforsecurity=False).hexdigest()[:7], 16) % 10_000
    value = noise / 1_000 + (100 if n % SPIKES == 0 else 0)
    return {"user": f"user-{user}", "action": "click", "value": value, "n": n, "at": n * 2}


# Spark


def spark_rates(
    spark: SparkSession, broker: TemporaryBroker, found: Mapping[str, int], events: int, rounds: int
) -> dict[str, list[float]]:
    """Events a second, each way once in every round, after one that warms up; ``found``: what is to be."""
    ways: dict[str, Callable[[], None]] = {
        "bare count": lambda: _bare(spark, broker, events),
        "zscore": lambda: _ours("zscore", broker, found["zscore"]),
        "clicks": lambda: _ours("clicks", broker, found["clicks"]),
    }
    rates: dict[str, list[float]] = {name: [] for name in ways}
    for number in range(rounds + 1):
        for name, way in ways.items():
            taken = sparks.seconds(partial(way))
            if number:
                rates[name].append(events / taken)
    return rates


def _ours(name: str, broker: TemporaryBroker, found: int) -> None:
    looking = _looking(name, Pipeline(name).source(Queue("events", schema=PAYLOAD)))
    rows: list[Record] = []
    sink = Function(rows.extend, name="out", batch=True)
    done = looking.to(sink).run(until="caught_up", url=broker.address)
    assert done.get_stats()["errors"] == 0
    assert len(rows) == found, f"{len(rows)} of {found}"


class Counts(StatefulProcessor):
    """As little as state can be: how many came so far."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        self._number = handle.getValueState("number", StructType([StructField("number", LongType())]))

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: TimerValues) -> Iterator[Row]:  # noqa: ARG002, N802, N803
        known = self._number.get()
        number = (0 if known is None else known[0]) + sum(1 for _ in rows)
        self._number.update((number,))
        yield Row(user=key[0], n=number)

    def close(self) -> None:
        pass


def _bare(spark: SparkSession, broker: TemporaryBroker, events: int) -> None:
    counted = 0

    def write(batch: DataFrame, _: int) -> None:
        nonlocal counted
        counted += sum(row["n"] for row in batch.toArrow().to_pylist())

    source = spark.readStream.format("queen").options(
        queue="events", pg=broker.database_url, columns="data,id,partition,created_at", schema=PAYLOAD
    )
    users = source.load().selectExpr("data.user", "data.value", "data.action", "created_at")
    counts = users.groupBy("user").transformWithState(Counts(), "user STRING, n LONG", "append", "none")
    with tempfile.TemporaryDirectory() as folder:
        writer = counts.writeStream.foreachBatch(write).option("checkpointLocation", folder)
        writer.trigger(availableNow=True).start().awaitTermination()
    assert counted == events, f"{counted} of {events}"


if __name__ == "__main__":
    report.main(QUESTION, run)
