"""Topics read as an engine does it."""

from __future__ import annotations

import asyncio
import io
import json
import logging
from datetime import UTC, datetime
from typing import Any

import fastavro
import pytest

from queenstream.connectors import Context, reader_for
from queenstream.connectors.kafka import connection
from queenstream.errors import BrokerUnreachable, CheckpointError, ConfigError
from queenstream.pipeline.endpoints import Kafka
from tests.integration.kafka.reading import committed, everything, opened, taken, until
from tests.processes import free_port
from tests.servers.kafka import KafkaServer

AVRO = json.dumps({"type": "record", "name": "Order", "fields": [{"name": "n", "type": "int"}]})


def numbers(*wanted: int) -> list[str]:
    return [json.dumps({"n": n}) for n in wanted]


async def test_records_with_their_times_up_to_the_end(kafka: KafkaServer) -> None:
    topic = kafka.topic(partitions=3)
    kafka.send(topic, numbers(*range(100)), keys=[str(n % 7) for n in range(100)], times_ms=[5_000] * 100)
    reader = await opened(Kafka(topic, servers=kafka.servers))
    found = await taken(reader, 100)
    assert sorted(record["n"] for record in found.records) == list(range(100))
    assert set(found.times or ()) == {5_000_000}
    by_key = [[r["n"] for r in found.records if r["n"] % 7 == key] for key in range(7)]
    assert all(each == sorted(each) for each in by_key)
    reader.changes()
    assert await everything(reader) == []
    assert reader.drained()
    assert reader.lag() == 0.0
    kafka.send(topic, numbers(100))
    assert (await taken(reader, 1)).records == [{"n": 100}]
    await reader.close()


async def test_an_envelope_has_key_headers_and_place(kafka: KafkaServer) -> None:
    topic = kafka.topic()
    kafka.send(topic, [b'{"n": "1"}', None], keys=["a", None], times_ms=[1_500, 1_501], headers={"h": b"x"})
    reader = await opened(Kafka(topic, servers=kafka.servers, envelope=True, schema="n int"))
    found = await taken(reader, 2)
    assert found.records == [
        {
            "topic": topic,
            "partition": 0,
            "offset": 0,
            "timestamp": datetime(1970, 1, 1, 0, 0, 1, 500_000, UTC),
            "key": "a",
            "headers": {"h": "x"},
            "value": {"n": 1},
        },
        {
            "topic": topic,
            "partition": 0,
            "offset": 1,
            "timestamp": datetime(1970, 1, 1, 0, 0, 1, 501_000, UTC),
            "key": None,
            "headers": {"h": "x"},
            "value": None,
        },
    ]
    await reader.close()


def avro(n: int) -> bytes:
    file = io.BytesIO()
    fastavro.schemaless_writer(file, json.loads(AVRO), {"n": n})
    return file.getvalue()


@pytest.mark.parametrize(
    ("options", "good", "record", "bad"),
    [
        ({"format": "string"}, b"\xc3\xa4", {"value": "ä"}, b"\xff"),
        ({"format": "bytes"}, b"\xff", {"value": b"\xff"}, None),
        ({"format": "avro", "avro_schema": AVRO}, avro(7), {"n": 7}, avro(7) + b"!"),
        ({}, b'{"n": 1}', {"n": 1}, b'{"n"'),
        ({"schema": "n int"}, b'{"n": 1}', {"n": 1}, b'{"n": "x"}'),
    ],
)
async def test_values_of_every_format_and_those_that_are_none(
    kafka: KafkaServer, options: dict[str, Any], good: bytes, record: dict[str, Any], bad: bytes | None
) -> None:
    """What is no record comes with where it lies, and the next one is not lost."""
    topic = kafka.topic()
    kafka.send(topic, [good, bad, good], keys=["a", "b", "c"])
    reader = await opened(Kafka(topic, servers=kafka.servers, **options))
    found = await taken(reader, 3)
    assert found.records == [record, record]
    [(failure, _)] = found.failures
    assert (failure["topic"], failure["partition"], failure["offset"], failure["key"]) == (topic, 0, 1, "b")
    assert failure["value"] == (None if bad is None else bad.decode("utf-8", "backslashreplace"))
    assert (await committed(reader))[f"{topic}/0"] == 3
    await reader.close()


@pytest.mark.parametrize(
    ("start", "first"),
    [
        ("earliest", 0),
        ("latest", 10),
        ("1970-01-01T00:00:05Z", 4),
        (datetime(1970, 1, 1, 0, 0, 5, tzinfo=UTC), 4),
        (datetime(2100, 1, 1, tzinfo=UTC), 10),
        ({0: 7}, 7),
        ({}, 0),
    ],
)
async def test_where_a_new_group_begins(kafka: KafkaServer, start: Any, first: int) -> None:
    topic = kafka.topic()
    kafka.send(topic, numbers(*range(10)), times_ms=[(n + 1) * 1_000 for n in range(10)])
    at = {topic: start} if isinstance(start, dict) else start
    reader = await opened(Kafka(topic, servers=kafka.servers, start=at))
    assert [record["n"] for record in await everything(reader)] == list(range(first, 10))
    kafka.send(topic, numbers(10))
    assert (await taken(reader, 1)).records == [{"n": 10}]
    await reader.close()


async def test_the_group_is_told_only_what_was_committed_and_the_checkpoint_wins(kafka: KafkaServer) -> None:
    topic = kafka.topic()
    source = Kafka(topic, servers=kafka.servers)
    kafka.send(topic, numbers(*range(10)))
    reader = await opened(source)
    await taken(reader, 4, most=4)
    positions = await committed(reader)
    assert positions == {f"{topic}/0": 4}
    await taken(reader, 6)
    reader.changes()  # not committed
    await reader.close()
    assert kafka.committed(topic, topic) == 4
    again = await opened(source)
    assert [each["n"] for each in await everything(again)] == [4, 5, 6, 7, 8, 9]
    await again.close()
    for place, rewound in ((2, False), (2, True), (8, False)):
        reader = await opened(source, {f"{topic}/0": place}, rewound=rewound)
        assert [each["n"] for each in await everything(reader)] == list(range(place, 10))
        await reader.close()


async def test_two_readers_of_a_group_share_and_lose_nothing(kafka: KafkaServer) -> None:
    topic = kafka.topic(partitions=4)
    source = Kafka(topic, servers=kafka.servers)
    seen: list[int] = []

    async def read(reader: Any, stop: asyncio.Event) -> None:
        while not stop.is_set():
            batch = await reader.read(7, 0.05)
            seen.extend(record["n"] for record in batch.records)
            await committed(reader)

    stop = asyncio.Event()
    first = await opened(source)
    reading = asyncio.create_task(read(first, stop))
    kafka.send(topic, numbers(*range(200)), keys=[str(n) for n in range(200)])
    await until(lambda: len(seen) >= 20)
    second, stop_second = await opened(source), asyncio.Event()
    sharing = asyncio.create_task(read(second, stop_second))
    await until(lambda: len(second._held) == 2)  # type: ignore[attr-defined]
    kafka.send(topic, numbers(*range(200, 400)), keys=[str(n) for n in range(200)])
    await until(lambda: set(seen) >= set(range(400)))
    stop_second.set()
    await sharing
    await second.close()
    kafka.send(topic, numbers(*range(400, 600)), keys=[str(n) for n in range(200)])
    await until(lambda: set(seen) >= set(range(600)))
    stop.set()
    await reading
    await first.close()


async def test_a_pattern_finds_topics_that_come_later(kafka: KafkaServer) -> None:
    for name in ("eu-orders-1", "eu-orders-1-audit"):
        kafka.topic(name)
        kafka.send(name, numbers(1))
    source = Kafka(r"eu-orders-\d", servers=kafka.servers, pattern=True, start="latest", envelope=True)
    reader = await opened(source)
    assert await everything(reader) == []
    kafka.topic("eu-orders-2")
    kafka.send("eu-orders-2", numbers(2))
    kafka.send("eu-orders-1", numbers(3))
    found = await taken(reader, 2)
    assert sorted((r["topic"], r["value"]["n"]) for r in found.records) == [
        ("eu-orders-1", 3),
        ("eu-orders-2", 2),
    ]
    await reader.close()


async def test_several_topics(kafka: KafkaServer) -> None:
    one, two = kafka.topic(), kafka.topic()
    kafka.send(one, numbers(1))
    kafka.send(two, numbers(2))
    reader = await opened(Kafka([one, two], servers=kafka.servers))
    assert sorted(each["n"] for each in await everything(reader)) == [1, 2]
    await reader.close()


async def test_what_was_deleted_before_it_was_read_is_an_error(kafka: KafkaServer) -> None:
    topic = kafka.topic()
    kafka.send(topic, numbers(*range(10)))
    kafka.delete_before(topic, 5)
    fresh = await opened(Kafka(topic, servers=kafka.servers))
    assert [each["n"] for each in await everything(fresh)] == [5, 6, 7, 8, 9]
    await fresh.close()
    reader = await opened(Kafka(topic, servers=kafka.servers), {f"{topic}/0": 3})
    with pytest.raises(CheckpointError, match="deleted before they were read"):
        await everything(reader)
    await reader.close()


async def test_mistakes_are_said_before_anything_is_read(
    kafka: KafkaServer, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ConfigError, match="there is no topic 'nowhere'"):
        await opened(Kafka("nowhere", servers=kafka.servers))
    with pytest.raises(ConfigError, match=r"group\.id cannot be set") as told:
        await opened(
            Kafka("t", servers=kafka.servers, settings={"group.id": "x", "sasl.password": "hunter2"})
        )
    assert "hunter2" not in str(told.value)
    with pytest.raises(ConfigError, match="does not take") as told:
        await opened(Kafka("t", settings={"security.protocol": "hunter2"}))
    assert "hunter2" not in str(told.value)
    monkeypatch.setattr(connection, "_LOOK_SECONDS", 0.5)
    with caplog.at_level(logging.CRITICAL), pytest.raises(BrokerUnreachable, match="no Kafka server answers"):
        await opened(Kafka("t", servers=f"127.0.0.1:{free_port()}"))
    with pytest.raises(ConfigError, match="no Avro schema"):
        reader_for(Kafka("t", format="avro", avro_schema="{}"), Context("p", "s"))
