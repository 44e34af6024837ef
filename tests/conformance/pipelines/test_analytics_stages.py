"""Random logs through anomalies and patterns: Spark's stages find what the local engine finds."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from queenstream.engines.spark.keyed.encoding import pack
from queenstream.engines.spark.sources.sources import Decoded
from queenstream.engines.spark.tasks import rows as flow
from queenstream.engines.spark.tasks.records import Item
from queenstream.pipeline.builder import Pipeline
from queenstream.runtime.keys import key_text
from tests.conformance.pipelines.engines import Batches, Build, Ends, LocalEngine, Row, multiset
from tests.conformance.pipelines.spark_engine import Collected
from tests.conformance.pipelines.staged_engine import Query, StagedEngine
from tests.conformance.pipelines.test_oracle import ends, graces, logs, ms
from tests.conformance.pipelines.test_oracle_stages import thorough

PATTERNS = {
    "many": "COUNT(*) > 2 IN 5s",
    "quiet": "COUNT(*) < 1 IN 3s",
    "up": "(value = 1) THEN NOT (value = 2) WITHIN 4s",
    "both": "SUM(value) > 3 IN 2s AND NOT (COUNT(*) > 4 IN 10s)",
}


def source(io: Ends) -> Pipeline[Any]:
    # Some values are no numbers.
    return Pipeline("p").source(io.source("in"), name="in").event_time("at").on_error("skip")


@thorough
@given(logs(), graces, ends, st.sampled_from(["zscore", "mad", "ewma"]))
def test_anomalies(log: list[list[Row]], grace: int, ended: bool, algorithm: Any) -> None:
    def build(io: Ends) -> Pipeline[Any]:
        scores = source(io).anomalies(
            "value",
            by="user",
            window="5s",
            algorithm=algorithm,
            min_samples=2,
            grace=ms(grace),
            emit="scores",
        )
        return scores.late(io.sink("late")).to(io.sink("out"))

    _compare(build, [{"in": batch} for batch in log], ended=ended)


@thorough
@given(logs(), graces, ends)
def test_patterns(log: list[list[Row]], grace: int, ended: bool) -> None:
    def build(io: Ends) -> Pipeline[Any]:
        found = source(io).patterns(PATTERNS, by="user", grace=ms(grace))
        return found.late(io.sink("late")).to(io.sink("out"))

    _compare(build, [{"in": batch} for batch in log], ended=ended)


@thorough
@given(logs(), logs(), graces, ends)
def test_of_two_sources_one_waits_for_the_other(
    left: list[list[Row]], right: list[list[Row]], grace: int, ended: bool
) -> None:
    def build(io: Ends) -> Pipeline[Any]:
        sources = [Pipeline("p").source(io.source(name), name=name).event_time("at") for name in ("a", "b")]
        found = sources[0].union(sources[1]).patterns(PATTERNS, by="user", grace=ms(grace))
        return found.on_error("skip").late(io.sink("late")).to(io.sink("out"))

    most = max(len(left), len(right))
    padded = [[*each, *[[] for _ in range(most - len(each))]] for each in (left, right)]
    _compare(build, [{"a": a, "b": b} for a, b in zip(*padded, strict=True)], ended=ended)


def scoring() -> Query:
    ends = Collected()
    scores = source(ends).anomalies("value", by="user", window="1m", min_samples=2, emit="scores")
    return Query(scores.to(ends.sink("out")).plan())


def given_by(query: Query, *seconds: int) -> list[float]:
    """The values whose scores come with a batch."""
    items = [Item({"user": "ann", "at": each * 1_000, "value": each}, None, None, each) for each in seconds]
    return [row["value"] for rows in query.batch({"in": Decoded(items)}).values() for row in rows]


def test_a_key_costs_little_in_a_batch() -> None:
    """What is found comes with its records: nothing is read or written twice, and no timer is moved."""
    query = scoring()
    assert given_by(query, 1, 2, 3) == [3]
    assert given_by(query, 4, 6, 5) == [4, 5, 6]
    assert given_by(query, 7) == [7]
    assert query.handles[0].asked == {"get": 3, "update": 3, "registerTimer": 1}


def test_it_goes_on_with_the_state_of_before() -> None:
    """Of a version in which each record waited for the batch after its own."""
    query = scoring()
    [handle] = query.handles
    key = ("anomalies:value", key_text("ann"))
    waiting = {"values": {"waiting": [[1_000_000, 1.0], [2_000_000, 2.0]]}, "timers": {"due": 1_000_000}}
    timer = flow.to_timer(1_000_000)
    kept = {"key": "ann", "held": {**waiting, "touched": 2_000_000}, "timer": timer}
    handle.values[key] = (pack(kept),)
    handle.timers[key] = {timer}
    query.watermark = flow.to_clock(2_000_000) // 1_000
    assert given_by(query, 3, 4) == [3, 4]
    assert given_by(query, 5) == [5]


def _compare(build: Build, batches: Batches, *, ended: bool) -> None:
    there, here = (engine.run(build, batches, end=ended) for engine in (StagedEngine(), LocalEngine()))
    for sink in ("out", "late"):
        assert multiset(there.sinks[sink]) == multiset(here.sinks[sink]), sink
