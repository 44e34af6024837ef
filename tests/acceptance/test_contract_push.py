"""The contract, black box: configure, push, deduplication, delete."""

from __future__ import annotations

import asyncio
import uuid

import httpx
import pytest

from queenstream.broker.app import Broker
from tests.acceptance.speaking import (
    DEFAULTS,
    OPTIONAL,
    Fields,
    ack,
    check,
    configure,
    data,
    dead,
    done,
    pop,
    push,
    refused,
    stored,
    take,
)
from tests.conftest import Clock, StartBroker

PUSHED: Fields = {
    "index": int,
    "transaction_id": str,
    "message_id": str,
    "partition_id": str,
    "trace_id": OPTIONAL,
    "queueName": str,
    "status": str,
}


# configure


async def test_configure_creates_and_answers_the_contract(http: httpx.AsyncClient) -> None:
    body = {"queue": "q", "namespace": "shop", "task": "mail", "options": {"leaseTime": 5, "priority": -2}}
    answer = await http.post("/api/v1/configure", json=body)
    assert answer.status_code == 201
    configured = answer.json()
    check(
        configured,
        {
            "configured": bool, "queueId": str, "partitionId": str, "queue": str,
            "namespace": str, "task": str, "options": dict,
        },
    )  # fmt: skip
    assert configured["configured"] is True
    assert (configured["queue"], configured["namespace"], configured["task"]) == ("q", "shop", "mail")
    assert configured["options"] == DEFAULTS | {"leaseTime": 5, "priority": -2}
    check(configured["options"], {name: type(value) for name, value in DEFAULTS.items()})
    (pushed,) = await push(http, "q", 1)
    assert pushed["partition_id"] == configured["partitionId"]


async def test_configure_needs_only_a_queue(http: httpx.AsyncClient) -> None:
    answer = await http.post("/api/v1/configure", json={"queue": "q"})
    assert answer.status_code == 201
    assert answer.json()["options"] == DEFAULTS


async def test_configure_of_a_queue_that_exists_answers_200_with_the_same_id(http: httpx.AsyncClient) -> None:
    first = await http.post("/api/v1/configure", json={"queue": "q", "options": {"maxSize": 1}})
    second = await http.post("/api/v1/configure", json={"queue": "q", "options": {"ttl": 9}})
    assert (first.status_code, second.status_code) == (201, 200)
    assert first.json()["queueId"] == second.json()["queueId"]
    assert first.json()["partitionId"] == second.json()["partitionId"]


async def test_configure_replaces_all_the_options(http: httpx.AsyncClient) -> None:
    await configure(http, "q", maxSize=1, retryLimit=0)
    assert (await configure(http, "q", leaseTime=7))["options"] == DEFAULTS | {"leaseTime": 7}
    await push(http, "q", 1, 2, 3)  # maxSize is gone
    (message,) = await take(http, "q")
    assert (await ack(http, message, "failed"))["dlq"] is False  # and so is retryLimit 0


async def test_configure_after_a_push_made_the_queue_is_a_change(http: httpx.AsyncClient) -> None:
    await push(http, "q", 1)
    assert (await http.post("/api/v1/configure", json={"queue": "q"})).status_code == 200


async def test_configure_takes_effect_on_what_waits_already(http: httpx.AsyncClient) -> None:
    await configure(http, "q", delayedProcessing=1000)
    await push(http, "q", 1)
    assert await take(http, "q") == []
    await configure(http, "q")
    assert data(await take(http, "q")) == [1]


async def test_configure_of_another_broker_takes_effect_here(
    http: httpx.AsyncClient, start_broker: StartBroker, clock: Clock
) -> None:
    await push(http, "q", 1)
    other = await start_broker(clock=clock)
    async with httpx.AsyncClient(base_url=other.address) as there:
        await configure(there, "q", maxSize=1)
    answer = await http.post("/api/v1/push", json={"items": [{"queue": "q", "payload": 2}]})
    refused(answer, 429)


# push


async def test_push_answers_the_contract(http: httpx.AsyncClient) -> None:
    trace = str(uuid.uuid4())
    items = [
        {"queue": "a", "payload": {"n": 1}, "transactionId": "t1", "traceId": trace},
        {"queue": "b", "partition": "p", "payload": {"n": 2}},
        {"queue": "a", "partition": "p", "payload": {"n": 3}, "transactionId": "t1"},
    ]
    answer = await http.post("/api/v1/push", json={"items": items})
    assert answer.status_code == 201
    results = answer.json()
    assert isinstance(results, list)
    for result in results:
        check(result, PUSHED)
    assert [r["index"] for r in results] == [0, 1, 2]
    assert [r["queueName"] for r in results] == ["a", "b", "a"]
    assert [r["status"] for r in results] == ["queued"] * 3
    assert [r["transaction_id"] for r in results][::2] == ["t1", "t1"]
    assert [r["trace_id"] for r in results] == [trace, None, None]
    assert len({r["message_id"] for r in results}) == 3
    assert len({r["partition_id"] for r in results}) == 3

    popped = await pop(http, "a", partition="Default")
    assert popped is not None
    assert popped["messages"][0]["id"] == results[0]["message_id"]
    assert popped["messages"][0]["traceId"] == trace
    assert popped["partitionId"] == results[0]["partition_id"]


async def test_an_empty_push(http: httpx.AsyncClient) -> None:
    answer = await http.post("/api/v1/push", json={"items": []})
    assert (answer.status_code, answer.json()) == (201, [])


async def test_push_makes_queue_and_partition_and_default_is_called_default(http: httpx.AsyncClient) -> None:
    await push(http, "new", 1)
    await push(http, "new", 2, partition="Default")
    popped = await pop(http, "new", batch=10)
    assert popped is not None
    assert popped["partition"] == "Default"
    assert data(popped["messages"]) == [1, 2]


async def test_transaction_ids_are_made_when_none_are_given(http: httpx.AsyncClient) -> None:
    results = await push(http, "q", 1, 1, 1)
    assert len({r["transaction_id"] for r in results}) == 3
    assert {r["status"] for r in results} == {"queued"}


async def test_a_client_cannot_set_the_producer(http: httpx.AsyncClient) -> None:
    item = {"queue": "q", "payload": 1, "producerSub": "root", "producer_sub": "root"}
    assert (await http.post("/api/v1/push", json={"items": [item]})).status_code == 201
    (message,) = await take(http, "q")
    assert message["producerSub"] is None


# deduplication


async def test_a_repeat_in_one_batch_is_a_duplicate(http: httpx.AsyncClient) -> None:
    results = await push(http, "q", "first", "other", "second", ids=["a", "b", "a"])
    assert [r["status"] for r in results] == ["queued", "queued", "duplicate"]
    assert results[2]["message_id"] == results[0]["message_id"]
    assert results[2]["transaction_id"] == "a"
    assert data(await take(http, "q", batch=10)) == ["first", "other"]


async def test_a_repeat_in_a_later_batch_is_a_duplicate(http: httpx.AsyncClient) -> None:
    (first,) = await push(http, "q", "first", ids=["a"])
    results = await push(http, "q", "new", "again", ids=["b", "a"])
    assert [r["status"] for r in results] == ["queued", "duplicate"]
    assert results[1]["message_id"] == first["message_id"]
    assert data(await take(http, "q", batch=10)) == ["first", "new"]


async def test_a_completed_message_still_has_its_duplicates(http: httpx.AsyncClient) -> None:
    (first,) = await push(http, "q", 1, ids=["a"])
    await done(http, *await take(http, "q"))
    (again,) = await push(http, "q", 1, ids=["a"])
    assert (again["status"], again["message_id"]) == ("duplicate", first["message_id"])
    assert await take(http, "q") == []


async def test_the_pair_is_partition_and_transaction(http: httpx.AsyncClient) -> None:
    for queue, partition in (("q", "one"), ("q", "two"), ("other", "one")):
        (result,) = await push(http, queue, 1, partition=partition, ids=["a"])
        assert result["status"] == "queued"


async def test_a_repeat_after_a_restart_is_a_duplicate(
    http: httpx.AsyncClient, start_broker: StartBroker
) -> None:
    (first,) = await push(http, "q", "first", ids=["a"])
    other = await start_broker()
    async with httpx.AsyncClient(base_url=other.address) as there:
        (again,) = await push(there, "q", "again", ids=["a"])
        assert (again["status"], again["message_id"]) == ("duplicate", first["message_id"])
        assert data(await take(there, "q", batch=10)) == ["first"]


async def test_of_many_repeats_at_once_one_is_stored(
    http: httpx.AsyncClient, start_broker: StartBroker, database_url: str
) -> None:
    other = await start_broker()
    async with httpx.AsyncClient(base_url=other.address) as there:
        answers = await asyncio.gather(
            *(push(client, "q", n, ids=["a"]) for n in range(20) for client in (http, there))
        )
    results = [answer[0] for answer in answers]
    assert sorted(r["status"] for r in results) == ["duplicate"] * 39 + ["queued"]
    assert len({r["message_id"] for r in results}) == 1
    assert len(await stored(database_url, "q")) == 1


# order


async def test_order_is_strict_inside_a_partition(http: httpx.AsyncClient) -> None:
    for start in range(0, 100, 10):
        items = [{"queue": "q", "partition": str(n % 3), "payload": n} for n in range(start, start + 10)]
        assert (await http.post("/api/v1/push", json={"items": items})).status_code == 201
    for partition in range(3):
        seen: list[int] = []
        while messages := await take(http, "q", partition=str(partition), batch=7):
            seen += data(messages)
            await done(http, *messages)
        assert seen == list(range(partition, 100, 3))


# delete


async def test_delete_a_queue(http: httpx.AsyncClient, database_url: str) -> None:
    await configure(http, "q", maxSize=3)
    await push(http, "q", 1, 2, ids=["a", "b"])
    (message,) = await take(http, "q", consumerGroup="g")
    await ack(http, message, "dlq")
    answer = await http.delete("/api/v1/resources/queues/q")
    assert answer.status_code == 200
    assert answer.json() == {"deleted": True, "queue": "q", "existed": True}
    assert await take(http, "q", consumerGroup="g") == []
    assert await stored(database_url, "q") == []
    assert await dead(http, "q") == []
    results = await push(http, "q", *range(5), ids=["a", "b", "c", "d", "e"])
    assert {r["status"] for r in results} == {"queued"}  # maxSize is gone as well
    assert data(await take(http, "q", consumerGroup="g", batch=9)) == [0, 1, 2, 3, 4]


async def test_delete_a_queue_that_does_not_exist(http: httpx.AsyncClient) -> None:
    answer = await http.delete("/api/v1/resources/queues/none")
    assert answer.status_code == 200
    check(answer.json(), {"deleted": bool, "queue": str, "existed": bool})
    assert answer.json()["existed"] is False


async def test_delete_voids_the_leases(http: httpx.AsyncClient) -> None:
    await push(http, "q", 1, ids=["a"])
    (message,) = await take(http, "q")
    await http.delete("/api/v1/resources/queues/q")
    await push(http, "q", 2, ids=["a"])
    assert (await ack(http, message))["success"] is False
    assert data(await take(http, "q")) == [2]


async def test_a_queue_deleted_and_made_anew_at_another_broker(
    http: httpx.AsyncClient, start_broker: StartBroker
) -> None:
    """Whatever this broker remembers of the old one, a pop finds what there is."""
    other = await start_broker()
    async with httpx.AsyncClient(base_url=other.address) as there:
        for n in range(10):
            await push(http, "q", n)
            for query in ({}, {"partition": "Default"}):
                assert data(await take(http, "q", consumerGroup=str(query), **query)) == [n]
            await there.delete("/api/v1/resources/queues/q")
            await push(there, "q", "new")
            for query in ({}, {"partition": "Default"}):
                assert data(await take(http, "q", consumerGroup=str(query), **query)) == ["new"]
            await http.delete("/api/v1/resources/queues/q")


async def test_a_queue_made_anew_is_found_even_if_the_notice_is_lost(
    http: httpx.AsyncClient, broker: Broker, start_broker: StartBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(broker.notices, "_received", lambda _notice: None)
    await push(http, "q", "old")
    assert data(await take(http, "q")) == ["old"]
    other = await start_broker()
    async with httpx.AsyncClient(base_url=other.address) as there:
        await there.delete("/api/v1/resources/queues/q")
        await push(there, "q", "new")
    assert data(await take(http, "q")) == ["new"]
