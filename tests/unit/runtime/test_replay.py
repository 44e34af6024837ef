"""What a dead letter must be to come back, and what its record is then."""

from __future__ import annotations

import doctest
from dataclasses import dataclass
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import msgspec
import pytest

from queenstream.errors import PayloadInvalid
from queenstream.pipeline import policies, printer
from queenstream.pipeline.builder import Pipeline
from queenstream.pipeline.endpoints import Memory, Queue, Record
from queenstream.pipeline.plan.nodes import Replay
from queenstream.pipeline.policies import DeadLetters
from queenstream.pipeline.shorthand import count, tumbling
from queenstream.runtime import keys
from queenstream.runtime import replay as letters
from queenstream.runtime.failures import Along, letter
from queenstream.runtime.replay import Doors, Entrant

NOON = datetime(2026, 1, 31, 12, tzinfo=UTC)
NOON_US = 1_769_860_800_000_000


@pytest.mark.parametrize("module", [keys, letters, policies, printer])
def test_the_examples_are_right(module: Any) -> None:
    assert doctest.testmod(module).failed == 0


def opened(pipeline: Pipeline[Any], step: str, record: Any, **more: Any) -> Entrant:
    """A letter of a step, as it comes back from a queue."""
    plan = pipeline.to(print).plan()
    [replay] = [read for read in plan.sources if isinstance(read, Replay)]
    found = Doors.of(plan, replay).open(
        {"pipeline": plan.name, "step": step, "record": record, "failed_at": NOON.isoformat(), **more}
    )
    assert found is not None
    return found


def keep(record: Record) -> Record:
    return record


def queue(**more: Any) -> Pipeline[Record]:
    return Pipeline("p").source(Queue("in", **more)).on_error(DeadLetters("x"))


@pytest.mark.parametrize(
    "key", [None, "ann", 7, 1.5, True, ("shop", 7), (("a", 1), "b"), NOON, date(2026, 1, 31), Decimal("1.50")]
)
def test_a_key_comes_back_as_it_was(key: Any) -> None:
    made = letter("p", "t", {"n": 1}, ValueError("no"), 1, NOON, Along(NOON_US, key, 0))
    told = msgspec.json.decode(msgspec.json.encode(made))
    assert told["time"] == "2026-01-31T12:00:00Z"
    found = opened(queue().key_by("user").transform("t", keep), "t", **told_of(told))
    assert found == Entrant("t", {"n": 1}, Along(NOON_US, key, 0))


def told_of(told: dict[str, Any]) -> dict[str, Any]:
    return {name: told[name] for name in ("record", "time", "key", "input")}


def test_what_the_step_has_no_use_for_is_left_out() -> None:
    pipeline = Pipeline("p").source(Memory([])).transform("t", keep).on_error(DeadLetters("x"))
    found = opened(pipeline, "t", 1, time=NOON.isoformat(), key="ann")
    assert found == Entrant("t", 1, Along(None, None, 0))


def test_where_there_is_event_time_a_letter_must_have_one() -> None:
    found = opened(queue().transform("t", keep), "t", {"n": 1}, time=None)
    assert "goes by event time, and the letter has none" in str(found.error)
    assert "is no event time" in str(opened(queue().transform("t", keep), "t", {}, time="noon").error)


def test_what_a_source_could_not_read_is_from_when_it_failed() -> None:
    assert opened(queue(schema="n int"), "queue:in", {"n": "7"}).along == Along(NOON_US, None, 0)
    assert opened(queue(schema="n int"), "queue:in", {"n": "7"}).record == {"n": 7}
    assert opened(queue(schema="n int"), "queue:in", {"n": "seven"}).error is not None


def test_a_payload_of_a_whole_message_cannot_come_back() -> None:
    with pytest.raises(PayloadInvalid, match="cannot come in again"):
        opened(queue(envelope=True, schema="n int"), "queue:in", {"n": "7"})


def test_no_time_is_wanted_where_rows_are_written() -> None:
    pipeline = queue().window(tumbling("1m")).aggregate(n=count())
    row = {"window_start": "2026-01-31T12:00:00Z", "window_end": "2026-01-31T12:01:00Z", "n": 3}
    found = opened(pipeline, "function:print", row)
    assert found.error is None
    assert found.record["window_start"] == NOON


def test_fields_that_no_schema_has_stay() -> None:
    pipeline = queue(schema="at timestamp").transform("t", keep)
    found = opened(pipeline, "t", {"at": "2026-01-31T12:00:00Z", "more": 1}, time=NOON.isoformat())
    assert found.record == {"at": NOON, "more": 1}
    odd = opened(pipeline, "t", {"at": "noon"}, time=NOON.isoformat())
    assert (odd.record, odd.error) == ({"at": "noon"}, None)


@dataclass
class Order:
    at: datetime


class Sent(msgspec.Struct):
    at: datetime


def ordered(record: Record) -> Order:
    return Order(record["at"])


def sent(order: Order) -> list[Sent]:
    return [Sent(order.at)]


def test_a_letter_that_could_not_come_back_is_the_letter_in_it() -> None:
    inner = {"pipeline": "p", "step": "t", "record": {"n": 1}}
    assert opened(queue().transform("t", keep), "replay:x", inner, time=NOON.isoformat()).step == "t"


def test_objects_are_made_again() -> None:
    pipeline: Pipeline[Any] = Pipeline("p").source(Memory([])).on_error(DeadLetters("x"))
    typed = pipeline.transform("a", ordered).key_by("at").flat_map(sent, name="b").transform("c", lambda s: s)
    record = {"at": "2026-01-31T12:00:00Z"}
    assert opened(typed, "a", record).record == record
    assert opened(typed, "b", record, key={"$time": NOON.isoformat()}) == Entrant(
        "b", Order(NOON), Along(None, NOON, 0)
    )
    assert opened(typed, "c", record).record == Sent(NOON)
    assert opened(typed, "c", {"other": 1}).record == {"other": 1}


@pytest.mark.parametrize("key", [{"a": 1}, {"$time": "noon"}, {"$decimal": "one"}])
def test_a_key_that_cannot_be_one_is_an_error_of_the_step(key: Any) -> None:
    pipeline = Pipeline("p").source(Memory([])).key_by("k").transform("t", keep).on_error(DeadLetters("x"))
    assert opened(pipeline, "t", {}, key=key).error is not None
