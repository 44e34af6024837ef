"""The contract, black box: every queue option is enforced."""

from __future__ import annotations

import asyncio
import base64
from datetime import timedelta
from typing import Any

import asyncpg
import httpx
import pytest

from queenstream.broker.app import Broker
from tests.acceptance.speaking import (
    Json,
    ack,
    configure,
    data,
    dead,
    done,
    push,
    refused,
    stored,
    take,
)
from tests.conftest import Clock, StartBroker

K1 = "k1:" + base64.b64encode(bytes(range(32))).decode()
K2 = "k2:" + base64.b64encode(bytes(range(32, 64))).decode()


# delayedProcessing


async def test_delayed_processing_hides_a_message_until_it_is_that_old(
    http: httpx.AsyncClient, clock: Clock
) -> None:
    await configure(http, "q", delayedProcessing=60)
    await push(http, "q", 1)
    clock.turn(30)
    await push(http, "q", 2)
    assert await take(http, "q", batch=9) == []
    clock.turn(29)
    assert await take(http, "q", batch=9) == []
    clock.turn(2)
    first = await take(http, "q", batch=9)
    assert data(first) == [1]
    await done(http, *first)
    assert await take(http, "q", batch=9) == []
    clock.turn(30)
    assert data(await take(http, "q", batch=9)) == [2]


# windowBuffer


async def test_window_buffer_withholds_a_partition_until_it_is_quiet(
    http: httpx.AsyncClient, clock: Clock
) -> None:
    await configure(http, "q", windowBuffer=10)
    await push(http, "q", 1)
    await push(http, "q", "quiet", partition="other")
    for n in (2, 3):
        clock.turn(8)
        assert await take(http, "q", partition="Default") == []
        await push(http, "q", n)
    assert await take(http, "q", partition="Default", batch=9) == []
    assert data(await take(http, "q", batch=9)) == ["quiet"]  # each partition for itself
    clock.turn(9)
    assert await take(http, "q", batch=9) == []
    clock.turn(2)
    assert data(await take(http, "q", batch=9)) == [1, 2, 3]


async def test_a_duplicate_does_not_disturb_a_quiet_partition(http: httpx.AsyncClient, clock: Clock) -> None:
    await configure(http, "q", windowBuffer=10)
    await take(http, "q")
    await push(http, "q", 1, ids=["a"])
    clock.turn(8)
    assert (await push(http, "q", 1, ids=["a"]))[0]["status"] == "duplicate"
    clock.turn(3)
    assert data(await take(http, "q")) == [1]


async def test_a_push_into_a_window_does_not_shorten_a_retry_delay(
    http: httpx.AsyncClient, clock: Clock
) -> None:
    await configure(http, "q", windowBuffer=1, retryDelay=60_000)
    await push(http, "q", 1)
    clock.turn(2)
    (message,) = await take(http, "q")
    await ack(http, message, "failed")
    clock.turn(5)
    await push(http, "q", 2)
    clock.turn(5)
    assert await take(http, "q", batch=9) == []
    clock.turn(51)
    assert data(await take(http, "q", batch=9)) == [1, 2]


async def test_a_window_behind_a_processing_delay_waits_for_quiet_only(
    http: httpx.AsyncClient, clock: Clock
) -> None:
    await configure(http, "q", windowBuffer=10, delayedProcessing=60)
    await take(http, "q")
    await push(http, "q", 1)
    clock.turn(45)
    await push(http, "q", 2)
    clock.turn(16)
    assert data(await take(http, "q", batch=9)) == [1]  # old enough, and quiet for 16 s


# ttl and retention


async def test_ttl(http: httpx.AsyncClient, broker: Broker, clock: Clock, database_url: str) -> None:
    await configure(http, "q", ttl=60)
    await push(http, "q", "old")
    clock.turn(50)
    await push(http, "q", "young")
    assert await take(http, "unused") == []
    clock.turn(11)
    assert data(await take(http, "q", batch=9)) == ["young"]  # gone from pops at once
    await broker.background.expire()
    assert await stored(database_url, "q") == [b'"young"']
    clock.turn(500)
    assert await take(http, "q", batch=9, consumerGroup="g") == []
    await broker.background.expire()
    assert await stored(database_url, "q") == []


async def test_by_default_a_message_is_kept_for_ever(
    http: httpx.AsyncClient, broker: Broker, clock: Clock, database_url: str
) -> None:
    """Also in a queue that a push has made, and one whose options were replaced."""
    assert (await configure(http, "configured"))["options"]["ttl"] == 0
    await configure(http, "replaced", ttl=60)
    await configure(http, "replaced", leaseTime=60)
    queues = ("pushed", "configured", "replaced")
    for queue in queues:
        await push(http, queue, 1)
    clock.turn(365 * 86_400)
    await broker.background.expire()
    for queue in queues:
        assert await stored(database_url, queue) == [b"1"]
        assert data(await take(http, queue)) == [1]


async def test_what_expired_leaves_no_gap_and_may_be_pushed_again(
    http: httpx.AsyncClient, broker: Broker, clock: Clock
) -> None:
    await configure(http, "q", ttl=60)
    await push(http, "q", 1, ids=["a"])
    clock.turn(61)
    await broker.background.expire()
    assert (await push(http, "q", 2, ids=["a"]))[0]["status"] == "queued"
    assert data(await take(http, "q", batch=9)) == [2]


async def test_the_store_is_swept_without_being_asked(
    http: httpx.AsyncClient, clock: Clock, database_url: str
) -> None:
    await configure(http, "q", ttl=60)
    await push(http, "q", 1)
    clock.turn(61)
    async with asyncio.timeout(10):
        while await stored(database_url, "q"):  # noqa: ASYNC110 - the broker's upkeep tells nobody
            await asyncio.sleep(0.2)


async def test_retention_of_what_is_pending(
    http: httpx.AsyncClient, broker: Broker, clock: Clock, database_url: str
) -> None:
    await configure(http, "kept", retentionSeconds=30)
    await configure(http, "q", retentionEnabled=True, retentionSeconds=30)
    for queue in ("q", "kept"):
        await push(http, queue, 1)
    clock.turn(31)
    assert await take(http, "q") == []
    assert data(await take(http, "kept")) == [1]
    await broker.background.expire()
    assert await stored(database_url, "q") == []
    assert await stored(database_url, "kept") == [b"1"]


async def test_retention_of_what_is_completed(
    http: httpx.AsyncClient, broker: Broker, clock: Clock, database_url: str
) -> None:
    await configure(http, "q", retentionEnabled=True, completedRetentionSeconds=30)
    await push(http, "q", 1, 2, 3)
    one, two = await take(http, "q", batch=2, consumerGroup="fast")
    await done(http, one, two)
    await done(http, *await take(http, "q", consumerGroup="slow"))
    clock.turn(20)
    await broker.background.expire()
    assert len(await stored(database_url, "q")) == 3
    clock.turn(11)
    await broker.background.expire()
    assert await stored(database_url, "q") == [b"2", b"3"]  # 2 waits for the slow group
    assert data(await take(http, "q", batch=9, consumerGroup="slow")) == [2, 3]
    assert data(await take(http, "q", batch=9, consumerGroup="fast")) == [3]


# maxSize


async def test_max_size_refuses_with_429_and_stores_nothing(
    http: httpx.AsyncClient, database_url: str
) -> None:
    await configure(http, "q", maxSize=3)
    (first, _) = await push(http, "q", 1, 2, ids=["a", "b"])
    for payloads in ([3, 4], range(100)):
        items: list[Json] = [{"queue": "q", "partition": "p", "payload": p} for p in payloads]
        items.append({"queue": "elsewhere", "payload": 0})
        answer = await http.post("/api/v1/push", json={"items": items})
        assert "q" in refused(answer, 429)
        assert int(answer.headers["retry-after"]) >= 1
    assert await stored(database_url, "q") == [b"1", b"2"]
    assert await stored(database_url, "elsewhere") == []
    await push(http, "q", 3, partition="p", ids=["c"])
    refused(await http.post("/api/v1/push", json={"items": [{"queue": "q", "payload": 4}]}), 429)
    (again,) = await push(http, "q", 1, ids=["a"])  # a repeat takes no room
    assert (again["status"], again["message_id"]) == ("duplicate", first["message_id"])
    await done(http, *await take(http, "q", partition="Default"))
    await push(http, "q", 4)
    assert len(await stored(database_url, "q")) == 4


async def test_max_size_holds_against_many_at_once(http: httpx.AsyncClient, database_url: str) -> None:
    await configure(http, "q", maxSize=5)
    bodies = [{"items": [{"queue": "q", "partition": str(n % 4), "payload": n}]} for n in range(30)]
    answers = await asyncio.gather(*(http.post("/api/v1/push", json=body) for body in bodies))
    assert sorted(a.status_code for a in answers) == [201] * 5 + [429] * 25
    assert len(await stored(database_url, "q")) == 5


async def test_a_full_queue_does_not_stop_the_others(http: httpx.AsyncClient) -> None:
    await configure(http, "full", maxSize=1)
    await push(http, "full", 1)
    answers = await asyncio.gather(
        *(
            http.post("/api/v1/push", json={"items": [{"queue": queue, "payload": 1}]})
            for queue in ("full", "free") * 10
        )
    )
    assert [a.status_code for a in answers] == [429, 201] * 10


# priority


async def test_the_higher_priority_comes_first_across_queues(http: httpx.AsyncClient) -> None:
    for queue, priority in (("low", -1), ("high", 10), ("middle", 0)):
        await configure(http, queue, "shop", "mail", priority=priority)
        await push(http, queue, queue)
        await push(http, queue, queue, partition="p")
    order: list[str] = []
    while messages := await take(http, namespace="shop"):
        order += data(messages)
    assert order == ["high"] * 2 + ["middle"] * 2 + ["low"] * 2
    together = await take(http, task="mail", consumerGroup="g", batch=5, partitions=5)
    assert data(together) == ["high"] * 2 + ["middle"] * 2 + ["low"]


async def test_a_changed_priority_holds_at_once(http: httpx.AsyncClient) -> None:
    for queue in ("a", "b"):
        await configure(http, queue, "shop")
        await push(http, queue, queue, partition="1")
        await push(http, queue, queue, partition="2")
    assert data(await take(http, namespace="shop")) == ["a"]
    await configure(http, "b", "shop", priority=1)
    assert data(await take(http, namespace="shop")) == ["b"]


# maxWaitTimeSeconds


async def test_what_waited_too_long_goes_to_the_dead_letters(http: httpx.AsyncClient, clock: Clock) -> None:
    await configure(http, "q", maxWaitTimeSeconds=60)
    await push(http, "q", "old")
    clock.turn(50)
    await push(http, "q", "young")
    clock.turn(11)
    assert data(await take(http, "q", batch=9)) == ["young"]
    (letter,) = await dead(http, "q")
    assert letter["data"] == "old"
    assert "maxWaitTimeSeconds" in letter["errorMessage"]


async def test_what_waited_too_long_goes_there_even_if_nobody_pops(
    http: httpx.AsyncClient, broker: Broker, clock: Clock
) -> None:
    await configure(http, "q", maxWaitTimeSeconds=60)
    await take(http, "q", consumerGroup="g")
    await push(http, "q", 1)
    clock.turn(61)
    await broker.background.expire()
    (letter,) = await dead(http, "q")
    assert (letter["data"], letter["consumerGroup"]) == (1, "g")


async def test_what_is_leased_does_not_wait(http: httpx.AsyncClient, broker: Broker, clock: Clock) -> None:
    await configure(http, "q", maxWaitTimeSeconds=60)
    await push(http, "q", 1)
    messages = await take(http, "q")
    clock.turn(61)
    await broker.background.expire()
    await done(http, *messages)
    assert await dead(http, "q") == []


async def test_upkeep_ends_while_younger_messages_wait_behind_the_overdue(
    http: httpx.AsyncClient, broker: Broker, clock: Clock
) -> None:
    await configure(http, "q", maxWaitTimeSeconds=60)
    await take(http, "q")
    partitions = [str(n) for n in range(120)]
    for payload in ("old", "young"):
        items = [{"queue": "q", "partition": p, "payload": payload} for p in partitions]
        assert (await http.post("/api/v1/push", json={"items": items})).status_code == 201
        clock.turn(50)
    await asyncio.wait_for(broker.background.expire(), 10)
    assert (await http.get("/api/v1/dlq?queue=q")).json()["total"] == 120
    assert data(await take(http, "q", batch=200, partitions=200)) == ["young"] * 120


# encryptionEnabled


async def test_encryption_at_rest_and_key_rotation(start_broker: StartBroker, database_url: str) -> None:
    old = await start_broker(encryption_keys=K1)
    async with httpx.AsyncClient(base_url=old.address) as http:
        await configure(http, "q", encryptionEnabled=True)
        await push(http, "q", {"card": "4711 0815"}, {"card": "4711 0816"})
        first, second = await take(http, "q", batch=2)
        assert data([first, second]) == [{"card": "4711 0815"}, {"card": "4711 0816"}]
        await ack(http, first, "dlq")
        assert data(await dead(http, "q")) == [{"card": "4711 0815"}]

    new = await start_broker(encryption_keys=f"{K2},{K1}")
    async with httpx.AsyncClient(base_url=new.address) as http:
        await push(http, "q", {"card": "4711 0817"})
        messages = await take(http, "q", batch=9, consumerGroup="g")
        assert [m["data"]["card"][-1] for m in messages] == ["5", "6", "7"]
        assert data(await dead(http, "q")) == [{"card": "4711 0815"}]

    connection = await asyncpg.connect(database_url)
    try:
        rows = await connection.fetch("select key_id, payload from queen.messages order by id")
        buried = await connection.fetch("select payload from queen.dead_letters")
    finally:
        await connection.close()
    assert [row["key_id"].split(":")[0] for row in rows] == ["k1", "k1", "k2"]
    for row in (*rows, *buried):
        assert b"4711" not in row["payload"]
        assert b"card" not in row["payload"]


async def test_encryption_needs_a_key(http: httpx.AsyncClient) -> None:
    body = {"queue": "q", "options": {"encryptionEnabled": True}}
    refused(await http.post("/api/v1/configure", json=body))


async def test_without_its_key_a_message_is_not_lost(start_broker: StartBroker) -> None:
    keyed, blind = await start_broker(encryption_keys=K1), await start_broker()
    async with (
        httpx.AsyncClient(base_url=keyed.address) as http,
        httpx.AsyncClient(base_url=blind.address) as other,
    ):
        await configure(http, "q", encryptionEnabled=True)
        await push(http, "q", 1)
        refused(await other.get("/api/v1/pop/queue/q"), 503)
        refused(await other.post("/api/v1/push", json={"items": [{"queue": "q", "payload": 2}]}), 503)
        (message,) = await take(http, "q", wait=True, timeout=3000)  # its lease was given back
        assert (message["data"], message["retryCount"]) == (1, 0)


async def test_what_was_stored_plain_is_read_after_encryption_is_turned_on(start_broker: StartBroker) -> None:
    broker = await start_broker(encryption_keys=K1)
    async with httpx.AsyncClient(base_url=broker.address) as http:
        await push(http, "q", 1)
        await configure(http, "q", encryptionEnabled=True)
        await push(http, "q", 2)
        await configure(http, "q", encryptionEnabled=False)
        await push(http, "q", 3)
        assert data(await take(http, "q", batch=9)) == [1, 2, 3]


# deadLetterQueue and dlqAfterMaxRetries


@pytest.mark.parametrize(
    ("options", "kept"),
    [
        ({}, []),
        ({"deadLetterQueue": True}, ["exhausted", "rejected"]),
        ({"dlqAfterMaxRetries": True}, ["exhausted"]),
    ],
)
async def test_how_long_dead_letters_are_kept(
    http: httpx.AsyncClient, broker: Broker, clock: Clock, options: dict[str, Any], kept: list[str]
) -> None:
    await configure(http, "q", retryLimit=0, **options)
    await push(http, "q", "exhausted", "rejected")
    for status in ("failed", "dlq"):
        (message,) = await take(http, "q")
        assert (await ack(http, message, status))["dlq"] is True
    days = timedelta(seconds=broker.settings.dead_letter_retention).days
    clock.turn((days - 1) * 86_400)
    await broker.background.forget()
    assert sorted(data(await dead(http, "q"))) == ["exhausted", "rejected"]
    clock.turn(2 * 86_400)
    await broker.background.forget()
    assert sorted(data(await dead(http, "q"))) == kept
