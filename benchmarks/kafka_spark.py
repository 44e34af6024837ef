"""A topic through a window on Spark: a pipeline against the same query by hand, with ``from_json``."""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from functools import partial
from pathlib import Path
from typing import Any

from confluent_kafka import Producer
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sql

from harness import report, sparks
from harness.servers import CannotRun
from queenstream import Function, Kafka, Pipeline, count, sum_, tumbling
from queenstream.spark.jars import kafka_jars

sys.path.append(str(Path(__file__).parents[1]))  # the tests know how to start a server
from tests.servers import maven
from tests.servers.kafka import KafkaServer, running

QUESTION = "a topic of Kafka, counted in windows on Spark: compiled, and by hand"
TOPIC, PARTITIONS = "events", 4
PAYLOAD = "user string, action string, value double, n bigint, page string"
BEGIN_MS = 1_767_225_600_000
# What a pipeline takes for a temporary folder: so does the query by hand.
FILES = "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
MOST = "200000"  # messages in a batch, both ways

Row = dict[str, Any]


def run(out: report.Report, options: argparse.Namespace) -> None:
    messages, rounds = (300_000, 2) if options.quick else (3_000_000, 5)
    try:
        for name in ("kafka", "spark-kafka"):
            maven.jars(name)
    except maven.Unreachable as error:
        raise CannotRun(str(error)) from error
    with running() as server:
        _fill(server, messages)
        spark = sparks.start(*kafka_jars())
        spark.conf.set("spark.sql.streaming.checkpointFileManagerClass", FILES)
        found: dict[str, list[float]] = {"compiled": [], "by hand": []}
        for number in range(rounds + 1):
            ours: list[Row] = []
            theirs: list[Row] = []
            taken = {
                "compiled": sparks.seconds(partial(_compiled, server.servers, ours)),
                "by hand": sparks.seconds(partial(_by_hand, spark, server.servers, theirs)),
            }
            assert sorted(map(_told, ours)) == sorted(map(_told, theirs)) != [], "they do not do the same"
            for name, seconds in taken.items() if number else ():  # the first round warms up
                found[name].append(messages / seconds)
        spark.stop()
    middle = {name: report.median(rates) for name, rates in found.items()}
    out.table(
        ["", "messages/s", "a core"], [[name, rate, rate / sparks.CORES] for name, rate in middle.items()]
    )
    out.figures = {"messages": messages, "rates": middle}
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


def _compiled(servers: str, to: list[Row]) -> None:
    (
        Pipeline("compiled")
        .source(Kafka(TOPIC, servers=servers, schema=PAYLOAD))
        .filter("value > 100")
        .key_by("page")
        .window(tumbling("1m"))
        .aggregate(n=count(), total=sum_("value"))
        .to(Function(to.extend, name="out", batch=True))
        .run(until="caught_up")
    )


def _by_hand(spark: SparkSession, servers: str, to: list[Row]) -> None:
    def write(batch: DataFrame, _: int) -> None:
        to.extend(batch.toArrow().to_pylist())

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
        .select(sql.col("window.start").alias("window_start"), "page", "n", "total")
    )
    with tempfile.TemporaryDirectory() as folder:
        writer = totals.writeStream.foreachBatch(write).option("checkpointLocation", folder)
        writer.trigger(availableNow=True).start().awaitTermination()


def _told(row: Row) -> tuple[str, str, int, float]:
    return str(row["window_start"])[:19], row["page"], row["n"], row["total"]


if __name__ == "__main__":
    report.main(QUESTION, run)
