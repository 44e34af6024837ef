"""``.anomalies`` and ``.patterns`` as steps: what they are told, what they give, and in which order."""

from __future__ import annotations

import math
import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from queenstream.errors import ConfigError
from queenstream.pipeline.builder import Pipeline
from queenstream.pipeline.endpoints import Memory, Queue
from queenstream.pipeline.errors import PipelineError
from queenstream.pipeline.expr.literals import ExpressionError
from queenstream.pipeline.policies import DeadLetters
from queenstream.testing import PipelineDriver

READING = "sensor string, at bigint, value double"


def readings(schema: str | None = None) -> Pipeline[Any]:
    return Pipeline("p").source(Queue("in", schema=schema)).event_time("at")


def usual(number: int, sensor: str = "a") -> list[dict[str, Any]]:
    return [{"sensor": sensor, "at": at * 1_000, "value": float(at % 5)} for at in range(number)]


def spike(at: int, sensor: str = "a") -> dict[str, Any]:
    return {"sensor": sensor, "at": at * 1_000, "value": 99.0}


def test_each_key_has_its_own_usual() -> None:
    driver = PipelineDriver(readings().anomalies("value", by="sensor", window="1m").to(Queue("out")))
    high = [{**record, "value": record["value"] + 99} for record in usual(30, "b")]
    driver.send(*usual(30), *high)
    driver.send(spike(31), spike(31, "b"))
    assert [(row["key"], row["value"]) for row in driver.rows()] == [("a", 99.0)]


def test_without_a_key_all_are_one() -> None:
    driver = PipelineDriver(readings().anomalies("value", window="1m").to(Queue("out")))
    driver.send(*usual(30), spike(31))
    assert [row["key"] for row in driver.rows()] == ["all"]


def test_the_key_before_it_is_its_key() -> None:
    keyed = readings().key_by("sensor").anomalies("value", window="1m")
    driver = PipelineDriver(keyed.to(Queue("out")))
    driver.send(*usual(30), spike(31))
    assert [row["key"] for row in driver.rows()] == ["a"]


def test_scores_of_everything() -> None:
    scored = readings().anomalies("value", by="sensor", window="1m", min_samples=5, emit="scores")
    driver = PipelineDriver(scored.to(Queue("out")))
    driver.send(*usual(20), spike(21))
    assert [row["anomaly"] for row in driver.rows()] == [False] * 15 + [True]


def test_what_is_no_number_is_counted_or_a_dead_letter() -> None:
    found = readings().anomalies("value", by="sensor", window="1m", on_error=DeadLetters("bad"))
    driver = PipelineDriver(found.to(Queue("out")))
    bad = [{"sensor": "a", "at": 20_500}, {"sensor": "a", "at": 20_600, "value": "x"}]
    driver.send(*usual(20), *bad, spike(21))
    assert [letter["error"] for letter in driver.dead_letters()] == [
        "value is None, and not a number; mend the record or filter it out",
        "value is 'x', and not a number; mend the record or filter it out",
    ]
    assert len(driver.rows()) == 1


@pytest.mark.parametrize("value", [math.nan, math.inf, True, "20", None, [1.0], 10**400], ids=type)
def test_what_is_no_number_is_counted_and_left_out(value: Any) -> None:
    odd = readings().anomalies("value", by="sensor", window="1m", on_error="skip")
    much = readings().patterns(much="SUM(value) > 99 IN 1m", by="sensor", on_error="skip")
    for found in (odd, much):
        driver = PipelineDriver(found.to(Queue("out")))
        driver.send(*usual(20), {"sensor": "a", "at": 20_500, "value": value}, spike(21))
        assert len(driver.rows()) == 1, "the others count as if it had not come"
        assert driver.stats().failed == 1


def test_a_key_that_is_quiet_is_forgotten() -> None:
    driver = PipelineDriver(readings().anomalies("value", by="sensor", window="1m").to(Queue("out")))
    driver.send(*usual(30))
    driver.send(*[{"sensor": "b", "at": at * 1_000, "value": 1.0} for at in range(200, 260, 10)])
    driver.send(spike(300))
    assert driver.rows() == [], "it is new again"


def test_it_survives_a_crash() -> None:
    driver = PipelineDriver(readings().anomalies("value", by="sensor", window="1m").to(Queue("out")))
    driver.send(*usual(30))
    driver.commit()
    driver.crash()
    driver.send(spike(31))
    assert len(driver.rows()) == 1


@given(
    st.lists(st.tuples(st.integers(0, 60), st.sampled_from("ab"), st.integers(0, 5)), max_size=40),
    st.integers(0, 2**32),
    st.integers(1, 8),
)
def test_order_does_not_matter_inside_the_grace(
    rows: list[tuple[int, str, int]], seed: int, batch: int
) -> None:
    """Sorted, and shuffled in any way with a grace as long as the log: the same matches and anomalies."""
    shuffled = list(enumerate(rows))
    random.Random(seed).shuffle(shuffled)
    records: list[dict[str, Any]] = [
        {"n": n, "at": at * 1_000, "user": user, "value": value} for n, (at, user, value) in shuffled
    ]
    # Equal times stand in the order of arrival: make them different.
    records = [{**record, "at": record["at"] + record["n"]} for record in records]

    def found(log: list[dict[str, Any]], grace: str) -> list[Any]:
        source = Pipeline("p").source(Queue("in")).event_time("at")
        up = "(value = 1) THEN NOT (value = 4) THEN (value = 5) WITHIN 20s"
        texts = {"many": "COUNT(*) > 2 IN 10s", "up": up}
        matches = source.patterns(texts, by="user", grace=grace).to(Queue("matches"))
        scores = source.anomalies("value", by="user", window="10s", min_samples=2, grace=grace)
        rows: list[Any] = []
        for pipeline in (matches, scores.to(Queue("scores"))):
            with PipelineDriver(pipeline) as driver:
                for first in range(0, len(log), batch):
                    driver.send(*log[first : first + batch])
                driver.end()
                rows += driver.rows()
        return sorted(map(repr, rows))

    assert found(records, "2m") == found(sorted(records, key=lambda each: each["at"]), "0s")


def test_what_is_too_late_is_said() -> None:
    found = readings().anomalies("value", by="sensor", window="1m", grace="5s")
    driver = PipelineDriver(found.late(Queue("late")).to(Queue("out")))
    driver.send(*usual(30))
    driver.send(spike(24), spike(23))
    assert [row["record"]["at"] for row in driver.late()] == [23_000]


def test_fields_are_checked_against_the_schema() -> None:
    with pytest.raises(PipelineError, match="valeu"):
        readings(READING).anomalies("valeu", by="sensor", window="1m").to(Queue("out")).plan()
    with pytest.raises(PipelineError, match="colour"):
        readings(READING).patterns(p="COUNT(*) > 1 IN 1s WHERE colour = 'red'").to(Queue("out")).plan()
    with pytest.raises(PipelineError, match="compares text with a number in `sensor > 5`"):
        readings(READING).patterns(p="COUNT(*) > 1 IN 1s WHERE sensor > 5").to(Queue("out")).plan()
    with pytest.raises(PipelineError, match="takes numbers of 'sensor', which is string"):
        readings(READING).anomalies("sensor", window="1m").to(Queue("out")).plan()
    with pytest.raises(PipelineError, match="takes numbers of 'sensor', which is string"):
        readings(READING).patterns(p="MAX(sensor) > 1 IN 1s").to(Queue("out")).plan()
    readings(READING).patterns(p="COUNT(sensor) > 1 IN 1s").to(Queue("out")).plan()


def test_there_must_be_an_event_time() -> None:
    with pytest.raises(PipelineError, match="there is none"):
        Pipeline("p").source(Memory([])).anomalies("value", window="1m").to(Queue("out")).plan()


def test_mistakes_are_said_when_it_is_built() -> None:
    with pytest.raises(ConfigError, match="there is no algorithm 'magic'"):
        readings().anomalies("value", window="1m", algorithm="magic")  # type: ignore[call-overload]
    with pytest.raises(ExpressionError, match="expected IN"):
        readings().patterns(p="COUNT(*) > 1")
    with pytest.raises(ConfigError, match="names no pattern"):
        readings().patterns()
    with pytest.raises(ConfigError, match="events is 0"):
        readings().patterns(p="COUNT(*) > 1 IN 1s", events=0)
    with pytest.raises(ConfigError, match="emit"):
        readings().anomalies("value", window="1m", emit="all")  # type: ignore[call-overload]


def test_the_plan_says_what_is_looked_for() -> None:
    found = readings().anomalies("value", by="sensor", window="10m", threshold=4, grace="5s").to(Queue("out"))
    assert "zscore of value, window 10m, threshold 4, min_samples 10, grace 5s, by sensor" in found.describe()
    named = readings().patterns(rapid="COUNT(*)   > 1 IN 1s", by="sensor").to(Queue("out"))
    assert "rapid COUNT(*) > 1 IN 1s, by sensor" in named.describe()


def test_another_algorithm_cannot_use_the_state_but_other_patterns_can() -> None:
    def plan(algorithm: Any, text: str) -> Any:
        both = readings().anomalies("value", window="1m", algorithm=algorithm).to(Queue("out"))
        return both.plan().state, readings().patterns(p=text).to(Queue("out")).plan().state

    before, after = plan("zscore", "COUNT(*) > 1 IN 1s"), plan("mad", "COUNT(*) > 2 IN 1s")
    assert before[0] != after[0]
    assert before[1] == after[1]
