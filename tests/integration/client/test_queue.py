"""``queen.queue(…)``: create, push, pop, acknowledge; against a real broker."""

from __future__ import annotations

import asyncio
import time
from datetime import UTC, datetime
from typing import Any

import pytest

from queenstream import AsyncQueen, PushResult, Queen
from queenstream.broker.app import Broker
from queenstream.client._async import message as messages_module
from queenstream.client._async import queue as queue_module
from queenstream.errors import (
    ClientClosed,
    ConfigError,
    Forbidden,
    LeaseLost,
    PayloadInvalid,
    QueueFull,
    Unauthorized,
)
from tests.conftest import Clock, StartBroker
from tests.integration.client.conftest import InThread
from tests.integration.test_roles import SECRET, token


async def data(queen: AsyncQueen, queue: str, batch: int = 100, **more: str) -> list[Any]:
    """What a group gets now, acknowledged."""
    asked = queen.queue(queue).batch(batch).partitions(10).auto_ack()
    if "group" in more:
        asked = asked.group(more["group"])
    return [message.data for message in await asked.pop()]


# The queue itself


async def test_create(queen: AsyncQueen) -> None:
    made = await queen.queue("q").namespace("shop").task("mail").config(lease_time=7, retry_limit=0).create()
    assert (made["configured"], made["queue"], made["namespace"], made["task"]) == (True, "q", "shop", "mail")
    assert (made["options"]["leaseTime"], made["options"]["retryLimit"], made["options"]["ttl"]) == (7, 0, 0)
    again = await queen.queue("q").config(ttl=60).create()
    assert (again["options"]["leaseTime"], again["options"]["ttl"]) == (300, 60)


async def test_seek(queen: AsyncQueen, in_thread: InThread) -> None:
    orders = queen.queue("orders").group("billing").batch(9).partitions(9).auto_ack()
    for partition in ("ann", "bob"):
        await queen.queue("orders").partition(partition).push(partition)
    assert sorted(message.data for message in await orders.pop()) == ["ann", "bob"]
    assert (await orders.seek("beginning")).partitions_updated == 2
    assert sorted(message.data for message in await orders.pop()) == ["ann", "bob"]
    await orders.partition("ann").seek(datetime(2026, 1, 1, tzinfo=UTC))
    assert [message.data for message in await orders.pop()] == ["ann"]

    def work(queen: Queen) -> None:
        same = queen.queue("orders").group("billing").batch(9)
        same.seek("beginning")
        same.seek("end")
        assert same.pop() == []
        queen.queue("orders").seek("end")  # of those that name no group
        assert queen.queue("orders").pop() == []
        with pytest.raises(ConfigError, match="this needs a queue"):
            queen.queue().namespace("shop").seek("end")

    await in_thread(work)


async def test_delete(queen: AsyncQueen) -> None:
    await queen.queue("q").push(1)
    assert await queen.queue("q").delete() is True
    assert await queen.queue("q").delete() is False
    assert await data(queen, "q") == []


async def test_options_are_enforced(queen: AsyncQueen) -> None:
    await queen.queue("q").config(max_size=2).create()
    await queen.queue("q").push([1, 2])
    with pytest.raises(QueueFull):
        await queen.queue("q").push(3)
    assert await data(queen, "q") == [1, 2]


# Push


async def test_push_one(queen: AsyncQueen) -> None:
    first = await queen.queue("q").partition("ann").push({"n": 1}, transaction_id="t", trace_id="trace")
    again = await queen.queue("q").partition("ann").push({"n": 2}, transaction_id="t")
    assert (first.status, first.transaction_id, first.trace_id, first.queue) == ("queued", "t", "trace", "q")
    assert (again.status, again.message_id) == ("duplicate", first.message_id)
    [message] = await queen.queue("q").batch(10).pop()
    assert (message.data, message.partition, message.trace_id) == ({"n": 1}, "ann", "trace")


async def test_push_several_in_order(queen: AsyncQueen) -> None:
    results = await queen.queue("q").push([{"n": n} for n in range(5)], transaction_ids=list("abcda"))
    assert [result.status for result in results] == ["queued"] * 4 + ["duplicate"]
    assert [result.index for result in results] == list(range(5))
    assert [found["n"] for found in await data(queen, "q")] == [0, 1, 2, 3]
    assert await queen.queue("q").push([]) == []


async def test_a_list_in_a_list_is_one_message(queen: AsyncQueen) -> None:
    [result] = await queen.queue("q").push([[1, 2, 3]])
    assert isinstance(result, PushResult)
    assert await data(queen, "q") == [[1, 2, 3]]


async def test_any_json_comes_back_as_it_was(queen: AsyncQueen) -> None:
    payloads = [None, 0, "", False, {}, "ü\u2028", 1.5, {"a": [None, {"b": True}]}]
    for payload in payloads:
        await queen.queue("q").push(payload)
    assert await data(queen, "q") == payloads


async def test_more_than_fit_one_request(queen: AsyncQueen, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queue_module, "MOST_ITEMS", 3)
    monkeypatch.setattr(messages_module, "MOST_ACKS", 3)
    results = await queen.queue("q").push(list(range(8)))
    assert [result.index for result in results] == list(range(8))
    messages = await queen.queue("q").batch(100).pop()
    assert [message.data for message in messages] == list(range(8))
    assert [result.success for result in await queen.ack(messages)] == [True] * 8
    assert await data(queen, "q") == []


async def test_what_cannot_be_pushed(queen: AsyncQueen) -> None:
    with pytest.raises(PayloadInvalid, match="object cannot be written as JSON"):
        await queen.queue("q").push([{"n": 1}, {"n": object()}])
    with pytest.raises(ConfigError, match="2 messages and 1 transaction_ids"):
        await queen.queue("q").push([1, 2], transaction_ids=["a"])
    untyped: Any = queen.queue("q")
    with pytest.raises(ConfigError, match="a list takes transaction_ids"):
        await untyped.push([1], transaction_id="a")
    with pytest.raises(ConfigError, match="one message takes transaction_id"):
        await untyped.push(1, transaction_ids=["a"])
    with pytest.raises(ConfigError, match="this needs a queue"):
        await queen.queue().namespace("shop").push(1)
    assert await data(queen, "q") == []


async def test_names_of_every_kind(queen: AsyncQueen) -> None:
    queue, partition, group = "a/b c?d=e&f#g", "ü/%20", "x&y=z"
    await queen.queue(queue).partition(partition).push(1)
    [message] = await queen.queue(queue).partition(partition).group(group).pop()
    assert (message.queue, message.partition, message.consumer_group) == (queue, partition, group)
    await message.ack()


# Pop


async def test_pop_takes_what_there_is(queen: AsyncQueen) -> None:
    assert await queen.queue("q").pop() == []
    await queen.queue("q").push([1, 2, 3])
    [one] = await queen.queue("q").pop()
    assert one.data == 1
    assert await queen.queue("q").pop() == []  # the lease is out
    await one.ack()
    assert [message.data for message in await queen.queue("q").batch(10).pop()] == [2, 3]


@pytest.mark.parametrize("partitions", [1, 2])
async def test_each_message_knows_where_it_comes_from(queen: AsyncQueen, partitions: int) -> None:
    names = [f"p{number}" for number in range(partitions)]
    for name in names:
        await queen.queue("q").partition(name).push(["a", "b"])
    popped = await queen.queue("q").group("g").batch(10).partitions(partitions).pop()
    assert sorted({message.partition for message in popped}) == names
    assert len({message.partition_id for message in popped if message.partition_id}) == partitions
    (lease,) = {message.lease_id for message in popped}
    assert lease is not None
    assert {(message.queue, message.consumer_group) for message in popped} == {("q", "g")}
    for message in popped:
        await message.ack()
    assert not await queen.queue("q").group("g").batch(10).partitions(9).pop()


async def test_a_partition_or_several(queen: AsyncQueen) -> None:
    for name in ("a", "b", "c"):
        await queen.queue("q").partition(name).push([name] * 2)
    [only] = await queen.queue("q").partition("b").pop()
    await only.retry()
    popped = await queen.queue("q").batch(10).partitions(2).pop()
    assert len({message.partition for message in popped}) == 2
    assert len({message.lease_id for message in popped}) == 1
    rest = await queen.queue("q").batch(10).partitions(10).pop()
    assert len({message.partition for message in [*popped, *rest]}) == 3


async def test_groups_each_get_everything(queen: AsyncQueen) -> None:
    await queen.queue("q").push([1, 2])
    assert await data(queen, "q", group="a") == [1, 2]
    assert await data(queen, "q", group="b") == [1, 2]
    assert await data(queen, "q") == [1, 2]
    assert await data(queen, "q", group="a") == []


async def test_where_a_new_group_starts(queen: AsyncQueen, clock: Clock) -> None:
    queue = queen.queue("q").batch(10)
    await queue.push(["old"])
    clock.turn(60)
    middle = clock()
    clock.turn(60)
    await queue.push(["later"])
    assert await queue.group("new").subscription_mode("new").pop() == []
    assert await queue.group("now").subscription_from("now").pop() == []
    await queue.push(["newest"])
    found = {
        "new": await queue.group("new").pop(),
        "now": await queue.group("now").pop(),
        "since": await queue.group("since").subscription_from(middle).pop(),
        "all": await queue.group("all").subscription_mode("all").pop(),
    }
    assert {name: [message.data for message in messages] for name, messages in found.items()} == {
        "new": ["newest"],
        "now": ["newest"],
        "since": ["later", "newest"],
        "all": ["old", "later", "newest"],
    }


async def test_a_wait_ends_with_the_push(queen: AsyncQueen) -> None:
    waiting = asyncio.create_task(queen.queue("q").wait("20s").pop())
    await asyncio.sleep(0.1)  # it is on its way: a push that came before it would prove nothing
    began = time.monotonic()
    await queen.queue("q").push("here")
    [message] = await waiting
    assert message.data == "here"
    assert time.monotonic() - began < 5


async def test_a_wait_ends_empty(queen: AsyncQueen) -> None:
    began = time.monotonic()
    assert await queen.queue("q").wait("300ms").pop() == []
    assert time.monotonic() - began >= 0.25


async def test_a_wait_may_be_longer_than_the_timeout(broker: Broker) -> None:
    async with AsyncQueen(broker.address, timeout="200ms") as queen:
        assert await queen.queue("q").wait("600ms").pop() == []


async def test_pop_across_queues(queen: AsyncQueen) -> None:
    await queen.queue("a").namespace("shop").task("mail").create()
    await queen.queue("b").namespace("shop").create()
    await queen.queue("a").push("of a")
    await queen.queue("b").push("of b")
    [mail] = await queen.queue().task("mail").pop()
    assert (mail.queue, mail.data) == ("a", "of a")
    [other] = await queen.queue().namespace("shop").pop()
    assert (other.queue, other.data) == ("b", "of b")


async def test_auto_ack_has_nothing_to_settle(queen: AsyncQueen) -> None:
    await queen.queue("q").push([1, 2])
    messages = await queen.queue("q").batch(10).auto_ack().pop()
    assert [message.settled for message in messages] == [True, True]
    await messages.ack()
    assert await data(queen, "q") == []


# What is said about messages


async def test_ack(queen: AsyncQueen) -> None:
    await queen.queue("q").push(1)
    [message] = await queen.queue("q").pop()
    assert (message.settled, message.lost) == (False, False)
    await message.ack()
    assert message.settled
    assert await data(queen, "q") == []


async def test_nack_counts_and_ends_in_the_dead_letters(queen: AsyncQueen) -> None:
    await queen.queue("q").config(retry_limit=1, retry_delay=0).create()
    await queen.queue("q").push([1, 2])
    for tries in range(2):
        [message] = await queen.queue("q").group("g").pop()
        assert (message.data, message.retry_count) == (1, tries)
        await message.nack(ValueError("too small"))
    [next_one] = await queen.queue("q").group("g").pop()
    assert next_one.data == 2
    [letter] = await queen.dlq("q").list()
    assert (letter.data, letter.error_message, letter.consumer_group) == (1, "ValueError: too small", "g")


async def test_retry_counts_nothing(queen: AsyncQueen) -> None:
    await queen.queue("q").config(retry_limit=0).create()
    await queen.queue("q").push(1)
    for _ in range(3):
        [message] = await queen.queue("q").pop()
        assert message.retry_count == 0
        await message.retry()


async def test_dead_letter_at_once(queen: AsyncQueen) -> None:
    await queen.queue("q").push([1, 2])
    [message] = await queen.queue("q").pop()
    await message.dead_letter("not for us")
    assert await data(queen, "q") == [2]
    assert [letter.error_message async for letter in queen.dlq("q")] == ["not for us"]


async def test_several_together(queen: AsyncQueen) -> None:
    await queen.queue("q").config(retry_delay=0).create()
    await queen.queue("q").push([1, 2, 3, 4])
    messages = await queen.queue("q").batch(4).pop()
    await messages[0].ack()
    assert [message.data for message in messages.unsettled] == [2, 3, 4]
    await messages.nack("no")
    assert messages.unsettled == []
    again = await queen.queue("q").batch(4).pop()
    assert [message.data for message in again] == [2, 3, 4]
    await again.retry()
    last = await queen.queue("q").batch(4).pop()
    await last.ack()
    assert await data(queen, "q") == []


async def test_results_of_many_acknowledgements(queen: AsyncQueen, clock: Clock) -> None:
    await queen.queue("q").push(1)
    await queen.queue("r").push(2)
    [late] = await queen.queue("q").group("g").pop()
    clock.turn(301)
    [taken] = await queen.queue("q").group("g").pop()
    [fine] = await queen.queue("r").group("h").pop()
    results = await queen.ack([late, fine])
    assert [result.success for result in results] == [False, True]
    assert results[0].error
    [result] = await queen.nack(taken, "no luck")
    assert (result.success, result.redelivered) == (True, True)
    assert await queen.ack([]) == []


async def test_too_late_is_an_error(queen: AsyncQueen, clock: Clock) -> None:
    await queen.queue("q").push([1, 2])
    messages = await queen.queue("q").batch(2).pop()
    clock.turn(301)
    [again] = await queen.queue("q").pop()
    for late in (messages[0].ack, messages[0].nack, messages.ack, messages[1].renew):
        with pytest.raises(LeaseLost, match="will come again"):
            await late()
    assert messages[0].lost  # the renewal was refused
    assert not again.lost
    await again.ack()


async def test_renew(queen: AsyncQueen, clock: Clock) -> None:
    await queen.queue("q").push(1)
    [message] = await queen.queue("q").pop()
    clock.turn(200)
    await message.renew()
    clock.turn(200)
    assert await queen.queue("q").pop() == []
    await message.ack()


async def test_traces(queen: AsyncQueen) -> None:
    await queen.queue("q").push(1)
    [message] = await queen.queue("q").group("g").pop()
    await message.trace({"step": "charged"}, names=["order-7"], event_type="info")
    [trace] = await queen.admin.traces(message.partition_id, message.transaction_id)
    assert (trace.data, trace.event_type, trace.consumer_group) == ({"step": "charged"}, "info", "g")
    [by_name] = await queen.admin.traces_by_name("order-7")
    assert by_name.transaction_id == message.transaction_id


# The client


async def test_a_closed_client(broker: Broker) -> None:
    queen = AsyncQueen(broker.address)
    await queen.queue("q").push(1)
    await queen.close()
    await queen.close()
    with pytest.raises(ClientClosed, match="make a new one"):
        await queen.queue("q").push(1)


async def test_tokens(start_broker: StartBroker) -> None:
    broker = await start_broker(auth_secret=SECRET)
    async with AsyncQueen(broker.address) as nobody:
        with pytest.raises(Unauthorized, match="give the client a token"):
            await nobody.queue("q").push(1)
    async with AsyncQueen(broker.address, token=token("read-only")) as reader:
        assert await reader.admin.queues() == []
        with pytest.raises(Forbidden, match="ask for a token with that role"):
            await reader.queue("q").push(1)
    async with AsyncQueen(broker.address, token=token("read-write", sub="ann")) as writer:
        await writer.queue("q").push(1)
        [message] = await writer.queue("q").pop()
        assert message.producer_sub == "ann"


async def test_one_connection_serves_one_caller(queen: AsyncQueen, broker: Broker) -> None:
    for n in range(20):
        await queen.queue("q").push(n)
    assert [len(known.idle) for known in queen._calls._brokers.all] == [1]


async def test_the_synchronous_client_is_the_same(in_thread: InThread) -> None:
    def work(queen: Queen) -> None:
        queue = queen.queue("q").config(retry_limit=0, retry_delay=0)
        assert queue.create()["configured"] is True
        result = queue.partition("ann").push({"n": 1}, transaction_id="t")
        assert (result.status, result.transaction_id) == ("queued", "t")
        assert [r.status for r in queue.partition("ann").push([{"n": 2}, {"n": 3}])] == ["queued"] * 2
        messages = queue.group("g").batch(3).wait("5s").pop()
        assert [message.data["n"] for message in messages] == [1, 2, 3]
        messages[0].ack()
        messages[1].nack("broken")
        assert [letter.error_message for letter in queen.dlq("q").list()] == ["broken"]
        [third] = queue.group("g").pop()
        third.renew()
        third.trace({"step": 1})
        assert queen.admin.traces(third.partition_id, "t") == []
        assert [result.success for result in queen.ack([third])] == [True]
        with pytest.raises(LeaseLost):
            messages.ack()
        assert queue.group("g").wait("100ms").pop() == []
        assert queue.delete() is True

    await in_thread(work)
