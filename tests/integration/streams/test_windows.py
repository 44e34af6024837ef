"""The kinds of windows, and event time."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import asyncpg
import pytest

from queenstream.core.windows import Count, Session, Sliding, window_id
from tests.acceptance.speaking import Json, moment
from tests.integration.streams.streaming import (
    FIRST_MINUTE,
    MINUTE,
    YEAR,
    Streams,
    at,
    data,
    ms,
    span,
    us,
)

# The kinds of windows


async def test_every_message_can_be_asked_which_window_it_stands_for(
    streams: Streams, database_url: str
) -> None:
    """PostgreSQL is free to ask those of any queue first, and did, now and then."""
    await streams.made()
    streams.align()
    await streams.push("a", 10**12, 10**30, "1" * 18, -1, None, {"at": 1}, "ü")
    streams.clock.turn(2 * MINUTE)
    window = await streams.take()
    connection = await asyncpg.connect(database_url)
    ask = "select count(*) from queen.messages m join queen.windows w on w.id = queen.window_of(m.payload)"
    assert await connection.fetchval(ask) == 1
    odd = [b"", b"\xff\x00", b"1" * 19, b"1.5", b" 1", b"9" * 18]
    told = [await connection.fetchval("select queen.window_of($1)", payload) for payload in odd]
    assert told == [None, None, None, None, None, 10**18 - 1]
    await connection.close()
    await streams.ack(window)


async def test_tumbling_windows(streams: Streams) -> None:
    """Aligned to the epoch; every message in one."""
    await streams.made(window_duration_ms=7000)
    streams.align(7)
    for n in range(4):
        await streams.push(n)
        streams.clock.turn(3.5)
    streams.clock.turn(7)
    windows = await streams.drain(2)
    assert [data(window) for window in windows] == [[0, 1], [2, 3]]
    for window in windows:
        assert span(window).start % 7_000_000 == 0
        assert span(window).end - span(window).start == 7_000_000


@pytest.mark.parametrize(("size", "slide"), [(10, 5), (10, 4), (10, 10), (9, 2)])
async def test_sliding_windows(streams: Streams, size: int, slide: int) -> None:
    """Every window that covers the message, also where the slide does not divide the size."""
    number = await streams.made(
        window_type="sliding", window_duration_ms=1000 * size, window_slide_ms=1000 * slide
    )
    streams.align(180)
    await streams.push("a")
    streams.clock.turn(3)
    await streams.push("b")
    streams.clock.turn(2 * size)
    definition = Sliding(timedelta(seconds=size), timedelta(seconds=slide))
    first = await streams.take()
    [start] = [us(m["created_at"]) for m in first["messages"] if m["data"] == "a"]
    await streams.ack(first)
    expected = definition.assign(start)
    later = [s for s in definition.assign(start + 3_000_000) if s not in expected]
    windows = [first, *await streams.drain(len(expected) + len(later) - 1)]
    assert [span(window) for window in windows] == [*expected, *later]
    assert [window["id"] for window in windows] == [window_id(number, "__GLOBAL__", span(w)) for w in windows]
    for window in windows:
        held = [name for name, time in (("a", start), ("b", start + 3_000_000)) if time in span(window)]
        assert data(window) == held


async def test_session_windows(streams: Streams) -> None:
    """From the first message of a key to its last plus the gap."""
    await streams.made(
        window_type="session", window_session_gap_ms=10_000, window_duration_ms=None, partitioned=True
    )
    await streams.push("a1", key="a")
    streams.clock.turn(6)
    await streams.push("a2", key="a")
    await streams.push("b1", key="b")
    streams.clock.turn(6)
    await streams.push("a3", key="a")
    await streams.nothing()
    streams.clock.turn(5)
    assert data(await streams.done()) == ["b1"]
    streams.clock.turn(6)
    await streams.push("a4", key="a")
    first = await streams.done()
    times = [us(message["created_at"]) for message in first["messages"]]
    assert (first["key"], data(first)) == ("a", ["a1", "a2", "a3"])
    assert [span(first)] == Session(timedelta(seconds=10)).of(times)
    await streams.nothing()
    streams.clock.turn(11)
    assert [data(window) for window in await streams.drain(1)] == [["a4"]]


async def test_a_late_event_bridges_two_sessions(streams: Streams) -> None:
    await streams.made(
        window_type="session", window_session_gap_ms=10_000, window_duration_ms=None,
        window_grace_period_ms=30_000, event_time_path="data.ts",
    )  # fmt: skip
    await streams.push({"ts": at(0)}, {"ts": at(15)}, {"ts": at(8)})
    await streams.nothing()
    await streams.push({"ts": at(54.9)})
    await streams.nothing()
    await streams.push({"ts": at(55)})
    [window] = await streams.drain(1)
    assert [d["ts"] for d in data(window)] == [at(0), at(15), at(8)], "by created_at, then id"
    assert (window["start"], window["end"]) == (at(0), at(25))


async def test_count_windows(streams: Streams) -> None:
    """Full ones only; never by time."""
    number = await streams.made(
        window_type="count", window_size_count=3, window_duration_ms=None, partitioned=True
    )
    await streams.push(1, 2, key="a")
    await streams.push(1, 2, 3, 4, 5, key="b")
    first = await streams.done()
    assert (first["key"], data(first)) == ("b", [1, 2, 3])
    assert first["id"] == window_id(number, "b", range(3))
    times = [us(message["created_at"]) for message in first["messages"]]
    assert us(first["start"]) == times[0]
    assert us(first["end"]) >= times[-1]
    streams.clock.turn(YEAR)
    await streams.nothing()
    await streams.push(6, key="b")
    second = await streams.done()
    assert (second["id"], data(second)) == (window_id(number, "b", range(3, 6)), [4, 5, 6])


async def test_count_windows_that_slide(streams: Streams) -> None:
    number = await streams.made(
        window_type="count", window_size_count=3, window_slide_count=2, window_duration_ms=None
    )
    await streams.push(0, 1, 2, 3)
    await streams.push(4, 5, 6, 7)
    windows = await streams.drain(3)
    ranges = Count(3, slide=2).ranges(8)
    assert [data(window) for window in windows] == [list(r) for r in ranges]
    assert [window["id"] for window in windows] == [window_id(number, "__GLOBAL__", r) for r in ranges]


# Event time


@pytest.mark.parametrize("path", ["data.ts", "payload.ts", "data.a.b"])
@pytest.mark.parametrize("form", [at, ms])
async def test_event_time_is_a_field_of_the_payload(
    streams: Streams, path: str, form: Callable[[float], Any]
) -> None:
    """ISO 8601 or milliseconds since 1970. The clock plays no part: a later event ends the window."""

    def event(seconds: float) -> Json:
        return {"a": {"b": form(seconds)}} if path == "data.a.b" else {"ts": form(seconds)}

    await streams.made(event_time_path=path, window_grace_period_ms=5000)
    await streams.push(event(30), event(10), event(59.999))
    streams.clock.turn(YEAR)
    await streams.nothing()
    await streams.push(event(60), event(64.999))
    await streams.nothing()
    await streams.push(event(20))  # in the grace
    await streams.push(event(65))
    [window] = await streams.drain(1)
    assert (window["start"], window["end"]) == FIRST_MINUTE
    assert data(window) == [event(s) for s in (30, 10, 59.999, 20)]


@pytest.mark.parametrize(
    ("path", "payload"),
    [
        ("items.0.at", lambda time: {"items": [{"at": time}, {"at": at(600)}]}),
        ("data.`t.s`", lambda time: {"t.s": time}),
        ("`data`.at", lambda time: {"data": {"at": time}}),
        ("data", lambda time: time),
    ],
)
async def test_a_path_means_what_it_means_in_pipelines(
    streams: Streams, path: str, payload: Callable[[str], Any]
) -> None:
    await streams.made(event_time_path=path)
    stored = [payload(at(seconds)) for seconds in (10, 20, 60)]
    await streams.push(*stored)
    assert [data(window) for window in await streams.drain(1)] == [stored[:2]]


async def test_event_times_may_lie_before_1970(streams: Streams) -> None:
    await streams.made(event_time_path="data.ts")
    await streams.push({"ts": "1969-12-31T23:59:30Z"}, {"ts": 0})
    [window] = await streams.drain(1)
    assert (window["start"], window["end"]) == ("1969-12-31T23:59:00Z", "1970-01-01T00:00:00Z")


async def test_event_times_may_lie_ahead_of_the_clock(streams: Streams) -> None:
    """A device whose clock is wrong, or a simulation: only the watermark counts."""
    await streams.made(event_time_path="data.ts")
    times = [f"2099-01-01T00:0{n}:30Z" for n in range(4)]
    await streams.push(*[{"ts": time} for time in times])
    assert [data(window) for window in await streams.drain(3)] == [[{"ts": time}] for time in times[:3]]
    await streams.seek("2099-01-01T00:01:00Z")
    assert [data(window) for window in await streams.drain(2)] == [[{"ts": time}] for time in times[1:3]]


async def test_the_watermark_is_that_of_the_slowest_source(streams: Streams) -> None:
    await streams.made("s", "fast", "slow", event_time_path="data.ts")
    await streams.push({"ts": at(5), "q": "fast"}, {"ts": at(600)}, queue="fast")
    await streams.nothing()
    await streams.push({"ts": at(10), "q": "slow"}, queue="slow")
    await streams.nothing()
    await streams.push({"ts": at(60)}, queue="slow")
    [window] = await streams.drain(1)
    assert [d["q"] for d in data(window)] == ["fast", "slow"]
    assert (await streams.resource("/s/late"))["total"] == 0


async def test_an_idle_source_stops_holding_the_watermark(streams: Streams) -> None:
    """That is decided once: what the source brings afterwards is late, for a new group too."""
    await streams.made("s", "q", "idle", event_time_path="data.ts", idle_timeout_ms=10_000)
    await streams.push({"ts": at(5)}, {"ts": at(61)})
    await streams.nothing()
    streams.clock.turn(8)
    await streams.nothing()
    streams.clock.turn(3)
    first = await streams.done()
    assert data(first) == [{"ts": at(5)}]
    await streams.push({"ts": at(6)}, queue="idle")
    [late] = await streams.late(1)
    assert (late["queue"], late["eventTime"]) == ("idle", at(6))
    again = await streams.done(group="other")
    assert (again["id"], again["messages"]) == (first["id"], first["messages"])


async def test_what_is_too_late_goes_to_the_late_output(streams: Streams) -> None:
    await streams.made(partitioned=True, event_time_path="data.ts", window_grace_period_ms=2000)
    await streams.push({"ts": at(5)}, {"ts": at(70)}, key="a")
    window = await streams.done()  # it has closed
    assert (window["key"], data(window)) == ("a", [{"ts": at(5)}])
    [stored] = await streams.push({"ts": at(10)}, key="b")
    await streams.push({"ts": at(69)}, key="b")
    [late] = await streams.late(1)
    assert (
        late.items()
        >= {
            "messageId": stored["message_id"],
            "transactionId": stored["transaction_id"],
            "queue": "q",
            "partition": "b",
            "key": "b",
            "eventTime": at(10),
            "window": {"start": FIRST_MINUTE[0], "end": FIRST_MINUTE[1]},
            "latenessMs": 60_000,
        }.items()
    )
    assert late["reason"]
    assert moment(late["notedAt"])
    await streams.nothing()
    assert (await streams.resource("/s"))["late"] == 1


async def test_a_sliding_window_that_is_still_open_takes_what_others_missed(streams: Streams) -> None:
    await streams.made(window_type="sliding", window_slide_ms=30_000, event_time_path="data.ts")
    await streams.push({"ts": at(5)}, {"ts": at(75)})
    early = await streams.drain(2)  # up to the minute
    assert [(window["end"], data(window)) for window in early] == [
        (at(30), [{"ts": at(5)}]),
        (at(60), [{"ts": at(5)}]),
    ]
    await streams.push({"ts": at(45)})
    await streams.push({"ts": at(200)})
    windows = {window["start"]: data(window) for window in await streams.drain(2)}
    assert windows == {at(30): [{"ts": at(75)}, {"ts": at(45)}], at(60): [{"ts": at(75)}]}
    assert (await streams.resource("/s/late"))["total"] == 0


async def test_a_message_without_an_event_time_is_in_the_late_output(streams: Streams) -> None:
    """With the reason, and it stops nothing."""
    payloads: list[Any] = [
        {}, {"ts": None}, {"ts": "soon"}, {"ts": True}, {"ts": {"x": 1}}, {"ts": "2026-13-01"}, {"ts": 1e300},
        {"TS": at(5)}, 7, "text", None, [1],
    ]  # fmt: skip
    await streams.made(event_time_path="data.ts")
    stored = await streams.push({"ts": at(5)}, *payloads, {"ts": at(61)})
    noted = {late["messageId"]: late for late in await streams.late(len(payloads))}
    assert set(noted) == {result["message_id"] for result in stored[1:-1]}
    for late in noted.values():
        assert (late["window"], late["eventTime"], late["latenessMs"]) == (None, None, None)
        assert "data.ts" in late["reason"]
    assert [data(window) for window in await streams.drain(1)] == [[{"ts": at(5)}]]
