"""What a definition takes, and when it is taken over."""

from __future__ import annotations

from tests.acceptance.speaking import Json, configure
from tests.integration.streams.streaming import (
    MINUTE,
    Streams,
    data,
)


async def test_a_definition_needs_a_name_sources_and_a_size(streams: Streams) -> None:
    """As existing clients send it; the answer is what they expect."""
    await configure(streams.http, "q")
    body = {
        "name": "s", "namespace": "n", "source_queue_names": ["q"], "partitioned": True,
        "window_type": "tumbling", "window_duration_ms": 5000, "window_grace_period_ms": 1000,
        "window_lease_timeout_ms": 10_000,
    }  # fmt: skip
    answer = await streams.http.post("/api/v1/stream/define", json=body)
    assert answer.status_code == 201, answer.text
    defined = answer.json()
    assert set(defined) >= {"success", "stream_id", "name"}
    assert (defined["success"], defined["name"]) == (True, "s")


async def test_the_defaults(streams: Streams) -> None:
    """Global, tumbling, 30 s of grace, 60 s of lease."""
    await streams.made(window_grace_period_ms=None)
    streams.align()
    await streams.push(1, key="a")
    await streams.push(2, key="b")
    streams.clock.turn(MINUTE + 20)
    await streams.nothing()
    streams.clock.turn(10)
    first = await streams.take()
    assert (first["key"], data(first)) == ("__GLOBAL__", [1, 2])
    streams.clock.turn(55)
    await streams.nothing()
    streams.clock.turn(6)
    assert (await streams.take())["id"] == first["id"]


async def test_the_same_definition_again_changes_nothing(streams: Streams) -> None:
    number = await streams.made()
    streams.align()
    await streams.push(1)
    streams.clock.turn(MINUTE)
    await streams.done()
    assert str((await streams.define())["stream_id"]) == number
    await streams.nothing()
    await streams.push(2)
    streams.clock.turn(MINUTE)
    assert data(await streams.take()) == [2]


async def test_other_sources_are_taken_over(streams: Streams) -> None:
    number = await streams.made("s", "old", "both")
    streams.align()
    await streams.push(1, queue="old")
    streams.clock.turn(MINUTE)
    assert data(await streams.done()) == [1]
    assert await streams.made("s", "both", "new") == number
    for queue in ("old", "both", "new"):
        await streams.push(queue, queue=queue)
    streams.clock.turn(MINUTE)
    assert [data(window) for window in await streams.drain(1)] == [["both", "new"]]


async def test_another_window_is_refused_unless_reset(streams: Streams) -> None:
    await streams.made()
    streams.align()
    await streams.push(1)
    streams.clock.turn(30)
    await streams.push(2)
    streams.clock.turn(MINUTE)
    assert data(await streams.done()) == [1, 2]
    for other in (
        {"window_duration_ms": 30_000},
        {"window_type": "sliding", "window_slide_ms": 30_000},
        {"partitioned": True},
        {"event_time_path": "data.ts"},
    ):
        refused = await streams.define(status=409, **other)
        assert "reset" in refused["error"], "the error says what to do"
    await streams.nothing()
    await streams.define(window_duration_ms=30_000, reset=True)
    assert [data(window) for window in await streams.drain(2)] == [[1], [2]]


BAD_DEFINITIONS: list[Json] = [
    {"window_duration_ms": None},
    {"window_duration_ms": 0},
    {"window_duration_ms": -1000},
    {"window_duration_ms": "a minute"},
    {"window_type": "hopping"},
    {"window_type": "sliding"},
    {"window_type": "sliding", "window_slide_ms": 0},
    {"window_type": "sliding", "window_slide_ms": 60_001},
    {"window_type": "session", "window_session_gap_ms": 0},
    {"window_type": "session", "window_session_gap_ms": None, "window_duration_ms": None},
    {"window_type": "count", "window_size_count": 0},
    {"window_type": "count", "window_size_count": None, "window_duration_ms": None},
    {"window_type": "count", "window_size_count": 5, "window_slide_count": 6},
    {"window_type": "count", "window_size_count": 5, "window_slide_count": 0},
    {"window_grace_period_ms": -1},
    {"window_lease_timeout_ms": 0},
    {"retry_limit": -1},
    {"max_in_flight": 0},
    {"idle_timeout_ms": -1},
    {"subscription_from": "yesterday"},
    {"event_time_path": "data..at"},
    {"event_time_path": "data."},
    {"event_time_path": "`at"},
    {"source_queue_names": []},
    {"source_queue_names": ["q", "q"]},
    {"source_queue_names": ["nowhere"]},
    {"source_queue_names": ["__stream__:other"]},
    {"name": ""},
]


async def test_a_definition_that_cannot_be(streams: Streams) -> None:
    """It says what is wrong and what to do, and leaves nothing behind."""
    await configure(streams.http, "q")
    await streams.made("other", "p")
    for definition in BAD_DEFINITIONS:
        refused = await streams.define(status=400, **definition)
        assert len(refused["error"]) > 20, definition
    assert [stream["name"] for stream in (await streams.resource())["streams"]] == ["other"]
