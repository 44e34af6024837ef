"""StreamProcessor's windows: the same as the arithmetic says, bounded, and honest about what they lost."""

from __future__ import annotations

import gc
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from queenstream.core.aggregates import avg, collect_list, count, custom, first, last, sum_
from queenstream.core.windows import Definition, Session, Sliding, Tumbling, windows_of
from queenstream.errors import ConfigError
from queenstream.processor.processor import Event, EventWindow, LateEvent, StreamProcessor
from queenstream.processor.windows import Kept

settings = hypothesis_settings(deadline=None)  # a busy machine is no failure

# In milliseconds: small enough for many events to meet, before 1970 too.
MOMENTS = st.integers(-60_000, 60_000)
LOGS = st.lists(st.tuples(MOMENTS, st.sampled_from(["a", "b", None])), max_size=40)
LENGTHS = st.integers(1, 20_000)


class Clock:
    """Turned by the test."""

    def __init__(self, now: float = 0.0) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now


def ms(length: int) -> timedelta:
    return timedelta(milliseconds=length)


def emitted(stream: StreamProcessor, log: list[tuple[int, str | None]]) -> list[Event]:
    found = [
        stream.emit(f"e{number}", {"n": number}, key=key, timestamp=moment / 1000)
        for number, (moment, key) in enumerate(log)
    ]
    return [event for event in found if event is not None]


def expected(definition: Definition, events: list[Event], key: str | None = None) -> list[EventWindow]:
    """By the arithmetic that all engines are checked by."""
    return [
        EventWindow(span.start / 1e6, span.end / 1e6, key, tuple(inside))
        for span, inside in windows_of(definition, events, lambda event: round(event.timestamp * 1e6))
    ]


@settings
@given(LOGS, LENGTHS)
def test_tumbling_windows_hold_what_the_arithmetic_says(log: list[Any], size: int) -> None:
    stream = StreamProcessor("t").tumbling_window(ms(size))
    events = emitted(stream, log)
    assert stream.get_windows() == expected(Tumbling(ms(size)), events)


@settings
@given(LOGS, LENGTHS, st.integers(1, 8))
def test_sliding_windows_hold_what_the_arithmetic_says(log: list[Any], slide: int, more: int) -> None:
    size = slide * more + slide // 3  # the slide need not divide it
    stream = StreamProcessor("s").sliding_window(ms(size), ms(slide))
    events = emitted(stream, log)
    assert stream.get_windows() == expected(Sliding(ms(size), ms(slide)), events)


@settings
@given(LOGS, LENGTHS)
def test_sessions_hold_what_the_arithmetic_says_by_key(log: list[Any], gap: int) -> None:
    stream = StreamProcessor("s").session_window(ms(gap))
    events = emitted(stream, log)
    by_key = [
        window
        for key in (None, "a", "b")
        for window in expected(Session(ms(gap)), [event for event in events if event.key == key], key)
    ]
    assert stream.get_windows() == sorted(by_key, key=lambda w: (w.start, w.end, w.key or ""))
    assert stream.get_metrics()["windows_kept"] == len(by_key)


@settings
@given(LOGS, LENGTHS, st.integers(0, 40))
def test_windows_may_be_defined_after_events_came(log: list[Any], size: int, at: int) -> None:
    early, late = StreamProcessor("early").session_window(ms(size)), StreamProcessor("late")
    emitted(early, log)
    emitted(late, log[:at])
    late.tumbling_window(1).session_window(ms(size))
    for number, (moment, key) in enumerate(log[at:], start=at):
        late.emit(f"e{number}", {"n": number}, key=key, timestamp=moment / 1000)
    assert late.get_windows() == early.get_windows()


@settings
@given(LOGS, LENGTHS, st.integers(1, 12), st.sampled_from(["tumbling", "session"]))
def test_what_was_evicted_shows(log: list[Any], size: int, most: int, kind: str) -> None:
    bounded, whole = StreamProcessor("bounded", max_events=most), StreamProcessor("whole")
    for stream in (bounded, whole):
        if kind == "tumbling":
            stream.tumbling_window(ms(size))
        else:
            stream.session_window(ms(size))
        emitted(stream, log)
    kept = {event.id for event in bounded.get_recent_events(most)}
    assert len(kept) == min(most, len(log))
    for ours, all_of_it in zip(bounded.get_windows(), whole.get_windows(), strict=True):
        assert (ours.start, ours.end, ours.key) == (all_of_it.start, all_of_it.end, all_of_it.key)
        assert ours.events == tuple(event for event in all_of_it.events if event.id in kept)
        assert ours.complete == (ours.events == all_of_it.events)


def test_windows_defined_after_events_were_lost_are_not_complete() -> None:
    stream = StreamProcessor("bounded", max_events=2)
    for moment in (1, 2, 11, 21):
        stream.emit(f"e{moment}", {}, timestamp=moment)
    stream.tumbling_window(10)
    assert [(window.start, window.complete) for window in stream.get_windows()] == [(10, True), (20, True)]
    stream.tumbling_window(20)
    assert [(window.start, window.complete) for window in stream.get_windows()] == [(0, False), (20, True)]


def test_without_a_definition_there_are_no_windows() -> None:
    stream = StreamProcessor("none")
    stream.emit("e1", {})
    assert stream.get_windows() == []
    assert stream.clear_old_windows() == 0


def test_the_same_definition_again_changes_nothing() -> None:
    clock = Clock(100)
    stream = StreamProcessor("same", clock=clock).tumbling_window(10)
    stream.emit("e1", {}, timestamp=1)
    stream.clear_old_windows()
    stream.tumbling_window("10s")
    assert stream.get_windows() == []
    assert stream.get_metrics()["windows_created"] == 1


# ---- over, cleared, late


def test_a_window_is_active_until_its_end() -> None:
    clock = Clock()
    stream = StreamProcessor("active", clock=clock).tumbling_window(10)
    stream.emit("e1", {}, timestamp=3)
    clock.now = 9.999
    assert len(stream.get_windows(active_only=True)) == 1
    assert stream.clear_old_windows() == 0
    clock.now = 10
    assert stream.get_windows(active_only=True) == []
    assert len(stream.get_windows()) == 1
    assert stream.clear_old_windows() == 1
    assert stream.get_windows() == []


def test_an_event_for_a_cleared_window_is_late_and_not_lost() -> None:
    late: list[LateEvent] = []
    seen: list[str] = []
    clock = Clock(25)
    stream = StreamProcessor("late", clock=clock).tumbling_window(10).late(late.append)
    stream.sink(lambda event: seen.append(event.id))
    stream.emit("e1", {}, timestamp=5)
    stream.clear_old_windows()
    event = stream.emit("e2", {}, timestamp=7)
    stream.emit("e3", {}, timestamp=21)
    assert event is not None
    assert late == [LateEvent(event, 0.0, 10.0, 18.0)]
    assert seen == ["e1", "e2", "e3"]
    assert [event.id for event in stream.get_events_in_range(0, 10)] == ["e1", "e2"]
    assert [window.start for window in stream.get_windows()] == [20]
    assert stream.get_metrics()["events_late"] == 1


def test_an_event_late_for_some_windows_is_in_the_others() -> None:
    stream = StreamProcessor("some", clock=Clock(40)).sliding_window(30, 10)
    stream.clear_old_windows()
    stream.emit("e1", {}, timestamp=25)
    assert [window.start for window in stream.get_windows()] == [20]
    assert stream.get_metrics()["events_late"] == 0


def test_a_late_event_may_still_join_an_open_session() -> None:
    clock = Clock(100)
    stream = StreamProcessor("bridge", clock=clock).session_window(10)
    stream.clear_old_windows()
    stream.emit("e1", {}, key="a", timestamp=95)
    stream.emit("e2", {}, key="a", timestamp=88)  # alone it would be over, but it touches the open one
    stream.emit("e3", {}, key="b", timestamp=88)
    [window] = stream.get_windows()
    assert (window.key, window.start, window.end) == ("a", 88, 105)
    assert stream.get_metrics()["events_late"] == 1


def test_late_events_that_nobody_takes_are_logged(caplog: pytest.LogCaptureFixture) -> None:
    stream = StreamProcessor("quiet", clock=Clock(100)).tumbling_window(10)
    stream.clear_old_windows()
    stream.emit("e1", {}, timestamp=5)
    [record] = caplog.records
    assert "event 'e1' came 95 s too late" in record.getMessage()


def test_a_late_function_that_raises_is_counted(caplog: pytest.LogCaptureFixture) -> None:
    def broken(late: LateEvent) -> None:
        raise ValueError("no")

    stream = StreamProcessor("broken", clock=Clock(100)).tumbling_window(10).late(broken)
    stream.clear_old_windows()
    assert stream.emit("e1", {}, timestamp=5) is not None
    assert stream.get_metrics()["errors_by_step"] == {"late": 1}


@settings
@given(
    LOGS,
    st.lists(st.tuples(st.integers(0, 40), MOMENTS), max_size=4),
    LENGTHS,
    st.sampled_from(["tumbling", "session"]),
)
def test_clearing_loses_nothing_in_silence(log: list[Any], clears: list[Any], size: int, kind: str) -> None:
    """Every event is in a window that is kept, in one that was cleared with it, or late; and only there."""
    clock = Clock()
    late: list[str] = []
    stream = StreamProcessor("clear", clock=clock).late(lambda missed: late.append(missed.event.id))
    stream = stream.tumbling_window(ms(size)) if kind == "tumbling" else stream.session_window(ms(size))
    cleared: list[str] = []
    for number, (moment, key) in enumerate(log):
        for now in (now for at, now in clears if at == number):
            clock.now = now / 1000
            over = [window for window in stream.get_windows() if window.end <= clock.now]
            assert stream.clear_old_windows() == len(over)
            cleared += [event.id for window in over for event in window.events]
        stream.emit(f"e{number}", {}, key=key, timestamp=moment / 1000)
    held = [event.id for window in stream.get_windows() for event in window.events]
    assert sorted(held + cleared + late) == sorted(f"e{number}" for number in range(len(log)))
    assert stream.get_metrics()["events_late"] == len(late)
    assert all(window.complete for window in stream.get_windows())


def test_a_session_that_grows_over_a_late_event_does_not_take_it_back() -> None:
    stream = StreamProcessor("grown", clock=Clock(100)).session_window(10).late(lambda late: None)
    stream.clear_old_windows()
    for moment in (85, 92, 84):  # the first is late; the second opens a session, which the third widens
        stream.emit(f"e{moment}", {}, timestamp=moment)
    [window] = stream.get_windows()
    assert (window.start, window.complete) == (84, True)
    assert [event.id for event in window.events] == ["e84", "e92"]
    assert stream.get_metrics()["events_late"] == 1
    stream.session_window(11)  # other windows: all events are placed anew
    assert [len(window.events) for window in stream.get_windows()] == [3]


# ---- bounds


def test_the_windows_that_ended_first_go_when_there_are_too_many() -> None:
    stream = StreamProcessor("bounded", max_windows=3).tumbling_window(10)
    for moment in range(0, 60, 10):
        stream.emit(f"e{moment}", {}, timestamp=moment)
    assert [window.start for window in stream.get_windows()] == [30, 40, 50]
    stream.emit("late", {}, timestamp=15)
    metrics = stream.get_metrics()
    assert (metrics["windows_created"], metrics["windows_evicted"], metrics["events_late"]) == (6, 3, 1)


def test_a_session_that_goes_on_outlives_those_that_ended() -> None:
    stream = StreamProcessor("bounded", max_windows=2).session_window(10)
    for moment in range(0, 100, 5):
        stream.emit(f"a{moment}", {}, key="a", timestamp=moment)
        stream.emit(f"b{moment}", {}, key=f"b{moment}", timestamp=moment)
    assert [(window.key, window.start) for window in stream.get_windows()] == [("a", 0), ("b95", 95)]


def test_sessions_that_grow_together_do_not_pile_up() -> None:
    stream = StreamProcessor("bridges", max_windows=50).session_window(10)
    for number in range(2000):
        for moment in (number * 10, number * 10 + 15, number * 10 + 8):
            stream.emit("e", {}, key="a", timestamp=moment)
    assert stream.get_metrics()["windows_kept"] == 1
    gc.collect()
    assert sum(type(each) is Kept for each in gc.get_objects()) < 50  # of 4,000 that there were


def test_a_stream_cannot_slide_into_more_windows_than_it_keeps() -> None:
    with pytest.raises(ConfigError, match="more than 5 windows; make slide_interval 2s or more"):
        StreamProcessor("bounded", max_windows=5).sliding_window(10, 1)


# ---- aggregates


def windowed(*values: object) -> tuple[StreamProcessor, EventWindow]:
    stream = StreamProcessor("values").tumbling_window(1000)
    for number, value in enumerate(values):
        stream.emit(f"e{number}", {"value": value}, timestamp=len(values) - number)
    return stream, stream.get_windows()[0]


def test_functions_get_the_events_by_time() -> None:
    stream, window = windowed(30, 20, 10)
    assert stream.aggregate_window(
        window,
        {
            "count": len,
            "sum": lambda events: sum(event.data["value"] for event in events),
            "max": lambda events: max((event.data["value"] for event in events), default=0),
            "order": lambda events: [event.data["value"] for event in events],
        },
    ) == {"count": 3, "sum": 60, "max": 30, "order": [10, 20, 30]}


def test_aggregates_and_their_form_as_data() -> None:
    stream, window = windowed(30, None, 10)
    largest = custom(list, lambda held, data: [*held, data["value"]], list.__add__, len)
    assert stream.aggregate_window(
        window,
        {
            "n": count(),
            "total": sum_("value"),
            "mean": avg("data.value"),
            "first": first("value"),
            "last": last("payload.value"),
            "all": collect_list("value"),
            "seen": largest,
            "as_data": {"$sum": "value"},
        },
    ) == {"n": 3, "total": 40, "mean": 20, "first": 10, "last": 30, "all": [10, 30], "seen": 3, "as_data": 40}


def test_an_aggregator_that_raises_tells_its_caller() -> None:
    stream, window = windowed("text")
    with pytest.raises(TypeError):
        stream.aggregate_window(window, {"sum": lambda events: sum(e.data["value"] for e in events)})


def test_a_window_in_hand_does_not_change() -> None:
    stream, window = windowed(1)
    stream.emit("more", {"value": 2}, timestamp=1)
    assert len(window.events) == 1
    assert len(stream.get_windows()[0].events) == 2
