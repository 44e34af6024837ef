"""Durations: what people write is what they get, exactly."""

from __future__ import annotations

import contextlib
import doctest
from datetime import timedelta

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from queenstream.core import durations
from queenstream.errors import ConfigError


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("500ms", timedelta(milliseconds=500)),
        ("30s", timedelta(seconds=30)),
        ("5m", timedelta(minutes=5)),
        ("1h", timedelta(hours=1)),
        ("1d", timedelta(days=1)),
        ("1w", timedelta(weeks=1)),
        ("30", timedelta(seconds=30)),
        ("0.1s", timedelta(milliseconds=100)),
        (" 5 m ", timedelta(minutes=5)),
        ("0", timedelta(0)),
        (2.5, timedelta(seconds=2.5)),
        (7, timedelta(seconds=7)),
        (timedelta(hours=2), timedelta(hours=2)),
    ],
)
def test_reads(text: str | float | timedelta, expected: timedelta) -> None:
    assert durations.parse(text) == expected
    assert durations.seconds(text) == expected.total_seconds()


@pytest.mark.parametrize(
    "text",
    ["", " ", "m", "5 parsecs", "-5s", "5M", "1e3s", "1.s", ".5s", "5s5s", "\u0665s", "nan", "inf", "1,5s"],
)  # fmt: skip
def test_refuses_with_a_remedy(text: str) -> None:
    with pytest.raises(ConfigError, match=r"not a duration; write .*500ms, 30s, 5m"):
        durations.parse(text)


@pytest.mark.parametrize("number", [True, float("nan"), float("inf")])
def test_refuses_what_is_no_number_of_seconds(number: float) -> None:
    with pytest.raises(ConfigError, match="not a duration"):
        durations.parse(number)


@pytest.mark.parametrize("number", [-1, -0.5, timedelta(seconds=-1), -1e300])
def test_refuses_negative(number: float | timedelta) -> None:
    with pytest.raises(ConfigError, match="0 or more"):
        durations.parse(number)


@pytest.mark.parametrize("value", ["99999999999999999999w", "36501d", 1e300])
def test_refuses_too_long(value: str | float) -> None:
    with pytest.raises(ConfigError, match="the longest is 36500d"):
        durations.parse(value)


def test_refuses_finer_than_a_microsecond() -> None:
    assert durations.parse("0.001ms") == timedelta(microseconds=1)
    with pytest.raises(ConfigError, match="finer than a microsecond"):
        durations.parse("0.0001ms")


def test_error_shortens_what_it_quotes() -> None:
    with pytest.raises(ConfigError) as caught:
        durations.parse("x" * 10_000)
    assert len(str(caught.value)) < 200


@pytest.mark.parametrize(
    ("seconds", "expected"),
    [
        (0, "0s"), (0.5, "500ms"), (0.0015, "1.5ms"), (1.5, "1500ms"), (90, "90s"), (5400, "90m"),
        (7200, "2h"), (30 * 86400, "30d"), (14 * 86400, "2w"), (timedelta(minutes=1), "1m"),
    ],
)  # fmt: skip
def test_writes_the_largest_unit_that_is_exact(seconds: float | timedelta, expected: str) -> None:
    assert durations.format(seconds) == expected


LENGTHS = st.timedeltas(min_value=timedelta(0), max_value=timedelta(days=36_500))


@settings(deadline=None)  # a busy machine is no failure
@given(LENGTHS)
def test_what_is_written_reads_back(length: timedelta) -> None:
    assert durations.parse(durations.format(length)) == length
    assert durations.seconds(durations.format(length.total_seconds())) == length.total_seconds()


@settings(deadline=None)  # a busy machine is no failure
@given(st.text())
def test_any_text_is_a_duration_or_a_config_error(text: str) -> None:
    with contextlib.suppress(ConfigError):
        assert durations.parse(text) >= timedelta(0)


def test_examples() -> None:
    assert doctest.testmod(durations).failed == 0
