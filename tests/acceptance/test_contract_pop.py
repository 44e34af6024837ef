"""The contract, black box: pop by every address, groups and subscriptions, waiting, autoAck, disconnects."""

from __future__ import annotations

import asyncio
import itertools
import time

import httpx
import pytest

from queenstream.broker.app import Broker
from tests.acceptance.speaking import (
    OPTIONAL,
    Fields,
    Json,
    ack,
    check,
    configure,
    data,
    done,
    extend,
    moment,
    pop,
    push,
    refused,
    take,
    until,
)
from tests.conftest import Clock, StartBroker

POPPED: Fields = {
    "success": bool,
    "queue": str,
    "partition": str,
    "partitionId": str,
    "leaseId": str,
    "consumerGroup": str,
    "messages": list,
    "partitionsClaimed": int,
    "leaseSeconds": (int, type(None)),
}
MESSAGE: Fields = {
    "id": str,
    "transactionId": str,
    "traceId": OPTIONAL,
    "data": dict,
    "producerSub": OPTIONAL,
    "createdAt": moment,
    "partitionId": str,
    "partition": str,
    "leaseId": str,
    "consumerGroup": str,
    "queue": str,
    "retryCount": int,
}


async def test_pop_answers_the_contract(http: httpx.AsyncClient) -> None:
    (pushed,) = await push(http, "q", {"n": 1}, partition="p", ids=["t"])
    popped = await pop(http, "q")
    assert popped is not None
    check(popped, POPPED)
    (message,) = popped["messages"]
    check(message, MESSAGE)
    assert popped["success"] is True
    assert (popped["queue"], popped["partition"]) == ("q", "p")
    assert popped["consumerGroup"] == "__QUEUE_MODE__"
    assert popped["partitionsClaimed"] == 1
    assert message["id"] == pushed["message_id"]
    assert message["transactionId"] == "t"
    assert message["data"] == {"n": 1}
    assert message["retryCount"] == 0
    for field in ("partition", "partitionId", "leaseId", "consumerGroup", "queue"):
        assert message[field] == popped[field]


async def test_a_brief_answer_says_what_is_shared_once(http: httpx.AsyncClient) -> None:
    await configure(http, "q", retryDelay=0)
    await push(http, "q", {"n": 1}, {"n": 2}, partition="p", ids=["t", "u"])
    popped = await pop(http, "q", batch=2, brief=True)
    assert popped is not None
    check(popped, POPPED)
    assert (popped["queue"], popped["partition"]) == ("q", "p")
    for message in popped["messages"]:
        assert set(message) == {"id", "transactionId", "data", "createdAt"}
    assert data(popped["messages"]) == [{"n": 1}, {"n": 2}]
    shared = {name: popped[name] for name in ("partitionId", "leaseId", "consumerGroup")}
    await ack(http, {**popped["messages"][0], **shared}, "failed")
    again = await pop(http, "q", batch=2, brief=True)
    assert again is not None
    tries = {message["transactionId"]: message["retryCount"] for message in again["messages"]}
    assert tries == {"t": 1, "u": 0}  # written for all where one has tries


async def test_several_partitions_cannot_be_brief(http: httpx.AsyncClient) -> None:
    for partition in "ab":
        await push(http, "q", {"n": 1}, partition=partition)
    popped = await pop(http, "q", batch=10, partitions=2, brief=True)
    assert popped is not None
    for message in popped["messages"]:
        check(message, MESSAGE)
    assert {message["partition"] for message in popped["messages"]} == {"a", "b"}


async def test_nothing_is_204_without_a_body(http: httpx.AsyncClient) -> None:
    await configure(http, "q", namespace="n", task="t")
    for path in (
        "/queue/q",
        "/queue/q?wait=false",
        "/queue/never-heard-of",
        "/queue/q/partition/none",
        "?namespace=n",
        "?task=none",
    ):
        answer = await http.get("/api/v1/pop" + path)
        assert (answer.status_code, answer.content) == (204, b"")


async def test_batch_bounds_the_answer_and_its_default_is_one(http: httpx.AsyncClient) -> None:
    await push(http, "q", 1, 2, 3, 4, 5)
    first = await take(http, "q")
    assert data(first) == [1]
    await done(http, *first)
    second = await take(http, "q", batch=3)
    assert data(second) == [2, 3, 4]
    await done(http, *second)
    assert data(await take(http, "q", batch=100)) == [5]


async def test_pop_from_one_partition_only(http: httpx.AsyncClient) -> None:
    for partition in ("a", "b"):
        await push(http, "q", partition, partition=partition)
    popped = await pop(http, "q", partition="b", batch=10)
    assert popped is not None
    assert (popped["partition"], data(popped["messages"])) == ("b", ["b"])
    assert await pop(http, "q", partition="b") is None
    assert data(await take(http, "q", partition="a")) == ["a"]


async def test_pop_by_namespace_and_task(http: httpx.AsyncClient) -> None:
    for namespace, task in itertools.product(("n1", "n2"), ("t1", "t2")):
        await configure(http, f"{namespace}{task}", namespace, task)
        await push(http, f"{namespace}{task}", f"{namespace}{task}")

    async def drain(group: str, **query: str) -> list[str]:
        found: list[str] = []
        while messages := await take(http, consumerGroup=group, **query):
            found += data(messages)
            assert [m["queue"] for m in messages] == data(messages)
        return sorted(found)

    assert await drain("a", namespace="n1") == ["n1t1", "n1t2"]
    assert await drain("b", task="t2") == ["n1t2", "n2t2"]
    assert await drain("c", namespace="n2", task="t1") == ["n2t1"]
    assert await drain("d", namespace="n3") == []


async def test_pop_from_everywhere_is_refused(http: httpx.AsyncClient) -> None:
    refused(await http.get("/api/v1/pop"))


# several partitions under one lease


async def test_partitions_share_one_lease(http: httpx.AsyncClient) -> None:
    for partition in "abc":
        await push(http, "q", f"{partition}1", f"{partition}2", partition=partition)
    popped = await pop(http, "q", batch=10, partitions=2)
    assert popped is not None
    messages = popped["messages"]
    assert popped["partitionsClaimed"] == 2
    assert len(messages) == 4
    assert {m["leaseId"] for m in messages} == {popped["leaseId"]}
    assert popped["partition"] == messages[0]["partition"]
    for partition in {m["partition"] for m in messages}:
        assert data(m for m in messages if m["partition"] == partition) == [f"{partition}1", f"{partition}2"]
    rest = await pop(http, "q", batch=10, partitions=5)
    assert rest is not None
    assert rest["partitionsClaimed"] == 1
    await done(http, *messages, *rest["messages"])
    assert await pop(http, "q", batch=10, partitions=5) is None


async def test_partitions_share_the_batch(http: httpx.AsyncClient) -> None:
    for partition in "abc":
        await push(http, "q", 1, 2, partition=partition)
    assert len(await take(http, "q", batch=3, partitions=3)) == 3


async def test_one_extension_holds_all_partitions_of_a_lease(http: httpx.AsyncClient, clock: Clock) -> None:
    await configure(http, "q", leaseTime=10)
    for partition in "abc":
        await push(http, "q", partition, partition=partition)
    popped = await pop(http, "q", batch=10, partitions=3)
    assert popped is not None
    clock.turn(8)
    assert (await extend(http, popped["leaseId"], 30))["success"] is True
    clock.turn(20)
    assert await pop(http, "q", batch=10, partitions=3) is None
    await done(http, *popped["messages"])


# groups


async def test_groups_have_their_own_cursors(http: httpx.AsyncClient) -> None:
    await push(http, "q", 1, 2)
    for group in ("a", "b", None):
        query = {} if group is None else {"consumerGroup": group}
        popped = await pop(http, "q", batch=10, **query)
        assert popped is not None
        assert popped["consumerGroup"] == (group or "__QUEUE_MODE__")
        assert data(popped["messages"]) == [1, 2]
        if group != "b":
            await done(http, *popped["messages"])
    for group in ("a", "b"):
        assert await take(http, "q", consumerGroup=group) == []  # done; and leased


@pytest.mark.parametrize(
    "query", [{"subscriptionMode": "new"}, {"subscriptionMode": "new-only"}, {"subscriptionFrom": "now"}]
)
async def test_new_starts_at_the_first_pop(http: httpx.AsyncClient, query: dict[str, str]) -> None:
    await push(http, "q", "old")
    assert await take(http, "q", consumerGroup="g", **query) == []
    await push(http, "q", "new")
    await push(http, "q", "elsewhere", partition="made later")
    found = await take(http, "q", consumerGroup="g", batch=10, partitions=10, **query)
    assert sorted(data(found)) == ["elsewhere", "new"]


@pytest.mark.parametrize(
    "mode", [None, "all", "from_beginning", "", "NEW", "a word that we do not know", "x" * 300]
)
async def test_every_other_mode_starts_at_the_beginning(http: httpx.AsyncClient, mode: str | None) -> None:
    await push(http, "q", 1, 2)
    query = {} if mode is None else {"subscriptionMode": mode}
    assert data(await take(http, "q", consumerGroup="g", batch=10, **query)) == [1, 2]


@pytest.mark.parametrize("zone", ["Z", "+00:00", ""])
async def test_subscription_from_a_timestamp(http: httpx.AsyncClient, clock: Clock, zone: str) -> None:
    await push(http, "q", "old")
    clock.turn(10)
    since = clock().isoformat()[:-6] + zone
    clock.turn(10)
    await push(http, "q", "new")
    await push(http, "q", "elsewhere", partition="made later")
    found = await take(http, "q", consumerGroup="g", subscriptionFrom=since, batch=10, partitions=10)
    assert sorted(data(found)) == ["elsewhere", "new"]


async def test_subscription_from_an_offset_zone(http: httpx.AsyncClient, clock: Clock) -> None:
    from datetime import timedelta, timezone

    await push(http, "q", "old")
    clock.turn(10)
    since = clock().astimezone(timezone(timedelta(hours=-7))).isoformat()
    clock.turn(10)
    await push(http, "q", "new")
    assert data(await take(http, "q", consumerGroup="g", subscriptionFrom=since, batch=10)) == ["new"]


async def test_subscription_from_the_future(http: httpx.AsyncClient, clock: Clock) -> None:
    clock.turn(60)
    since = clock().isoformat()
    clock.turn(-60)
    await push(http, "q", "now")
    assert await take(http, "q", consumerGroup="g", subscriptionFrom=since) == []
    clock.turn(61)
    await push(http, "q", "then")
    assert data(await take(http, "q", consumerGroup="g", batch=10)) == ["then"]


async def test_what_a_group_first_said_stays(http: httpx.AsyncClient, start_broker: StartBroker) -> None:
    await push(http, "q", "old")
    assert await take(http, "q", consumerGroup="g", subscriptionMode="new") == []
    assert await take(http, "q", consumerGroup="g", subscriptionMode="all") == []
    assert await take(http, "q", consumerGroup="g", subscriptionFrom="2001-01-01T00:00:00Z") == []
    other = await start_broker()
    async with httpx.AsyncClient(base_url=other.address) as there:
        assert await take(there, "q", consumerGroup="g", subscriptionMode="all") == []
        await push(there, "q", "new")
        assert data(await take(there, "q", consumerGroup="g", subscriptionMode="all", batch=9)) == ["new"]


async def test_a_new_group_that_waits_before_the_queue_exists(
    http: httpx.AsyncClient, broker: Broker
) -> None:
    waiting = asyncio.create_task(
        take(http, "q", consumerGroup="g", subscriptionMode="new", wait=True, timeout=5000)
    )
    await until(lambda: broker.popper.waiting == 1)
    await asyncio.sleep(0.05)
    await push(http, "q", "first")
    assert data(await waiting) == ["first"]


async def test_a_new_group_that_asked_before_the_queue_existed(http: httpx.AsyncClient) -> None:
    assert await take(http, "q", consumerGroup="g", subscriptionMode="new") == []
    await push(http, "q", "first")
    assert data(await take(http, "q", consumerGroup="g", subscriptionMode="new")) == ["first"]


# waiting


async def test_waiting_ends_with_204_after_the_timeout(http: httpx.AsyncClient) -> None:
    await configure(http, "q", namespace="n")
    for path in ("/queue/q", "/queue/none", "/queue/q/partition/Default", ""):
        started = time.monotonic()
        answer = await http.get(f"/api/v1/pop{path}?namespace=n&wait=true&timeout=200")
        assert (answer.status_code, answer.content) == (204, b"")
        assert 0.18 <= time.monotonic() - started < 1.5


async def test_without_wait_the_timeout_does_not_matter(http: httpx.AsyncClient) -> None:
    started = time.monotonic()
    assert await take(http, "q", timeout=10_000) == []
    assert time.monotonic() - started < 1


async def _wake(
    http: httpx.AsyncClient, broker: Broker, *args: str, **query: str
) -> asyncio.Task[list[Json]]:
    """A pop that waits, asked for and asleep."""
    waiting = asyncio.create_task(take(http, *args, wait=True, timeout=9000, **query))
    await until(lambda: broker.popper.waiting > 0)
    await asyncio.sleep(0.05)
    assert not waiting.done()
    return waiting


async def test_a_push_wakes_who_waits(http: httpx.AsyncClient, broker: Broker) -> None:
    await configure(http, "q", namespace="n", task="t")
    for n, query in enumerate(({}, {"partition": "p"}, {"namespace": "n"}, {"task": "t"})):
        queue = () if "namespace" in query or "task" in query else ("q",)
        waiting = await _wake(http, broker, *queue, **query)
        started = time.monotonic()
        await push(http, "q", n, partition="p")
        messages = await waiting
        assert time.monotonic() - started < 1
        assert data(messages) == [n]
        await done(http, *messages)


async def test_a_push_at_another_broker_wakes_who_waits_here(
    http: httpx.AsyncClient, broker: Broker, start_broker: StartBroker
) -> None:
    other = await start_broker()
    waiting = await _wake(http, broker, "q")
    started = time.monotonic()
    async with httpx.AsyncClient(base_url=other.address) as there:
        await push(there, "q", 1)
    assert data(await waiting) == [1]
    assert time.monotonic() - started < 2


async def test_each_message_goes_to_one_who_waits(http: httpx.AsyncClient, broker: Broker) -> None:
    waiting = [asyncio.create_task(take(http, "q", wait=True, timeout=9000)) for _ in range(10)]
    await until(lambda: broker.popper.waiting == 10)
    for n in range(10):
        await push(http, "q", n, partition=str(n))
    found = [data(messages) for messages in await asyncio.gather(*waiting)]
    assert sorted(found) == [[n] for n in range(10)]


async def test_an_ack_that_frees_a_partition_wakes_who_waits(http: httpx.AsyncClient, broker: Broker) -> None:
    await push(http, "q", 1, 2)
    (first,) = await take(http, "q")
    waiting = await _wake(http, broker, "q")
    started = time.monotonic()
    await done(http, first)
    assert data(await waiting) == [2]
    assert time.monotonic() - started < 1


async def test_the_end_of_a_retry_delay_wakes_who_waits(http: httpx.AsyncClient) -> None:
    await configure(http, "q", retryDelay=400)
    await push(http, "q", 1)
    (first,) = await take(http, "q")
    started = time.monotonic()
    await ack(http, first, "failed")
    (again,) = await take(http, "q", wait=True, timeout=9000)
    assert again["retryCount"] == 1
    assert 0.35 < time.monotonic() - started < 2


async def test_the_end_of_a_lease_wakes_who_waits(http: httpx.AsyncClient) -> None:
    await configure(http, "q", leaseTime=1)
    await push(http, "q", 1)
    started = time.monotonic()
    (first,) = await take(http, "q")
    (again,) = await take(http, "q", wait=True, timeout=9000)
    assert again["retryCount"] == 1
    assert again["leaseId"] != first["leaseId"]
    assert 0.9 < time.monotonic() - started < 3


async def test_the_end_of_a_processing_delay_wakes_who_waits(http: httpx.AsyncClient) -> None:
    await configure(http, "q", delayedProcessing=1)
    started = time.monotonic()
    await push(http, "q", 1)
    assert data(await take(http, "q", wait=True, timeout=9000)) == [1]
    assert 0.9 < time.monotonic() - started < 3


# autoAck


async def test_auto_ack_acknowledges_with_the_pop(http: httpx.AsyncClient, clock: Clock) -> None:
    await push(http, "q", {"n": 1}, {"n": 2}, {"n": 3})
    popped = await pop(http, "q", batch=2, autoAck=True)
    assert popped is not None
    check(popped, POPPED | {"leaseId": OPTIONAL})
    for message in popped["messages"]:
        check(message, MESSAGE | {"leaseId": OPTIONAL})
    assert data(await take(http, "q", batch=2, autoAck=True)) == [{"n": 3}]
    clock.turn(1000)
    assert await take(http, "q") == []


# a client that goes away


async def _send(broker: Broker, target: str) -> asyncio.StreamWriter:
    _, writer = await asyncio.open_connection("127.0.0.1", broker.port)
    writer.write(f"GET {target} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
    return writer


async def test_who_leaves_while_it_waits_gets_no_lease(http: httpx.AsyncClient, broker: Broker) -> None:
    writer = await _send(broker, "/api/v1/pop/queue/q?wait=true&timeout=9000")
    await until(lambda: broker.popper.waiting == 1)
    before = broker.http.connections_open
    writer.transport.abort()
    await until(lambda: broker.http.connections_open < before)
    await push(http, "q", 1)
    (message,) = await take(http, "q", wait=True, timeout=2000)
    assert message["retryCount"] == 0


async def test_who_leaves_before_the_answer_gives_the_lease_back(
    http: httpx.AsyncClient, broker: Broker
) -> None:
    await push(http, "q", 1)
    for _ in range(20):
        writer = await _send(broker, "/api/v1/pop/queue/q")
        writer.transport.abort()
    started = time.monotonic()
    (message,) = await take(http, "q", wait=True, timeout=5000)
    assert time.monotonic() - started < 2
    assert message["retryCount"] == 0


async def test_who_leaves_when_a_push_wakes_it_gives_the_lease_back(
    http: httpx.AsyncClient, broker: Broker
) -> None:
    for n in range(10):
        writer = await _send(broker, "/api/v1/pop/queue/q?wait=true&timeout=9000")
        await until(lambda: broker.popper.waiting == 1)
        pushing = asyncio.create_task(push(http, "q", n))
        await asyncio.sleep(n * 0.0005)  # at another moment of the push each time
        writer.transport.abort()
        await pushing
        messages = await take(http, "q", wait=True, timeout=2000)
        if messages:  # else the answer was written in time: the lease is the client's that left
            assert data(messages) == [n]
            assert messages[0]["retryCount"] == 0
            await done(http, *messages)
        else:
            await http.delete("/api/v1/resources/queues/q")
        await until(lambda: broker.popper.waiting == 0)


# stopping


async def test_a_broker_that_stops_answers_who_waits(
    http: httpx.AsyncClient, start_broker: StartBroker
) -> None:
    other = await start_broker()
    async with httpx.AsyncClient(base_url=other.address) as there:
        waiting = asyncio.create_task(there.get("/api/v1/pop/queue/q?wait=true&timeout=30000"))
        await until(lambda: other.popper.waiting == 1)
        await other.popper.close()
        assert (await asyncio.wait_for(waiting, 2)).status_code == 204


# By POST: the same, with the options in the query string or in the body


@pytest.mark.parametrize("place", ["query", "body"])
@pytest.mark.parametrize(
    ("path", "options"),
    [
        ("/api/v1/pop/queue/q", {}),
        ("/api/v1/pop/queue/q/partition/p", {}),
        ("/api/v1/pop", {"namespace": "n"}),
    ],
)
async def test_a_pop_by_post(http: httpx.AsyncClient, path: str, options: Json, place: str) -> None:
    await configure(http, "q", namespace="n")
    await push(http, "q", {"n": 1}, {"n": 2}, {"n": 3}, partition="p")
    options = {"batch": 2, "consumerGroup": "g", **options}
    answer = await (http.post(path, params=options) if place == "query" else http.post(path, json=options))
    assert answer.status_code == 200, answer.text
    check(answer.json(), POPPED)
    assert answer.json()["consumerGroup"] == "g"
    assert data(answer.json()["messages"]) == [{"n": 1}, {"n": 2}]
    assert (await http.post(path, params=options)).status_code == 204, "the partition is leased"


async def test_a_pop_by_post_without_options(http: httpx.AsyncClient) -> None:
    await push(http, "q", {"n": 1}, {"n": 2})
    one = await http.post("/api/v1/pop/queue/q", params={"autoAck": "true"}, json={})
    two = await http.post("/api/v1/pop/queue/q")
    assert data(one.json()["messages"] + two.json()["messages"]) == [{"n": 1}, {"n": 2}]


async def test_a_pop_by_post_has_its_options_in_one_place(http: httpx.AsyncClient) -> None:
    await push(http, "q", {"n": 1})
    both = await http.post("/api/v1/pop/queue/q", params={"batch": "2"}, json={"autoAck": True})
    assert "not into both" in refused(both)
    assert "batch" in refused(await http.post("/api/v1/pop/queue/q", json={"batch": 0}))
    assert "namespace" in refused(await http.post("/api/v1/pop"))
    assert data(await take(http, "q")) == [{"n": 1}]
