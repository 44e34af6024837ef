"""``async for message in queue.messages()``, and the same in a thread; against a real broker."""

from __future__ import annotations

import pytest

from queenstream import AsyncQueen, Queen
from queenstream.broker.app import Broker
from tests.integration.client.conftest import InThread
from tests.integration.client.test_consume import left


async def test_a_loop(queen: AsyncQueen) -> None:
    await queen.queue("q").push(list(range(7)))
    asked = queen.queue("q").group("g").batch(3)
    assert [message.data async for message in asked.limit(5).messages()] == [0, 1, 2, 3, 4]
    assert [message.data async for message in asked.idle_timeout("200ms").messages()] == [5, 6]
    assert await left(queen, "q") == []


async def test_a_loop_that_is_left(queen: AsyncQueen) -> None:
    await queen.queue("q").push(list(range(7)))
    async for message in queen.queue("q").group("g").batch(5).messages():
        if message.data == 2:
            break
    again = await queen.queue("q").group("g").batch(10).wait("5s").pop()
    assert [message.data for message in again] == [2, 3, 4, 5, 6]  # 0 and 1 are done
    assert again[0].retry_count == 0


async def test_a_loop_that_fails(queen: AsyncQueen, broker: Broker) -> None:
    """The traceback keeps the loop alive; leaving the client ends it all the same."""
    await queen.queue("q").push(list(range(7)))

    async def work() -> None:
        async with AsyncQueen(broker.address) as mine:
            async for message in mine.queue("q").group("g").batch(5).messages():
                if message.data == 2:
                    raise ValueError("enough")

    with pytest.raises(ValueError, match="enough") as caught:
        await work()
    assert await left(queen, "q") == [2, 3, 4, 5, 6]
    assert caught.value.args == ("enough",)


async def test_a_loop_by_hand(queen: AsyncQueen) -> None:
    await queen.queue("q").config(retry_delay=0).create()
    await queen.queue("q").push([1, 2, 3])
    seen: list[int] = []
    async for message in queen.queue("q").group("g").batch(3).idle_timeout("300ms").messages():
        seen.append(message.data)
        if message.data == 2 and message.retry_count == 0:
            await message.nack("again")
    assert seen == [1, 2, 2, 3]


async def test_loops_in_a_thread(in_thread: InThread, queen: AsyncQueen) -> None:
    await queen.queue("q").push(list(range(7)))

    def leave(queen: Queen) -> None:
        for message in queen.queue("q").group("g").batch(5).messages():
            if message.data == 2:
                break
        again = queen.queue("q").group("g").batch(10).pop()
        assert [message.data for message in again] == [2, 3, 4, 5, 6]
        again.retry()

    def fail(queen: Queen) -> None:
        for message in queen.queue("q").group("g").batch(5).messages():
            if message.data == 4:
                raise ValueError("enough")

    await in_thread(leave)
    with pytest.raises(ValueError, match="enough"):
        await in_thread(fail)
    assert await left(queen, "q") == [4, 5, 6]
