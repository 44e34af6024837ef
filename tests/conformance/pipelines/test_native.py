"""Plans without Python on Spark: what the oracle says, and the physical plan has no Python in it."""

from __future__ import annotations

import random
from typing import Any

import pytest
from pyspark.sql import SparkSession

from queenstream.core import aggregates, windows
from queenstream.engines.spark.run import SparkRun
from queenstream.pipeline.builder import Pipeline
from tests.conformance.pipelines import oracle
from tests.conformance.pipelines.engines import Batches, Build, Ends, Idle, LocalEngine, Row, multiset
from tests.conformance.pipelines.spark_engine import Collected, finished
from tests.conformance.pipelines.test_oracle import ms
from tests.sparks import is_native

pytestmark = pytest.mark.timeout(600)
EVENTS = "id string, user string, at bigint, value bigint"
PYTHON = ("Python", "InArrow", "InPandas", "BatchEval", "TransformWithState")
STEP = 5_000


def log(seed: int, side: str = "", users: str = "abcdef", batches: int = 5) -> list[list[Row]]:
    """Times on a grid, and a millisecond beside it: where rules differ, they differ there."""
    chance = random.Random(f"{seed}{side}")

    def event(batch: int, number: int) -> Row:
        at = batch * STEP + chance.randint(-12, 4) * STEP // 4 + chance.choice([-1, 0, 0, 0, 1])
        user = None if chance.random() < 0.1 else chance.choice(users)
        value = chance.choice([None, 1, -2, 3])
        return {"id": f"{side}{batch}.{number}", "user": user, "at": at - 12_000, "value": value}

    return [[event(batch, number) for number in range(30)] for batch in range(batches)]


def needs_no_python(run: SparkRun, operator: str) -> None:
    physical = run.explain()
    assert operator in physical
    assert [each for each in PYTHON if each in physical] == []


# Windows


def values(content: list[oracle.Arrival]) -> Row:
    numbers = [each.record["value"] for each in content if each.record["value"] is not None]
    ordered = sorted(content, key=lambda each: (each.time, each.number))
    return {"n": len(content), "total": sum(numbers), "latest": ordered[-1].record["id"]}


def windowed(window: windows.Definition, grace: int, emit: oracle.Emit) -> Build:
    def build(io: Ends) -> Pipeline[Any]:
        return (
            Pipeline("windows")
            .source(io.source("in", EVENTS), name="in")
            .event_time("at")
            .filter("value != 3 or value is null")
            .key_by("user")
            .window(window, grace=ms(grace))
            .aggregate(
                {
                    "n": aggregates.count(),
                    "total": aggregates.sum_("value"),
                    "latest": aggregates.last("id"),
                },
                emit=emit,
            )
            .to(io.sink("out"))
        )

    return build


@pytest.mark.parametrize(
    ("described", "defined", "grace", "emit", "ended"),
    [
        (oracle.Tumbling(5_000), windows.Tumbling(ms(5_000)), 0, "update", False),
        (oracle.Sliding(7_000, 3_000), windows.Sliding(ms(7_000), ms(3_000)), 2_500, "update", True),
        (oracle.Sliding(5_000, 2_500), windows.Sliding(ms(5_000), ms(2_500)), 1, "final", False),
    ],
    ids=["tumbling, updated", "sliding, updated", "sliding"],
)
def test_windows(
    described: oracle.Window, defined: windows.Definition, grace: int, emit: oracle.Emit, ended: bool
) -> None:
    events = log(20251103)
    batches = [{"in": batch} for batch in events]
    build = windowed(defined, grace, emit)
    run, outcome = finished(build, batches, end=ended)
    assert multiset(outcome.sinks["out"]) == multiset(
        LocalEngine().run(build, batches, end=ended).sinks["out"]
    )
    needs_no_python(run, "StateStoreSave")


def test_a_filter_hides_no_time_from_the_windows_behind_it() -> None:
    def build(io: Ends) -> Pipeline[Any]:
        return (
            Pipeline("late")
            .source(io.source("in", EVENTS), name="in")
            .event_time("at")
            .filter("value = 1")
            .window(windows.Tumbling(ms(1_000)))
            .aggregate(n=aggregates.count())
            .to(io.sink("out"))
        )

    batches = [{"in": [{"at": 0, "value": 1}, {"at": 5_000, "value": 0}]}, {"in": [{"at": 1, "value": 1}]}]
    run, outcome = finished(build, batches, end=False)
    assert [row["n"] for row in outcome.sinks["out"]] == [1]
    assert run.get_stats()["late"] == 1
    needs_no_python(run, "StateStoreSave")


# Joins


def joining(within: int, grace: int, how: oracle.How) -> Build:
    def build(io: Ends) -> Pipeline[Any]:
        schema = "id string, user string, at bigint"
        right = Pipeline("right").source(io.source("right", schema), name="right").event_time("at")
        return (
            Pipeline("join")
            .source(io.source("left", schema), name="left")
            .event_time("at")
            .join(right, on="user", within=ms(within), grace=ms(grace), how=how)
            .to(io.sink("out"))
        )

    return build


@pytest.mark.parametrize(
    ("how", "within", "grace", "ended"),
    [
        ("inner", 1_250, 0, True),
        ("left", 1_250, 1, False),
        ("right", 0, 2_500, True),
        ("full", 2_500, 0, False),
    ],
)
def test_joins(how: oracle.How, within: int, grace: int, ended: bool) -> None:
    left, right = ([*map(_joined, log(7, side))] for side in "lr")
    pairs = [*zip(left, right, strict=True)]
    batches = [{"left": one, "right": two} for one, two in pairs]
    run, outcome = finished(joining(within, grace, how), batches, end=ended)
    expected = oracle.joined(pairs, within, grace, how, ended=ended)
    assert multiset(outcome.sinks["out"]) == multiset(expected.rows)
    # What can have no partner, and comes not alone, is gone before Spark looks at its time.
    alone = {"inner": "", "left": "l", "right": "r", "full": "lr"}[how]
    records = [row["record"] for row in expected.late]
    late = [each for each in records if each["user"] is not None or each["id"][0] in alone]
    assert run.get_stats()["late"] == len(late)
    needs_no_python(run, "StreamingSymmetricHashJoin")


def _joined(batch: list[Row]) -> list[Row]:
    return [{name: row[name] for name in ("id", "user", "at")} for row in batch]


def test_a_side_that_is_idle_does_not_hold_back_a_join() -> None:
    def build(io: Ends) -> Pipeline[Any]:
        schema = "id string, user string, at bigint"
        right = Pipeline("right").source(io.source("right", schema), name="right", idle_timeout="5s")
        return (
            Pipeline("join")
            .source(io.source("left", schema), name="left")
            .event_time("at")
            .join(right.event_time("at"), on="user", within="1s", how="left")
            .to(io.sink("out"))
        )

    def click(number: str, at: int) -> Row:
        return {"id": number, "user": "ann", "at": at}

    batches: Batches = [
        {"left": [click("l1", 1_000), click("l2", 5_000)], "right": [click("r1", 500)]},
        {"left": [click("l3", 10_000)]},
        Idle("right"),
        {"right": [click("r2", 9_500)]},  # too late for l2, but not for l3
    ]
    run, outcome = finished(build, batches, end=False)
    here = LocalEngine().run(build, batches, end=False)
    assert multiset(outcome.sinks["out"]) == multiset(here.sinks["out"])
    assert len(here.sinks["out"]) == 2
    needs_no_python(run, "StreamingSymmetricHashJoin")


def test_rows_of_a_join_are_named_as_everywhere() -> None:
    def build(io: Ends) -> Pipeline[Any]:
        schema = "id bigint, name string, at timestamp"
        people = Pipeline("people").source(io.source("people", schema), name="p")
        return (
            Pipeline("named")
            .source(io.source("orders", "buyer bigint, name string, at timestamp"), name="o")
            .event_time("at")
            .join(people.event_time("at"), on=("buyer", "id"), within="1s", how="full", prefix="their_")
            .with_columns(both="name is not null and their_name is not null")
            .to(io.sink("out"))
        )

    def at(second: int) -> str:
        return f"2026-01-31T12:00:{second:02}.000250Z"

    batches: list[dict[str, list[Row]]] = [
        {
            "o": [{"buyer": 1, "name": "tea", "at": at(1)}, {"buyer": 2, "name": "rum", "at": at(1)}],
            "p": [{"id": 1, "name": "Ann", "at": at(2)}, {"id": None, "name": "Bob", "at": at(1)}],
        }
    ]
    run, outcome = finished(build, batches, end=True)
    here = LocalEngine().run(build, batches, end=True)
    assert multiset(outcome.sinks["out"]) == multiset(here.sinks["out"])
    assert len(here.sinks["out"]) == 3
    needs_no_python(run, "StreamingSymmetricHashJoin")


# Not so


def _session(events: Pipeline[Any]) -> Pipeline[Any]:
    return events.window(windows.Session(ms(10_000))).aggregate(n=aggregates.count())


def _once(events: Pipeline[Any]) -> Pipeline[Any]:
    return events.deduplicate("user", within="1s")


def _branches(events: Pipeline[Any]) -> Pipeline[Any]:
    return events.to(print).window(windows.Tumbling(ms(1_000))).aggregate(n=aggregates.count())


@pytest.mark.parametrize("more", [_session, _once, _branches], ids=["sessions", "duplicates", "branches"])
def test_what_means_something_else_to_spark_is_left_to_our_steps(spark: SparkSession, more: Any) -> None:
    ends = Collected()
    events = Pipeline("p").source(ends.source("in", EVENTS)).event_time("at")
    assert not is_native(more(events).to(ends.sink("out")).plan(), spark)
