"""Groups of a stream, seek, deletion, and a client that goes away."""

from __future__ import annotations

import asyncio
import json
import time
from datetime import timedelta

from queenstream.broker.app import Broker
from queenstream.core.windows import iso, to_us
from tests.acceptance.speaking import configure
from tests.integration.streams.streaming import (
    MINUTE,
    Streams,
    data,
    three_windows,
    us,
)

# Groups, seek, deletion


async def test_two_groups_are_independent(streams: Streams) -> None:
    await three_windows(streams)
    first = await streams.drain(3, group="one")
    window = await streams.take(group="two")
    await streams.ack(window, success=False)
    second = await streams.drain(3, group="two")
    assert [(w["id"], w["messages"]) for w in first] == [(w["id"], w["messages"]) for w in second]


async def test_a_new_group_starts_at_the_first_message(streams: Streams) -> None:
    await three_windows(streams)
    await streams.drain(3)
    assert [data(window) for window in await streams.drain(3, group="new")] == [["k0"], ["k1"], ["k2"]]


async def test_subscription_from_now_leaves_out_what_is_past(streams: Streams) -> None:
    await three_windows(streams)
    await streams.define("s2", subscription_from="now")
    await streams.nothing("s2")
    await streams.push("new")
    streams.clock.turn(MINUTE)
    assert [data(window) for window in await streams.drain(1, "s2")] == [["new"]]


async def test_subscription_from_a_time_leaves_out_what_ended_before(streams: Streams) -> None:
    await configure(streams.http, "q", ttl=0)
    streams.align()
    for n in range(3):
        if n == 1:
            middle = iso(to_us(streams.clock() + timedelta(seconds=20)))
        await streams.push(n)
        streams.clock.turn(MINUTE)
    await streams.define(subscription_from=middle)
    assert [data(window) for window in await streams.drain(2)] == [[1], [2]]


async def test_seek_back(streams: Streams) -> None:
    """To the window that holds the time: down to its start."""
    starts = await three_windows(streams, "a", "b")
    await streams.drain(6)
    inside = iso(us(starts[1]) + 42_000_000)
    assert (await streams.seek(inside))["success"] is True
    assert sorted(data(window) for window in await streams.drain(4)) == [["a1"], ["a2"], ["b1"], ["b2"]]
    await streams.seek("2000-01-01T00:00:00Z")
    windows = await streams.drain(6)
    assert [data(w) for w in windows if w["key"] == "a"] == [["a0"], ["a1"], ["a2"]]
    assert {window["attempt"] for window in windows} == {1}


async def test_seek_forward(streams: Streams) -> None:
    starts = await three_windows(streams, "a", "b")
    await streams.take()
    await streams.seek(starts[2])
    assert sorted(data(window) for window in await streams.drain(2)) == [["a2"], ["b2"]]


async def test_seek_of_a_global_stream(streams: Streams) -> None:
    starts = await three_windows(streams, partitioned=False)
    await streams.done()
    await streams.seek(starts[2])
    assert [data(window) for window in await streams.drain(1)] == [["k2"]]
    await streams.seek(starts[0])
    assert [data(window) for window in await streams.drain(3)] == [["k0"], ["k1"], ["k2"]]


async def test_seek_moves_one_group_only(streams: Streams) -> None:
    starts = await three_windows(streams)
    await streams.drain(3)
    await streams.drain(3, group="other")
    await streams.seek(starts[0])
    await streams.nothing(group="other")
    await streams.drain(3)


async def test_seek_holds_for_keys_that_do_not_exist_yet(streams: Streams) -> None:
    await three_windows(streams)
    await streams.drain(3)
    await streams.seek(iso(to_us(streams.clock() + timedelta(seconds=MINUTE))))
    await streams.push("too early", key="new")
    streams.clock.turn(MINUTE)
    await streams.push("in time", key="new")
    streams.clock.turn(MINUTE)
    assert [data(window) for window in await streams.drain(1)] == [["in time"]]
    assert len(await streams.drain(5, group="other")) == 5


async def test_a_seek_voids_the_leases_that_are_out(streams: Streams) -> None:
    starts = await three_windows(streams)
    window = await streams.take()
    await streams.seek(starts[0])
    await streams.ack(window, status=400)
    await streams.renew(window["leaseId"], status=404)
    again = await streams.take()
    assert (again["id"], again["attempt"]) == (window["id"], 1)
    await streams.ack(window, status=400)
    await streams.ack(again)


async def test_a_seek_that_cannot_be(streams: Streams) -> None:
    await three_windows(streams)
    await streams.done()
    await streams.seek("2000-01-01T00:00:00Z", name="nowhere", status=404)
    for bad in ("yesterday", "", "2026-01-01T00:00:00"):
        answer = await streams.http.post(
            "/api/v1/stream/seek", json={"streamName": "s", "consumerGroup": "g", "timestamp": bad}
        )
        # Without a zone it may be taken for UTC; nonsense never.
        assert answer.status_code == 400 or bad.startswith("2026"), answer.text


async def test_a_deleted_stream_is_gone_and_its_sources_are_not(streams: Streams) -> None:
    await three_windows(streams)
    window = await streams.take()
    answer = await streams.http.delete("/api/v1/resources/streams/s")
    assert answer.status_code == 200, answer.text
    body = {"streamName": "s", "consumerGroup": "g", "timeout": 0}
    assert (await streams.http.post("/api/v1/stream/poll", json=body)).status_code == 404
    assert (await streams.resource())["streams"] == []
    await streams.resource("/s", status=404)
    await streams.ack(window, status=400)
    popped = await streams.http.get("/api/v1/pop/queue/q", params={"batch": 9})
    assert [m["data"] for m in popped.json()["messages"]] == ["k0", "k1", "k2"]
    await streams.define()  # the name is free, and it begins anew
    assert [data(w) for w in await streams.drain(3)] == [["k0"], ["k1"], ["k2"]]


# A client that goes away


async def send_poll(broker: Broker, timeout_ms: int = 9000) -> asyncio.StreamWriter:
    _, writer = await asyncio.open_connection("127.0.0.1", broker.port)
    body = json.dumps({"streamName": "s", "consumerGroup": "g", "timeout": timeout_ms})
    head = f"POST /api/v1/stream/poll HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n\r\n"
    writer.write((head + body).encode())
    return writer


async def test_who_leaves_while_it_waits_gets_no_lease(streams: Streams, broker: Broker) -> None:
    await streams.made(window_type="count", window_size_count=1, window_duration_ms=None)
    await streams.nothing()
    before = broker.http.connections_open
    writer = await send_poll(broker)
    await asyncio.sleep(0.3)
    assert broker.http.connections_open == before + 1
    writer.transport.abort()
    await writer.wait_closed()
    async with asyncio.timeout(5):
        while broker.http.connections_open > before:  # noqa: ASYNC110 - there is no event to wait for
            await asyncio.sleep(0.005)
    await streams.push(1)
    window = await streams.take()
    assert window["attempt"] == 1


async def test_who_leaves_before_the_answer_gives_the_lease_back(streams: Streams, broker: Broker) -> None:
    await three_windows(streams)
    writers = [await send_poll(broker) for _ in range(20)]
    for writer in writers:
        writer.transport.abort()
    started = time.monotonic()
    window = await streams.take()
    assert time.monotonic() - started < 2
    for writer in writers:
        await writer.wait_closed()
    assert (data(window), window["attempt"]) == (["k0"], 1)
