"""StreamProcessor's questions: ranges, joins, groups and counts; the same as a plain scan, without one."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from queenstream.errors import ConfigError
from queenstream.processor.processor import Event, StreamProcessor
from queenstream.processor.queries import matchable

settings = hypothesis_settings(deadline=None)  # a busy machine is no failure

MOMENTS = st.integers(-30, 30)
VALUES = st.sampled_from(["ann", "bob", 1, 1.0, True, None, (1, "x"), {"a": 1}])
LOGS = st.lists(st.tuples(MOMENTS, VALUES), max_size=30)


def stream_of(log: list[tuple[int, Any]], most: int = 1000, name: str = "e") -> StreamProcessor:
    stream = StreamProcessor("test", max_events=most)
    for number, (moment, value) in enumerate(log):
        stream.emit(f"{name}{number}", {"user": {"id": value}}, timestamp=moment)
    return stream


def by_time(events: list[Event]) -> list[Event]:
    return sorted(events, key=lambda event: event.timestamp)  # stable: then by arrival


# ---- ranges


@settings
@given(LOGS, MOMENTS, MOMENTS, st.integers(1, 30))
def test_a_range_has_what_a_scan_finds(log: list[Any], start: int, end: int, most: int) -> None:
    stream = stream_of(log, most)
    kept = stream.get_recent_events(1000)
    assert stream.get_events_in_range(start, end) == by_time([e for e in kept if start <= e.timestamp < end])
    assert stream.get_events_in_range(start) == by_time([e for e in kept if start <= e.timestamp])


def test_a_range_takes_datetimes_and_has_its_start_and_not_its_end() -> None:
    stream = stream_of([(10, "a"), (20, "b"), (30, "c")])
    start = datetime(1970, 1, 1, 0, 0, 10, tzinfo=UTC)
    found = stream.get_events_in_range(start, "1970-01-01T00:00:30Z")
    assert [event.timestamp for event in found] == [10, 20]


def test_the_range_of_a_window_is_its_events() -> None:
    stream = stream_of([(9, "a"), (10, "b"), (19, "c"), (20, "d")]).tumbling_window(10)
    for window in stream.get_windows():
        assert tuple(stream.get_events_in_range(window.start, window.end)) == window.events


def quickest(ask: Callable[[], object]) -> float:
    """The least of many times: what the work costs when nothing else runs."""
    times = []
    for _ in range(50):
        started = time.perf_counter()
        ask()
        times.append(time.perf_counter() - started)
    return min(times)


def test_look_ups_cost_what_they_find_not_what_there_is() -> None:
    """A scan of a hundred times as many events would take a hundred times as long."""
    small = stream_of([(number, "a") for number in range(500)])
    large = stream_of([(number, "a") for number in range(50_000)], most=50_000)
    few = quickest(lambda: small.get_events_in_range(250, 260))
    assert quickest(lambda: large.get_events_in_range(250, 260)) < 20 * few
    few = quickest(lambda: small.get_recent_events(10))
    assert quickest(lambda: large.get_recent_events(10)) < 20 * few


# ---- joins


@settings
@given(LOGS, LOGS, st.integers(0, 20), st.integers(1, 30))
def test_a_join_has_what_a_scan_finds(left: list[Any], right: list[Any], apart: int, most: int) -> None:
    ours, theirs = stream_of(left, most), stream_of(right, most, name="x")
    naive = [
        (one, two)
        for one in by_time(ours.get_recent_events(1000))
        for two in by_time(theirs.get_recent_events(1000))
        if same(one.data["user"]["id"], two.data["user"]["id"])
        and abs(one.timestamp - two.timestamp) <= apart
    ]
    assert ours.join_streams(theirs, "user.id", apart) == naive
    assert ours.join_streams(theirs, "data.user.id", apart) == naive


def same(one: Any, two: Any) -> bool:
    """Equal, but true is no number and null equals nothing."""
    return one is not None and one == two and isinstance(one, bool) == isinstance(two, bool)


def test_a_join_with_nothing_is_empty() -> None:
    empty, full = StreamProcessor("empty"), stream_of([(1, "a")])
    assert empty.join_streams(full, "user.id", 10) == full.join_streams(empty, "user.id", 10) == []
    assert full.join_streams(stream_of([(1, "a")]), "no.such.field", "10s") == []


class Counting:
    """A value that knows how often it was compared with another."""

    compared = 0

    def __init__(self, value: int) -> None:
        self.value = value

    def __hash__(self) -> int:
        return hash(self.value)

    def __eq__(self, other: object) -> bool:
        Counting.compared += 1
        return isinstance(other, Counting) and self.value == other.value


def test_a_join_compares_no_event_with_every_other() -> None:
    ours, theirs = StreamProcessor("ours"), StreamProcessor("theirs")
    for number in range(1000):
        ours.emit(f"e{number}", {"k": Counting(number)}, timestamp=number)
        theirs.emit(f"x{number}", {"k": Counting(number)}, timestamp=number)
    Counting.compared = 0
    assert len(ours.join_streams(theirs, "k", 5)) == 1000
    assert Counting.compared < 5_000  # a scan: a million


def test_a_join_of_one_busy_value_goes_by_time() -> None:
    small, large = ([(number, "a") for number in range(most)] for most in (300, 3_000))
    few, many = stream_of(small), stream_of(large, most=3_000)
    quick = quickest(lambda: few.join_streams(few, "user.id", 0))
    assert quickest(lambda: many.join_streams(many, "user.id", 0)) < 40 * quick  # a scan: a hundred times


@pytest.mark.parametrize(
    ("one", "two", "equal"),
    [
        ([1, 2], (1, 2), True),
        ({"a": [1]}, {"a": [1.0]}, True),
        ({1, 2}, {2, 1}, True),
        (float("nan"), float("nan"), True),
        ([1], [True], False),
        ({"a": 1}, [("a", 1)], False),
        ("1", 1, False),
    ],
)
def test_values_of_all_kinds_can_be_joined(one: Any, two: Any, equal: bool) -> None:
    assert (matchable(one) == matchable(two)) is equal
    hash(matchable(one))


def test_what_cannot_be_compared_is_refused() -> None:
    stream = stream_of([(1, bytearray(b"x"))])
    with pytest.raises(ConfigError, match="cannot be compared; group or join by text, numbers"):
        stream.join_streams(stream, "user.id", 10)


# ---- groups


def test_groups_are_in_the_order_of_arrival() -> None:
    stream = stream_of([(3, "ann"), (2, "bob"), (1, "ann")])
    groups = stream.group_by(lambda event: event.data["user"]["id"])
    assert {user: [event.id for event in events] for user, events in groups.items()} == {
        "ann": ["e0", "e2"],
        "bob": ["e1"],
    }


def test_counts_leave_out_events_without_the_field() -> None:
    stream = stream_of([(1, "ann"), (2, None), (3, "bob"), (4, "ann")])
    stream.emit("other", {})
    assert stream.count_by_key("user.id") == stream.count_by_key("data.user.id") == {"ann": 2, "bob": 1}


def test_lists_cannot_be_counted() -> None:
    with pytest.raises(ConfigError, match="'user' has lists or dictionaries; count another field"):
        stream_of([(1, "ann")]).count_by_key("user")
