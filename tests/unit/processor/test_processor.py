"""StreamProcessor: steps, errors, what is kept, and the figures."""

from __future__ import annotations

import doctest
import gc
import logging
import math
import weakref
from collections.abc import Callable
from dataclasses import FrozenInstanceError, replace
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest

from queenstream.errors import ConfigError
from queenstream.processor import (
    events as processor_events,
)
from queenstream.processor import (
    metrics as processor_metrics,
)
from queenstream.processor import (
    pipeline,
    processor,
    queries,
)
from queenstream.processor.event_log import TimeIndex
from queenstream.processor.processor import Event, StreamProcessor


def ids(events: list[Event]) -> list[str]:
    return [event.id for event in events]


def stream_of(*moments: float, **options: Any) -> StreamProcessor:
    """A stream with an event at each of these times, named by its number."""
    stream = StreamProcessor("test", **options)
    for number, moment in enumerate(moments):
        stream.emit(f"e{number}", {"n": number}, timestamp=moment)
    return stream


@pytest.mark.parametrize(
    "module",
    [processor, processor_events, processor_metrics, pipeline, queries],
    ids=lambda module: module.__name__,
)
def test_the_examples_of_the_docstrings_hold(module: Any) -> None:
    outcome = doctest.testmod(module)
    assert outcome.attempted > 0
    assert outcome.failed == 0


def test_every_public_name_has_an_example() -> None:
    public = [getattr(processor, name) for name in processor.__all__]
    public += [value for name, value in vars(StreamProcessor).items() if not name.startswith("_")]
    for each in public:
        assert ">>> " in (each.__doc__ or ""), f"{each} has no example"


# ---- steps


def test_events_pass_the_steps_in_their_order() -> None:
    seen: list[int] = []

    def add(event: Event) -> Event:
        event.data["value"] += 10
        return event

    stream = StreamProcessor("steps")
    chained = stream.filter(lambda e: e.data["value"] > 1).map(add).filter(lambda e: e.data["value"] < 15)
    assert chained.sink(lambda e: seen.append(e.data["value"])) is stream
    for value in range(8):
        stream.emit(f"e{value}", {"value": value})
    assert seen == [12, 13, 14]


def test_a_sink_gets_the_event_as_it_is_at_its_place_and_keeps_it() -> None:
    before: list[Event] = []
    after: list[Event] = []

    def double(event: Event) -> Event:
        event.data["value"] *= 2
        return event

    stream = StreamProcessor("sinks").sink(before.append).map(double).sink(after.append)
    stream.emit("e1", {"value": 5})
    assert [event.data for event in before] == [{"value": 5}]
    assert [event.data for event in after] == [{"value": 10}]
    assert stream.get_recent_events() == after


def test_emit_gives_the_event_as_it_came_out() -> None:
    stream = StreamProcessor("out").filter(lambda e: e.data["ok"]).map(lambda e: replace(e, key="k"))
    assert stream.emit("e1", {"ok": True}, timestamp=3) == Event("e1", {"ok": True}, "k", 3.0)
    assert stream.emit("e2", {"ok": False}) is None


def test_a_step_that_changes_the_data_does_not_change_the_callers() -> None:
    def mark(event: Event) -> Event:
        event.data["seen"] = True
        return event

    mine = {"value": 1}
    StreamProcessor("copies").map(mark).emit("e1", mine)
    assert mine == {"value": 1}


def test_a_map_may_give_an_event_another_time_and_key() -> None:
    stream = StreamProcessor("times").session_window(10)
    stream.map(lambda event: replace(event, timestamp=event.data["at"], key=event.data["user"]))
    stream.emit("e1", {"at": 5.0, "user": "ann"}, timestamp=999)
    assert ids(stream.get_events_in_range(5, 6)) == ["e1"]
    [window] = stream.get_windows()
    assert (window.key, window.start) == ("ann", 5.0)


def test_steps_added_later_hold_for_events_emitted_later() -> None:
    stream = stream_of(1)
    stream.filter(lambda event: False)
    stream.emit("late", {})
    assert ids(stream.get_recent_events()) == ["e0"]


def test_a_step_may_use_the_stream_itself() -> None:
    stream = StreamProcessor("echo")

    def echo(event: Event) -> None:
        if event.data["depth"] < 3:
            stream.emit(f"{event.id}+", {"depth": event.data["depth"] + 1})
        stream.get_metrics()

    stream.sink(echo).emit("e", {"depth": 0})
    assert sorted(ids(stream.get_recent_events())) == ["e", "e+", "e++", "e+++"]


async def _later(event: Event) -> Event:
    return event


@pytest.mark.parametrize(
    ("define", "message"),
    [
        (lambda s: s.filter("value > 1"), r"'value > 1' is no function; give filter\(\) a function"),
        (lambda s: s.map(_later), r"map\(\) takes plain functions; for an async one write a Pipeline"),
        (lambda s: s.sink(print, name="a").late(print, name="a"), "there is a step 'a' already; give"),
        (lambda s: s.tumbling_window("5 parsecs"), "is not a duration; write"),
        (lambda s: s.sliding_window(1, "1us"), "is not a duration"),
        (lambda s: s.sliding_window(10.01, 0.01), "more than 1000 windows; make slide_interval 10.01ms or"),
        (lambda s: s.get_recent_events(-1), "count is -1; write 0 or more"),
    ],
)
def test_what_cannot_be_is_refused_with_a_remedy(define: Callable[[Any], object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        define(StreamProcessor("refused"))


def test_a_window_has_a_length() -> None:
    with pytest.raises(ValueError, match="a tumbling window's size must be a timedelta over zero"):
        StreamProcessor("refused").tumbling_window(0)
    with pytest.raises(ValueError, match="in none; make it 0:00:05 or less"):
        StreamProcessor("refused").sliding_window(5, 6)


@pytest.mark.parametrize("bound", [0, -1, True, 1.5])
def test_bounds_are_whole_numbers(bound: Any) -> None:
    with pytest.raises(ConfigError, match=r"max_events is .*; write how many may be kept, from 1"):
        StreamProcessor("bounds", max_events=bound)
    with pytest.raises(ConfigError, match="max_windows is"):
        StreamProcessor("bounds", max_windows=bound)


def test_a_stream_needs_a_name() -> None:
    with pytest.raises(ConfigError, match="needs a name"):
        StreamProcessor(" ")
    assert repr(StreamProcessor("clicks")) == "<StreamProcessor 'clicks'>"


# ---- events


@pytest.mark.parametrize(
    ("timestamp", "seconds"),
    [
        (60, 60.0),
        (-0.5, -0.5),
        (datetime(1970, 1, 1, 0, 1, tzinfo=UTC), 60.0),
        (datetime(1970, 1, 1, 2, 0, 0, 250_000, tzinfo=timezone(timedelta(hours=2))), 0.25),
        ("1970-01-01T00:01:00Z", 60.0),
    ],
)
def test_timestamps_are_seconds_datetimes_or_text(timestamp: Any, seconds: float) -> None:
    event = StreamProcessor("times").emit("e1", {}, timestamp=timestamp)
    assert event is not None
    assert event.timestamp == seconds


@pytest.mark.parametrize(
    ("timestamp", "message"),
    [
        (math.nan, "nan is not in the years 1 to 9999; give seconds since 1970"),
        (math.inf, "inf is not in the years"),
        (1_700_000_000_000, "not in the years 1 to 9999"),  # milliseconds
        (True, "True is no timestamp; give seconds since 1970, or a datetime"),
        (datetime(2026, 1, 31), "no time zone; write it with one"),  # noqa: DTZ001
        ("yesterday", "'yesterday' cannot be a timestamp"),
    ],
)
def test_other_timestamps_are_refused(timestamp: Any, message: str) -> None:
    stream = StreamProcessor("times")
    with pytest.raises(ConfigError, match=message):
        stream.emit("e1", {}, timestamp=timestamp)
    assert stream.get_metrics()["events_received"] == 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((7, {}), "the id of an event is 7; give a text"),
        (("e1", [1]), "the data of event 'e1' is list; give a dictionary"),
        (("e1", {}, 7), "the key of event 'e1' is 7; give a text, or None"),
    ],
)
def test_what_is_no_event_is_refused(arguments: tuple[Any, ...], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        StreamProcessor("events").emit(*arguments)


def test_an_event_without_a_timestamp_is_of_now() -> None:
    event = StreamProcessor("now", clock=lambda: 42.5).emit("e1", {})
    assert event is not None
    assert event.timestamp == 42.5
    with pytest.raises(FrozenInstanceError):
        event.timestamp = 1.0  # type: ignore[misc]


def test_recent_events_are_the_last_to_arrive_oldest_first() -> None:
    stream = stream_of(5, 1, 9, 3)
    assert ids(stream.get_recent_events(3)) == ["e1", "e2", "e3"]
    assert ids(stream.get_recent_events(99)) == ["e0", "e1", "e2", "e3"]
    assert stream.get_recent_events(0) == []


# ---- errors


def test_a_step_that_raises_hits_one_event(caplog: pytest.LogCaptureFixture) -> None:
    seen: list[str] = []

    def parse(event: Event) -> Event:
        event.data["value"] = int(event.data["value"])
        return event

    stream = StreamProcessor("numbers").map(parse, name="parse").sink(lambda event: seen.append(event.id))
    for number, value in enumerate(["1", "x", "3"]):
        stream.emit(f"e{number}", {"value": value})
    assert seen == ids(stream.get_recent_events()) == ["e0", "e2"]
    metrics = stream.get_metrics()
    assert (metrics["events_received"], metrics["events_processed"], metrics["events_failed"]) == (3, 2, 1)
    assert metrics["errors_by_step"] == {"parse": 1}
    because = "step 'parse' failed on event 'e1': ValueError: invalid literal for int() with base 10: 'x'"
    assert metrics["last_error"] == because
    [record] = caplog.records
    assert because in record.getMessage()
    assert record.name == "queenstream.processor"
    assert record.exc_info is not None


def test_a_filter_that_raises_leaves_the_event_out(caplog: pytest.LogCaptureFixture) -> None:
    stream = StreamProcessor("filter").filter(lambda event: event.data["value"] > 1)
    assert stream.emit("e1", {}) is None
    metrics = stream.get_metrics()
    assert (metrics["events_failed"], metrics["events_filtered"], metrics["errors"]) == (1, 0, 1)


def test_a_sink_that_raises_holds_nothing_up(caplog: pytest.LogCaptureFixture) -> None:
    seen: list[str] = []

    def broken(event: Event) -> None:
        raise ConnectionError("the database is away")

    stream = StreamProcessor("sinks").sink(broken, name="database").sink(lambda event: seen.append(event.id))
    assert stream.emit("e1", {}) is not None
    assert seen == ids(stream.get_recent_events()) == ["e1"]
    metrics = stream.get_metrics()
    assert (metrics["events_processed"], metrics["events_failed"], metrics["errors"]) == (1, 0, 1)


def test_a_map_that_returns_no_event_is_told_so(caplog: pytest.LogCaptureFixture) -> None:
    def forgot(event: Event) -> Any:
        event.data["x"] = 1

    stream = StreamProcessor("forgot").map(forgot)
    assert stream.emit("e1", {}) is None
    assert "it returned NoneType, no event; end it with: return event" in str(
        stream.get_metrics()["last_error"]
    )


def test_an_error_that_cannot_say_what_it_is_hits_one_event(caplog: pytest.LogCaptureFixture) -> None:
    class Unspeakable(Exception):
        def __str__(self) -> str:
            raise RuntimeError("no words")

    def fail(event: Event) -> Event:
        raise Unspeakable

    stream = StreamProcessor("mute").map(fail)
    assert stream.emit("e1", {}) is None
    assert "Unspeakable" in str(stream.get_metrics()["last_error"])


def test_the_log_is_not_flooded(caplog: pytest.LogCaptureFixture) -> None:
    stream = StreamProcessor("flood").filter(lambda event: event.data["nothing"])
    for number in range(250):
        stream.emit(f"e{number}", {})
    assert stream.get_metrics()["errors"] == 250
    said = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert [text.rpartition("(")[2] for text in said] == ["1 so far)", "10 so far)", "100 so far)"]


def test_steps_without_a_name_are_numbered(caplog: pytest.LogCaptureFixture) -> None:
    def fail(event: Event) -> None:
        raise ValueError("no")

    stream = StreamProcessor("names").sink(fail).sink(fail).sink(fail, name="mine").sink(fail)
    stream.emit("e1", {})
    assert stream.get_metrics()["errors_by_step"] == {"sink": 1, "sink-2": 1, "mine": 1, "sink-3": 1}


# ---- bounds, figures, reset


class Payload:
    """Something whose end can be seen."""


def test_only_the_last_events_are_kept_and_the_others_let_go() -> None:
    stream = StreamProcessor("bounded", max_events=104).session_window(5)
    alive: weakref.WeakSet[Payload] = weakref.WeakSet()
    for number in range(1000):
        payload = Payload()
        alive.add(payload)
        # Out of order within eights, with keys that come and go.
        stream.emit(f"e{number}", {"p": payload}, key=f"k{number // 50}", timestamp=number ^ 7)
        assert len(stream.get_recent_events(1000)) == min(number + 1, 104)
    del payload
    gc.collect()
    assert ids(stream.get_recent_events(1000)) == [f"e{number}" for number in range(896, 1000)]
    assert ids(stream.get_events_in_range(0, 896)) == []
    assert len(stream.get_events_in_range(896)) == 104
    metrics = stream.get_metrics()
    assert (metrics["events_kept"], metrics["events_evicted"]) == (104, 896)
    assert 104 <= len(alive) <= 120


def test_keys_that_are_over_leave_nothing_behind() -> None:
    stream = StreamProcessor("keys", max_events=10)
    for number in range(1000):
        stream.emit(f"e{number}", {}, key=f"user-{number}", timestamp=number)
    gc.collect()
    assert sum(type(each) is TimeIndex for each in gc.get_objects()) < 50  # one for each key, of 1,000


def test_figures_add_up() -> None:
    stream = StreamProcessor("figures", clock=lambda: 25.0).tumbling_window(10)
    stream.filter(lambda event: event.data["n"] % 3 != 0)
    for number in range(30):
        stream.emit(f"e{number}", {"n": number}, timestamp=number)
    assert stream.clear_old_windows() == 2
    assert stream.get_metrics() == {
        "events_received": 30,
        "events_processed": 20,
        "events_filtered": 10,
        "events_failed": 0,
        "events_late": 0,
        "events_evicted": 0,
        "events_kept": 20,
        "windows_created": 3,
        "windows_cleared": 2,
        "windows_evicted": 0,
        "windows_kept": 1,
        "errors": 0,
        "errors_by_step": {},
        "last_error": None,
    }


def test_reset_forgets_events_and_keeps_the_steps() -> None:
    stream = StreamProcessor("again", clock=lambda: 100.0).tumbling_window(10)
    stream.filter(lambda event: event.data["ok"])
    stream.emit("e1", {"ok": True}, timestamp=1)
    stream.clear_old_windows()
    stream.reset()
    assert stream.get_recent_events() == []
    assert stream.get_windows() == []
    assert set(map(str, stream.get_metrics().values())) == {"0", "{}", "None"}
    stream.emit("e2", {"ok": True}, timestamp=1)
    stream.emit("e3", {"ok": False}, timestamp=1)
    assert [ids(list(window.events)) for window in stream.get_windows()] == [["e2"]]
