"""Windows: the rules of the semantics by example, and as properties that hold for every event log."""

from __future__ import annotations

import doctest
import math
import pickle
from collections.abc import Callable
from dataclasses import FrozenInstanceError, fields
from datetime import UTC, datetime, timedelta, timezone
from fractions import Fraction
from random import Random

import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from queenstream.core import windows
from queenstream.core.windows import (
    Count,
    Definition,
    Session,
    Sliding,
    Span,
    Tumbling,
    from_us,
    iso,
    to_us,
    window_id,
    windows_of,
)

settings = hypothesis_settings(deadline=None)  # a busy machine is no failure

SECOND = 1_000_000


def us(length: int) -> timedelta:
    return timedelta(microseconds=length)


def at(clock: str, day: str = "2025-11-03") -> int:
    return to_us(datetime.fromisoformat(f"{day}T{clock}+00:00"))


def itself(time: int) -> int:
    return time


# Beyond what a timestamptz can say, both ways; most draws stay small, where the boundaries are.
TIMES = st.integers(-200, 200) | st.integers(-(2**63), 2**63)
LENGTHS = st.integers(1, 40) | st.integers(1, 36_500 * 86_400 * SECOND)
SMALL_LOGS = st.lists(st.integers(-100, 100), max_size=30)


@st.composite
def slides(draw: st.DrawFn) -> Sliding:
    """Sizes and slides that need not divide, with a number of windows that a test can list."""
    slide = draw(LENGTHS)
    size = slide + draw(st.integers(0, 8 * slide))
    return Sliding(us(size), us(slide))


GRIDS = st.builds(Tumbling, LENGTHS.map(us)) | slides()


# ---- instants


@pytest.mark.parametrize(
    ("instant", "expected"),
    [
        (datetime(1970, 1, 1, tzinfo=UTC), 0),
        (datetime(1969, 12, 31, 23, 59, 59, 999_999, tzinfo=UTC), -1),
        (datetime(1970, 1, 1, 2, tzinfo=timezone(timedelta(hours=2))), 0),
        (datetime(1, 1, 1, tzinfo=UTC), -62_135_596_800 * SECOND),
        (datetime(9999, 12, 31, 23, 59, 59, 999_999, tzinfo=UTC), 253_402_300_800 * SECOND - 1),
    ],
)
def test_instants_are_exact(instant: datetime, expected: int) -> None:
    assert to_us(instant) == expected
    assert from_us(expected) == instant
    assert from_us(expected).utcoffset() == timedelta(0)


@settings
@given(st.datetimes(timezones=st.just(UTC)))
def test_instants_come_back(instant: datetime) -> None:
    assert from_us(to_us(instant)) == instant
    assert datetime.fromisoformat(iso(to_us(instant))) == instant


def test_an_instant_without_a_zone_is_refused() -> None:
    with pytest.raises(ValueError, match="no time zone; write it with one, such as 2025-11-03 10:00:00"):
        to_us(datetime(2025, 11, 3, 10))  # noqa: DTZ001


@pytest.mark.parametrize("time", [253_402_300_800 * SECOND, -(10**18), 10**30])
def test_what_no_datetime_can_say_is_refused(time: int) -> None:
    with pytest.raises(
        ValueError, match=f"{time} µs from 1970 is not in the years 1 to 9999; check its unit"
    ):
        from_us(time)


# ---- one window


def test_a_window_has_its_start_and_not_its_end() -> None:
    span = Span(0, 10)
    assert [time for time in range(-2, 13) if time in span] == list(range(10))


@pytest.mark.parametrize(("start", "end"), [(0, 0), (1, 0)])
def test_a_window_ends_after_it_starts(start: int, end: int) -> None:
    with pytest.raises(ValueError, match="must end after it starts"):
        Span(start, end)


def test_windows_sort_by_start_then_end() -> None:
    assert sorted([Span(5, 6), Span(0, 9), Span(0, 3)]) == [Span(0, 3), Span(0, 9), Span(5, 6)]


def test_a_window_shows_its_times_as_the_broker_writes_them() -> None:
    assert str(Span(at("10:00:00"), at("10:01:00"))) == "[2025-11-03T10:00:00Z, 2025-11-03T10:01:00Z)"
    assert iso(at("10:00:00.005")) == "2025-11-03T10:00:00.005000Z"


def test_the_id_is_stream_key_start_end() -> None:
    span = Span(at("10:00:00"), at("10:01:00"))
    assert window_id("s", "chat-1", span) == "s:chat-1:2025-11-03T10:00:00Z:2025-11-03T10:01:00Z"


def test_count_windows_of_the_same_instant_have_ids_of_their_own() -> None:
    pushed_together = [7] * 6
    spans = [span for span, _ in windows_of(Count(3), pushed_together, itself)]
    assert spans == [Span(7, 8), Span(7, 8)]
    assert [window_id("s", "k", positions) for positions in Count(3).ranges(6)] == ["s:k:0:3", "s:k:3:6"]


# ---- definitions


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Tumbling(us(0)), r"a tumbling window's size must be a timedelta over zero.*; write"),
        (lambda: Tumbling(timedelta(days=-1)), "over zero"),
        (
            lambda: Tumbling(60),  # type: ignore[arg-type]
            r"must be a timedelta over zero, not 60; write durations.parse\('5m'\)",
        ),
        (
            lambda: Tumbling("5m"),  # type: ignore[arg-type]
            "not '5m'; write",
        ),
        (lambda: Sliding(us(0), us(1)), "a sliding window's size"),
        (lambda: Sliding(us(1), us(0)), "a sliding window's slide"),
        (
            lambda: Sliding(us(SECOND), us(2 * SECOND)),
            "slide of 0:00:02 is over the size 0:00:01: .* in none; make it 0:00:01 or less",
        ),
        (lambda: Session(us(0)), "a session's gap"),
        (
            lambda: Count(0),
            "a count window's size must be a whole number of messages, not 0; write 1 or more",
        ),
        (lambda: Count(-1), "write 1 or more"),
        (lambda: Count(True), "not True; write 1"),
        (
            lambda: Count(2.5),  # type: ignore[arg-type]
            "not 2.5; write 1",
        ),
        (lambda: Count(3, slide=0), "a count window's slide"),
        (lambda: Count(3, slide=4), "slide of 4 is over the size 3: .* make it 3 or less"),
    ],
)
def test_what_cannot_be_is_refused_with_a_remedy(make: Callable[[], Definition], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()


@pytest.mark.parametrize(
    "definition", [Tumbling(us(5)), Sliding(us(9), us(2)), Session(us(3)), Count(3), Count(3, slide=2)]
)
def test_definitions_are_values(definition: Definition) -> None:
    again = pickle.loads(pickle.dumps(definition))  # as Spark ships them to its workers
    assert again == definition
    assert hash(again) == hash(definition)
    assert repr(again) == repr(definition)
    with pytest.raises(FrozenInstanceError):
        setattr(definition, fields(definition)[0].name, us(7))


def test_definitions_of_different_kinds_differ() -> None:
    assert len({Tumbling(us(5)), Sliding(us(5), us(5)), Session(us(5)), Count(5)}) == 4


# ---- tumbling and sliding


def test_the_guides_example() -> None:
    """Seed 000: messages at 10:00:05, :12, :58 and 10:01:02 in windows of a minute."""
    times = [at("10:00:05"), at("10:00:12"), at("10:00:58"), at("10:01:02")]
    assert windows_of(Tumbling(timedelta(minutes=1)), times, itself) == [
        (Span(at("10:00:00"), at("10:01:00")), times[:3]),
        (Span(at("10:01:00"), at("10:02:00")), times[3:]),
    ]


@pytest.mark.parametrize(
    ("time", "start"),
    [(0, 0), (9, 0), (10, 10), (-1, -10), (-10, -10), (-11, -20)],
)
def test_tumbling_windows_are_aligned_by_floor_before_1970_too(time: int, start: int) -> None:
    assert Tumbling(us(10)).assign(time) == [Span(start, start + 10)]
    assert Tumbling(us(10)).aligned(time) == start


def test_a_week_starts_on_a_thursday_as_the_epoch_did() -> None:
    [span] = Tumbling(timedelta(weeks=1)).assign(at("12:00:00"))
    assert from_us(span.start) == datetime(2025, 10, 30, tzinfo=UTC)
    assert from_us(span.start).strftime("%A") == "Thursday"


def test_sliding_an_hour_every_five_minutes() -> None:
    """Seed 003: window 1h, slide 5m."""
    spans = Sliding(timedelta(hours=1), timedelta(minutes=5)).assign(at("10:07:12"))
    assert len(spans) == 12
    assert (spans[0], spans[-1]) == (
        Span(at("09:10:00"), at("10:10:00")),
        Span(at("10:05:00"), at("11:05:00")),
    )


def test_sliding_where_the_slide_does_not_divide_the_size() -> None:
    ten_every_four = Sliding(us(10), us(4))
    assert ten_every_four.assign(9) == [Span(0, 10), Span(4, 14), Span(8, 18)]
    assert ten_every_four.assign(10) == [Span(4, 14), Span(8, 18)]
    assert ten_every_four.assign(-1) == [Span(-8, 2), Span(-4, 6)]


@settings
@given(LENGTHS, TIMES)
def test_every_instant_is_in_exactly_one_tumbling_window(size: int, time: int) -> None:
    [span] = Tumbling(us(size)).assign(time)
    assert time in span
    assert span.start % size == 0
    assert span.end - span.start == size


@settings
@given(slides(), TIMES)
def test_an_instant_is_in_every_sliding_window_that_spans_it(sliding: Sliding, time: int) -> None:
    size, slide = sliding.size_us, sliding.slide_us
    spans = sliding.assign(time)
    assert all(time in span and span.start % slide == 0 and span.end - span.start == size for span in spans)
    assert [span.start for span in spans] == list(range(spans[0].start, spans[-1].start + 1, slide))
    # … and the neighbours on both sides do not hold it.
    assert time not in Span(spans[0].start - slide, spans[0].end - slide)
    assert time not in sliding.following(spans[-1])
    exactly = Fraction(size, slide)
    assert math.floor(exactly) <= len(spans) <= math.ceil(exactly)  # equal where the slide divides the size


@settings
@given(LENGTHS, TIMES)
def test_sliding_by_the_size_is_tumbling(size: int, time: int) -> None:
    assert Sliding(us(size), us(size)).assign(time) == Tumbling(us(size)).assign(time)


@settings
@given(GRIDS, TIMES)
def test_windows_tile(grid: Tumbling | Sliding, time: int) -> None:
    span = grid.assign(time)[-1]
    after = grid.following(span)
    assert after.start == span.start + grid.slide_us
    assert after.start <= span.end  # no gap
    if isinstance(grid, Tumbling):
        assert after.start == span.end  # and no overlap
    assert list(grid.between(span.start, after.end))[:2] == [span, after]


@settings
@given(GRIDS, TIMES)
def test_alignment_goes_down_to_the_nearest_start(grid: Tumbling | Sliding, time: int) -> None:
    start = grid.aligned(time)
    assert start <= time < start + grid.slide_us
    assert start == grid.assign(time)[-1].start
    assert grid.aligned(start) == start


@settings
@given(GRIDS, TIMES, st.integers(0, 30))
def test_between_lists_the_starts(grid: Tumbling | Sliding, start: int, slides: int) -> None:
    end = start + slides * grid.slide_us
    spans = list(grid.between(start, end))
    assert len(spans) == slides
    assert all(start <= span.start < end for span in spans)


def test_a_long_gap_is_one_step() -> None:
    a_century_on = at("10:00:00", day="2125-01-01")
    assert Tumbling(us(1)).next_with(a_century_on, after=Span(0, 1)) == Span(a_century_on, a_century_on + 1)


def test_there_is_no_next_window_for_the_past() -> None:
    with pytest.raises(ValueError, match="5 lies before every window past"):
        Tumbling(us(10)).next_with(5, after=Span(0, 10))


@settings
@given(
    st.builds(Tumbling, st.integers(1, 40).map(us)) | slides().filter(lambda s: s.size_us < 200), SMALL_LOGS
)
def test_stepping_finds_every_window_with_events(grid: Tumbling | Sliding, times: list[int]) -> None:
    """How a cursor walks: from each window to the next that holds the earliest event still to come."""
    walked: list[Span] = []
    ordered = sorted(times)
    while True:
        least = grid.following(walked[-1]).start if walked else -math.inf
        time = next((time for time in ordered if time >= least), None)
        if time is None:
            break
        walked.append(grid.next_with(time, walked[-1] if walked else None))
    assert walked == [span for span, _ in windows_of(grid, times, itself)]


# ---- sessions


def test_a_session_lasts_from_the_first_event_to_the_last_plus_the_gap() -> None:
    """Seed 004: a timeout of five minutes, and six minutes of silence."""
    times = [at("10:00:00"), at("10:03:00"), at("10:09:00")]
    assert Session(timedelta(minutes=5)).of(times) == [
        Span(at("10:00:00"), at("10:08:00")),
        Span(at("10:09:00"), at("10:14:00")),
    ]


def test_an_event_exactly_one_gap_later_is_in_a_session_of_its_own() -> None:
    ten = Session(us(10))
    assert ten.of([0, 9]) == [Span(0, 19)]
    assert ten.of([0, 10]) == [Span(0, 10), Span(10, 20)]
    assert ten.add([Span(0, 10)], 10) == (Span(10, 20), [])
    assert ten.add([Span(10, 20)], 0) == (Span(0, 10), [])


def test_a_late_event_bridges_two_sessions() -> None:
    ten = Session(us(10))
    assert ten.add([Span(0, 10), Span(18, 28), Span(50, 60)], 9) == (Span(0, 28), [Span(0, 10), Span(18, 28)])
    assert ten.of([0, 18, 9]) == [Span(0, 28)]
    # Even two that touch: five after the one, five before the other.
    assert ten.add([Span(0, 10), Span(10, 20)], 5) == (Span(0, 20), [Span(0, 10), Span(10, 20)])


def test_an_event_inside_a_session_changes_nothing() -> None:
    assert Session(us(10)).add([Span(0, 30)], 7) == (Span(0, 30), [Span(0, 30)])


def test_an_event_alone() -> None:
    assert Session(us(10)).assign(-3) == [Span(-3, 7)]
    assert Session(us(10)).of([]) == []


@settings
@given(st.integers(1, 30), SMALL_LOGS)
def test_sessions_are_the_runs_between_gaps(gap: int, times: list[int]) -> None:
    """By the definition alone: cut the sorted times wherever two are a gap or more apart."""
    runs: list[list[int]] = []
    for time in sorted(times):
        if runs and time - runs[-1][-1] < gap:
            runs[-1].append(time)
        else:
            runs.append([time])
    assert Session(us(gap)).of(times) == [Span(run[0], run[-1] + gap) for run in runs]
    assert [members for _, members in windows_of(Session(us(gap)), times, itself)] == runs


@settings
@given(LENGTHS, st.lists(TIMES, max_size=30), st.randoms(use_true_random=False))
def test_sessions_do_not_depend_on_the_order_of_events(gap: int, times: list[int], random: Random) -> None:
    session = Session(us(gap))
    expected = session.of(times)
    shuffled = list(times)
    random.shuffle(shuffled)
    assert session.of(shuffled) == expected
    standing: set[Span] = set()
    for time in shuffled:  # one by one, as an engine does
        merged, taken = session.add(standing, time)
        standing = standing.difference(taken) | {merged}
    assert sorted(standing) == expected


# ---- counts


def test_count_windows_by_position() -> None:
    assert Count(3).assign(4) == [range(3, 6)]
    assert Count(4, slide=2).assign(5) == [range(2, 6), range(4, 8)]
    assert Count(4, slide=2).assign(0) == [range(0, 4)]  # nothing starts before the first message


def test_only_the_last_message_closes_a_count_window() -> None:
    assert [Count(3).closed_by(position) for position in range(6)] == [
        None, None, range(0, 3), None, None, range(3, 6),
    ]  # fmt: skip
    assert [Count(3, slide=1).closed_by(position) for position in range(4)] == [
        None, None, range(0, 3), range(1, 4),
    ]  # fmt: skip


def test_what_is_not_full_waits_or_is_flushed() -> None:
    assert Count(3).ranges(7) == [range(0, 3), range(3, 6)]
    assert Count(3).ranges(7, flush=True) == [range(0, 3), range(3, 6), range(6, 7)]
    assert Count(3).ranges(6, flush=True) == Count(3).ranges(6)
    assert Count(3).ranges(0, flush=True) == []
    assert Count(5, slide=1).ranges(3, flush=True) == [range(0, 3)]
    assert Count(3, slide=1).ranges(5, flush=True)[-1] == range(
        2, 5
    )  # all are in a full one: nothing to flush
    assert Count(3, slide=2).ranges(6, flush=True)[-1] == range(4, 6)


COUNTS = st.integers(1, 12).flatmap(
    lambda size: st.builds(Count, st.just(size), st.none() | st.integers(1, size))
)


@settings
@given(st.integers(1, 12), st.lists(st.integers(), max_size=60))
def test_count_windows_partition_the_messages(size: int, times: list[int]) -> None:
    parts = [part for _, part in windows_of(Count(size), times, itself, flush=True)]
    assert [time for part in parts for time in part] == times
    assert all(len(part) == size for part in parts[:-1])
    full = [part for _, part in windows_of(Count(size), times, itself)]
    assert full == [part for part in parts if len(part) == size]


@settings
@given(COUNTS, st.integers(0, 60))
def test_count_windows_agree_with_themselves(count: Count, total: int) -> None:
    full = count.ranges(total)
    assert all(len(window) == count.size for window in full)
    assert full == [window for position in range(total) if (window := count.closed_by(position))]
    assigned = {window for position in range(total) for window in count.assign(position)}
    assert full == sorted((w for w in assigned if w.stop <= total), key=lambda w: w.start)
    flushed = count.ranges(total, flush=True)
    assert {position for window in flushed for position in window} == set(range(total))  # none is lost
    assert len(flushed) - len(full) in (0, 1)


def test_a_count_window_keeps_the_order_of_arrival_and_spans_its_times() -> None:
    assert windows_of(Count(3), [30, 10, 20, 99], itself) == [(Span(10, 31), [30, 10, 20])]


# ---- all windows of a log


def test_events_stand_by_time_then_arrival() -> None:
    log = [("c", 5), ("a", 3), ("b", 5), ("d", 3)]
    for definition in (Tumbling(us(10)), Session(us(10))):
        [(_, events)] = windows_of(definition, log, lambda event: event[1])
        assert [name for name, _ in events] == ["a", "d", "c", "b"]


def test_empty_windows_only_when_asked_for() -> None:
    ten = Tumbling(us(10))
    assert [span.start for span, _ in windows_of(ten, [35, 1], itself)] == [0, 30]
    assert windows_of(ten, [35, 1], itself, empty=True) == [
        (Span(0, 10), [1]),
        (Span(10, 20), []),
        (Span(20, 30), []),
        (Span(30, 40), [35]),
    ]
    assert windows_of(ten, [], itself, empty=True) == []


@settings
@given(st.integers(1, 30), st.integers(1, 30), SMALL_LOGS)
def test_the_windows_of_a_log_by_trying_them_all(a: int, b: int, times: list[int]) -> None:
    """No arithmetic: every start that could matter is tried."""
    size, slide = max(a, b), min(a, b)
    every = [Span(start, start + size) for start in range(-131 // slide * slide, 101, slide)]
    expected = [(span, sorted(time for time in times if time in span)) for span in every]
    found = windows_of(Sliding(us(size), us(slide)), times, itself)
    assert found == [(span, members) for span, members in expected if members]


def test_examples() -> None:
    assert doctest.testmod(windows).failed == 0
