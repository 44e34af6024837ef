"""A topic of Kafka, counted in windows on Spark, into Cassandra: a pipeline against the same by hand."""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from functools import partial
from pathlib import Path
from typing import Any

from cassandra.cluster import Session
from cassandra.concurrent import execute_concurrent_with_args
from confluent_kafka import Producer
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sql

from harness import report, sparks
from harness.servers import CannotRun
from queenstream import Cassandra, Kafka, Pipeline, count, sum_, tumbling
from queenstream.engines.spark.session.jars import kafka_jars

sys.path.append(str(Path(__file__).parents[1]))  # the tests know how to start a server
from tests.servers import cache, cassandra, kafka, maven
from tests.servers.cassandra import PASSWORD, USER, Node
from tests.servers.kafka import KafkaServer

QUESTION = "Kafka to windows to Cassandra, on Spark: compiled, and by hand"
TOPIC, PARTITIONS = "events", 4
PAYLOAD = "user string, action string, value double, n bigint, page string"
BEGIN_MS = 1_767_225_600_000
# What a pipeline takes for a temporary folder: so does the query by hand.
FILES = "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
MOST = "200000"  # messages in a batch, both ways

TABLES = ("compiled", "by_hand")
COLUMNS = "page, window_start, window_end, n, total"


def run(out: report.Report, options: argparse.Namespace) -> None:
    messages, rounds = (300_000, 2) if options.quick else (3_000_000, 5)
    try:
        jars = {name: maven.jars(name) for name in ("kafka", "spark-kafka", "cassandra")}
    except cache.Unavailable as error:
        raise CannotRun(str(error)) from error
    found: dict[str, list[float]] = {"compiled": [], "by hand": []}
    with (
        kafka.running() as server,
        cassandra.running(jars["cassandra"], quick=True) as node,
        node.connected() as session,
    ):
        _fill(server, messages)
        for table in TABLES:
            _make(session, table)
        spark = sparks.start(*kafka_jars())
        spark.conf.set("spark.sql.streaming.checkpointFileManagerClass", FILES)
        for number in range(rounds + 1):
            for table in TABLES:
                session.execute(f"truncate bench.{table}", timeout=60)
            taken = {
                "compiled": sparks.seconds(partial(_compiled, server.servers, node)),
                "by hand": sparks.seconds(partial(_by_hand, spark, server.servers, session)),
            }
            ours, theirs = (_stored(session, table) for table in TABLES)
            assert ours == theirs != [], "they do not do the same"
            for name, seconds in taken.items() if number else ():  # the first round warms up
                found[name].append(messages / seconds)
        spark.stop()
    middle = {name: report.median(rates) for name, rates in found.items()}
    out.table(
        ["", "messages/s", "a core"], [[name, rate, rate / sparks.CORES] for name, rate in middle.items()]
    )
    out.figures = {"messages": messages, "rows": len(ours), "rates": middle}
    ratio = report.median([a / b for a, b in zip(found["compiled"], found["by hand"], strict=True)])
    out.at_least("compiled against by hand", ratio, 0.95)


def _fill(server: KafkaServer, messages: int) -> None:
    """As ``sparks.fill`` fills a queue: 2 ms apart; in one partition after the other, so in order of time."""
    server.topic(TOPIC, partitions=PARTITIONS)
    producer = Producer({"bootstrap.servers": server.servers, "linger.ms": 50, "log_level": 0})
    for n in range(messages):
        value = {"user": f"user-{n % 5000}", "action": "click", "value": n % 1000 + 0.5, "n": n}
        value["page"] = f"/products/{n % 300}"
        while True:
            try:
                producer.produce(
                    TOPIC, json.dumps(value), timestamp=BEGIN_MS + 2 * n, partition=n % PARTITIONS
                )
                break
            except BufferError:
                producer.poll(0.1)
    if producer.flush(120):
        raise CannotRun("Kafka did not take all messages in two minutes")


def _make(session: Session, table: str) -> None:
    session.execute(
        "create keyspace if not exists bench "
        "with replication = {'class': 'SimpleStrategy', 'replication_factor': 1}"
    )
    session.execute(
        f"create table bench.{table} (page text, window_start timestamp, window_end timestamp, n bigint, "
        "total double, primary key (page, window_start))"
    )


def _compiled(servers: str, node: Node) -> None:
    (
        Pipeline("compiled")
        .source(Kafka(TOPIC, servers=servers, schema=PAYLOAD))
        .filter("value > 100")
        .key_by("page")
        .window(tumbling("1m"))
        .aggregate(n=count(), total=sum_("value"))
        .to(Cassandra("compiled", keyspace="bench", port=node.port, user=USER, password=PASSWORD))
        .run(until="caught_up")
    )


def _by_hand(spark: SparkSession, servers: str, session: Session) -> None:
    insert = session.prepare(f"insert into bench.by_hand ({COLUMNS}) values (?, ?, ?, ?, ?)")

    def write(batch: DataFrame, _: int) -> None:
        rows = [tuple(row.values()) for row in batch.toArrow().to_pylist()]
        execute_concurrent_with_args(session, insert, rows, concurrency=64)

    source = spark.readStream.format("kafka").options(
        **{"kafka.bootstrap.servers": servers, "startingOffsets": "earliest", "maxOffsetsPerTrigger": MOST},
        subscribe=TOPIC,
    )
    totals = (
        source.load()
        .select(sql.from_json(sql.col("value").cast("string"), PAYLOAD).alias("data"), "timestamp")
        .where("data.value > 100")
        .withWatermark("timestamp", "0 seconds")
        .groupBy(sql.window("timestamp", "1 minute"), sql.col("data.page").alias("page"))
        .agg(sql.count("*").alias("n"), sql.sum("data.value").alias("total"))
        .select(
            "page", sql.col("window.start").alias("window_start"), sql.col("window.end").alias("window_end"),
            "n", "total",
        )
    )  # fmt: skip
    with tempfile.TemporaryDirectory() as folder:
        writer = totals.writeStream.foreachBatch(write).option("checkpointLocation", folder)
        writer.trigger(availableNow=True).start().awaitTermination()


def _stored(session: Session, table: str) -> list[Any]:
    found = session.execute(f"select {COLUMNS} from bench.{table}", timeout=60)
    return sorted(tuple(row.values()) for row in found)


if __name__ == "__main__":
    report.main(QUESTION, run)
