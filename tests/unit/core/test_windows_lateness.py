"""Lateness and the watermark: an event is taken or reported late, and time never runs backwards."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from queenstream.core.windows import (
    Late,
    Session,
    Sliding,
    Span,
    Tumbling,
    Watermark,
    length_us,
    place,
)
from tests.unit.core.test_windows import GRIDS, SECOND, TIMES, at, settings, us

# ---- lateness


def test_the_guides_timeline_of_grace() -> None:
    """Seed 000: a window from 10:00 to 10:01 with 30 s of grace is there from 10:01:30 on."""
    span = Span(at("10:00:00"), at("10:01:00"))
    grace_us = length_us(timedelta(seconds=30))
    assert span.ripe_at(grace_us) == at("10:01:30")
    event = at("10:00:59")
    assert place([span], event, at("10:01:30") - 1, grace_us) == [span]
    assert place([span], event, at("10:01:30"), grace_us) == Late(span, 31 * SECOND)


def test_an_event_goes_into_the_windows_that_still_take_it() -> None:
    spans = Sliding(us(10), us(5)).assign(7)
    assert place(spans, 7, None) == spans
    assert place(spans, 7, 9) == spans
    assert place(spans, 7, 10) == [Span(5, 15)]
    assert place(spans, 7, 15) == Late(Span(5, 15), 8)


def test_an_event_late_by_itself_is_not_late_for_a_session_that_is_open() -> None:
    session = Session(us(10))
    merged, _ = session.add([Span(5, 40)], 0)
    assert place([merged], 0, watermark=20) == [Span(0, 40)]
    assert place(session.assign(0), 0, watermark=20) == Late(Span(0, 10), 20)


@settings
@given(GRIDS, TIMES, TIMES, st.integers(0, 100))
def test_an_event_is_taken_or_late_and_never_lost(
    grid: Tumbling | Sliding, time: int, watermark: int, grace_us: int
) -> None:
    spans = grid.assign(time)
    placed = place(spans, time, watermark, grace_us)
    if isinstance(placed, Late):
        assert placed.span == spans[-1]
        assert placed.lateness_us == watermark - time > grace_us
        assert watermark >= spans[-1].end + grace_us
    else:
        assert placed == [span for span in spans if watermark < span.end + grace_us] != []


@settings
@given(GRIDS, TIMES, st.integers(0, 100))
def test_an_event_is_never_late_by_its_own_time(grid: Tumbling | Sliding, time: int, grace_us: int) -> None:
    """So it does not matter whether the watermark moves before or after an event is placed."""
    assert place(grid.assign(time), time, time, grace_us) == grid.assign(time)


# ---- watermarks


def test_the_watermark_is_the_least_of_the_highest() -> None:
    watermark = Watermark(("a", "b"))
    assert watermark.time is None
    assert watermark.holders == ["a", "b"]
    assert watermark.observe("a", 100) is None  # b has shown nothing: it may be behind
    assert watermark.holders == ["b"]
    assert watermark.observe("b", 40) == 40
    assert watermark.observe("b", 30) == 40
    assert watermark.observe("b", 200) == 100
    assert watermark.holders == ["a"]


def test_a_source_is_idle_when_read_to_its_end_and_quiet() -> None:
    watermark = Watermark(("a", "b"), idle_timeout=us(5))
    watermark.observe("a", 100)
    watermark.observe("b", 40)
    assert not watermark.drained("b", now=1000)
    assert not watermark.drained("b", now=1004)
    watermark.observe("b", 41)  # not quiet after all: the wait starts anew
    assert not watermark.drained("b", now=1005)
    assert not watermark.drained("b", now=1009)
    assert watermark.time == 41
    assert watermark.drained("b", now=1010)
    assert not watermark.drained("b", now=1011)  # it was decided once
    assert watermark.time == 100
    assert watermark.holders == ["a"]


def test_without_an_idle_timeout_a_source_holds_for_ever() -> None:
    watermark = Watermark(("a", "b"))
    watermark.observe("a", 100)
    assert not watermark.drained("b", now=0)
    assert not watermark.drained("b", now=10**18)
    assert watermark.time is None


def test_a_source_that_comes_back_does_not_turn_the_watermark_back() -> None:
    watermark = Watermark(("a", "b"))
    watermark.observe("a", 100)
    assert watermark.set_idle("b") == 100
    assert watermark.observe("b", 50) == 100
    assert watermark.observe("a", 300) == 100  # but it holds again
    assert watermark.holders == ["b"]
    assert watermark.observe("b", 250) == 250


def test_when_all_are_idle_it_is_the_highest_of_all() -> None:
    watermark = Watermark(("a", "b", "c"))
    watermark.observe("a", 100)
    watermark.observe("b", 40)
    for source in "acb":
        watermark.set_idle(source)
    assert watermark.holders == []
    assert watermark.time == 100
    nothing = Watermark(("a",))
    assert nothing.set_idle("a") is None


def test_closing_by_decision_raises_it() -> None:
    watermark = Watermark(("a",))
    assert watermark.raise_to(70) == 70
    assert watermark.observe("a", 50) == 70
    assert watermark.raise_to(60) == 70
    assert watermark.observe("a", 80) == 80


@pytest.mark.parametrize(
    "call",
    [
        lambda watermark: watermark.observe("c", 1),
        lambda watermark: watermark.drained("c", 1),
        lambda watermark: watermark.set_idle("c"),
    ],
)
def test_an_unknown_source_is_refused(call: Callable[[Watermark], object]) -> None:
    watermark = Watermark(("a", "b"))
    with pytest.raises(ValueError, match="'c' is no source of this watermark; it has a, b"):
        call(watermark)
    assert watermark == Watermark(("a", "b"))


STEPS = st.lists(st.tuples(st.sampled_from("abc"), st.none() | st.integers(-50, 50)), max_size=40)


@settings
@given(STEPS)
def test_the_watermark_by_its_definition(steps: list[tuple[str, int | None]]) -> None:
    """Against a plain history: None means the source is declared idle."""
    watermark = Watermark(("a", "b", "c"))
    reached: int | None = None
    for done, (source, time) in enumerate(steps, 1):
        _ = watermark.set_idle(source) if time is None else watermark.observe(source, time)
        past = steps[:done]
        last = dict(past)
        highest = {
            s: max((t for name, t in past if name == s and t is not None), default=None) for s in "abc"
        }
        awake = [s for s in "abc" if last.get(s, 0) is not None]
        held = [highest[s] for s in awake]
        seen = [t for t in held if t is not None]
        everything = [t for t in highest.values() if t is not None]
        now = None if None in held else min(seen) if seen else max(everything, default=None)
        reached = now if reached is None else reached if now is None else max(reached, now)
        assert watermark.time == reached


@settings
@given(STEPS)
def test_a_watermark_goes_on_from_its_checkpoint(steps: list[tuple[str, int | None]]) -> None:
    straight, stopped = Watermark(("a", "b", "c"), us(5)), Watermark(("a", "b", "c"), us(5))
    for clock, (source, time) in enumerate(steps):
        for watermark in (straight, stopped):
            _ = watermark.drained(source, clock) if time is None else watermark.observe(source, time)
        stopped = pickle.loads(pickle.dumps(stopped))
    assert stopped == straight
