"""Transactions: all or nothing, against a real broker."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest

from queenstream import AsyncQueen, AsyncWindow, Queen
from queenstream.errors import ConfigError, PayloadInvalid, TransactionFailed
from tests.conftest import Clock
from tests.integration.client.conftest import InThread


async def data(queen: AsyncQueen, queue: str) -> list[Any]:
    popped = await queen.queue(queue).batch(100).partitions(10).auto_ack().pop()
    return [(message.partition, message.data) for message in popped]


async def test_acknowledge_and_push_together(queen: AsyncQueen) -> None:
    await queen.queue("in").push([1, 2])
    messages = await queen.queue("in").group("g").batch(2).pop()
    result = await (
        queen.transaction()
        .ack(messages)
        .queue("out").partition("p").push([{"n": 1}, {"n": 2}])
        .queue("log").push("done", transaction_ids=["once"])
        .commit()
    )  # fmt: skip
    assert result.success
    assert len(result.results) >= 3
    assert [message.settled for message in messages] == [True, True]
    assert await data(queen, "out") == [("p", {"n": 1}), ("p", {"n": 2})]
    assert await data(queen, "log") == [("Default", "done")]
    assert await queen.queue("in").group("g").pop() == []


async def test_nothing_is_done_if_a_part_is_refused(queen: AsyncQueen, clock: Clock) -> None:
    await queen.queue("in").push(1)
    [late] = await queen.queue("in").group("g").pop()
    clock.turn(301)
    [taken] = await queen.queue("in").group("g").pop()
    with pytest.raises(TransactionFailed, match="nothing of the transaction was done: "):
        await queen.transaction().queue("out").push([1]).ack(late).commit()
    assert not late.settled
    assert await data(queen, "out") == []
    await taken.ack()


async def test_other_ends_than_done(queen: AsyncQueen) -> None:
    await queen.queue("in").config(retry_delay=0).create()
    await queen.queue("in").push(["again", "dead"])
    [again] = await queen.queue("in").pop()
    await queen.transaction().ack(again, "failed", "not yet").queue("log").push("failed").commit()
    [first] = await queen.queue("in").pop()
    assert (first.data, first.retry_count) == ("again", 1)
    await queen.transaction().ack(first).commit()
    [dead] = await queen.queue("in").pop()
    await queen.transaction().ack(dead, "dlq", "never").commit()
    assert [letter.error_message for letter in await queen.dlq("in").list()] == ["never"]
    assert await data(queen, "log") == [("Default", "failed")]


async def test_a_repeat_stores_nothing_twice(queen: AsyncQueen) -> None:
    await queen.queue("in").push(1)
    [message] = await queen.queue("in").pop()
    transaction = queen.transaction().ack(message).queue("out").push([1, 2])
    await transaction.commit()
    assert (await transaction.commit()).success
    assert await data(queen, "out") == [("Default", 1), ("Default", 2)]


async def pairs(queen: AsyncQueen) -> None:
    """A stream ``s`` of two windows, of two numbers each."""
    await queen.queue("in").create()
    await queen.stream("s").sources(["in"]).count(2).lease_timeout("60s").define()
    await queen.queue("in").push([1, 2, 3, 4])


async def test_a_window_and_a_push_together(queen: AsyncQueen) -> None:
    await pairs(queen)

    async def add_up(window: AsyncWindow[Any]) -> None:
        total = sum(message.data for message in window.messages)
        await queen.transaction().ack(window).queue("out").push({"total": total}).commit()
        assert window.settled

    result = await queen.consumer("s", "g").process(add_up, limit=2)
    assert (result.handled, result.failed, result.lost) == (2, 0, 0)
    assert await data(queen, "out") == [("Default", {"total": 3}), ("Default", {"total": 7})]
    [group] = (await queen.admin.stream("s")).groups
    assert (group.done, group.leased, group.lag) == (2, 0, 0)


async def test_a_window_that_is_lost_takes_nothing_with_it(queen: AsyncQueen, clock: Clock) -> None:
    await pairs(queen)
    window = await queen.consumer("s", "g").poll("5s")
    assert window is not None
    clock.turn(61)
    again = await queen.consumer("s", "g").poll("5s")
    assert again is not None
    transaction = queen.transaction().queue("out").push("late")
    with pytest.raises(TransactionFailed, match="lease has ended"):
        await transaction.ack(window).commit()
    assert not window.settled
    assert await data(queen, "out") == []
    assert (await transaction.ack([again]).commit()).success


async def test_a_window_can_fail_in_a_transaction(queen: AsyncQueen) -> None:
    await pairs(queen)
    window = await queen.consumer("s", "g").poll("5s")
    assert window is not None
    with pytest.raises(ConfigError, match="a window cannot be 'retry'"):
        queen.transaction().ack(window, "retry")
    transaction = queen.transaction().ack(window, "failed", "not yet").queue("log").push("failed")
    await transaction.commit()
    again = await queen.consumer("s", "g").poll("5s")
    assert again is not None
    assert (again.id, again.attempt) == (window.id, 2)
    assert await data(queen, "log") == [("Default", "failed")]


async def test_every_word_makes_a_new_one(queen: AsyncQueen) -> None:
    base = queen.transaction().queue("out").push("both")
    first, second = base.queue("out").push("first"), base.queue("out").push("second")
    await first.commit()
    assert await data(queen, "out") == [("Default", "both"), ("Default", "first")]
    await second.commit()  # "both" is there already
    assert await data(queen, "out") == [("Default", "second")]


async def test_what_was_handled_before_is_not_lost_by_a_failure(queen: AsyncQueen) -> None:
    """Acknowledgements of single messages are put together: a transaction that fails one comes after them."""
    await queen.queue("in").config(retry_delay=0).create()
    await queen.queue("in").push([1, 2, 3])
    seen: list[int] = []

    async def handle(message: Any) -> None:
        seen.append(message.data)
        if seen == [1, 2]:
            await queen.transaction().ack(message, "failed", "again").queue("log").push(2).commit()

    await queen.queue("in").batch(3).idle_timeout("300ms").each().consume(handle)
    assert seen == [1, 2, 2, 3]


async def test_what_is_wrong_shows_before_it_is_sent(queen: AsyncQueen) -> None:
    with pytest.raises(ConfigError, match="the transaction is empty"):
        await queen.transaction().commit()
    with pytest.raises(ConfigError, match="the transaction is empty"):
        await queen.transaction().ack([]).queue("q").push([]).commit()
    with pytest.raises(ConfigError, match="2 messages and 1 transaction_ids"):
        queen.transaction().queue("q").push([1, 2], transaction_ids=["a"])
    with pytest.raises(PayloadInvalid):
        await queen.transaction().queue("q").push(object()).commit()


async def test_the_synchronous_client_is_the_same(in_thread: InThread, queen: AsyncQueen) -> None:
    @dataclass
    class Note:
        text: str

    await queen.queue("in").push(1)

    def work(queen: Queen) -> None:
        [message] = queen.queue("in").pop()
        result = queen.transaction().ack(message).queue("out").partition("p").push([Note("hola")]).commit()
        assert result.success
        assert message.settled
        with pytest.raises(TransactionFailed):
            queen.transaction().ack(message, "failed").queue("out").push(2).commit()
        window = queen.consumer("s", "g").poll("5s")
        assert window is not None
        assert queen.transaction().ack(window).queue("windows").push(window.key).commit().success
        assert window.settled

    await queen.stream("s").sources(["in"]).count(1).define()
    await in_thread(work)
    assert await data(queen, "out") == [("p", {"text": "hola"})]
    assert await data(queen, "windows") == [("Default", "__GLOBAL__")]
