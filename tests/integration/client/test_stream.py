"""Streams: define, process, loop, seek; against a real broker."""

from __future__ import annotations

import asyncio
import threading
import time
from dataclasses import dataclass
from typing import Any

import pytest

from queenstream import AsyncQueen, AsyncWindow, Queen, Window
from queenstream.errors import ConfigError, Conflict, InvalidRequest, LeaseLost, NotFound, PayloadInvalid
from tests.conftest import Clock
from tests.integration.client.conftest import InThread
from tests.integration.streams.streaming import eventually


@dataclass
class Click:
    user: str
    amount: int


async def one_window(queen: AsyncQueen, queue: str, stream: str) -> None:
    """A stream with one window, of two messages."""
    await queen.queue(queue).config(ttl=0).create()
    await queen.stream(stream).sources([queue]).count(2).lease_timeout(1).retry_limit(1).define()
    await queen.queue(queue).push([{"user": "ann", "amount": 5}, {"user": "bob", "amount": 7}])


@pytest.fixture
async def pairs(queen: AsyncQueen) -> AsyncQueen:
    """Windows of two messages for each partition; a failed one comes again once. Three for a, one for b."""
    await queen.queue("q").config(ttl=0).create()
    chain = queen.stream("s", "tests").sources(["q"]).partitioned().count(2).lease_timeout(1)
    await chain.retry_limit(1).define()
    await queen.queue("q").partition("a").push(list(range(6)))
    await queen.queue("q").partition("b").push([10, 11])
    return queen


def data(window: AsyncWindow[Any] | Window[Any]) -> list[Any]:
    return [message.data for message in window.messages]


# Defining


async def test_define_and_redefine(queen: AsyncQueen) -> None:
    await queen.queue("clicks").create()
    await queen.queue("views").create()
    chain = (
        queen.stream("activity", "analytics")
        .sources(["clicks"])
        .partitioned()
        .sliding_time("5m", "1m")
        .grace_period("10s")
        .lease_timeout(20)
        .event_time("data.ts")
        .idle_timeout("1m")
        .retry_limit(0)
        .max_in_flight(2)
        .emit_empty()
        .subscription_from("2026-01-01T00:00:00Z")
    )
    id = await chain.define()
    assert await chain.define() == id
    shown = await queen.admin.stream("activity")
    assert (shown.id, shown.namespace, shown.partitioned, shown.window_type) == (
        id,
        "analytics",
        True,
        "sliding",
    )
    assert (shown.window_duration_ms, shown.window_slide_ms) == (300_000, 60_000)
    assert (shown.window_grace_period_ms, shown.window_lease_timeout_ms) == (10_000, 20_000)
    assert (shown.event_time_path, shown.idle_timeout_ms, shown.retry_limit) == ("data.ts", 60_000, 0)
    assert (shown.max_in_flight, shown.emit_empty) == (2, True)
    assert await chain.sources(["clicks", "views"]).define() == id
    assert {source.queue for source in (await queen.admin.stream("activity")).sources} == {"clicks", "views"}


async def test_other_windows_need_a_reset(pairs: AsyncQueen) -> None:
    await pairs.consumer("s", "g").process(lambda window: None, limit=1)
    other = pairs.stream("s", "tests").sources(["q"]).partitioned().tumbling_time(60)
    with pytest.raises(Conflict):
        await other.define()
    await other.define(reset=True)
    assert (await pairs.admin.stream("s")).window_type == "tumbling"


async def test_the_four_kinds(queen: AsyncQueen) -> None:
    await queen.queue("q").create()
    chain = queen.stream("s").sources("q")
    for name, windowed in {
        "tumbling": chain.tumbling_time(60),
        "sliding": chain.sliding_time(60, 20),
        "session": chain.session_gap("30s"),
        "count": chain.count(5, 2),
    }.items():
        await windowed.define(reset=True)
        assert (await queen.admin.stream("s")).window_type == name
    assert (await queen.admin.stream("s")).window_slide_count == 2


async def test_what_cannot_be_defined(queen: AsyncQueen) -> None:
    with pytest.raises(ConfigError, match="a stream needs sources"):
        await queen.stream("s").tumbling_time(60).define()
    with pytest.raises(InvalidRequest):
        await queen.stream("s").sources(["none"]).tumbling_time(60).define()
    with pytest.raises(ConfigError, match="count is 0"):
        queen.stream("s").count(0)
    with pytest.raises(ConfigError, match="tumbling_time: "):
        queen.stream("s").tumbling_time("a while")
    with pytest.raises(NotFound):
        await queen.consumer("none", "g").process(lambda window: None)


async def test_delete_and_explain(pairs: AsyncQueen) -> None:
    assert await pairs.stream("s").explain("g")
    assert await pairs.stream("s").delete() is True
    assert await pairs.stream("s").delete() is False


# Windows


async def test_a_window(queen: AsyncQueen, clock: Clock) -> None:
    await queen.queue("q").create()
    clock.turn(60 - clock().timestamp() % 60 + 1)
    await queen.stream("s").sources(["q"]).tumbling_time(60).grace_period(0).define()
    await queen.queue("q").push([{"user": "ann", "amount": 5}, {"user": "bob", "amount": 7}])
    await queen.queue("q").push({"user": "ann", "amount": 1})
    clock.turn(60)
    async for window in queen.consumer("s", "g").windows(limit=1):
        assert (window.key, window.attempt, window.complete) == ("__GLOBAL__", 1, True)
        assert (window.end - window.start).total_seconds() == 60
        assert all(window.start <= message.created_at < window.end for message in window.all_messages)
        first = window.all_messages[0]
        assert (first.queue, first.partition, first.payload) == ("q", "Default", first.data)
        assert sorted(window.group_by("data.user")) == ["ann", "bob"]
        assert window.filter(lambda m: m.data["user"] == "ann").aggregate(sum=["payload.amount"]) == {
            "sum": {"payload.amount": 6}
        }
        assert window.reset().aggregate(count=True, max=["data.amount"]) == {
            "count": 3,
            "max": {"data.amount": 7},
        }


async def test_by_hand(pairs: AsyncQueen) -> None:
    consumer = pairs.consumer("s", "g")
    async for window in consumer.windows(limit=1):
        assert await window.renew()
        assert await window.renew(30_000)
        await window.ack()
        with pytest.raises(LeaseLost):
            await window.ack()
        with pytest.raises(ConfigError, match="extend_ms is 0"):
            await window.renew(0)
    [group] = (await pairs.admin.stream("s")).groups
    assert (group.done, group.leased) == (1, 0)


# Processing


async def test_process(pairs: AsyncQueen) -> None:
    seen: dict[str, list[Any]] = {"a": [], "b": []}

    async def handle(window: AsyncWindow[Any]) -> None:
        await asyncio.sleep(0)
        seen[window.key] += data(window)

    result = await pairs.consumer("s", "g").process(handle, concurrency=3, limit=4)
    assert seen == {"a": [0, 1, 2, 3, 4, 5], "b": [10, 11]}
    assert (result.handled, result.failed, result.lost) == (4, 0, 0)
    [group] = (await pairs.admin.stream("s")).groups
    assert (group.done, group.lag, group.leased) == (4, 0, 0)


async def test_a_failing_handler(pairs: AsyncQueen) -> None:
    seen: list[tuple[str, list[Any], int]] = []

    async def handle(window: AsyncWindow[Any]) -> None:
        seen.append((window.key, data(window), window.attempt))
        if window.key == "b":
            raise ValueError("not b")
        if data(window) == [2, 3] and window.attempt == 1:
            await window.ack(False)

    result = await pairs.consumer("s", "g").process(handle, idle_timeout="500ms")
    assert [entry for entry in seen if entry[0] == "b"] == [("b", [10, 11], 1), ("b", [10, 11], 2)]
    assert [entry[1:] for entry in seen if entry[0] == "a"] == [
        ([0, 1], 1),
        ([2, 3], 1),
        ([2, 3], 2),
        ([4, 5], 1),
    ]
    assert (result.handled, result.failed) == (4, 2)
    [group] = (await pairs.admin.stream("s")).groups
    assert (group.dead, group.lag) == (1, 0)


async def test_a_long_handler_keeps_its_lease_and_a_lost_one_is_told(pairs: AsyncQueen) -> None:
    lost: list[bool] = []

    async def handle(window: AsyncWindow[Any]) -> None:
        if lost:
            await pairs.stream("s").seek("g", "2020-01-01T00:00:00Z")
            async with asyncio.timeout(10):
                while not window.lost:  # noqa: ASYNC110 - a flag is what a handler has
                    await asyncio.sleep(0.02)
        else:
            await asyncio.sleep(1.6)  # the lease is one second
        lost.append(window.lost)

    result = await pairs.consumer("s", "g").process(handle, limit=2)
    assert lost == [False, True]
    assert (result.handled, result.lost) == (2, 1)


async def test_stop(pairs: AsyncQueen) -> None:
    stop = asyncio.Event()
    seen: list[list[Any]] = []

    async def handle(window: AsyncWindow[Any]) -> None:
        stop.set()
        await asyncio.sleep(0.1)
        seen.append(data(window))

    result = await pairs.consumer("s", "g").process(handle, stop=stop)
    assert (len(seen), result.handled) == (1, 1)
    stop.clear()
    waiting = asyncio.create_task(pairs.consumer("s", "g").process(lambda w: None, stop=stop, concurrency=2))

    async def no_lag() -> bool:
        return (await pairs.admin.stream("s")).groups[0].lag == 0

    await eventually(no_lag)
    began = time.monotonic()
    stop.set()
    assert (await waiting).handled == 3
    assert time.monotonic() - began < 5  # a poll would take 30


async def test_a_loop_that_is_left(pairs: AsyncQueen) -> None:
    seen = []
    async for window in pairs.consumer("s", "g").windows():
        seen.append((window.key, data(window)))
        if len(seen) == 3:
            break
    rest: list[Any] = []
    await pairs.consumer("s", "g").process(lambda w: rest.append((w.key, data(w), w.attempt)), limit=2)
    assert (*seen[2], 2) in rest  # the one that was in hand comes again
    assert len({*map(str, seen), *(str(entry[:2]) for entry in rest)}) == 4


async def test_seek(pairs: AsyncQueen) -> None:
    seen: list[Any] = []
    consumer = pairs.consumer("s", "g")
    await consumer.process(lambda w: seen.extend(data(w)), limit=4)
    await pairs.stream("s").seek("g", "2020-01-01T00:00:00Z")
    await consumer.process(lambda w: seen.extend(data(w)), limit=4)
    assert sorted(seen) == sorted([*range(6), 10, 11] * 2)
    await consumer.seek("beginning")
    again = await consumer.poll("5s")
    assert again is not None
    assert data(again) in ([0, 1], [10, 11])
    await consumer.seek("now")
    with pytest.raises(LeaseLost):
        await again.ack()
    assert await consumer.poll("200ms") is None
    await consumer.seek(again.start)
    assert await consumer.poll("5s") is not None
    with pytest.raises(NotFound):
        await pairs.consumer("none", "g").seek("now")
    late: list[Any] = []
    await pairs.consumer("s", "late", subscription_from="now").process(late.append, idle_timeout="200ms")
    assert late == []


async def test_seek_of_the_synchronous_consumer(pairs: AsyncQueen, in_thread: InThread) -> None:
    def work(queen: Queen) -> None:
        consumer = queen.consumer("s", "g")
        consumer.seek("now")
        assert consumer.poll("200ms") is None
        consumer.seek("beginning")
        assert consumer.poll("5s") is not None

    await in_thread(work)


# Types


async def test_typed_windows(queen: AsyncQueen) -> None:
    await one_window(queen, "q", "s")
    found: list[Click] = []
    consumer = queen.consumer("s", "g", type=Click)
    await consumer.process(lambda w: found.extend(m.data for m in w.messages), limit=1)
    assert found == [Click("ann", 5), Click("bob", 7)]


async def test_a_window_that_does_not_fit_fails_and_the_rest_goes_on(queen: AsyncQueen) -> None:
    await one_window(queen, "q", "s")
    await queen.queue("q").push([{"user": "cid"}, {"user": "dan", "amount": 1}])
    await queen.queue("q").push([{"user": "eve", "amount": 2}, {"user": "fay", "amount": 3}])
    found: list[str] = []
    consumer = queen.consumer("s", "g", type=Click)
    result = await consumer.process(lambda w: found.extend(m.data.user for m in w.messages), limit=4)
    assert found == ["ann", "bob", "eve", "fay"]
    assert (result.handled, result.failed) == (2, 2)  # it came again once
    [group] = (await queen.admin.stream("s")).groups
    assert group.dead == 1


async def test_a_loop_raises_it(queen: AsyncQueen) -> None:
    await one_window(queen, "q", "s")
    with pytest.raises(PayloadInvalid, match="the payload is no str"):
        async for _ in queen.consumer("s", "g", type=str).windows():
            pass


# The synchronous client


async def test_the_synchronous_client_is_the_same(pairs: AsyncQueen, in_thread: InThread) -> None:
    def work(queen: Queen) -> None:
        both = threading.Barrier(2)
        seen: list[tuple[str, list[Any]]] = []

        def handle(window: Window[Any]) -> None:
            if len(seen) < 2:
                both.wait(10)
            seen.append((window.key, data(window)))

        result = queen.consumer("s", "g").process(handle, concurrency=2, limit=3)
        assert result.handled == 3
        assert [entry for key, entry in seen if key == "a"] == [[0, 1], [2, 3]]
        for window in queen.consumer("s", "g").windows():
            assert (window.key, data(window)) == ("a", [4, 5])
            break
        [again] = queen.consumer("s", "g").windows(limit=1)
        assert (data(again), again.attempt) == ([4, 5], 2)
        queen.stream("s").seek("g", "2020-01-01T00:00:00Z")
        assert queen.consumer("s", "g").process(lambda w: None, limit=4).handled == 4
        assert queen.stream("t").sources(["q"]).tumbling_time("1m").define()
        assert queen.stream("t").delete()

    await in_thread(work)
