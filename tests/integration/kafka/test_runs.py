"""Pipelines between topics and queues on the local engine, with a real Kafka, also one that is killed."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

from queenstream import DeadLetters, Function, Kafka, Pipeline, col, count, tumbling
from queenstream.connectors.kafka.writer import ID_HEADER
from tests.servers.kafka import KafkaServer

Row = dict[str, Any]


def test_a_topic_through_a_window_with_its_dead_letters(kafka: KafkaServer, tmp_path: Path) -> None:
    """In two runs from one checkpoint: the second goes on where the first has been."""
    topic = kafka.topic()
    letters: list[Row] = []
    rows: list[Row] = []
    pipeline = (
        Pipeline("clicks")
        .source(Kafka(topic, servers=kafka.servers, schema="user string, n int"),
                on_error=DeadLetters(Function(letters.append)))
        .filter(col("n") >= 0)
        .key_by("user")
        .window(tumbling("1m"))
        .aggregate(clicks=count())
        .to(rows.append)
    )  # fmt: skip
    first = [json.dumps({"user": f"u{n % 3}", "n": n}) for n in range(30)]
    kafka.send(topic, [*first, "{no json"], keys=[*["k"] * 30, "bad"], times_ms=[1_000] * 31)
    run = {"engine": "local", "until": "caught_up", "checkpoint": str(tmp_path)}
    pipeline.run(**run)  # type: ignore[arg-type]
    assert rows == []
    [letter] = letters
    assert {**letter["record"], "timestamp": None} == {
        "topic": topic,
        "partition": letter["record"]["partition"],
        "offset": letter["record"]["offset"],
        "timestamp": None,
        "key": "bad",
        "headers": {},
        "value": "{no json",
    }
    kafka.send(topic, first[:3], times_ms=[2_000] * 3)
    kafka.send(topic, [json.dumps({"user": "u9", "n": 1})] * 2, times_ms=[200_000] * 2)
    pipeline.run(**run)  # type: ignore[arg-type]
    assert sorted((row["user"], row["clicks"]) for row in rows) == [("u0", 11), ("u1", 11), ("u2", 11)]
    assert len(letters) == 1


def test_a_kafka_that_is_killed_slows_a_run_and_loses_nothing(kafka: KafkaServer, tmp_path: Path) -> None:
    """As source and as sink; what was written twice is known by its id."""
    source, sink = kafka.topic(partitions=2), kafka.topic(partitions=2)
    _pump(kafka, source, range(1_000))
    run = (
        Pipeline("copy")
        .source(Kafka(source, servers=kafka.servers))
        .to(Kafka(sink, servers=kafka.servers, key_by="n"))
        .start(engine="local", checkpoint=str(tmp_path))
    )
    _until_there(kafka, sink, 1)
    kafka.kill()
    kafka.start()
    _pump(kafka, source, range(1_000, 1_500))
    _until_there(kafka, sink, 1_500)
    run.stop()
    run.wait()
    by_id = {_id(message): json.loads(message.value() or b"")["n"] for message in kafka.received(sink)}
    assert sorted(by_id.values()) == list(range(1_500))


def _id(message: Any) -> bytes:
    found: bytes = dict(message.headers())[ID_HEADER]
    return found


def _pump(kafka: KafkaServer, topic: str, numbers: range) -> None:
    kafka.send(topic, [json.dumps({"n": n}) for n in numbers], keys=[str(n) for n in numbers])


def _until_there(kafka: KafkaServer, topic: str, count: int) -> None:
    end = time.monotonic() + 60
    while time.monotonic() < end:
        if len({_id(message) for message in kafka.received(topic)}) >= count:
            return
        time.sleep(0.1)
    raise AssertionError("not all of it has come")
