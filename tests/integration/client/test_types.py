"""Typed queues, end to end; and where payloads go that do not fit."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import msgspec
import pydantic
import pytest

from queenstream import AsyncMessage, AsyncMessages, AsyncQueen, Message, Queen
from queenstream.errors import ConfigError, PayloadInvalid
from tests.integration.client.conftest import InThread


@dataclass
class Order:
    user: str
    amount: int
    at: datetime | None = None


class Click(msgspec.Struct, rename="camel"):
    page_url: str
    times: list[int]


class Person(pydantic.BaseModel):
    name: str
    born: datetime
    friends: list[str] = []


NOON = datetime(2026, 1, 2, 12, tzinfo=UTC)
GOOD, BAD = {"user": "ann", "amount": 5}, {"user": "bob", "amount": "much"}


@pytest.mark.parametrize(
    ("kind", "value", "plain"),
    [
        (Order, Order("ann", 5, NOON), {"user": "ann", "amount": 5, "at": "2026-01-02T12:00:00Z"}),
        (Click, Click("/", [1, 2]), {"pageUrl": "/", "times": [1, 2]}),
        (
            Person,
            Person(name="ann", born=NOON, friends=["bob"]),
            {"name": "ann", "born": "2026-01-02T12:00:00Z", "friends": ["bob"]},
        ),
    ],
    ids=["dataclass", "Struct", "pydantic"],
)
async def test_what_goes_in_comes_out(queen: AsyncQueen, kind: Any, value: Any, plain: Any) -> None:
    queue = queen.queue("q", type=kind)
    await queue.push(value)
    await queue.push([value, value])
    async with queue.buffered() as producer:
        await producer.push(value)
    messages = await queue.batch(10).pop()
    assert [message.data for message in messages] == [value] * 4
    assert type(messages[0].data) is kind
    seen: list[Any] = []
    await queue.group("h").batch(2).limit(3).each().consume(lambda message: seen.append(message.data))
    seen += [message.data async for message in queue.group("h").limit(1).messages()]
    assert seen == [value] * 4
    [untyped] = await queen.queue("q").group("plain").pop()  # it is plain JSON to everybody else
    assert untyped.data == plain


async def test_other_types(queen: AsyncQueen) -> None:
    await queen.queue("q", type=list[int]).push([[1, 2]])
    [message] = await queen.queue("q", type=list[int]).auto_ack().pop()
    assert message.data == [1, 2]
    await queen.queue("q", type=dict[str, float]).push({"x": 1})
    [numbers] = await queen.queue("q", type=dict[str, float]).pop()
    assert numbers.data == {"x": 1.0}


async def test_another_type_is_not_pushed(queen: AsyncQueen) -> None:
    wrong: Any = GOOD
    with pytest.raises(PayloadInvalid, match="the queue takes Order, not dict"):
        await queen.queue("q", type=Order).push(wrong)
    with pytest.raises(PayloadInvalid, match="the queue takes Order, not dict"):
        await queen.queue("q", type=Order).push([Order("ann", 5), wrong])
    with pytest.raises(PayloadInvalid, match=r"the queue takes list\[int\], not int"):
        await queen.queue("q", type=list[int]).push([1, 2])  # two messages, and neither is a list
    assert await queen.queue("q").pop() == []


# What does not fit


@pytest.fixture
async def mixed(queen: AsyncQueen) -> AsyncQueen:
    """A good one, a bad one, a good one."""
    await queen.queue("q").config(retry_limit=1, retry_delay=0).create()
    await queen.queue("q").push([GOOD, BAD, GOOD])
    return queen


async def left(queen: AsyncQueen) -> list[Any]:
    return [message.data for message in await queen.queue("q").group("g").batch(10).pop()]


async def test_dead_letters_by_default(mixed: AsyncQueen) -> None:
    messages = await mixed.queue("q", type=Order).group("g").batch(10).pop()
    assert [message.data for message in messages] == [Order("ann", 5)] * 2
    await messages.ack()
    [letter] = await mixed.dlq("q").list()
    assert (letter.data, letter.consumer_group) == (BAD, "g")
    assert letter.error_message is not None
    assert letter.error_message.startswith("the payload is no Order: Expected `int`, got `str`")
    assert await left(mixed) == []


async def test_skip(mixed: AsyncQueen, caplog: pytest.LogCaptureFixture) -> None:
    seen: list[int] = []
    queue = mixed.queue("q", type=Order, on_invalid="skip").group("g")
    with caplog.at_level(logging.WARNING, "queenstream.client"):
        await queue.limit(2).each().consume(lambda message: seen.append(message.data.amount))
    assert seen == [5, 5]
    assert "is skipped: the payload is no Order" in caplog.text
    assert await mixed.dlq("q").list() == []
    assert await left(mixed) == []


async def test_raise(mixed: AsyncQueen) -> None:
    queue = mixed.queue("q", type=Order, on_invalid="raise").group("g").batch(10)
    with pytest.raises(PayloadInvalid, match="the payload is no Order"):
        await queue.pop()
    await (await queue.pop()).ack()  # what was before it; on its last try it travels alone
    with pytest.raises(PayloadInvalid, match="the payload is no Order"):
        await queue.pop()
    [letter] = await mixed.dlq("q").list()
    assert letter.data == BAD
    assert await left(mixed) == [GOOD]


async def test_raise_ends_a_consumer(mixed: AsyncQueen) -> None:
    queue = mixed.queue("q", type=Order, on_invalid="raise").group("g")
    seen: list[str] = []
    with pytest.raises(PayloadInvalid):
        await queue.each().consume(lambda message: seen.append(message.data.user))
    assert seen == ["ann"]
    assert await left(mixed) == [BAD]  # at once


async def test_a_function(mixed: AsyncQueen) -> None:
    told: list[tuple[Any, str]] = []

    async def mend(message: AsyncMessage[Any], error: PayloadInvalid) -> None:
        told.append((message.data, str(error)))
        await mixed.transaction().ack(message).queue("odd").push(message.data).commit()

    messages = await mixed.queue("q", type=Order, on_invalid=mend).group("g").batch(10).pop()
    assert len(messages) == 2
    await messages.ack()
    assert [data for data, _ in told] == [BAD]
    assert "no Order" in told[0][1]
    [odd] = await mixed.queue("odd").pop()
    assert odd.data == BAD
    assert await left(mixed) == []


async def test_what_a_function_does_not_settle_is_done(mixed: AsyncQueen) -> None:
    told: list[Any] = []
    queue = mixed.queue("q", type=Order, on_invalid=lambda message, error: told.append(message.data))
    await (await queue.group("g").batch(10).pop()).ack()
    assert told == [BAD]
    assert await left(mixed) == []


async def test_a_function_that_fails_leaves_nothing_leased(mixed: AsyncQueen) -> None:
    def broken(message: AsyncMessage[Any], error: PayloadInvalid) -> None:
        raise RuntimeError("the archive is full")

    queue = mixed.queue("q", type=Order, on_invalid=broken).group("g").batch(10)
    with pytest.raises(RuntimeError, match="the archive is full"):
        await queue.pop()
    [first] = await mixed.queue("q").group("g").pop()  # at once
    assert first.data == GOOD


async def test_acknowledged_with_the_pop(mixed: AsyncQueen, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "queenstream.client"):
        messages = await mixed.queue("q", type=Order).group("g").batch(10).auto_ack().pop()
    assert len(messages) == 2
    assert "was acknowledged with its pop and is dropped" in caplog.text


async def test_a_batch_of_bad_ones_does_not_end_a_consumer(queen: AsyncQueen) -> None:
    await queen.queue("q").push([BAD] * 5)
    await queen.queue("q").push(GOOD)
    seen: list[Order] = []

    def handle(messages: AsyncMessages[Order]) -> None:
        seen.extend(message.data for message in messages)

    result = await queen.queue("q", type=Order).group("g").batch(5).limit(1).consume(handle)
    assert (seen, result.handled) == ([Order("ann", 5)], 1)
    assert await queen.dlq("q").count() == 5


async def test_what_is_wrong_shows_at_once(queen: AsyncQueen) -> None:
    wrong: Any = "drop"
    with pytest.raises(ConfigError, match="on_invalid is 'drop'"):
        queen.queue("q", type=Order, on_invalid=wrong)


async def test_the_synchronous_client_is_the_same(mixed: AsyncQueen, in_thread: InThread) -> None:
    def work(queen: Queen) -> None:
        told: list[Any] = []

        def mend(message: Message[Any], error: PayloadInvalid) -> None:
            told.append(message.data)

        queue = queen.queue("q", type=Order, on_invalid=mend).group("g")
        queue.push(Order("cid", 9))
        seen: list[Order] = []
        queue.batch(10).limit(3).each().consume(lambda message: seen.append(message.data))
        assert seen == [Order("ann", 5), Order("ann", 5), Order("cid", 9)]
        assert told == [BAD]
        with pytest.raises(PayloadInvalid):
            queen.queue("q", type=Order, on_invalid="raise").group("h").batch(10).pop()
        people = queen.queue("people", type=Person)
        people.push(Person(name="ann", born=NOON))
        assert [message.data.name for message in people.limit(1).messages()] == ["ann"]

    await in_thread(work)
