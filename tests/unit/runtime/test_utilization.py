"""Who works and who waits for it: shares of time, by a clock that the test turns."""

from __future__ import annotations

from typing import Any

import pytest

from queenstream.pipeline.builder import Pipeline
from queenstream.pipeline.endpoints import Memory
from queenstream.pipeline.plan.planner import Plan
from queenstream.runtime.utilization import Work


class Turned:
    """A clock that stands still until it is turned."""

    now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Turned:
    return Turned()


def plan() -> Plan:
    """A source, a step, and two ways on from it, each to a sink."""
    parsed: Pipeline[Any] = Pipeline("p").source(Memory([]), name="in").transform("parse", lambda row: row)
    both = parsed.to(print, name="here").filter(lambda row: row["n"], name="some")
    return both.to(print, name="there").plan()


def spend(work: Work, clock: Turned, worker: str, seconds: float) -> None:
    with work.at(worker):
        clock.now += seconds


def test_a_step_waits_for_those_after_it_and_not_for_others(clock: Turned) -> None:
    work = Work(plan(), clock=clock)
    spend(work, clock, "parse", 1)
    spend(work, clock, "some", 2)
    spend(work, clock, "here", 3)
    clock.now += 4
    assert work.stats() == pytest.approx(
        {
            "steps.in.busy_ratio": 0,
            "steps.in.backpressure_ratio": 0.6,
            "steps.parse.busy_ratio": 0.1,
            "steps.parse.backpressure_ratio": 0.5,
            "steps.here.busy_ratio": 0.3,
            "steps.here.backpressure_ratio": 0,
            "steps.some.busy_ratio": 0.2,
            "steps.some.backpressure_ratio": 0,
            "steps.there.busy_ratio": 0,
            "steps.there.backpressure_ratio": 0,
        }
    )


def test_what_is_under_way_counts_and_what_is_long_ago_does_not(clock: Turned) -> None:
    work = Work(plan(), clock=clock)
    with work.at("parse"):
        clock.now += 5
        assert work.stats()["steps.parse.busy_ratio"] == 1
    clock.now += 5
    assert work.stats()["steps.parse.busy_ratio"] == 0.5
    for _ in range(12):
        clock.now += 1
        last = work.stats()
    assert last["steps.parse.busy_ratio"] == 0


def test_steps_that_are_worked_on_together(clock: Turned) -> None:
    """As on Spark: one worker for all but the sinks, and the sources wait for it."""
    together = dict.fromkeys(("in", "parse", "some"), "")
    work = Work(plan(), done_by=together, held_by={"in": "in"}, clock=clock)
    spend(work, clock, "", 4)
    spend(work, clock, "there", 1)
    clock.now += 5
    stats = work.stats()
    assert {stats[f"steps.{step}.busy_ratio"] for step in together} == {0.4}
    assert stats["steps.in.backpressure_ratio"] == 0.5
    assert stats["steps.parse.backpressure_ratio"] == stats["steps.some.backpressure_ratio"] == 0.1
    assert (stats["steps.there.busy_ratio"], stats["steps.there.backpressure_ratio"]) == (0.1, 0)


def test_two_places_at_once_are_no_more_than_one(clock: Turned) -> None:
    work = Work(plan(), clock=clock)
    with work.at("here"):
        clock.now += 1
        with work.at("here"):
            clock.now += 1
        clock.now += 1
    clock.now += 7
    assert work.stats()["steps.here.busy_ratio"] == pytest.approx(0.3)


def test_a_failure_ends_the_work(clock: Turned) -> None:
    work = Work(plan(), clock=clock)

    def fail() -> None:
        with work.at("parse"):
            clock.now += 1
            raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        fail()
    clock.now += 9
    assert work.stats()["steps.parse.busy_ratio"] == 0.1
