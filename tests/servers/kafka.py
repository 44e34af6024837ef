"""A Kafka of one node, in KRaft mode, for tests: ``kafka`` is a fixture of the session.

>>> with running() as server:  # doctest: +SKIP
...     server.topic("orders", partitions=3)
"""

from __future__ import annotations

import contextlib
import itertools
import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaException, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewPartitions, NewTopic

from tests.processes import free_port
from tests.servers import maven

_START_SECONDS = 60
_CONFIGURATION = """\
process.roles=broker,controller
node.id=1
controller.quorum.voters=1@127.0.0.1:{controller}
listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller}
advertised.listeners=PLAINTEXT://127.0.0.1:{port}
controller.listener.names=CONTROLLER
log.dirs={data}
offsets.topic.replication.factor=1
offsets.topic.num.partitions=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
group.initial.rebalance.delay.ms=0
auto.create.topics.enable=false
log.retention.ms=-1
broker.session.timeout.ms=2000
broker.heartbeat.interval.ms=500
"""
# A folder with these needs no formatting, which would start another JVM.
_META = "version=1\ncluster.id=cXVlZW5zdHJlYW0tdGVzdA\nnode.id=1\n"


class KafkaServer:
    """A broker on ports of its own; they stay the same when it is killed and started again."""

    def __init__(self, jars: Path, folder: Path) -> None:
        self._jars = jars
        self._folder = folder
        self._port, self._controller = free_port(), free_port()
        self._process: subprocess.Popen[bytes] | None = None
        self._names = itertools.count(1)
        data = folder / "data"
        data.mkdir()
        (data / "meta.properties").write_text(_META)
        told = _CONFIGURATION.format(port=self._port, controller=self._controller, data=data)
        (folder / "server.properties").write_text(told)
        settings: dict[str, str | int | float | bool] = {
            "bootstrap.servers": self.servers,
            "log_level": 0,
            "reconnect.backoff.max.ms": 100,
        }
        self._admin = AdminClient(settings)

    @property
    def servers(self) -> str:
        """What clients connect to."""
        return f"127.0.0.1:{self._port}"

    def start(self, *, wait: bool = True) -> None:
        """Start it, and wait until it answers."""
        java = str(Path(os.environ["JAVA_HOME"]) / "bin" / "java") if "JAVA_HOME" in os.environ else "java"
        command = [java, "-Xms256m", "-Xmx512m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1",
                   "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn", "-cp", f"{self._jars}/*", "kafka.Kafka",
                   str(self._folder / "server.properties")]  # fmt: skip
        with (self._folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
            )
        if wait:
            self.ready()

    def ready(self) -> None:
        """Wait until it answers."""
        assert self._process is not None
        end = time.monotonic() + _START_SECONDS
        while True:
            try:
                self._admin.list_topics(timeout=1)
            except KafkaException:
                if self._process.poll() is None and time.monotonic() < end:
                    continue
                log = (self._folder / "log").read_text("utf-8", "replace")
                raise AssertionError(f"Kafka did not start: {log[-2_000:]}") from None
            return

    def kill(self) -> None:
        """As by ``kill -9``."""
        assert self._process is not None
        if self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()

    # What tests do with it

    def topic(
        self, name: str | None = None, *, partitions: int = 1, config: Mapping[str, str] | None = None
    ) -> str:
        """A new topic; gives its name."""
        name = name or f"topic-{next(self._names)}"
        made = NewTopic(name, partitions, 1, config=dict(config or {}))
        for each in self._admin.create_topics([made]).values():
            each.result(timeout=30)
        return name

    def grow(self, topic: str, partitions: int) -> None:
        """More partitions."""
        for each in self._admin.create_partitions([NewPartitions(topic, partitions)]).values():
            each.result(timeout=30)

    def delete_before(self, topic: str, offset: int) -> None:
        """Delete the messages of partition 0 before an offset, as retention does."""
        for each in self._admin.delete_records([TopicPartition(topic, 0, offset)]).values():
            each.result(timeout=30)

    def send(
        self,
        topic: str,
        values: Sequence[bytes | str | None],
        *,
        keys: Sequence[str | None] | None = None,
        times_ms: Sequence[int] | None = None,
        partition: int = -1,
        headers: Any = None,
    ) -> None:
        """Messages, in order."""
        producer = Producer({"bootstrap.servers": self.servers, "log_level": 0, "enable.idempotence": True})
        for index, value in enumerate(values):
            producer.produce(
                topic,
                value,
                keys[index] if keys else None,
                partition,
                timestamp=times_ms[index] if times_ms else 0,
                headers=headers,
            )
        assert producer.flush(30) == 0

    def received(self, topic: str) -> list[Message]:
        """All messages that are in a topic now, in order within each partition."""
        consumer = Consumer({"bootstrap.servers": self.servers, "group.id": "look", "log_level": 0})
        try:
            found = []
            for partition in consumer.list_topics(topic, timeout=30).topics[topic].partitions:
                place = TopicPartition(topic, partition)
                low, high = consumer.get_watermark_offsets(place, timeout=30)
                consumer.assign([TopicPartition(topic, partition, low)])
                end = time.monotonic() + 30
                while low < high:
                    message = consumer.poll(1)
                    assert time.monotonic() < end, f"{topic} does not give all its messages"
                    if message is not None and message.error() is None:
                        found.append(message)
                        low = (message.offset() or 0) + 1
            return found
        finally:
            consumer.close()

    def count(self, topic: str) -> int:
        """How many messages have been written to a topic."""
        consumer = Consumer({"bootstrap.servers": self.servers, "group.id": "look", "log_level": 0})
        try:
            partitions = consumer.list_topics(topic, timeout=30).topics[topic].partitions
            places = [TopicPartition(topic, each) for each in partitions]
            return sum(consumer.get_watermark_offsets(place, timeout=30)[1] for place in places)
        finally:
            consumer.close()

    def committed(self, group: str, topic: str, partition: int = 0) -> int:
        """Where a group stands; negative: nowhere."""
        consumer = Consumer({"bootstrap.servers": self.servers, "group.id": group, "log_level": 0})
        try:
            [found] = consumer.committed([TopicPartition(topic, partition)], timeout=30)
            return int(found.offset)
        finally:
            consumer.close()


@contextlib.contextmanager
def running() -> Iterator[KafkaServer]:
    """A server, ended with all that it held."""
    jars = maven.required("kafka")
    folder = Path(tempfile.mkdtemp(prefix="queenstream-kafka-"))
    server = KafkaServer(jars, folder)
    try:
        server.start()
        yield server
    finally:
        server.kill()
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="session")
def kafka() -> Iterator[KafkaServer]:
    """One Kafka for all tests of a process. Who kills it has to start it again."""
    with running() as server:
        yield server
