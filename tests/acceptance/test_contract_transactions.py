"""The contract, black box: transactions are all or nothing."""

from __future__ import annotations

from typing import Any

import httpx

from tests.acceptance.speaking import (
    Json,
    ack,
    ack_of,
    check,
    configure,
    data,
    dead,
    done,
    push,
    refused,
    stored,
    take,
    transaction,
)
from tests.conftest import Clock


def pushing(queue: str, *payloads: Any, **more: Any) -> Json:
    return {"type": "push", "items": [{"queue": queue, "payload": p, **more} for p in payloads]}


def acking(message: Json, status: str = "completed", **more: Any) -> Json:
    return {"type": "ack", **ack_of(message, status, **more)}


async def test_a_transaction_answers_the_contract(http: httpx.AsyncClient) -> None:
    await push(http, "in", 1, 2, ids=["t1", "t2"])
    one, two = await take(http, "in", batch=2)
    result = await transaction(
        http, pushing("out", "a", "b"), acking(one), pushing("more", "c", partition="p"), acking(two)
    )
    check(result, {"transactionId": str, "success": bool, "results": list})
    assert result["success"] is True
    results = result["results"]
    assert [r["index"] for r in results] == [0, 1, 2, 3, 4]
    assert [r.get("status") for r in results] == ["queued", "queued", None, "queued", None]
    assert [r.get("queueName") for r in results] == ["out", "out", "in", "more", "in"]
    assert [r["transactionId"] for r in results if "transactionId" in r] == ["t1", "t2"]
    assert all(r["success"] for r in results if "success" in r)
    assert data(await take(http, "out", batch=9)) == ["a", "b"]
    assert data(await take(http, "more", partition="p")) == ["c"]
    assert await take(http, "in", batch=9) == []


async def test_an_empty_transaction(http: httpx.AsyncClient) -> None:
    for operations in ([], [pushing("out")]):
        result = await transaction(http, *operations)
        assert (result["success"], result["results"]) == (True, [])
    assert (await transaction(http, pushing("out"), pushing("out", 1)))["results"][0]["index"] == 0
    assert data(await take(http, "out")) == [1]


async def test_a_refused_ack_undoes_the_push_and_the_other_acks(
    http: httpx.AsyncClient, clock: Clock, database_url: str
) -> None:
    await configure(http, "in", leaseTime=10)
    await push(http, "in", 1)
    (stale,) = await take(http, "in")
    clock.turn(11)
    (fresh,) = await take(http, "in")
    await push(http, "other", 2)
    (good,) = await take(http, "other")

    result = await transaction(http, pushing("out", "a"), acking(good), acking(stale))
    check(result, {"transactionId": str, "success": bool, "results": list, "error": str})
    assert result["success"] is False
    assert result["error"]
    assert await stored(database_url, "out") == []
    assert await take(http, "out") == []
    await done(http, fresh)  # untouched
    clock.turn(301)
    (again,) = await take(http, "other")  # its ack was undone: the lease ran out
    assert again["retryCount"] == 1


async def test_required_leases(http: httpx.AsyncClient, clock: Clock, database_url: str) -> None:
    await configure(http, "in", leaseTime=10)
    await push(http, "in", 1, partition="a")
    await push(http, "in", 2, partition="b")
    (one,) = await take(http, "in")
    (two,) = await take(http, "in")
    both = [one["leaseId"], two["leaseId"]]
    result = await transaction(http, pushing("out", "a"), requiredLeases=both)
    assert result["success"] is True
    await done(http, two)
    for leases in (both, [one["leaseId"], "none"], ["00000000-0000-0000-0000-000000000001"]):
        result = await transaction(http, pushing("out", "b"), acking(one), requiredLeases=leases)
        assert result["success"] is False
        assert result["error"]
    clock.turn(11)
    result = await transaction(http, pushing("out", "b"), requiredLeases=[one["leaseId"]])
    assert result["success"] is False
    assert await stored(database_url, "out") == [b'"a"']


async def test_a_failure_and_a_push_together(http: httpx.AsyncClient, clock: Clock) -> None:
    await configure(http, "in", retryLimit=0)
    await push(http, "in", 1)
    (message,) = await take(http, "in")
    result = await transaction(http, acking(message, "failed", error="boom"), pushing("errors", "boom"))
    assert result["success"] is True
    assert result["results"][0]["dlq"] is True
    assert data(await take(http, "errors")) == ["boom"]
    assert data(await dead(http, "in")) == [1]


async def test_a_repeated_push_in_a_transaction_is_a_duplicate(
    http: httpx.AsyncClient, database_url: str
) -> None:
    (first,) = await push(http, "out", 1, ids=["t"])
    operation = {
        "type": "push",
        "items": [{"queue": "out", "payload": n, "transactionId": "t"} for n in (2, 3)],
    }
    result = await transaction(http, operation)
    assert result["success"] is True
    assert [r["status"] for r in result["results"]] == ["duplicate", "duplicate"]
    assert {r["message_id"] for r in result["results"]} == {first["message_id"]}
    assert await stored(database_url, "out") == [b"1"]


async def test_a_full_queue_undoes_the_acks(http: httpx.AsyncClient, clock: Clock, database_url: str) -> None:
    await configure(http, "out", maxSize=1)
    await push(http, "out", 1)
    await push(http, "in", 1)
    (message,) = await take(http, "in")
    operations = [acking(message), pushing("out", 2), pushing("roomy", 3)]
    answer = await http.post("/api/v1/transaction", json={"operations": operations})
    refused(answer, 429)
    assert answer.headers["retry-after"]
    assert await stored(database_url, "out") == [b"1"]
    assert await stored(database_url, "roomy") == []
    assert (await ack(http, message, "retry"))["success"] is True  # it is still leased
    assert data(await take(http, "in")) == [1]


async def test_a_transaction_wakes_who_waits(http: httpx.AsyncClient) -> None:
    import asyncio

    await push(http, "in", 1, 2)
    (message,) = await take(http, "in")
    waiting = [asyncio.create_task(take(http, queue, wait=True, timeout=9000)) for queue in ("out", "in")]
    await asyncio.sleep(0.1)
    await transaction(http, pushing("out", "a"), acking(message))
    found = await asyncio.wait_for(asyncio.gather(*waiting), 2)
    assert [data(messages) for messages in found] == [["a"], [2]]


async def test_acks_for_several_groups(http: httpx.AsyncClient) -> None:
    await push(http, "in", 1)
    messages = [(await take(http, "in", consumerGroup=group))[0] for group in ("g", "h")]
    result = await transaction(http, *(acking(m) for m in messages))
    assert result["success"] is True
    for group in ("g", "h"):
        assert await take(http, "in", consumerGroup=group) == []
