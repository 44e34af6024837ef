"""Plans without Python and the records that a step fails on: every policy, as on the local engine."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from queenstream.core import aggregates
from queenstream.core.schemas import RecordError
from queenstream.errors import StepFailed
from queenstream.pipeline.builder import Pipeline
from queenstream.pipeline.endpoints import Function, Memory, Queue
from queenstream.pipeline.policies import DeadLetters, OnError, retry
from queenstream.pipeline.shorthand import tumbling
from queenstream.testing.brokers import TemporaryBroker
from tests.conformance.pipelines.engines import multiset
from tests.sparks import is_native

Row = dict[str, Any]
Steps = Callable[[Pipeline[Any], Any], Pipeline[Any]]
pytestmark = [pytest.mark.usefixtures("spark"), pytest.mark.timeout(600)]

SCHEMA = "user string not null, amount decimal(20,2), at timestamp, more struct<n:int>"
EVENTS: list[Any] = [
    {"user": "a", "amount": "1.50", "at": "2026-01-31T12:00:00.123456Z", "more": {"n": 1}},
    {"user": "a", "amount": "123456789012345678.91", "more": {"n": 2}},  # no time
    {"user": "b", "amount": "much", "at": "2026-01-31T12:00:01Z"},
    {"user": "b", "amount": 2, "at": "2026-01-31T12:00:59Z"},
    {"amount": 3, "at": "2026-01-31T12:00:03Z"},
    [1],
    {"user": "c", "amount": 4, "at": "2026-01-31T13:00:00Z"},
]
FAILED = 4
SOME = ["record", "error", "error_type", "step", "attempts", "pipeline", "time", "key", "input"]


def straight(events: Pipeline[Any], to: Any) -> Pipeline[Any]:
    return events.filter("amount > 0").key_by("user").event_time("at").select("user", "amount").to(to)


def windows(events: Pipeline[Any], to: Any) -> Pipeline[Any]:
    keyed = events.key_by("user").event_time("at").window(tumbling("1m"))
    return keyed.aggregate(n=aggregates.count(), total=aggregates.sum_("amount")).to(to)


def branches(events: Pipeline[Any], to: Any) -> Pipeline[Any]:
    keyed = events.key_by("user").event_time("at")
    return keyed.filter("amount < 3").to(to).select("user").filter("user = 'c'").to(to)


def joined(events: Pipeline[Any], to: Any) -> Pipeline[Any]:
    people = Memory([{"who": "a", "when": "2026-01-31T12:00:02Z"}], schema="who string, when timestamp")
    others = Pipeline("others").source(people, name="others").event_time("when")
    return events.event_time("at").join(others, on=("user", "who"), within="1m").to(to)


SHAPES: dict[str, Steps] = {"straight": straight, "windows": windows, "branches": branches, "join": joined}


def build(shape: Steps, policy: OnError, to: Any, source: Any = None) -> Pipeline[Any]:
    source = Memory(EVENTS, schema=SCHEMA) if source is None else source
    return shape(Pipeline("p").on_error(policy).source(source, name="in"), to)


def letters_to(rows: list[Row]) -> DeadLetters:
    return DeadLetters(Function(rows.append, name="letters"))


def told(letters: list[Row]) -> list[Row]:
    return [{name: letter[name] for name in SOME} for letter in letters]


@pytest.mark.parametrize("shape", SHAPES)
def test_dead_letters_are_those_of_the_local_engine(spark: SparkSession, shape: str) -> None:
    here: list[Row] = []
    here_letters: list[Row] = []
    local = build(SHAPES[shape], letters_to(here_letters), here.append).run(engine="local").get_stats()
    there: list[Row] = []
    letters: list[Row] = []
    pipeline = build(SHAPES[shape], letters_to(letters), there.append)
    assert is_native(pipeline.plan(), spark)
    figures = pipeline.run().get_stats()
    assert multiset(there) == multiset(here)
    assert len(letters) == FAILED
    assert multiset(told(letters)) == multiset(told(here_letters))
    for name in ("errors", "dead_letters", "steps.in.taken"):
        assert figures[name] == local[name], name


@pytest.mark.parametrize("shape", ["straight", "windows"])
def test_a_retry_of_an_expression_comes_to_what_follows_it(spark: SparkSession, shape: str) -> None:
    letters: list[Row] = []
    policy = retry(2, delay="1h", then=letters_to(letters))
    pipeline = build(SHAPES[shape], policy, print)
    assert is_native(pipeline.plan(), spark)
    pipeline.run()
    assert {letter["step"]: letter["attempts"] for letter in letters} == {"in": 1, "event_time": 3}


def test_a_policy_that_looks_at_the_error(spark: SparkSession, tmp_path: Path) -> None:
    letters: list[Row] = []
    seen = tmp_path / "seen"

    def see(error: Exception, record: Any, step: str) -> None:  # called in the tasks, as with steps in Python
        with seen.open("a") as file:
            file.write(f"{step} {type(error).__name__}\n")

    policy = retry(
        on=RecordError,
        then=letters_to(letters),
        otherwise="skip",
        callback=see,
    )
    pipeline = build(windows, policy, print)
    assert is_native(pipeline.plan(), spark)
    figures = pipeline.run().get_stats()
    assert sorted(seen.read_text().splitlines()) == ["event_time ValueError", *["in RecordError"] * 3]
    assert {letter["step"] for letter in letters} == {"in"}
    assert (figures["errors"], figures["dead_letters"]) == (FAILED, 3)
    ends = build(windows, retry(0, on=RecordError, then="skip", otherwise="fail"), print)
    with pytest.raises(StepFailed, match="event_time failed on"):
        ends.run()


@pytest.mark.parametrize("shape", SHAPES)
def test_the_batch_of_a_record_that_fails_is_not_written(spark: SparkSession, shape: str) -> None:
    found: list[Row] = []
    source = Memory([EVENTS[0], *EVENTS[2:]], schema=SCHEMA)
    pipeline = build(SHAPES[shape], "fail", found.append, source)
    assert is_native(pipeline.plan(), spark)
    with pytest.raises(StepFailed, match=r"test_native_policies\.py:\d+: in failed on \{'user': 'b', "):
        pipeline.run()
    assert found == []


@pytest.mark.parametrize("shape", SHAPES)
def test_a_record_without_a_time_ends_the_run_by_default(spark: SparkSession, shape: str) -> None:
    found: list[Row] = []
    source = Memory(EVENTS[:2], schema=SCHEMA)
    pipeline = SHAPES[shape](Pipeline("p").source(source, name="in"), found.append)
    assert is_native(pipeline.plan(), spark)
    with pytest.raises(StepFailed, match=r"event_time failed on \{.*: ValueError: None is no event time"):
        pipeline.run()
    assert found == []


@pytest.mark.parametrize("native", [True, False])
def test_what_is_skipped_is_logged(
    spark: SparkSession, caplog: pytest.LogCaptureFixture, native: bool
) -> None:
    pipeline = (
        Pipeline("p").on_error("skip").source(Memory(EVENTS, schema=SCHEMA), name="in").event_time("at")
    )
    pipeline = (pipeline if native else pipeline.transform("same", lambda row: row)).to(print)
    assert is_native(pipeline.plan(), spark) == native
    with caplog.at_level(logging.WARNING, "queenstream.spark"):
        run = pipeline.run()
    assert run.get_stats()["errors"] == FAILED
    lines = sorted(record.getMessage() for record in caplog.records)
    assert len(lines) == 2
    assert lines[0].startswith("p: event_time failed on 1 record(s), 1 so far; the first: {'user': 'a', ")
    assert lines[1].startswith("p: in failed on 3 record(s), 3 so far; the first: {'user': 'b', ")
    assert "much" in lines[1]


def test_messages_of_a_queue(spark: SparkSession, broker: TemporaryBroker) -> None:
    """Tasks write the records; misfits are dead letters beside them, and end a run that says so."""
    with broker.client() as queen:
        queen.queue("events").push(EVENTS)
    source = Queue("events", schema=SCHEMA)
    here: list[Row] = []
    build(straight, letters_to(here), print, source).run(
        engine="local", until="caught_up", url=broker.address
    )
    letters: list[Row] = []
    pipeline = build(straight, letters_to(letters), Queue("out", partition_by="user"), source)
    assert is_native(pipeline.plan(), spark)
    pipeline.run(until="caught_up", url=broker.address)
    without = [{**each, "time": None} for each in told(letters)]
    assert multiset(without) == multiset([{**each, "time": None} for each in told(here)])
    with broker.client() as queen:
        rows = [each.data for each in queen.queue("out").group("all").batch(10).partitions(10).pop()]
    assert multiset(rows) == multiset([
        {"user": "a", "amount": 1.5}, {"user": "b", "amount": 2}, {"user": "c", "amount": 4},
    ])  # fmt: skip
    strict = build(straight, "fail", Queue("none"), source)
    with pytest.raises(
        StepFailed, match=r"failed on \{'user': 'a', 'amount': Decimal\('123456789012345678.91'"
    ):
        strict.run(until="caught_up", url=broker.address)
    with broker.client() as queen:
        assert queen.queue("none").group("all").batch(10).pop() == []
