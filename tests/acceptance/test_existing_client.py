"""The Python client that exists (``queen-mq`` from PyPI), unmodified, against this broker."""

from __future__ import annotations

import asyncio
import signal
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from queen import Queen

from queenstream.broker.app import Broker
from tests.acceptance.speaking import Json, data, stored
from tests.conftest import Clock, StartBroker


@pytest.fixture
async def queen(broker: Broker) -> AsyncIterator[Queen]:
    """A client of the broker. It takes the process's signals over; they are put back."""
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    client = Queen(broker.address, retry_attempts=1)
    try:
        yield client
    finally:
        await client.close()
        for number, handler in handlers.items():
            signal.signal(number, handler)


async def drain(queen: Queen, queue: str, group: str | None = None, **more: Any) -> list[Json]:
    """All messages that can be popped now, completed."""
    found: list[Json] = []
    while True:
        builder = queen.queue(queue).batch(10).partitions(10).wait(False)
        if group is not None:
            builder = builder.group(group)
        for name, value in more.items():
            builder = getattr(builder, name)(value)
        messages = await builder.pop()
        if not messages:
            return found
        found += messages
        result = await queen.ack(messages, True, {"group": group} if group else {})
        assert result["success"] is True


# queues


async def test_create_with_a_configuration(queen: Queen) -> None:
    result = await (
        queen.queue("q").namespace("shop").task("mail").config({"lease_time": 7, "max_size": 5}).create()
    )
    assert result["configured"] is True
    assert (result["queue"], result["namespace"], result["task"]) == ("q", "shop", "mail")
    assert (result["options"]["leaseTime"], result["options"]["maxSize"]) == (7, 5)
    again = await queen.queue("q").create()
    assert again["queueId"] == result["queueId"]
    assert again["options"]["maxSize"] == 0


async def test_create_and_delete_call_back(queen: Queen) -> None:
    seen: list[Json] = []

    async def success(result: Json) -> None:
        seen.append(result)

    await queen.queue("q").create().on_success(success)
    await queen.queue("q").push({"data": 1})
    await queen.queue("q").delete().on_success(success)
    assert [s.get("configured") or s.get("deleted") for s in seen] == [True, True]
    assert await queen.queue("q").wait(False).pop() == []


# push


async def test_push_one_and_many(queen: Queen) -> None:
    (one,) = await queen.queue("q").push({"data": {"n": 1}})
    assert one["status"] == "queued"
    many = await queen.queue("q").partition("p").push([{"data": {"n": n}} for n in range(2, 5)])
    assert [r["status"] for r in many] == ["queued"] * 3
    await queen.queue("q").push({"plain": "payload"})
    trace = str(uuid.uuid4())
    await queen.queue("q").push({"data": None, "traceId": trace})
    messages = await drain(queen, "q")
    by_partition = {p: data(m for m in messages if m["partition"] == p) for p in ("Default", "p")}
    assert by_partition == {
        "Default": [{"n": 1}, {"plain": "payload"}, None],
        "p": [{"n": 2}, {"n": 3}, {"n": 4}],
    }
    assert trace in [m["traceId"] for m in messages]


async def test_a_repeated_transaction_id_calls_back(queen: Queen) -> None:
    queued: list[Json] = []
    repeated: list[Json] = []

    async def success(items: list[Json]) -> None:
        queued.extend(items)

    async def duplicate(items: list[Json], _error: Exception) -> None:
        repeated.extend(items)

    for n in (1, 2):
        items = [{"transactionId": "t", "data": n}, {"transactionId": f"u{n}", "data": n}]
        await queen.queue("q").push(items).on_success(success).on_duplicate(duplicate)
    assert [i["transactionId"] for i in queued] == ["t", "u1", "u2"]
    assert [i["transactionId"] for i in repeated] == ["t"]
    assert repeated[0]["result"]["message_id"] == queued[0]["result"]["message_id"]
    assert data(await drain(queen, "q")) == [1, 1, 2]


async def test_a_refused_push_calls_back(queen: Queen) -> None:
    failed: list[Exception] = []

    async def error(_items: list[Json], why: Exception) -> None:
        failed.append(why)

    await queen.queue("x" * 300).push({"data": 1}).on_error(error)
    assert len(failed) == 1
    with pytest.raises(Exception, match="255"):
        await queen.queue("x" * 300).push({"data": 1})


async def test_buffered_push_and_flush(queen: Queen, database_url: str) -> None:
    for n in range(25):
        result = await queen.queue("q").buffer({"message_count": 10, "time_millis": 60_000}).push({"data": n})
        assert result["buffered"] is True
    await queen.queue("q").flush_buffer()
    assert data(await drain(queen, "q")) == list(range(25))
    await queen.queue("q").partition("p").buffer({"message_count": 10}).push({"data": "late"})
    await queen.flush_all_buffers()
    assert queen.get_buffer_stats()["totalBufferedMessages"] == 0
    assert data(await drain(queen, "q")) == ["late"]


async def test_close_flushes_what_is_buffered(queen: Queen, database_url: str) -> None:
    await queen.queue("q").buffer({"message_count": 100, "time_millis": 60_000}).push({"data": 1})
    await queen.close()
    assert await stored(database_url, "q") == [b"1"]


# pop and acknowledge


async def test_pop_ack_and_nack(queen: Queen, clock: Clock) -> None:
    await queen.queue("q").push([{"data": n} for n in (1, 2, 3)])
    messages = await queen.queue("q").batch(3).partitions(1).wait(False).pop()
    assert data(messages) == [1, 2, 3]
    assert (await queen.ack(messages[0]))["success"] is True
    result = await queen.ack(messages[1], False, {"error": "boom"})
    assert result["success"] is True
    assert await queen.queue("q").batch(3).wait(False).pop() == []
    clock.turn(1.1)
    again = await queen.queue("q").batch(3).wait(False).pop()
    assert [(m["data"], m["retryCount"]) for m in again] == [(2, 1), (3, 0)]
    for message, status in zip(again, (True, False), strict=True):
        message["_status"] = status
    assert (await queen.ack(again))["success"] is True
    refused = await queen.ack(again)
    assert refused["success"] is False
    assert refused["error"]


async def test_pop_with_the_sizes_left_to_the_broker(queen: Queen) -> None:
    await queen.queue("q").push([{"data": n} for n in range(3)])
    result = await queen.queue("q").wait(False).pop_result()
    assert data(result.messages)[0] == 0


async def test_pop_that_waits(queen: Queen) -> None:
    waiting = asyncio.create_task(queen.queue("q").batch(1).timeout_millis(5000).pop())
    await asyncio.sleep(0.1)
    await queen.queue("q").push({"data": 1})
    assert data(await asyncio.wait_for(waiting, 2)) == [1]
    assert await queen.queue("none").wait(True).timeout_millis(100).pop() == []


async def test_pop_that_commits_on_delivery(queen: Queen, clock: Clock) -> None:
    await queen.queue("q").push([{"data": 1}, {"data": 2}])
    assert data(await queen.queue("q").batch(1).wait(False).commit_on_delivery().pop()) == [1]
    assert data(await queen.queue("q").batch(1).wait(False).commit_on_delivery().pop()) == [2]
    clock.turn(400)
    assert await queen.queue("q").batch(1).wait(False).pop() == []


async def test_pop_by_partition_namespace_and_task(queen: Queen) -> None:
    await queen.queue("q").namespace("shop").task("mail").create()
    for partition in ("a", "b"):
        await queen.queue("q").partition(partition).push({"data": partition})
    assert data(await queen.queue("q").partition("b").wait(False).pop()) == ["b"]
    assert data(await queen.queue().namespace("shop").wait(False).pop()) == ["a"]
    assert data(await queen.queue().task("mail").group("g").wait(False).pop())[0] in ("a", "b")


async def test_groups_and_subscription_modes(queen: Queen) -> None:
    await queen.queue("q").push({"data": "old"})
    before = datetime.now(UTC) + timedelta(milliseconds=1)
    await asyncio.sleep(0.01)
    assert await drain(queen, "q", "new", subscription_mode="new") == []
    assert await drain(queen, "q", "now", subscription_from="now") == []
    await queen.queue("q").push({"data": "young"})
    for group, more, found in (
        ("all", {"subscription_mode": "all"}, ["old", "young"]),
        ("beginning", {"subscription_mode": "from_beginning"}, ["old", "young"]),
        ("plain", {}, ["old", "young"]),
        ("new", {"subscription_mode": "new"}, ["young"]),
        ("now", {"subscription_from": "now"}, ["young"]),
        ("since", {"subscription_from": before.isoformat()}, ["young"]),
    ):
        assert data(await drain(queen, "q", group, **more)) == found


async def test_renew_a_lease(queen: Queen, clock: Clock) -> None:
    await queen.queue("q").config({"lease_time": 10}).create()
    for partition in ("a", "b"):
        await queen.queue("q").partition(partition).push({"data": partition})
    messages = await queen.queue("q").batch(10).partitions(10).wait(False).pop()
    assert len(messages) == 2
    clock.turn(8)
    renewed: Any
    (renewed,) = await queen.renew(messages)  # one lease
    assert renewed["success"] is True
    assert renewed["newExpiresAt"]
    clock.turn(50)
    renewed = await queen.renew(messages[0])
    assert renewed["success"] is True
    assert (await queen.ack(messages))["success"] is True
    gone: Any = await queen.renew(messages[0]["leaseId"])
    assert gone["success"] is False
    assert gone["error"]


# consume


async def test_consume_one_by_one(queen: Queen) -> None:
    await queen.queue("q").push([{"data": n} for n in range(5)])
    seen: list[int] = []

    async def handle(message: Any) -> None:
        seen.append(message["data"])

    await queen.queue("q").group("g").batch(1).limit(5).consume(handle)
    assert seen == [0, 1, 2, 3, 4]
    assert await drain(queen, "q", "g") == []


async def test_consume_in_batches_with_many_workers(queen: Queen) -> None:
    for partition in range(6):
        items = [{"data": [partition, n]} for n in range(10)]
        await queen.queue("q").partition(str(partition)).push(items)
    seen: list[list[int]] = []

    async def handle(messages: Any) -> None:
        seen.extend(data(messages))

    builder = queen.queue("q").batch(7).partitions(2).concurrency(3).idle_millis(400).timeout_millis(200)
    await asyncio.wait_for(builder.consume(handle)._execute(), 20)
    assert sorted(seen) == [[p, n] for p in range(6) for n in range(10)]
    for partition in range(6):
        assert [n for p, n in seen if p == partition] == list(range(10))


async def test_consume_each_with_a_failure(queen: Queen) -> None:
    await queen.queue("q").config({"retry_delay": 100, "retry_limit": 1}).create()
    await queen.queue("q").push([{"data": n} for n in range(4)])
    seen: list[int] = []

    async def handle(message: Any) -> None:
        seen.append(message["data"])
        if message["data"] == 1:
            raise ValueError("one is no good")

    await queen.queue("q").batch(10).each().idle_millis(800).timeout_millis(300).consume(handle)
    assert seen == [0, 1, 1, 2, 3]
    letters = await queen.queue("q").dlq().limit(10).get()
    assert letters["total"] == 1
    assert letters["messages"][0]["data"] == 1
    assert letters["messages"][0]["errorMessage"] == "one is no good"


async def test_consume_with_callbacks_and_manual_acks(queen: Queen) -> None:
    await queen.queue("q").push([{"data": n} for n in range(3)])
    acked: list[Json] = []

    async def handle(message: Any) -> int:
        return int(message["data"])

    async def success(message: Json, _result: Any) -> None:
        acked.append(await queen.ack(message, True, {"group": "g"}))

    await queen.queue("q").group("g").batch(1).limit(3).consume(handle).on_success(success)
    assert [a["success"] for a in acked] == [True] * 3


async def test_consume_stops_at_a_signal_and_renews_its_lease(queen: Queen, clock: Clock) -> None:
    await queen.queue("q").config({"lease_time": 1}).create()
    await queen.queue("q").push([{"data": 1}])
    stop = asyncio.Event()
    seen: list[int] = []

    async def handle(message: Any) -> None:
        seen.append(message["retryCount"])
        await asyncio.sleep(1.5)  # longer than the lease
        stop.set()

    builder = queen.queue("q").batch(1).renew_lease(True, 200).timeout_millis(500)
    await builder.consume(handle, signal=stop)
    assert seen == [0]
    assert await drain(queen, "q") == []


async def test_trace_from_a_handler(queen: Queen) -> None:
    await queen.queue("q").push({"data": 1, "transactionId": "t"})
    results: list[Json] = []
    seen: list[Json] = []

    async def handle(message: Any) -> None:
        seen.append(message)
        results.append(await message["trace"]({"data": {"text": "begun"}}))
        config = {"data": {"text": "done"}, "traceName": ["order-7", "tenant"], "eventType": "step"}
        results.append(await message["trace"](config))

    await queen.queue("q").batch(1).limit(1).consume(handle)
    assert [r["success"] for r in results] == [True, True]
    found = await queen.admin.get_traces_for_message(seen[0]["partitionId"], "t")
    assert len(found["traces"]) == 2
    by_name = await queen.admin.get_traces_by_name("order-7")
    assert len(by_name["traces"]) == 1
    assert "order-7" in str(await queen.admin.get_trace_names())


# transactions


async def test_a_transaction_commits(queen: Queen) -> None:
    await queen.queue("in").push([{"data": 1}, {"data": 2}])
    messages = await queen.queue("in").group("g").batch(2).wait(False).pop()
    transaction = queen.transaction().ack(messages, "completed", {"consumer_group": "g"})
    transaction = transaction.queue("out").partition("p").push([{"data": "a"}, {"data": "b"}])
    result = await transaction.queue("log").push({"data": "c"}).commit()
    assert result["success"] is True
    assert data(await drain(queen, "out")) == ["a", "b"]
    assert data(await drain(queen, "log")) == ["c"]
    assert await drain(queen, "in", "g") == []


async def test_a_transaction_without_its_lease_fails(queen: Queen, clock: Clock, database_url: str) -> None:
    await queen.queue("in").config({"lease_time": 10}).create()
    await queen.queue("in").push({"data": 1})
    stale = await queen.queue("in").batch(1).wait(False).pop()
    clock.turn(11)
    assert data(await queen.queue("in").batch(1).wait(False).pop()) == [1]
    with pytest.raises(Exception, match="lease"):
        await queen.transaction().ack(stale).queue("out").push({"data": "a"}).commit()
    assert await stored(database_url, "out") == []


# dead letters


async def test_the_dead_letters(queen: Queen) -> None:
    for partition in ("a", "b"):
        await queen.queue("q").partition(partition).push({"data": partition})
    messages = await queen.queue("q").group("g").batch(9).partitions(9).wait(False).pop()
    for message in messages:
        assert (await queen.ack(message, "dlq", {"group": "g", "error": "poison"}))["success"] is True
    letters = await queen.queue("q").dlq("g").limit(1).offset(1).get()
    assert letters["total"] == 2
    assert len(letters["messages"]) == 1
    assert letters["messages"][0]["errorMessage"] == "poison"
    assert data((await queen.queue("q").partition("b").dlq("g").get())["messages"]) == ["b"]
    assert (await queen.queue("q").dlq("other").get())["total"] == 0
    past = await queen.queue("q").dlq().from_("2001-01-01T00:00:00Z").to("2002-01-01T00:00:00Z").get()
    assert past["messages"] == []


# administration


async def test_the_admin_reads(queen: Queen) -> None:
    await queen.queue("q").namespace("shop").task("mail").create()
    (pushed, _) = await queen.queue("q").push([{"data": 1, "transactionId": "t"}, {"data": 2}])
    (message,) = await queen.queue("q").group("g").batch(1).wait(False).pop()
    await queen.ack(message, True, {"group": "g"})
    admin = queen.admin

    assert (await admin.get_overview())["queues"] == 1
    assert [n["namespace"] for n in (await admin.get_namespaces())["namespaces"]] == ["shop"]
    assert [t["task"] for t in (await admin.get_tasks())["tasks"]] == ["mail"]
    assert [q["name"] for q in (await admin.list_queues(limit=10))["queues"]] == ["q"]
    assert (await admin.get_queue("q"))["name"] == "q"
    assert [p["name"] for p in (await admin.get_partitions(queue="q"))["partitions"]] == ["Default"]
    listed = await admin.list_messages(queue="q", limit=10)
    assert sorted(m["transactionId"] for m in listed["messages"])[-1] == "t"
    found = await admin.get_message(pushed["partition_id"], "t")
    assert found["transactionId"] == "t"
    assert await admin.get_status()
    assert [q["name"] for q in (await admin.get_queue_stats())["queues"]] == ["q"]
    assert await admin.get_queue_detail("q")
    assert await admin.get_analytics() is not None
    groups: Any = await admin.list_consumer_groups()
    assert isinstance(groups, list)
    assert [g["name"] for g in groups] == ["g"]
    assert await admin.get_consumer_group("g")
    lagging: Any = await admin.get_lagging_consumers(60)
    assert lagging == []
    assert await admin.refresh_consumer_stats()
    health = await admin.health()
    assert set(health) == {"status", "database", "server", "version"}
    await admin.metrics()  # it reads only JSON, and asks for none: the text is lost on it
    assert await admin.get_system_metrics()
    assert await admin.get_worker_metrics()


async def test_the_admin_changes(queen: Queen, clock: Clock) -> None:
    results = await queen.queue("q").push([{"data": n, "transactionId": str(n)} for n in range(4)])
    partition = results[0]["partition_id"]
    admin = queen.admin
    assert len(await drain(queen, "q", "g")) == 4

    # Back to the start, then to the end.
    await admin.seek_consumer_group("g", "q", {"timestamp": "2001-01-01T00:00:00Z"})
    assert data(await drain(queen, "q", "g")) == [0, 1, 2, 3]
    await admin.seek_consumer_group("g", "q", {"timestamp": "2001-01-01T00:00:00Z"})
    await admin.seek_consumer_group("g", "q", {"toEnd": True})
    assert await drain(queen, "q", "g") == []

    await admin.delete_message(partition, "2")
    assert data(await drain(queen, "q", "h")) == [0, 1, 3]

    (message,) = await queen.queue("q").group("i").batch(1).wait(False).pop()
    await queen.ack(message, "dlq", {"group": "i"})
    await admin.retry_message(partition, message["transactionId"])
    assert sorted(data(await drain(queen, "q", "i"))) == [0, 1, 3]

    await admin.delete_consumer_group_for_queue("h", "q")
    assert data(await drain(queen, "q", "h")) == [0, 1, 3]
    await queen.delete_consumer_group("h")
    assert data(await drain(queen, "q", "h", subscription_mode="all")) == [0, 1, 3]
    await queen.update_consumer_group_timestamp("h", "2001-01-01T00:00:00Z")


# what docs/from-queen.md says does not work


FROM_QUEEN = Path(__file__).parents[2] / "docs" / "from-queen.md"
MISSING: dict[str, Callable[[Queen], Awaitable[Any]]] = {
    "Stream": lambda queen: queen._http_client.post("/streams/v1/queries", {}),  # its run leaks a connection
    "client.kv": lambda queen: queen.kv.put("ns", "key", 1, ttl_seconds=60),
    "client.locks": lambda queen: queen.locks.get("name"),
    "lock": lambda queen: queen.lock("name", ttl_seconds=5).acquire(),
    "semaphore": lambda queen: queen.semaphore("name", 2, ttl_seconds=5).acquire(),
    "client.timers": lambda queen: queen.timers.peek("q", "key"),
    "client.ephemeral": lambda queen: queen.ephemeral.push("e", {"n": 1}),
    "queue(…).fetch": lambda queen: queen.queue("q").fetch(["Default"]),
    "changed_since": lambda queen: queen.queue("q").changed_since(),
    "queue(…).conflation()": lambda queen: queen.queue("q").group("g").conflation().wait(False).pop(),
    "admin.get_queue_depth": lambda queen: queen.admin.get_queue_depth("q"),
}


@pytest.mark.parametrize("name", MISSING)
async def test_what_does_not_work_says_so(queen: Queen, name: str) -> None:
    """If one of these works, the page is wrong."""
    assert f"`{name}`" in FROM_QUEEN.read_text(encoding="utf-8")
    await queen.queue("q").push({"data": 1})
    with pytest.raises(Exception, match=r"there is no /|unsupported|did not apply it"):
        await MISSING[name](queen)
    assert data(await drain(queen, "q")) == [1]


async def test_lists_may_be_empty(queen: Queen) -> None:
    assert await queen.queue("q").push([]) == []
    assert (await queen.ack([]))["results"] == []


# the broker goes


async def test_the_client_outlives_a_broker(start_broker: StartBroker, queen: Queen, broker: Broker) -> None:
    """Two addresses: when one does not answer, the other does."""
    other = await start_broker()
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    both = Queen([other.address, broker.address], retry_attempts=2, retry_delay_millis=50)
    try:
        await both.queue("q").push({"data": 1})
        other.http.close_listener()
        await other.http.drain(0.5)
        for n in (2, 3, 4):
            await both.queue("q").push({"data": n})
        assert data(await drain(both, "q")) == [1, 2, 3, 4]
    finally:
        await both.close()
        for number, handler in handlers.items():
            signal.signal(number, handler)
