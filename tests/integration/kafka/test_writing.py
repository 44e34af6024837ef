"""Rows written to a topic as an engine does it."""

from __future__ import annotations

import json
from typing import Any

import fastavro
import pytest

from queenstream.connectors.kafka.writer import ID_HEADER
from queenstream.errors import ConfigError, PayloadInvalid, TooLarge
from queenstream.pipeline.endpoints import Kafka
from tests.integration.kafka.reading import writer
from tests.servers.kafka import KafkaServer

AVRO = json.dumps({"type": "record", "name": "Order", "fields": [{"name": "n", "type": "int"}]})


def ids(messages: list[Any]) -> list[str]:
    return [dict(message.headers())[ID_HEADER].decode() for message in messages]


async def test_rows_in_order_by_key_and_with_an_id(kafka: KafkaServer) -> None:
    topic = kafka.topic(partitions=3)
    rows = [{"user": f"u{n % 5}", "n": n} for n in range(50)]
    sink = await writer(Kafka(topic, servers=kafka.servers, key_by="user"))
    assert await sink.write("g-1", rows) == []
    found = kafka.received(topic)
    written = [json.loads(message.value() or b"") for message in found]
    assert sorted(written, key=lambda row: row["n"]) == rows
    for user in ("u0", "u4"):
        own = [(m.partition(), r["n"]) for m, r in zip(found, written, strict=True) if r["user"] == user]
        assert len({partition for partition, _ in own}) == 1
        assert [n for _, n in own] == sorted(n for _, n in own)
    assert {message.key() for message in found} == {f"u{n}".encode() for n in range(5)}
    assert sorted(ids(found)) == sorted(f"p:kafka:{topic}:g-1:{n}" for n in range(50))
    assert await sink.write("g-1", rows[:2]) == []  # again, as after a crash
    assert len(ids(kafka.received(topic))) == 52
    assert len(set(ids(kafka.received(topic)))) == 50
    await sink.close()


@pytest.mark.parametrize(
    ("options", "row", "value", "bad"),
    [
        ({"format": "string"}, {"value": "ä"}, "ä".encode(), {"value": 1}),
        ({"format": "bytes"}, {"value": b"\xff"}, b"\xff", {"value": "ä"}),
        ({"format": "avro", "avro_schema": AVRO}, {"n": 7}, b"\x0e", {"n": "x"}),
        ({}, {"n": 7}, b'{"n":7}', {"n": object()}),
        ({"schema": "n int"}, {"n": "7"}, b'{"n":7}', {"n": "x"}),
        ({"key_by": "n"}, {"n": 7}, b'{"n":7}', {"m": 7}),
    ],
)
async def test_values_of_every_format_and_rows_that_do_not_fit(
    kafka: KafkaServer, options: dict[str, Any], row: Any, value: bytes, bad: Any
) -> None:
    assert fastavro.parse_schema(json.loads(AVRO))
    topic = kafka.topic()
    sink = await writer(Kafka(topic, servers=kafka.servers, **options))
    [(index, error)] = await sink.write("g-1", [row, bad, row])
    assert index == 1
    assert isinstance(error, PayloadInvalid)
    assert [message.value() for message in kafka.received(topic)] == [value, value]
    await sink.close()


async def test_a_row_that_is_too_large_is_refused_alone(kafka: KafkaServer) -> None:
    """By the library, or by the server, which refuses a whole batch for one of its messages."""
    topic = kafka.topic(config={"max.message.bytes": "20000"})
    sink = await writer(Kafka(topic, servers=kafka.servers))
    rows = [{"n": n, "text": "x" * (100_000 if n == 3 else 2_000_000 if n == 5 else 10)} for n in range(8)]
    refused = await sink.write("g-1", rows)
    assert [index for index, _ in refused] == [3, 5]
    assert all(isinstance(error, TooLarge) for _, error in refused)
    assert sorted(json.loads(m.value() or b"")["n"] for m in kafka.received(topic)) == [0, 1, 2, 4, 6, 7]
    await sink.close()


async def test_mistakes_are_said_before_anything_is_written(kafka: KafkaServer) -> None:
    with pytest.raises(ConfigError, match="there is no topic 'nowhere'"):
        await writer(Kafka("nowhere", servers=kafka.servers))
    with pytest.raises(ConfigError, match="one topic"):
        await writer(Kafka(["a", "b"], servers=kafka.servers))
    with pytest.raises(ConfigError, match=r"enable\.idempotence cannot be set"):
        await writer(Kafka("a", servers=kafka.servers, settings={"enable.idempotence": "false"}))
