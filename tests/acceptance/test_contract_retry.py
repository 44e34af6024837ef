"""The contract, black box: retries, dead letters, traces."""

from __future__ import annotations

import httpx
import pytest

from tests.acceptance.speaking import (
    OPTIONAL,
    Fields,
    Json,
    ack,
    ack_batch,
    ack_of,
    check,
    configure,
    data,
    dead,
    done,
    moment,
    pop,
    push,
    take,
)
from tests.conftest import Clock

DEAD: Fields = {
    "id": str,
    "transactionId": str,
    "partitionId": str,
    "queue": str,
    "partition": str,
    "consumerGroup": str,
    "errorMessage": OPTIONAL,
    "retryCount": int,
    "data": int,
    "producerSub": OPTIONAL,
    "createdAt": moment,
    "failedAt": moment,
}


# retries


async def test_failed_comes_again_after_the_delay_and_other_partitions_go_on(
    http: httpx.AsyncClient, clock: Clock
) -> None:
    await configure(http, "q", retryDelay=30_000)
    await push(http, "q", "a", partition="a")
    await push(http, "q", "b1", "b2", partition="b")
    (message,) = await take(http, "q", partition="a")
    result = await ack(http, message, "failed", error="boom")
    assert (result["success"], result["leaseReleased"], result["dlq"]) == (True, True, False)
    assert data(await take(http, "q", batch=9)) == ["b1", "b2"]
    clock.turn(29)
    assert await take(http, "q", partition="a") == []
    clock.turn(1.5)
    (again,) = await take(http, "q")
    assert (again["data"], again["retryCount"]) == ("a", 1)
    assert again["leaseId"] != message["leaseId"]


async def test_a_push_does_not_shorten_the_delay(http: httpx.AsyncClient, clock: Clock) -> None:
    await configure(http, "q", retryDelay=30_000)
    await push(http, "q", 1)
    (message,) = await take(http, "q")
    await ack(http, message, "failed")
    clock.turn(5)
    await push(http, "q", 2)
    assert await take(http, "q", batch=9) == []
    clock.turn(26)
    assert data(await take(http, "q", batch=9)) == [1, 2]


async def test_a_configure_does_not_shorten_the_delay(http: httpx.AsyncClient, clock: Clock) -> None:
    await configure(http, "q", retryDelay=30_000)
    await push(http, "q", 1)
    (message,) = await take(http, "q")
    await ack(http, message, "failed")
    await configure(http, "q", retryDelay=30_000)
    assert await take(http, "q") == []
    clock.turn(31)
    assert data(await take(http, "q")) == [1]


@pytest.mark.parametrize("limit", [0, 1, 3])
async def test_past_the_limit_a_message_goes_to_the_dead_letters(
    http: httpx.AsyncClient, clock: Clock, limit: int
) -> None:
    await configure(http, "q", retryLimit=limit)
    (pushed, _) = await push(http, "q", 1, 2, partition="p", ids=["t", "u"])
    for tries in range(limit + 1):
        (message,) = await take(http, "q", consumerGroup="g")
        assert (message["data"], message["retryCount"]) == (1, tries)
        result = await ack(http, message, "failed", error=f"boom {tries}")
        assert result["dlq"] is (tries == limit)
        if tries < limit:
            clock.turn(1.1)
    (second,) = await take(http, "q", consumerGroup="g")  # the partition goes on, at once
    assert (second["data"], second["retryCount"]) == (2, 0)
    (letter,) = await dead(http, "q")
    check(letter, DEAD)
    assert letter["transactionId"] == "t"
    assert letter["partitionId"] == pushed["partition_id"]
    assert (letter["queue"], letter["partition"], letter["consumerGroup"]) == ("q", "p", "g")
    assert letter["errorMessage"] == f"boom {limit}"
    assert letter["retryCount"] == limit + 1
    assert letter["data"] == 1
    # For this group only.
    (elsewhere,) = await take(http, "q")
    assert (elsewhere["data"], elsewhere["retryCount"]) == (1, 0)


async def test_a_lease_that_expires_counts_a_try(http: httpx.AsyncClient, clock: Clock) -> None:
    await configure(http, "q", leaseTime=10, retryLimit=2)
    await push(http, "q", 1, 2)
    for tries in range(3):
        (message,) = await take(http, "q")
        assert (message["data"], message["retryCount"]) == (1, tries)
        clock.turn(11)
    (second,) = await take(http, "q")
    assert (second["data"], second["retryCount"]) == (2, 0)
    (letter,) = await dead(http, "q")
    assert (letter["data"], letter["retryCount"]) == (1, 3)
    assert "lease" in letter["errorMessage"]
    assert (await ack(http, message))["success"] is False  # too late
    await done(http, second)


async def test_failures_and_expiries_count_together(http: httpx.AsyncClient, clock: Clock) -> None:
    await configure(http, "q", leaseTime=10, retryLimit=1)
    await push(http, "q", 1)
    await take(http, "q")
    clock.turn(11)
    (message,) = await take(http, "q")
    assert (await ack(http, message, "failed", error="boom"))["dlq"] is True
    (letter,) = await dead(http, "q")
    assert (letter["errorMessage"], letter["retryCount"]) == ("boom", 2)


async def test_retry_comes_again_at_once_and_counts_nothing(http: httpx.AsyncClient) -> None:
    await configure(http, "q", retryLimit=1, retryDelay=60_000)
    await push(http, "q", 1, 2)
    for _ in range(5):
        messages = await take(http, "q", batch=2)
        assert [(m["data"], m["retryCount"]) for m in messages] == [(1, 0), (2, 0)]
        result = await ack(http, messages[0], "retry")
        assert (result["success"], result["leaseReleased"], result["dlq"]) == (True, True, False)
    assert await dead(http, "q") == []


async def test_dlq_goes_there_at_once(http: httpx.AsyncClient) -> None:
    await push(http, "q", 1, 2)
    (message,) = await take(http, "q")
    result = await ack(http, message, "dlq", error="poison")
    assert (result["success"], result["leaseReleased"], result["dlq"]) == (True, True, True)
    assert data(await take(http, "q")) == [2]
    (letter,) = await dead(http, "q")
    assert (letter["data"], letter["errorMessage"], letter["retryCount"]) == (1, "poison", 0)


async def test_dlq_between_completions(http: httpx.AsyncClient, clock: Clock) -> None:
    await push(http, "q", 1, 2, 3)
    one, two, three = await take(http, "q", batch=3)
    results = await ack_batch(http, ack_of(three), ack_of(two, "dlq", error="bad"), ack_of(one))
    assert [r["dlq"] for r in results] == [False, True, False]
    assert all(r["success"] for r in results)
    clock.turn(1000)
    assert await take(http, "q") == []
    assert data(await dead(http, "q")) == [2]


async def test_a_message_on_its_last_try_is_delivered_alone(http: httpx.AsyncClient, clock: Clock) -> None:
    await configure(http, "q", retryLimit=1)
    await push(http, "q", 1, 2, 3, 4)
    one, two, *_ = await take(http, "q", batch=4)
    await ack_batch(http, ack_of(one, "retry"), ack_of(two, "failed"))
    clock.turn(1.1)
    first = await take(http, "q", batch=4)
    assert data(first) == [1]
    await done(http, *first)
    last = await take(http, "q", batch=4)
    assert [(m["data"], m["retryCount"]) for m in last] == [(2, 1)]
    await ack(http, last[0], "failed")
    assert data(await dead(http, "q")) == [2]
    assert data(await take(http, "q", batch=4)) == [3, 4]


async def test_a_message_on_its_last_try_travels_with_others_when_its_delivery_settles_it(
    http: httpx.AsyncClient, clock: Clock
) -> None:
    await configure(http, "q", retryLimit=1)
    await push(http, "q", 1, 2, 3, 4)
    one, two, *_ = await take(http, "q", batch=4)
    await ack_batch(http, ack_of(one, "retry"), ack_of(two, "failed"))
    clock.turn(1.1)
    popped = await pop(http, "q", batch=9, partitions=2, autoAck=True)
    assert popped is not None
    assert [(m["data"], m["retryCount"]) for m in popped["messages"]] == [(1, 0), (2, 1), (3, 0), (4, 0)]
    assert popped["partitionsClaimed"] == 1


async def test_a_crash_loop_buries_only_the_message_that_crashes(
    http: httpx.AsyncClient, clock: Clock
) -> None:
    """A consumer that dies on one message never blames the others of its batch for it."""
    await configure(http, "q", leaseTime=10, retryLimit=2)
    await push(http, "q", "good 1", "deadly", "good 2", "good 3")
    finished: list[str] = []
    for _ in range(30):
        messages = await take(http, "q", batch=10)
        if not messages:
            break
        if "deadly" in data(messages):
            clock.turn(11)  # it crashes without a word
        else:
            await done(http, *messages)
            finished += data(messages)
    assert finished == ["good 1", "good 2", "good 3"]
    assert data(await dead(http, "q")) == ["deadly"]


# the dead letters


async def test_the_dead_letters_are_found_by_everything(http: httpx.AsyncClient, clock: Clock) -> None:
    moments: list[str] = []
    for n, (queue, partition, group) in enumerate(
        [("q", "a", "g"), ("q", "a", "h"), ("q", "b", "g"), ("other", "a", "g")]
    ):
        moments.append(clock().isoformat())
        clock.turn(10)
        await push(http, queue, n, partition=partition)
        found: list[Json] = []
        while not found or found[0]["data"] != n:
            found = await take(http, queue, partition=partition, consumerGroup=group)
            await ack(http, found[0], "dlq" if found[0]["data"] == n else "completed")
        clock.turn(10)
    assert sorted(data(await dead(http, "q"))) == [0, 1, 2]
    assert sorted(data(await dead(http, "q", consumerGroup="g"))) == [0, 2]
    assert sorted(data(await dead(http, "q", partition="a"))) == [0, 1]
    assert data(await dead(http, "q", consumerGroup="h", partition="a")) == [1]
    assert data(await dead(http, "q", **{"from": moments[2]})) == [2]
    assert sorted(data(await dead(http, "q", to=moments[2]))) == [0, 1]
    assert data(await dead(http, "none")) == []

    answer = await http.get("/api/v1/dlq", params={"queue": "q", "limit": 2})
    page = answer.json()
    assert set(page) >= {"messages", "pagination", "total"}
    assert isinstance(page["pagination"], dict)
    assert page["total"] == 3
    rest = await dead(http, "q", limit=2, offset=2)
    assert len(page["messages"]) == 2
    assert sorted(data(page["messages"]) + data(rest)) == [0, 1, 2]
    assert (await http.get("/api/v1/dlq")).json()["total"] == 4


# traces


async def test_a_trace_is_kept(http: httpx.AsyncClient) -> None:
    await push(http, "q", 1)
    (message,) = await take(http, "q")
    body = {
        "transactionId": message["transactionId"],
        "partitionId": message["partitionId"],
        "consumerGroup": "g",
        "traceNames": ["order-1"],
        "eventType": "info",
        "data": {"text": "half way"},
    }
    answer = await http.post("/api/v1/traces", json=body)
    assert answer.status_code == 201
    check(answer.json(), {"success": bool, "traceId": str})
    assert answer.json()["success"] is True
    least = {k: body[k] for k in ("transactionId", "partitionId", "data")}
    assert (await http.post("/api/v1/traces", json=least)).status_code == 201
    found = await http.get(f"/api/v1/traces/{message['partitionId']}/{message['transactionId']}")
    assert found.status_code == 200
    assert "half way" in found.text
