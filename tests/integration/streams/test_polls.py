"""When a window comes, and what it says."""

from __future__ import annotations

import asyncio
import base64
import itertools
import time
from datetime import timedelta

import httpx
import pytest

from queenstream.core.windows import Tumbling, iso, window_id
from tests.acceptance.speaking import Json, check, configure, moment
from tests.conftest import Clock, StartBroker
from tests.integration.streams.streaming import (
    MINUTE,
    YEAR,
    Streams,
    at,
    data,
    span,
    us,
)

KEY = "k1:" + base64.b64encode(bytes(range(32))).decode()


async def test_a_window_comes_after_its_end_and_grace(streams: Streams) -> None:
    await streams.made(window_grace_period_ms=10_000)
    streams.align(into=30)
    await streams.push(1)
    await streams.nothing()
    streams.clock.turn(30)  # the end
    await streams.nothing()
    streams.clock.turn(8)
    await streams.nothing()
    streams.clock.turn(2.5)
    assert data(await streams.take()) == [1]


async def test_a_poll_without_a_window_is_204_after_its_timeout(streams: Streams) -> None:
    await streams.made()
    started = time.monotonic()
    assert await streams.poll(timeout_ms=400) is None
    assert 0.39 <= time.monotonic() - started < 2


async def test_a_poll_of_an_unknown_stream_is_404(streams: Streams) -> None:
    body = {"streamName": "nowhere", "consumerGroup": "g", "timeout": 100}
    answer = await streams.http.post("/api/v1/stream/poll", json=body)
    assert answer.status_code == 404
    assert "nowhere" in answer.json()["error"]


@pytest.mark.parametrize(
    "body", [{}, {"streamName": "s"}, {"streamName": "s", "consumerGroup": "g", "timeout": -1}], ids=repr
)
async def test_a_poll_that_cannot_be(streams: Streams, body: Json) -> None:
    await streams.made()
    assert (await streams.http.post("/api/v1/stream/poll", json=body)).status_code == 400


async def test_what_a_window_says(streams: Streams) -> None:
    number = await streams.made(partitioned=True)
    streams.align()
    payload = {"user": "alice", "n": [1, 2.5, None], "text": 'ü"\\'}
    [stored] = await streams.push(payload, key="chat-1")
    streams.clock.turn(MINUTE)
    window = await streams.take()
    check(window, {
        "id": str, "leaseId": str, "key": str, "start": moment, "end": moment, "attempt": int,
        "complete": bool, "leaseSeconds": float, "messages": list,
    })  # fmt: skip
    [message] = window["messages"]
    check(message, {
        "id": str, "transactionId": str, "data": dict, "payload": dict, "created_at": moment, "queue": str,
        "partition": str,
    })  # fmt: skip
    assert message["data"] == message["payload"] == payload
    assert (message["queue"], message["partition"]) == ("q", "chat-1")
    assert (message["id"], message["transactionId"]) == (stored["message_id"], stored["transaction_id"])
    assert (window["key"], window["attempt"], window["complete"]) == ("chat-1", 1, True)
    [own] = Tumbling(timedelta(minutes=1)).assign(us(message["created_at"]))
    assert (window["start"], window["end"]) == (iso(own.start), iso(own.end))
    assert window["id"] == window_id(number, "chat-1", own)


async def test_messages_stand_by_time_then_id(streams: Streams) -> None:
    """Over queues and partitions, as they were pushed."""
    await streams.made("s", "one", "two")
    streams.align()
    for n in range(6):
        await streams.push({"n": n}, queue=("two", "one")[n % 2], key="ab"[n % 3 == 0])
        streams.clock.turn(0.01)
    await streams.push({"n": 6}, {"n": 7}, queue="one", key="b")
    streams.clock.turn(MINUTE)
    window = await streams.take()
    assert [d["n"] for d in data(window)] == list(range(8))
    stamps = [(us(m["created_at"]), int(m["id"])) for m in window["messages"]]
    assert stamps == sorted(stamps)


async def test_a_poll_that_waits_is_answered_when_the_window_is_ripe(streams: Streams) -> None:
    """By a timer: no message pushes it out. This one passes in real time."""
    await streams.made(window_duration_ms=1000)
    await streams.push(1)
    window = await streams.take()
    late = streams.clock().timestamp() - us(window["end"]) / 1e6
    assert 0 <= late < 0.5


async def test_a_poll_that_waits_is_woken_from_another_broker(
    streams: Streams, start_broker: StartBroker
) -> None:
    await streams.made(window_type="count", window_size_count=2, window_duration_ms=None)
    other = await start_broker(clock=streams.clock)
    async with httpx.AsyncClient(base_url=other.address, timeout=60) as http:
        there = Streams(http, streams.clock)
        waiting = asyncio.create_task(there.poll(timeout_ms=20_000))
        await asyncio.sleep(0.3)
        started = time.monotonic()
        await streams.push(1, 2)
        window = await waiting
        assert time.monotonic() - started < 1
        assert window is not None
        assert data(window) == [1, 2]
        await streams.ack(window)  # a lease holds on every broker


async def test_a_gap_of_a_year_is_one_step(streams: Streams) -> None:
    """A second of width: a walk over the empty windows would be 31 million steps."""
    await streams.made(window_duration_ms=1000)
    await streams.push(1)
    streams.clock.turn(YEAR)
    await streams.push(2)
    streams.clock.turn(2)
    started = time.monotonic()
    assert [data(window) for window in [await streams.done(), await streams.done()]] == [[1], [2]]
    assert time.monotonic() - started < 2
    await streams.nothing()


async def test_empty_windows_come_if_asked_for(streams: Streams) -> None:
    await streams.made(emit_empty=True)
    streams.align()
    await streams.push(1)
    streams.clock.turn(3 * MINUTE)
    await streams.push(2)
    streams.clock.turn(MINUTE)
    windows = [await streams.done() for _ in range(4)]
    assert [data(window) for window in windows] == [[1], [], [], [2]]
    starts = [span(window).start for window in windows]
    assert [b - a for a, b in itertools.pairwise(starts)] == [60_000_000] * 3
    assert len({window["id"] for window in windows}) == 4


async def test_a_partitioned_stream_goes_by_partition_name_over_all_queues(streams: Streams) -> None:
    await streams.made("s", "messages", "reactions", partitioned=True)
    streams.align()
    await streams.push("hello", queue="messages", key="chat-1")
    await streams.push("smile", queue="reactions", key="chat-1")
    await streams.push("other", queue="messages", key="chat-2")
    streams.clock.turn(MINUTE)
    windows = {window["key"]: data(window) for window in await streams.drain(2)}
    assert windows == {"chat-1": ["hello", "smile"], "chat-2": ["other"]}


async def test_a_quiet_source_holds_nothing_back(streams: Streams) -> None:
    await streams.made("s", "q", "quiet")
    streams.align()
    await streams.push(1)
    streams.clock.turn(MINUTE)
    assert data(await streams.take()) == [1]


async def test_messages_from_before_the_definition_are_in_it(streams: Streams) -> None:
    await configure(streams.http, "q", ttl=0)
    streams.align()
    await streams.push(1)
    streams.clock.turn(MINUTE)
    await streams.push(2)
    streams.clock.turn(MINUTE)
    await streams.define()
    assert [data(window) for window in await streams.drain(2)] == [[1], [2]]


async def test_an_encrypted_source_comes_out_readable(start_broker: StartBroker, clock: Clock) -> None:
    broker = await start_broker(clock=clock, encryption_keys=KEY)
    async with httpx.AsyncClient(base_url=broker.address, timeout=60) as http:
        streams = Streams(http, clock)
        await configure(http, "q", ttl=0, encryptionEnabled=True)
        await streams.define(event_time_path="data.ts")  # the path is read inside, too
        await streams.push({"ts": at(5), "secret": 1}, {"ts": at(61), "secret": 2})
        assert data(await streams.take()) == [{"ts": at(5), "secret": 1}]
