"""A window acknowledged together with pushes and other acknowledgements, all or nothing."""

from __future__ import annotations

from typing import Any

import pytest

from queenstream.broker.app import Broker
from tests.acceptance.speaking import Json, ack_of, pop, take, transaction
from tests.acceptance.speaking import data as data_of
from tests.integration.streams.streaming import Streams, data, three_windows


def acking(window: Json, **more: Any) -> Json:
    return {"type": "ackWindow", "windowId": window["id"], "leaseId": window["leaseId"], **more}


def pushing(*payloads: Any, queue: str = "out", **more: Any) -> Json:
    return {"type": "push", "items": [{"queue": queue, "payload": each, **more} for each in payloads]}


async def test_a_window_and_pushes_together(streams: Streams) -> None:
    await three_windows(streams)
    window = await streams.take()
    result = await transaction(streams.http, pushing("a"), acking(window), pushing("b", "c"))
    assert result["success"] is True
    assert result["results"][1] == {"index": 1, "windowId": window["id"], "success": True, "acked": True}
    assert [each["index"] for each in result["results"]] == [0, 1, 2, 3]
    assert data_of(await take(streams.http, "out", batch=9)) == ["a", "b", "c"]
    assert [data(each) for each in await streams.drain(2)] == [["k1"], ["k2"]]


async def test_windows_of_several_streams_and_messages_together(streams: Streams) -> None:
    await three_windows(streams)
    await streams.define("other", window_type="count", window_size_count=2, window_duration_ms=None)
    first, second = await streams.take(), await streams.take("other")
    await streams.push("work", queue="in")
    popped = await pop(streams.http, "in", consumerGroup="g")
    assert popped is not None
    [message] = popped["messages"]
    operations = [acking(second), {"type": "ack", **ack_of(message)}, acking(first)]
    result = await transaction(streams.http, *operations, requiredLeases=[first["leaseId"]])
    assert [each.get("windowId") for each in result["results"]] == [second["id"], None, first["id"]]
    assert data(await streams.take()) == ["k1"]
    assert await take(streams.http, "in", consumerGroup="g") == []


@pytest.mark.parametrize("wrong", ["expired", "another lease", "another window", "nonsense", "message"])
async def test_one_refusal_undoes_all(streams: Streams, wrong: str) -> None:
    await three_windows(streams, "k", "other")
    window, other = await streams.take(), await streams.take()
    operations = [pushing("a"), acking(window), acking(other)]
    if wrong == "expired":
        streams.clock.turn(61)
    elif wrong == "another lease":
        operations[2]["leaseId"] = window["leaseId"]
    elif wrong == "another window":
        operations[2]["windowId"] = window["id"]
    elif wrong == "nonsense":
        operations[2]["windowId"] = "99:nonsense"
    else:
        operations.append({"type": "ack", "transactionId": "t", "partitionId": "1"})
    result = await transaction(streams.http, *operations)
    assert result["success"] is False
    assert result["error"]
    assert await take(streams.http, "out") == []
    if wrong != "expired":
        await streams.ack(window)
        await streams.ack(other)


async def test_a_failed_window_comes_again(streams: Streams) -> None:
    await three_windows(streams)
    window = await streams.take()
    result = await transaction(
        streams.http, pushing("alert"), acking(window, success=False, error="too warm")
    )
    assert result["results"][1]["acked"] is False
    again = await streams.take()
    assert (data(again), again["attempt"]) == (["k0"], 2)


async def test_it_can_be_repeated(streams: Streams) -> None:
    """An answer that was lost: the same transaction again is a success and changes nothing."""
    await three_windows(streams)
    window = await streams.take()
    operations = pushing("a", transactionId="once"), acking(window)
    for status in ("queued", "duplicate"):
        result = await transaction(streams.http, *operations)
        assert result["success"] is True
        assert result["results"][0]["status"] == status
        assert result["results"][1]["success"] is True
    await streams.seek("1970-01-01T00:00:00Z")
    assert (await transaction(streams.http, *operations))["success"] is False, "the window comes again"
    assert data(await streams.take()) == ["k0"]


async def test_a_broker_that_has_not_seen_the_stream(streams: Streams, start_broker: Any) -> None:
    await three_windows(streams)
    window = await streams.take()
    broker: Broker = await start_broker(clock=streams.clock)
    async with type(streams.http)(base_url=broker.address) as there:
        assert (await transaction(there, acking(window)))["success"] is True
    assert data(await streams.take()) == ["k1"]
