"""Messages of a topic: windows by user, into another topic."""

from __future__ import annotations

import json
import sys
from datetime import datetime
from pathlib import Path
from typing import Any

from confluent_kafka import Consumer, Producer, TopicPartition
from pyspark.sql import functions as f

from harness.servers import CannotRun
from queenstream.core import aggregates
from queenstream.engines.spark.session.jars import kafka_jars
from queenstream.pipeline.builder import Pipeline
from queenstream.pipeline.endpoints import Kafka
from queenstream.pipeline.shorthand import count, tumbling
from scale_jobs import Job, Setup, stream_to_end

sys.path.append(str(Path(__file__).parents[2]))  # the tests know how to start a server
from tests.servers import cache, kafka, maven
from tests.servers.kafka import KafkaServer

VALUES = "user string, action string, value double, n bigint, page string"
PARTITIONS = 4
USERS = 1_000
BEGIN_MS = 1_767_225_600_000
SPAN_MS = 6 * 3_600_000  # that the messages cover
WINDOW_MS = 600_000


def jobs(setup: Setup) -> list[Job]:
    """From a topic into a topic, with windows by user."""
    try:
        maven.jars("kafka")
        maven.jars("spark-kafka")
    except cache.Unavailable as error:
        raise CannotRun(str(error)) from error
    server = setup.closing.enter_context(kafka.running())
    spark, servers = setup.spark, server.servers
    for jar in kafka_jars():
        spark.sql(f"ADD JAR '{jar}'")
    fill(server, setup.size(2_000_000))
    topics: dict[str, str] = {}

    def new_topic(way: str) -> str:
        topics[way] = server.topic(partitions=PARTITIONS)
        return topics[way]

    def ours(folder: Path) -> None:
        del folder
        source = Kafka("events", servers=servers, schema=VALUES)
        rows = Pipeline("windows").source(source).filter("value > 100").key_by("user")
        totals = rows.window(tumbling("10m"), grace="1m").aggregate(n=count(), total=aggregates.sum_("value"))
        totals.to(Kafka(new_topic("ours"), servers=servers, key_by="user")).run(until="caught_up")

    def by_hand(folder: Path) -> None:
        read = spark.readStream.format("kafka").options(
            **{"kafka.bootstrap.servers": servers, "startingOffsets": "earliest"}, subscribe="events"
        )
        totals = (
            read.load()
            .select(f.from_json(f.col("value").cast("string"), VALUES).alias("data"), "timestamp")
            .where("data.value > 100")
            .withWatermark("timestamp", "1 minute")
            .groupBy(f.window("timestamp", "10 minutes"), f.col("data.user").alias("user"))
            .agg(f.count("*").alias("n"), f.sum("data.value").alias("total"))
            .select("window.start", "window.end", "user", "n", "total")
            .select(f.col("user").alias("key"), f.to_json(f.struct("*")).alias("value"))
        )
        to = {"kafka.bootstrap.servers": servers, "topic": new_topic("by hand")}
        stream_to_end(totals, folder, lambda writer: writer.format("kafka").options(**to))

    def stored(folder: Path, way: str) -> Any:
        del folder
        return windows_in(servers, topics[way], "window_start" if way == "ours" else "start")

    return [Job("Kafka → filter → windows → Kafka", 0.8, ours, by_hand, stored)]


def fill(server: KafkaServer, messages: int) -> None:
    """Messages in the order of time in each partition."""
    server.topic("events", partitions=PARTITIONS)
    settings = {"bootstrap.servers": server.servers, "linger.ms": 50, "log_level": 0}
    producer = Producer(settings)
    for n in range(messages):
        value = {"user": f"user-{n % USERS}", "action": "click", "value": n % 1_000 + 0.5, "n": n}
        value["page"] = f"/products/{n % 300}"
        at = BEGIN_MS + n * SPAN_MS // messages
        while True:
            try:
                producer.produce("events", json.dumps(value), timestamp=at, partition=n % PARTITIONS)
                break
            except BufferError:
                producer.poll(0.1)
    if producer.flush(120):
        raise CannotRun("Kafka did not take all messages in two minutes")


def windows_in(servers: str, topic: str, start: str) -> tuple[int, int]:
    """How many windows, and of how many events, without the last one: by hand, nothing closes that one."""
    last = BEGIN_MS + SPAN_MS - WINDOW_MS
    windows = events = ended = 0
    consumer = Consumer({"bootstrap.servers": servers, "group.id": "look", "enable.partition.eof": True})
    consumer.assign([TopicPartition(topic, each, 0) for each in range(PARTITIONS)])
    while ended < PARTITIONS:
        for message in consumer.consume(10_000, 0.2):
            if message.error() is not None:
                ended += 1
                continue
            row = json.loads(message.value() or b"")
            if datetime.fromisoformat(row[start]).timestamp() * 1_000 < last:
                windows, events = windows + 1, events + row["n"]
    consumer.close()
    return windows, events
