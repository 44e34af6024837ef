"""``consume``: handlers, acknowledgements, leases, ends; against a real broker."""

from __future__ import annotations

import asyncio
import re
import time
from typing import Any, Literal

import pytest

from queenstream import AsyncMessage, AsyncMessages, AsyncQueen
from queenstream.client._async.consumer import Consumed
from queenstream.errors import ConfigError, LeaseLost, Unauthorized
from tests.integration.client.conftest import StartServer
from tests.integration.client.servers import answer
from tests.integration.streams.streaming import eventually


async def left(queen: AsyncQueen, queue: str, group: str = "g") -> list[Any]:
    """What the group could have at once: nothing that is leased or done."""
    return [m.data for m in await queen.queue(queue).group(group).batch(100).partitions(10).pop()]


# Handlers


async def test_batches(queen: AsyncQueen) -> None:
    await queen.queue("q").push(list(range(25)))
    batches: list[list[int]] = []

    async def handle(messages: AsyncMessages[Any]) -> None:
        assert isinstance(messages, AsyncMessages)
        batches.append([message.data for message in messages])

    result = await queen.queue("q").group("g").batch(10).limit(25).consume(handle)
    assert batches == [list(range(10)), list(range(10, 20)), list(range(20, 25))]
    assert (result.handled, result.failed, result.lost) == (25, 0, 0)
    assert await left(queen, "q") == []


async def test_each(queen: AsyncQueen) -> None:
    await queen.queue("q").push(list(range(25)))
    seen: list[int] = []

    def handle(message: AsyncMessage[Any]) -> None:  # a plain function will do
        seen.append(message.data)

    result = await queen.queue("q").group("g").batch(10).limit(25).each().consume(handle)
    assert seen == list(range(25))
    assert result.handled == 25
    assert await left(queen, "q") == []


async def test_no_more_than_the_limit_is_taken(queen: AsyncQueen) -> None:
    await queen.queue("q").push(list(range(10)))
    seen: list[int] = []
    asked = queen.queue("q").group("g").batch(4).limit(6).concurrency(3).each()
    await asked.consume(lambda message: seen.append(message.data))
    assert sorted(seen) == list(range(6))
    assert await left(queen, "q") == [6, 7, 8, 9]


async def test_it_ends_when_nothing_comes(queen: AsyncQueen) -> None:
    await queen.queue("q").push([1, 2])
    began = time.monotonic()
    result = await queen.queue("q").group("g").idle_timeout("300ms").concurrency(2).consume(lambda ms: None)
    assert result.handled == 2
    assert 0.3 <= time.monotonic() - began < 5


async def test_idle_is_not_while_a_handler_works(queen: AsyncQueen) -> None:
    await queen.queue("q").push("slow")
    seen: list[str] = []

    async def handle(message: AsyncMessage[Any]) -> None:
        seen.append(message.data)
        if message.data == "slow":
            await asyncio.sleep(0.5)
            await queen.queue("q").push("pushed by the handler")

    await queen.queue("q").group("g").idle_timeout("200ms").concurrency(2).each().consume(handle)
    assert seen == ["slow", "pushed by the handler"]


async def test_handlers_run_at_the_same_time(queen: AsyncQueen) -> None:
    for name in "abc":
        await queen.queue("q").partition(name).push(name)
    everybody = asyncio.Barrier(3)

    async def handle(message: AsyncMessage[Any]) -> None:
        await asyncio.wait_for(everybody.wait(), 10)  # passes only if three are here at once

    result = await queen.queue("q").group("g").concurrency(3).limit(3).each().consume(handle)
    assert (result.handled, result.failed) == (3, 0)


async def test_order_inside_a_partition_with_many_workers(queen: AsyncQueen) -> None:
    for name in "abcd":
        await queen.queue("q").partition(name).push(list(range(30)))
    seen: dict[str, list[int]] = {name: [] for name in "abcd"}

    async def handle(message: AsyncMessage[Any]) -> None:
        await asyncio.sleep(0)
        seen[message.partition].append(message.data)

    await queen.queue("q").group("g").batch(7).concurrency(4).limit(120).each().consume(handle)
    assert seen == {name: list(range(30)) for name in "abcd"}


async def test_groups_and_where_they_start(queen: AsyncQueen) -> None:
    queue = queen.queue("q").group("late").subscription_mode("new").batch(10)
    await queue.push("old")
    seen: list[str] = []

    async def known() -> bool:
        return any(group.name == "late" for group in await queen.admin.groups())

    async def push_later() -> None:
        await eventually(known)
        await queen.queue("q").push("new")

    pushing = asyncio.create_task(push_later())
    await queue.limit(1).each().consume(lambda message: seen.append(message.data))
    await pushing
    assert seen == ["new"]
    assert await left(queen, "q", "other") == ["old", "new"]


async def test_a_poll_lasts_as_long_as_wait_says(serve: StartServer) -> None:
    stop = asyncio.Event()

    def behave(first: str, body: bytes) -> bytes:
        stop.set()
        return b"HTTP/1.1 204 X\r\n\r\n"

    broker = await serve(behave)
    async with AsyncQueen(broker.address) as client:
        await client.queue("q").wait("1500ms").consume(lambda ms: None, stop=stop)
    assert "wait=true&timeout=1500" in broker.requests[0]


async def test_what_is_wrong_shows_at_once(queen: AsyncQueen, serve: StartServer) -> None:
    with pytest.raises(ConfigError, match="say what to pop from"):
        await queen.queue().consume(lambda ms: None)
    locked = await serve(lambda first, body: answer(401, b'{"error":"no token"}'))
    async with AsyncQueen(locked.address) as stranger:
        with pytest.raises(Unauthorized, match="give the client a token"):
            await stranger.queue("q").concurrency(3).consume(lambda ms: None)


# Acknowledging


async def test_by_hand(queen: AsyncQueen) -> None:
    await queen.queue("q").config(lease_time=1).create()
    await queen.queue("q").push([1, 2, 3])

    async def handle(messages: AsyncMessages[Any]) -> None:
        await messages[0].ack()

    result = await queen.queue("q").group("g").batch(3).limit(3).auto_ack(False).consume(handle)
    assert result.handled == 3
    again = await queen.queue("q").group("g").batch(3).wait("5s").pop()  # when the lease has run out
    assert [message.data for message in again] == [2, 3]


async def test_what_a_handler_settles_stays_settled(queen: AsyncQueen) -> None:
    await queen.queue("q").config(retry_delay=0).create()
    await queen.queue("q").push(["dead", "again", "fine"])
    seen: list[str] = []

    async def handle(message: AsyncMessage[Any]) -> None:
        seen.append(message.data)
        if message.data == "dead":
            await message.dead_letter("by hand")
        elif message.data == "again" and message.retry_count == 0:
            await message.nack("once more")

    await queen.queue("q").group("g").batch(10).idle_timeout("300ms").each().consume(handle)
    # What follows a message that comes again waits for it.
    assert seen == ["dead", "again", "again", "fine"]
    assert [letter.data for letter in await queen.dlq("q").list()] == ["dead"]
    assert await left(queen, "q") == []


async def test_a_message_that_is_given_back_holds_those_after_it(queen: AsyncQueen) -> None:
    await queen.queue("q").push([1, 2, 3])
    seen: list[int] = []

    async def handle(message: AsyncMessage[Any]) -> None:
        seen.append(message.data)
        if seen == [1, 2]:
            await message.retry()

    await queen.queue("q").group("g").batch(10).idle_timeout("300ms").each().consume(handle)
    assert seen == [1, 2, 2, 3]


# Handlers that fail


async def test_a_failing_handler_ends_in_the_dead_letters_with_its_error(queen: AsyncQueen) -> None:
    await queen.queue("q").config(retry_limit=2, retry_delay=0).create()
    await queen.queue("q").push(["bad", "good"])
    seen: list[tuple[str, int]] = []

    async def handle(message: AsyncMessage[Any]) -> None:
        seen.append((message.data, message.retry_count))
        if message.data == "bad":
            raise ValueError("cannot be charged")

    result = await queen.queue("q").group("g").batch(10).idle_timeout("500ms").each().consume(handle)
    assert seen == [("bad", 0), ("bad", 1), ("bad", 2), ("good", 0)]
    assert (result.handled, result.failed) == (1, 3)
    [letter] = await queen.dlq("q").list()
    assert (letter.data, letter.error_message) == ("bad", "ValueError: cannot be charged")


async def test_a_failing_batch(queen: AsyncQueen) -> None:
    await queen.queue("q").config(retry_limit=0, retry_delay=0).create()
    await queen.queue("q").push([1, 2, 3])

    async def handle(messages: AsyncMessages[Any]) -> None:
        await messages[0].ack()
        raise RuntimeError("no disk")

    result = await queen.queue("q").group("g").batch(3).idle_timeout("300ms").consume(handle)
    assert result.handled == 0
    assert {letter.error_message for letter in await queen.dlq("q").list()} <= {"RuntimeError: no disk"}
    assert [letter.data for letter in await queen.dlq("q").list()] != []
    assert 1 not in [letter.data for letter in await queen.dlq("q").list()]


async def test_other_partitions_go_on(queen: AsyncQueen) -> None:
    await queen.queue("q").config(retry_delay=60_000).create()
    await queen.queue("q").partition("a").push(["a1", "a2", "a3"])
    await queen.queue("q").partition("b").push(["b1", "b2"])
    seen: list[str] = []

    async def handle(message: AsyncMessage[Any]) -> None:
        seen.append(message.data)
        if message.data == "a2":
            raise ValueError

    asked = queen.queue("q").group("g").batch(10).partitions(2).idle_timeout("300ms").each()
    result = await asked.consume(handle)
    assert sorted(seen) == ["a1", "a2", "b1", "b2"]  # a3 waits for a2
    assert (result.handled, result.failed) == (3, 1)


async def test_an_error_after_the_acknowledgement_holds_nothing_up(queen: AsyncQueen) -> None:
    await queen.queue("q").push([1, 2, 3])
    seen: list[int] = []

    async def handle(message: AsyncMessage[Any]) -> None:
        seen.append(message.data)
        if message.data == 1:
            await message.ack()
            raise RuntimeError("after the fact")

    result = await queen.queue("q").group("g").batch(10).idle_timeout("300ms").each().consume(handle)
    assert seen == [1, 2, 3]
    assert (result.handled, result.failed) == (2, 1)
    assert await left(queen, "q") == []


async def test_a_consumer_that_is_cancelled_gives_back(queen: AsyncQueen) -> None:
    await queen.queue("q").push([1, 2, 3])
    working = asyncio.Event()

    async def handle(message: AsyncMessage[Any]) -> None:
        if message.data == 2:
            working.set()
            await asyncio.Event().wait()

    consuming = asyncio.create_task(queen.queue("q").group("g").batch(3).each().consume(handle))
    await working.wait()
    consuming.cancel()
    with pytest.raises(asyncio.CancelledError):
        await consuming
    [first, second] = await queen.queue("q").group("g").batch(3).pop()  # at once, and 1 is done
    assert (first.data, first.retry_count, second.data) == (2, 0, 3)


# Leases


async def test_a_long_handler_keeps_its_lease(queen: AsyncQueen) -> None:
    await queen.queue("q").config(lease_time=1).create()
    await queen.queue("q").push([1, 2])
    lost: list[bool] = []
    working = asyncio.Event()

    async def handle(messages: AsyncMessages[Any]) -> None:
        working.set()
        await asyncio.sleep(2.2)
        lost.append(messages.lost)

    consuming = asyncio.create_task(queen.queue("q").group("g").batch(2).limit(2).consume(handle))
    await working.wait()
    rival = await queen.queue("q").group("g").wait("2s").pop()
    result = await consuming
    assert rival == []
    assert lost == [False]
    assert (result.handled, result.lost) == (2, 0)
    assert await left(queen, "q") == []


async def test_a_handler_is_told_that_its_lease_is_lost(queen: AsyncQueen) -> None:
    await queen.queue("q").config(lease_time=1).create()
    await queen.queue("q").push([1, 2])
    told: list[bool] = []

    async def handle(message: AsyncMessage[Any]) -> None:
        await queen.admin.seek("g", "q", to="end")  # every lease of the group is void
        async with asyncio.timeout(10):
            while not message.lost:  # noqa: ASYNC110 - a flag is what a handler has
                await asyncio.sleep(0.02)
        told.append(message.lost)
        with pytest.raises(LeaseLost):
            await message.ack()

    result = await queen.queue("q").group("g").limit(1).each().consume(handle)
    assert told == [True]
    assert result.handled == 1


async def test_what_is_acknowledged_too_late_is_counted(queen: AsyncQueen) -> None:
    await queen.queue("q").push([1, 2])

    async def handle(messages: AsyncMessages[Any]) -> None:
        await queen.admin.seek("g", "q", to="beginning")

    result = await queen.queue("q").group("g").batch(2).limit(2).consume(handle)
    assert (result.handled, result.lost) == (2, 2)
    assert await left(queen, "q") == [1, 2]


# Ends


async def test_stop_ends_a_long_poll_at_once(queen: AsyncQueen) -> None:
    await queen.queue("q").create()
    stop = asyncio.Event()
    consuming = asyncio.create_task(queen.queue("q").concurrency(3).consume(lambda ms: None, stop=stop))
    await asyncio.sleep(0.3)
    began = time.monotonic()
    stop.set()
    result = await consuming
    assert time.monotonic() - began < 5  # a poll would take 30
    assert result.handled == 0


async def test_a_stop_that_was_there_before(queen: AsyncQueen) -> None:
    await queen.queue("q").push(1)
    stop = asyncio.Event()
    stop.set()
    result = await queen.queue("q").group("g").consume(lambda ms: None, stop=stop)
    assert result.handled == 0
    [message] = await queen.queue("q").group("g").wait("5s").pop()  # nothing was left leased
    assert message.retry_count == 0


@pytest.mark.parametrize("batch", [1, 10])
async def test_stop_lets_the_handler_finish(queen: AsyncQueen, batch: int) -> None:
    await queen.queue("q").push([1, 2, 3])
    stop = asyncio.Event()
    done: list[int] = []

    async def handle(message: AsyncMessage[Any]) -> None:
        stop.set()
        await asyncio.sleep(0.2)
        done.append(message.data)

    result = await queen.queue("q").group("g").batch(batch).each().consume(handle, stop=stop)
    assert done == [1]
    assert result.handled == 1
    assert await left(queen, "q") == [2, 3]  # at once


async def test_after_a_lost_lease_the_rest_is_not_handled(queen: AsyncQueen) -> None:
    await queen.queue("q").config(lease_time=1).create()
    await queen.queue("q").push([1, 2, 3])
    seen: list[int] = []

    async def handle(message: AsyncMessage[Any]) -> None:
        seen.append(message.data)
        if seen == [1]:
            await queen.admin.seek("g", "q", to="beginning")
            async with asyncio.timeout(10):
                while not message.lost:  # noqa: ASYNC110 - a flag is what a handler has
                    await asyncio.sleep(0.02)

    result = await queen.queue("q").group("g").batch(3).limit(6).each().consume(handle)
    assert seen == [1, 1, 2, 3]
    assert (result.handled, result.lost) == (4, 3)


async def test_what_comes_as_the_stop_comes_goes_back(queen: AsyncQueen, serve: StartServer) -> None:
    """The answer to a pop crosses the stop on its way: its messages are given back, at once."""
    popped = (
        b'{"leaseId":"l","messages":[{"id":"1","transactionId":"t","data":7,"createdAt":"2026-01-02T00:00:00Z",'
        b'"partitionId":"p","partition":"Default","queue":"q","consumerGroup":"g","leaseId":"l"}]}'
    )
    done = b'[{"index":0,"transactionId":"t","success":true}]'
    stop = asyncio.Event()
    bodies: list[bytes] = []
    pops = 0

    def behave(first: str, body: bytes) -> bytes:
        nonlocal pops
        if "/pop/" in first:
            pops += 1
            stop.set()
            return answer(200, popped)
        bodies.append(body)
        return answer(200, done)

    broker = await serve(behave)
    async with AsyncQueen(broker.address, timeout="5s") as client:
        result = await client.queue("q").group("g").consume(lambda ms: None, stop=stop)
    assert result.handled + len([body for body in bodies if b'"retry"' in body]) == pops
    assert pops <= 2  # one more may be on its way before the stop is seen


# What is acknowledged with the next pop


def _message(number: int) -> bytes:
    return (
        b'{"leaseId":"l%d","leaseSeconds":30,"messages":[{"id":"%d","transactionId":"t%d","data":7,'
        b'"createdAt":"2026-01-02T00:00:00Z","partitionId":"p","partition":"Default","queue":"q",'
        b'"consumerGroup":"g","leaseId":"l%d"}]}' % (number, number, number, number)
    )


class _Popping:
    """A server with three messages, of which ``said`` is what it answers to acknowledgements."""

    def __init__(self, *said: bytes | Literal["close"]) -> None:
        self._said = list(said)
        self._given = 0
        self.acked: list[str] = []

    def __call__(self, first: str, body: bytes) -> bytes | Literal["close"]:
        if "/pop/" in first:
            self._given += 1
            return answer(200, _message(self._given)) if self._given <= 3 else answer(204, b"")
        self.acked += re.findall(r'"transactionId":"(t\d)"', body.decode())
        said = self._said.pop(0) if self._said else b"true"
        if said == "close":
            return said
        if said.startswith(b"HTTP"):
            return said
        one = b'[{"index":0,"transactionId":"%s","success":%s}]' % (self.acked[-1].encode(), said)
        return answer(200, one)


async def _consumed(serve: StartServer, served: _Popping) -> tuple[Consumed, list[str]]:
    broker = await serve(served)
    async with AsyncQueen(broker.address, timeout="5s") as client:
        asked = client.queue("q").group("g").idle_timeout("100ms").wait(0.05)
        result = await asked.consume(lambda messages: None)
    return result, [line.split()[1].split("?")[0] for line in broker.requests]


async def test_each_acknowledgement_goes_ahead_of_a_pop(serve: StartServer) -> None:
    served = _Popping()
    result, asked = await _consumed(serve, served)
    assert (result.handled, result.lost, served.acked) == (3, 0, ["t1", "t2", "t3"])
    pop, ack = "/api/v1/pop/queue/q", "/api/v1/ack/batch"
    assert asked[:7] == [pop, ack, pop, ack, pop, ack, pop]


async def test_an_acknowledgement_whose_answer_is_lost_is_said_again(serve: StartServer) -> None:
    served = _Popping("close")
    result, _ = await _consumed(serve, served)
    assert (result.handled, result.lost) == (3, 0)
    assert served.acked == ["t1", "t1", "t2", "t3"]


async def test_a_broker_that_cannot_acknowledge_now_is_asked_again(serve: StartServer) -> None:
    served = _Popping(answer(503, b'{"error":"busy"}'))
    result, _ = await _consumed(serve, served)
    assert (result.handled, result.lost) == (3, 0)
    assert served.acked == ["t1", "t1", "t2", "t3"]


async def test_an_acknowledgement_that_came_too_late_is_counted(serve: StartServer) -> None:
    served = _Popping(b'false,"error":"the lease is over"', b"true", b'false,"error":"the lease is over"')
    result, _ = await _consumed(serve, served)
    assert (result.handled, result.lost, served.acked) == (3, 2, ["t1", "t2", "t3"])
