"""What becomes of a window: acknowledged, failed, leased again, and in which order."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest

from queenstream.broker.app import Broker
from tests.conftest import StartBroker
from tests.integration.streams.streaming import (
    MINUTE,
    YEAR,
    Streams,
    at,
    data,
    eventually,
    three_windows,
    us,
)


async def test_an_acknowledged_window_does_not_come_again(streams: Streams) -> None:
    await three_windows(streams)
    assert [data(window) for window in await streams.drain(3)] == [["k0"], ["k1"], ["k2"]]
    streams.clock.turn(YEAR)
    await streams.nothing()


async def test_a_second_ack_is_refused(streams: Streams) -> None:
    await three_windows(streams)
    window = await streams.done()
    await streams.ack(window, status=400)
    await streams.ack(window, success=False, status=400)
    assert data(await streams.take()) == ["k1"]


@pytest.mark.parametrize("field", ["windowId", "leaseId"])
async def test_an_ack_must_name_window_and_lease(streams: Streams, field: str) -> None:
    """A lease of one window is none of another."""
    await three_windows(streams, "k", "other")
    window, other = await streams.take(), await streams.take()
    name = {"windowId": "id", "leaseId": "leaseId"}[field]
    await streams.ack(window | {name: other[name]}, status=400)
    for wrong in ("nonsense", "00000000-0000-0000-0000-000000000000", ""):
        await streams.ack(window | {name: wrong}, status=400)
    await streams.ack(window)
    await streams.ack(other)


async def test_a_failed_window_comes_again_and_counts(streams: Streams) -> None:
    await three_windows(streams)
    for attempt in range(1, 6):
        window = await streams.take()
        assert (data(window), window["attempt"]) == (["k0"], attempt)
        assert (await streams.ack(window, success=False, error=f"try {attempt}"))["success"] is True
    window = await streams.done()
    assert (data(window), window["attempt"]) == (["k0"], 6)
    window = await streams.take()
    assert (data(window), window["attempt"]) == (["k1"], 1)


async def test_past_the_retry_limit_a_window_is_dead_and_the_key_goes_on(streams: Streams) -> None:
    await three_windows(streams, retry_limit=1)
    for _ in range(2):
        window = await streams.take()
        assert data(window) == ["k0"]
        await streams.ack(window, success=False, error="it does not fit")
    assert [data(w) for w in await streams.drain(2)] == [["k1"], ["k2"]]
    states = {w["id"]: w["state"] for w in await streams.windows(consumerGroup="g")}
    assert states[window["id"]] == "dead"
    [group] = (await streams.resource("/s"))["groups"]
    assert (group["dead"], group["done"], group["lag"]) == (1, 2, 0)


async def test_leases_that_expire_count_as_attempts(streams: Streams) -> None:
    """A window that kills its consumer must not come for ever."""
    await three_windows(streams, retry_limit=2)
    for attempt in range(1, 4):
        window = await streams.take()
        assert (data(window), window["attempt"]) == (["k0"], attempt)
        streams.clock.turn(61)
    assert data(await streams.take()) == ["k1"]


async def test_an_expired_lease_is_worth_nothing(streams: Streams) -> None:
    await three_windows(streams)
    old = await streams.take()
    streams.clock.turn(61)
    await streams.ack(old, status=400)  # even before somebody else has it
    new = await streams.take()
    assert (new["id"], new["attempt"]) == (old["id"], old["attempt"] + 1)
    assert new["messages"] == old["messages"]
    assert new["leaseId"] != old["leaseId"]
    await streams.ack(old, status=400)
    await streams.ack(old, success=False, status=400)
    await streams.nothing()  # still leased to the new one
    await streams.ack(new)
    assert data(await streams.take()) == ["k1"]


async def test_the_lease_is_as_long_as_defined(streams: Streams) -> None:
    await three_windows(streams, window_lease_timeout_ms=5000)
    await streams.take()
    streams.clock.turn(4)
    await streams.nothing()
    streams.clock.turn(1.1)
    assert data(await streams.take()) == ["k0"]


async def test_a_lease_is_renewed(streams: Streams) -> None:
    await three_windows(streams)
    window = await streams.take()
    streams.clock.turn(50)
    renewed = await streams.renew(window["leaseId"], 90_000)
    assert renewed["success"] is True
    left = us(renewed["lease_expires_at"]) / 1e6 - streams.clock().timestamp()
    assert 85 < left <= 90
    streams.clock.turn(80)
    await streams.nothing()
    await streams.ack(window)


async def test_a_lease_that_is_gone_is_not_renewed(streams: Streams) -> None:
    await three_windows(streams)
    for unknown in ("nonsense", "00000000-0000-0000-0000-000000000000"):
        await streams.renew(unknown, status=404)
    window = await streams.take()
    streams.clock.turn(61)
    await streams.renew(window["leaseId"], status=404)
    again = await streams.done()
    await streams.renew(window["leaseId"], status=404)
    await streams.renew(again["leaseId"], status=404)


@pytest.mark.parametrize("extend_ms", [0, -1, "long"])
async def test_a_renewal_that_cannot_be(streams: Streams, extend_ms: Any) -> None:
    await three_windows(streams)
    window = await streams.take()
    await streams.renew(window["leaseId"], extend_ms, status=400)
    await streams.ack(window)


async def test_one_window_of_a_key_is_out_at_a_time(streams: Streams) -> None:
    await three_windows(streams, "k", "other")
    first, other = await streams.take(), await streams.take()
    assert sorted([first["key"], other["key"]]) == ["k", "other"]
    await streams.nothing()
    await streams.ack(other)
    assert data(await streams.take()) == [f"{other['key']}1"]
    await streams.nothing()


async def two_out(streams: Streams, first: int, every: int = 1) -> list[list[Any]]:
    """Two windows of a key may be out; five are closed before a group comes. Gives their contents."""
    await streams.made(event_time_path="data.ts", max_in_flight=2)
    events = [{"ts": at(MINUTE * (first + n * every)), "n": n} for n in range(6)]
    await streams.push(*events)

    async def closed() -> bool:
        return bool((await streams.resource("/s"))["windows"]["closed"] == 5)

    await eventually(closed)
    return [[event] for event in events[:5]]


@pytest.mark.parametrize("first", [0, 1])
@pytest.mark.parametrize("every", [1, 2, 7])
async def test_two_windows_of_a_key_may_be_out(streams: Streams, first: int, every: int) -> None:
    """Whatever the clock says where they start, and however far they are apart."""
    expected = await two_out(streams, first, every)
    one, two = await streams.take(), await streams.take()
    assert [data(one), data(two)] == expected[:2]
    await streams.nothing()
    await streams.ack(one)
    assert data(await streams.take()) == expected[2]
    await streams.nothing()
    await streams.seek("2000-01-01T00:00:00Z")
    assert [data(await streams.take()), data(await streams.take())] == expected[:2]


@pytest.mark.parametrize("first", [0, 1])
async def test_order_is_kept_with_two_out(streams: Streams, first: int) -> None:
    """The later of the two is done first: what comes next is still the next."""
    expected = await two_out(streams, first)
    one, two = await streams.take(), await streams.take()
    await streams.ack(two)
    three = await streams.poll(timeout_ms=500)
    assert three is None or data(three) == expected[2], "a window was passed over"
    await streams.ack(one)
    if three is None:
        three = await streams.take()
    four = await streams.take()
    assert [data(three), data(four)] == expected[2:4]
    await streams.ack(four)
    await streams.ack(three, success=False)
    again = await streams.take()
    assert (data(again), again["attempt"]) == (expected[2], 2), "a failed one comes before later ones"


async def test_the_key_that_has_waited_longest_comes_first(streams: Streams) -> None:
    await three_windows(streams, "a", "b", "c")
    keys = [window["key"] for window in await streams.drain(9)]
    assert [sorted(keys[n : n + 3]) for n in (0, 3, 6)] == [["a", "b", "c"]] * 3


async def test_a_key_that_comes_later_does_not_go_first(streams: Streams) -> None:
    """It has waited since its window closed, however old its events are."""
    await streams.made(partitioned=True, event_time_path="data.ts")
    await streams.push(*[{"ts": at(MINUTE * n), "n": f"b{n}"} for n in range(3)], key="b")
    assert data(await streams.done())[0]["n"] == "b0"  # b1 waits from here on
    await streams.push({"ts": at(MINUTE * 2), "n": "a2"}, {"ts": at(MINUTE * 3)}, key="a")

    async def closed() -> bool:
        return bool((await streams.resource("/s"))["windows"]["closed"] == 4)

    await eventually(closed)
    assert [data(window)[0]["n"] for window in await streams.drain(3)] == ["b1", "a2", "b2"]


async def test_a_failing_key_holds_up_no_other(streams: Streams) -> None:
    await three_windows(streams, "bad", "good", retry_limit=100)
    seen: list[str] = []
    for _ in range(12):
        window = await streams.take()
        await streams.ack(window, success=window["key"] == "good")
        seen += data(window)
        if seen.count("good2"):
            break
    assert [name for name in seen if name.startswith("good")] == ["good0", "good1", "good2"]


# A stop


@pytest.fixture
async def second(start_broker: StartBroker, streams: Streams) -> AsyncIterator[Streams]:
    """Another broker on the same database, started after the test's first lines would have run."""
    broker = await start_broker(clock=streams.clock)
    async with httpx.AsyncClient(base_url=broker.address, timeout=60) as http:
        yield Streams(http, streams.clock)


async def test_windows_and_leases_outlive_a_broker(streams: Streams, second: Streams, broker: Broker) -> None:
    await three_windows(streams)
    window = await streams.take()
    await streams.push("k3", key="k")
    await broker.stop()
    second.clock.turn(MINUTE - 10)
    await second.ack(window)
    second.clock.turn(10)
    assert [data(w) for w in await second.drain(3)] == [["k1"], ["k2"], ["k3"]]
