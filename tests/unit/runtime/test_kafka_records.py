"""Messages of Kafka as records and rows as messages, without a server."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest

from queenstream.errors import ConfigError, PayloadInvalid
from queenstream.pipeline.endpoints import Kafka, Queue
from queenstream.runtime.kafka_records import Found, Sent, coordinates, messages_of, records_of

AVRO = json.dumps({"type": "record", "name": "R", "fields": [{"name": "at", "type": "string"}]})


def found(value: bytes | None, key: bytes | None = b"k") -> Found:
    return Found("t", 1, 7, 1_500, key, value, [("h", b"x"), ("none", None), ("h", b"\xff")])


def test_coordinates_hold_all_of_a_message_as_json_can() -> None:
    told = coordinates(found(b"\x00\xff", b"\xfe"))
    assert told == {
        "topic": "t",
        "partition": 1,
        "offset": 7,
        "timestamp": datetime(1970, 1, 1, 0, 0, 1, 500_000, UTC),
        "key": "\\xfe",
        "headers": {"h": "\\xff", "none": None},
        "value": "\x00\\xff",
    }
    assert msgspec.json.encode(told)


@pytest.mark.parametrize("value", [b"", b"{", b"\xff", b"nope", b"1 2"])
def test_what_is_no_json_says_what_to_do(value: bytes) -> None:
    with pytest.raises(PayloadInvalid, match=r"no JSON: .*; mend it"):
        records_of(Kafka("t"))(found(value))


def test_a_message_without_a_value_is_only_for_envelopes() -> None:
    with pytest.raises(PayloadInvalid, match="envelope=True"):
        records_of(Kafka("t"))(found(None))
    assert records_of(Kafka("t", envelope=True, schema="n int"))(found(None))["value"] is None


def test_a_row_that_is_a_whole_message() -> None:
    make = messages_of(Kafka("t", envelope=True), msgspec.json.encode)
    row = {"value": {"n": 1}, "key": 7, "headers": {"a": "b", "n": 1}, "timestamp": "1970-01-01T00:00:02Z"}
    assert make(row) == Sent(b"7", b'{"n":1}', [("a", b"b"), ("n", b"1")], 2_000)
    assert make({"value": None}) == Sent(None, None, [])
    for wrong in ({"n": 1}, [1]):
        with pytest.raises(PayloadInvalid, match="no 'value'"):
            make(wrong)


@pytest.mark.parametrize(
    ("make", "told"),
    [
        (lambda: Kafka("t", start={"u": {0: 1}}), "names the topic 'u'"),
        (lambda: Kafka("t", start={"t": {0: -1}}), "whole numbers from 0"),
        (lambda: Kafka("t", start={"t": {"0": 1}}), "whole numbers from 0"),  # type: ignore[dict-item]
        (lambda: Kafka("(", pattern=True), "no regular expression"),
        (lambda: Kafka(["a", "b"], pattern=True), "one text"),
        (lambda: Kafka("t", format="avro"), "give both"),
        (lambda: Kafka("t", avro_schema=AVRO), "give both"),
        (lambda: Kafka("t", envelope=True, key_by="n"), "leave key_by out"),
        (lambda: Queue("q", envelope=True, partition_by="n"), "no partition_by"),
    ],
)
def test_options_that_make_no_sense(make: Any, told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        make()
