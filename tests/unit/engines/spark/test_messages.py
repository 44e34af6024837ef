"""Messages become records and go through a step, many at once and each by itself."""

from __future__ import annotations

import json
import pickle
from datetime import UTC, datetime

import msgspec
import pyarrow as pa
import pytest

from queenstream.core.schemas import RecordError, Schema
from queenstream.core.schemas.json_decoder import JsonDecoder
from queenstream.engines.spark.sources.sources import SOURCE_BITS, QueueDecoder
from queenstream.engines.spark.tasks.failures import Guard, Troubles
from queenstream.engines.spark.tasks.records import make_items
from queenstream.pipeline.builder import Pipeline
from queenstream.pipeline.endpoints import Memory
from queenstream.pipeline.plan.nodes import Apply
from queenstream.pipeline.policies import DeadLetters
from queenstream.runtime.failures import GONE

VALUES = [
    None, True, 0, 1, -1, 1.0, 1.5, -0.0, 1e300, 127, 128, -129, 32768, 2**31, 2**63 - 1, 2**63, -(2**63),
    -(2**63) - 1, 10**400, "", "x", "42", "4.5", "true", "é", "2026-01-31T00:00:00Z", "2026-01-31",
    [], [1], ["a", None], {}, {"a": 1}, {"a": "x"},
]  # fmt: skip
TEXTS = [*map(json.dumps, VALUES), "1e2", "1E400", "-0", "9223372036854775807.0", "1e19"]
TYPES = [
    "string", "boolean", "tinyint", "smallint", "int", "bigint", "float", "double", "timestamp", "date",
    "binary", "variant", "decimal(10,2)", "array<string>", "map<string,bigint>", "struct<a:bigint>",
]  # fmt: skip


@pytest.mark.parametrize("kind", TYPES)
@pytest.mark.parametrize("required", ["", " not null"])
def test_texts_decoded_together_are_what_each_is_by_itself(kind: str, required: str) -> None:
    decoder = pickle.loads(pickle.dumps(JsonDecoder(Schema.of(f"a {kind}{required}, b string"))))
    taken = 0
    for text in [
        *(f'{{"b": "z", "more": 1, "a": {value}}}'.encode() for value in TEXTS),
        b"{}",
        b"[1]",
        b"1",
    ]:
        together = decoder.decode_all([text, text])
        try:
            alone = decoder.decode(text)
        except (RecordError, msgspec.MsgspecError):  # a number that no JSON decoder of ours takes
            assert together is None
            continue
        if together is not None:
            taken += 1
            assert [repr(each) for each in together] == [repr(alone)] * 2  # also the order, and 1 is not 1.0
    assert taken


def test_a_message_that_does_not_fit_leaves_the_others_as_they_are() -> None:
    data = ['{"n": 1}', '{"n": "two"}', '{"n": "3"}']
    columns = [pa.array(data), pa.array([7, 8, 9]), pa.array([datetime(2026, 1, 31, tzinfo=UTC)] * 3)]
    batch = pa.RecordBatch.from_arrays(columns, ["data", "id", "created_at"])
    decoded = QueueDecoder(1, Schema.of("n bigint"), envelope=False).decode(batch)
    assert [item.record for item in decoded.items] == [{"n": 1}, {"n": 3}]
    assert [item.seq - (1 << SOURCE_BITS) for item in decoded.items] == [7, 9]
    [(payload, error)] = decoded.failures
    assert payload == {"n": "two"}
    assert isinstance(error, RecordError)


@pytest.mark.parametrize("raised", [ValueError("no"), StopIteration()])
def test_a_function_is_called_once_for_each_record_whatever_it_raises(raised: Exception) -> None:
    plan = Pipeline("p").source(Memory([])).transform("t", abs, on_error=DeadLetters("dead")).to(print).plan()
    [node] = [each for each in plan.nodes if isinstance(each, Apply)]
    troubles = Troubles("p")
    called: list[int] = []

    def call(value: int) -> int:
        called.append(value)
        if value % 3 == 0:
            raise raised
        return -value

    items = make_items(range(8), [None] * 8, range(8))
    made = Guard(node, troubles).each([*range(8)], call, items)
    assert called == [*range(8)]
    assert made == [GONE, -1, -2, GONE, -4, -5, GONE, -7]
    assert [letter["record"] for _, letter in troubles.letters] == [0, 3, 6]
