"""Topics on Spark, against a real Kafka: the same as on the local engine, and through its crashes."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest

from queenstream import DeadLetters, Function, Kafka, Pipeline, col, count, sum_, tumbling
from queenstream.connectors.kafka.writer import ID_HEADER
from queenstream.engines.spark.sources.kafka import java_settings
from tests.conformance.pipelines.engines import multiset
from tests.servers import maven
from tests.servers.kafka import KafkaServer, kafka

__all__ = ["kafka"]

Row = dict[str, Any]
pytestmark = [pytest.mark.usefixtures("spark", "jars"), pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def jars() -> Path:
    """In the cache folder Spark finds them by itself."""
    return maven.required("spark-kafka")


class Found:
    """What a pipeline over a topic gives: closed windows, whole messages, and dead letters."""

    def __init__(self, servers: str, topic: str, start: Any) -> None:
        self.windows: list[Row] = []
        self.letters: list[Row] = []
        schema = "user string, n int"
        source = Kafka(topic, servers=servers, start=start, schema=schema, envelope=True)
        read = Pipeline("clicks").source(source, on_error=DeadLetters(Function(self.letters.append)))
        self.pipeline = (
            read.filter(col("value.n") >= 0)
            .transform(
                "flat", lambda message: {**message["value"], "key": message["key"], **message["headers"]}
            )
            .key_by("user")
            .window(tumbling("1m"))
            .aggregate(clicks=count(), total=sum_("n"))
            .to(self.windows.append)
        )

    def run(self, engine: Any, checkpoint: Path) -> None:
        self.pipeline.run(engine=engine, until="caught_up", checkpoint=str(checkpoint))

    @property
    def told(self) -> list[Row]:
        """Dead letters without when it was."""
        return [{**letter, "failed_at": None} for letter in self.letters]


def test_both_engines_find_the_same_in_a_topic(kafka: KafkaServer, tmp_path: Path) -> None:
    """With records that cannot be read, from given offsets, in two runs from one checkpoint."""
    topic = kafka.topic()
    good = [json.dumps({"user": f"u{n % 3}", "n": str(n)}) for n in range(-10, 30)]
    bad: list[Any] = ["{no json", '{"n": "x"}', b"\xff\xfe"]
    values = [*good, *bad, None]
    kafka.send(topic, values, keys=["k"] * 44, times_ms=[1_000 + n for n in range(44)], headers={"h": b"1"})
    engines = {name: Found(kafka.servers, topic, {topic: {0: 5}}) for name in ("local", "spark")}
    for name, found in engines.items():
        found.run(name, tmp_path / name)
    kafka.send(topic, good[-3:], times_ms=[2_000] * 3)
    kafka.send(topic, good[-3:], times_ms=[200_000] * 3)
    for name, found in engines.items():
        found.run(name, tmp_path / name)
    local, spark = engines["local"], engines["spark"]
    assert sum(row["clicks"] for row in local.windows) == 33
    assert multiset(spark.windows) == multiset(local.windows)
    assert [each["record"]["offset"] for each in local.letters] == [40, 41, 42]
    assert multiset(spark.told) == multiset(local.told)


def test_a_plan_of_expressions_has_windows_of_sparks_own(kafka: KafkaServer, tmp_path: Path) -> None:
    """The same rows as on the local engine, with values that only fit with some good will, or not at all."""
    topic = kafka.topic(partitions=2)
    early: list[Any] = [
        '{"user": "a", "n": 1}',
        '{"user": "a", "n": "2"}',
        '{"user": 5, "n": 3.0, "more": [1]}',
    ]
    bad = [
        "",
        "null",
        "{",
        '{"n": 1}{"n": 1}',
        '{"user": "a"}',
        '{"user": "a", "n": "x"}',
        b'{"user": "\xff"}',
    ]
    later: list[Any] = ['{"user": "b",\n "n": 4}', ' {"user": "b", "n": -5}']
    for values, at in (([*early, *bad, None], 1_000), (later, 200_000)):
        for partition in (0, 1):
            kafka.send(topic, values, times_ms=[at] * len(values), partition=partition)
    found: dict[str, list[Row]] = {"local": [], "spark": []}

    def run(engine: Any) -> float:
        """Until it has caught up; gives how many records were late."""
        running = (
            Pipeline("typed")
            .on_error("skip")
            .source(Kafka(topic, servers=kafka.servers, schema="user string, n int not null"), name="in")
            .filter(col("n") > -9)
            .key_by("user")
            .window(tumbling("1m"), grace="10m")
            .aggregate(number=count(), total=sum_("n"), emit="update")
            .to(found[engine].append)
            .start(engine=engine, until="caught_up", checkpoint=str(tmp_path / engine))
        )
        running.wait()
        assert running.get_stats()["steps.in.failed"] == (0 if engine in done else 2 * 8)
        return running.get_stats()["late"]

    done: set[str] = set()
    for engine, rows in found.items():
        assert run(engine) == 0
        done.add(engine)
        found[engine] = list({(row["user"], row["window_start"]): row for row in rows}.values())
    assert multiset(found["spark"]) == multiset(found["local"])
    told = json.loads((tmp_path / "spark" / "typed" / "run.json").read_text())
    assert told["native"] is True
    for late, at in ((0, 90_000_000), (1, 1_000)):
        kafka.send(topic, early[:1], times_ms=[at])
        assert [run("local"), run("spark")] == [late, late]


@pytest.mark.parametrize("away", [False, True])
def test_several_tasks_write_a_topic_and_keep_the_order_of_each_key(
    kafka: KafkaServer, elsewhere: str, tmp_path: Path, away: bool
) -> None:
    """From a function, and as columns; with a checkpoint that tasks reach, and through Spark."""
    source = kafka.topic(partitions=2)
    numbers = range(4_000)
    users = [f"user-{n % 20}" for n in numbers]
    values = [json.dumps({"user": user, "n": n}) for n, user in zip(numbers, users, strict=True)]
    kafka.send(source, values, keys=users, headers={"h": b"1"})
    state = f"{elsewhere}/state" if away else str(tmp_path / "state")
    for name in ("columns", "function"):
        sink = kafka.topic(partitions=3)
        rows = Pipeline(name).source(Kafka(source, servers=kafka.servers, schema="user string, n int"))
        rows = rows.filter("n >= 0") if name == "columns" else rows.map(dict)
        rows.to(Kafka(sink, servers=kafka.servers, key_by="user")).run(until="caught_up", checkpoint=state)
        found: dict[str, list[int]] = {}
        messages = kafka.received(sink)
        for message in messages:
            row = json.loads(message.value() or b"")
            found.setdefault(row["user"], []).append(row["n"])
        assert found == {f"user-{n}": list(range(n, 4_000, 20)) for n in range(20)}
        assert len({_id(message).rpartition(b":")[0] for message in messages}) > 1  # each task has its own


def test_a_kafka_that_is_killed_slows_spark_and_loses_nothing(kafka: KafkaServer, tmp_path: Path) -> None:
    source, sink = kafka.topic(partitions=2), kafka.topic()
    kafka.send(source, [json.dumps({"n": n}) for n in range(1_000)], keys=[str(n) for n in range(1_000)])
    run = (
        Pipeline("copy")
        .source(Kafka(source, servers=kafka.servers))
        .to(Kafka(sink, servers=kafka.servers))
        .start(engine="spark", checkpoint=str(tmp_path))
    )
    try:
        _until_there(kafka, sink, 1_000)
        kafka.kill()
        kafka.start()
        kafka.send(source, [json.dumps({"n": n}) for n in range(1_000, 1_200)])
        _until_there(kafka, sink, 1_200)
        assert run.get_stats()["queue_depth"] == 0
    finally:
        run.stop()
    run.wait()
    by_id = {_id(message): json.loads(message.value() or b"")["n"] for message in kafka.received(sink)}
    assert sorted(by_id.values()) == list(range(1_200))


def _until_there(kafka: KafkaServer, topic: str, count: int) -> None:
    end = time.monotonic() + 120
    while len({_id(message) for message in kafka.received(topic)}) < count:
        assert time.monotonic() < end, "not all of it has come"
        time.sleep(0.2)


def _id(message: Any) -> bytes:
    found: bytes = dict(message.headers())[ID_HEADER]
    return found


def test_settings_are_said_in_java(tmp_path: Path) -> None:
    (tmp_path / "ca.pem").write_text("-----BEGIN")
    told = {
        "security.protocol": "SASL_SSL",
        "sasl.mechanisms": "SCRAM-SHA-512",
        "sasl.username": "me",
        "sasl.password": 'a"b',
        "ssl.ca.location": str(tmp_path / "ca.pem"),
    }
    assert java_settings(told) == {
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": "SCRAM-SHA-512",
        "sasl.jaas.config": (
            'org.apache.kafka.common.security.scram.ScramLoginModule required username="me" password="a\\"b";'
        ),
        "ssl.truststore.type": "PEM",
        "ssl.truststore.certificates": "-----BEGIN",
    }
