"""Detectors against numpy, over windows that are computed anew for each value."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from queenstream.errors import ConfigError
from queenstream.pipeline.analytics.detectors import ALGORITHMS, Algorithm, Detector, Judged
from queenstream.pipeline.analytics.rolling import MOMENTS, TOTALS

WINDOW = 50
Series = list[tuple[int, float]]

series = st.lists(
    st.tuples(st.integers(0, 20), st.one_of(st.integers(-3, 3), st.floats(-1e6, 1e6))), max_size=60
).map(lambda steps: [(sum(step for step, _ in steps[: at + 1]), float(v)) for at, (_, v) in enumerate(steps)])


def judged(algorithm: Algorithm, values: Series, **more: float) -> list[Judged | None]:
    detector = Detector(algorithm, window_us=WINDOW, **more)  # type: ignore[arg-type]
    held = detector.begin()
    return [detector.judge(held, at, value) for at, value in values]


def before(values: Series, index: int) -> list[float]:
    at = values[index][0]
    return [value for time, value in values[:index] if time > at - WINDOW]


def near(found: float, expected: float, values: Sequence[float]) -> bool:
    scale = max([1.0, *map(abs, values)])
    return math.isclose(found, expected, rel_tol=1e-6, abs_tol=1e-7 * scale)


@given(series)
def test_zscore_is_numpy_s(values: Series) -> None:
    for index, found in enumerate(judged("zscore", values, min_samples=2)):
        base = before(values, index)
        if len(base) < 2:
            assert found is None
            continue
        assert found is not None
        assert near(found.mean, float(np.mean(base)), base)
        assert near(found.deviation, float(np.std(base)), base)


@given(series)
def test_mad_is_numpy_s(values: Series) -> None:
    for index, found in enumerate(judged("mad", values, min_samples=1)):
        base = before(values, index)
        if not base:
            assert found is None
            continue
        assert found is not None
        median = float(np.median(base))
        assert near(found.mean, median, base)
        assert near(found.deviation, 1.4826 * float(np.median(np.abs(np.array(base) - median))), base)


@given(series)
def test_iqr_is_numpy_s(values: Series) -> None:
    for index, found in enumerate(judged("iqr", values, min_samples=1)):
        base = before(values, index)
        if not base:
            assert found is None
            continue
        assert found is not None
        low, high = (float(each) for each in np.quantile(base, [0.25, 0.75]))
        assert near(found.deviation, high - low, base)
        value = values[index][1]
        assert found.score is None or near(
            abs(found.score) * found.deviation, max(value - high, low - value, 0.0), [*base, value]
        )


@given(st.lists(st.tuples(st.integers(0, 20), st.floats(-100, 100)), min_size=2, max_size=40))
def test_ewma_weighs_by_age(steps: Series) -> None:
    at = 0
    values: Series = []
    for step, value in steps:
        at += step
        values.append((at, value))
    found = judged("ewma", values, min_samples=1)[-1]
    assert found is not None
    times = np.array([time for time, _ in values[:-1]])
    base = np.array([value for _, value in values[:-1]])
    weights = np.exp((times - values[-1][0]) / WINDOW)
    mean = float(np.average(base, weights=weights))
    assert math.isclose(found.mean, mean, rel_tol=1e-6, abs_tol=1e-6)
    deviation = math.sqrt(float(np.average((base - mean) ** 2, weights=weights)))
    assert math.isclose(found.deviation, deviation, rel_tol=1e-4, abs_tol=1e-4)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_a_spike_is_one_and_what_is_usual_is_none(algorithm: Algorithm) -> None:
    usual: Series = [(at, float(at % 5)) for at in range(40)]
    found = judged(algorithm, [*usual, (40, 50.0), (41, 2.0)])
    assert [each is not None and each.unusual for each in found[:40]] == [False] * 40
    spike, after = found[40:]
    assert spike is not None
    assert after is not None
    assert spike.unusual
    assert spike.score is not None
    assert spike.score > 0
    assert not after.unusual


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_downwards_the_score_is_negative(algorithm: Algorithm) -> None:
    found = judged(algorithm, [*((at, float(at % 5)) for at in range(40)), (40, -50.0)])[-1]
    assert found is not None
    assert found.unusual
    assert found.score is not None
    assert found.score < 0


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_values_that_do_not_differ_have_a_rule(algorithm: Algorithm) -> None:
    same: Series = [(at, 7.0) for at in range(20)]
    equal, other = judged(algorithm, [*same, (20, 7.0)])[-1], judged(algorithm, [*same, (20, 7.001)])[-1]
    assert equal == Judged(7.0, 0.0, 0.0, False)
    assert other == Judged(7.0, 0.0, None, True)


def test_it_warms_up_again_after_a_gap() -> None:
    values: Series = [*((at, float(at % 5)) for at in range(40)), (1_000, 100.0)]
    assert judged("zscore", values)[-1] is None


@pytest.mark.parametrize(
    ("said", "told"),
    [
        ({"algorithm": "prophet"}, "there is no algorithm 'prophet'; use one of zscore, mad, iqr, ewma"),
        ({"threshold": 0.0}, "threshold is 0.0; give a number above 0"),
        ({"threshold": math.nan}, "threshold is nan"),
        ({"window_us": 0}, "the window of a detector is empty"),
        ({"min_samples": 0}, "min_samples is 0; give at least 1"),
    ],
)
def test_what_cannot_be(said: dict[str, object], told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        Detector(**{"window_us": 1, **said})  # type: ignore[arg-type]


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_nothing_drifts() -> None:
    """Values in and out for long, far from 0 and of very different sizes: sums that subtract would be off."""
    random = np.random.default_rng(7)
    number, window = (10_000_000 if os.environ.get("QUEENSTREAM_LONG") else 1_000_000), 500
    values = 1e9 + random.normal(0, 1, number) * np.where(np.arange(number) % 1000 < 20, 1e6, 1)
    held = MOMENTS.begin()
    for at, value in enumerate(values.tolist()):
        MOMENTS.expire(held, at - window)
        MOMENTS.add(held, at, value)
    count, mean, squares = MOMENTS.total(held)
    last = values[-window:]
    assert count == window
    assert math.isclose(mean, float(np.mean(last)), rel_tol=1e-14)
    assert math.isclose(math.sqrt(squares / count), float(np.std(last)), rel_tol=1e-7)


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(-9, 9)), max_size=60), st.integers(1, 20))
def test_totals_are_those_of_the_values_that_are_there(steps: list[tuple[int, int]], span: int) -> None:
    held = TOTALS.begin()
    at = 0
    there: list[tuple[int, int]] = []
    for step, value in steps:
        at += step
        TOTALS.expire(held, at - span)
        TOTALS.add(held, at, float(value))
        there = [pair for pair in [*there, (at, value)] if pair[0] > at - span]
        values = [each for _, each in there]
        assert tuple(TOTALS.total(held)) == (len(values), sum(values), min(values), max(values))
        assert TOTALS.oldest(held) == there[0][0]
