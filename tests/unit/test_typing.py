"""The type checker helps: right chains pass with the right types, wrong ones do not.

All snippets are one file for mypy; a line says in a comment what is expected of it.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from mypy import api

HEAD = """
from __future__ import annotations
from dataclasses import dataclass
from typing import Any
from queenstream import (
    AsyncMessage, AsyncMessages, AsyncQueen, AsyncWindow, Backpressure, Message, Messages, Queen, Window,
)

@dataclass
class Order:
    user: str
    amount: int

class Other: ...

def on_message(message: Message[Order]) -> None: ...
def on_messages(messages: Messages[Order]) -> None: ...
def on_window(window: Window[Order]) -> None: ...
def on_other(message: Message[Other]) -> None: ...
async def later(message: AsyncMessage[Order]) -> None: ...
async def later_all(messages: AsyncMessages[Order]) -> None: ...
async def later_window(window: AsyncWindow[Order]) -> None: ...
async def later_other(window: AsyncWindow[Other]) -> None: ...
"""

# What mypy says to ``reveal_type``, without the modules' names.
RIGHT = """
def queues(queen: Queen) -> None:
    orders = queen.queue("orders", type=Order)
    reveal_type(orders)  # Queue[Order]
    reveal_type(orders.group("g").batch(10).wait("5s"))  # Queue[Order]
    reveal_type(orders.pop())  # Messages[Order]
    reveal_type(orders.pop()[0].data)  # Order
    reveal_type(orders.push(Order("ann", 1)))  # PushResult
    reveal_type(orders.push([Order("ann", 1)]))  # list[PushResult]
    reveal_type(orders.each().consume(on_message))  # Consumed
    reveal_type(orders.batch(5).consume(on_messages))  # Consumed
    reveal_type(queen.queue("any").pop()[0].data)  # Any
    for message in orders.messages():
        reveal_type(message)  # Message[Order]
        message.ack()
    orders.each().consume(lambda message: message.data.amount)
    queen.queue("orders", type=Order, on_invalid="skip")
    queen.queue("orders", type=Order, on_invalid=lambda message, error: message.dead_letter(error))

async def async_queues(queen: AsyncQueen) -> None:
    orders = queen.queue("orders", type=Order)
    reveal_type(await orders.pop())  # AsyncMessages[Order]
    reveal_type(await orders.push(Order("ann", 1)))  # PushResult
    reveal_type(await orders.push([Order("ann", 1)]))  # list[PushResult]
    reveal_type(await orders.each().consume(later))  # Consumed
    reveal_type(await orders.consume(later_all))  # Consumed
    async for message in orders.messages():
        reveal_type(message.data)  # Order

async def streams(queen: AsyncQueen, sync: Queen) -> None:
    windowed = queen.stream("s").sources(["q"]).partitioned().tumbling_time(60).grace_period(10)
    reveal_type(await windowed.define())  # str
    reveal_type(await queen.consumer("s", "g", type=Order).process(later_window, concurrency=4))  # Consumed
    async for window in queen.consumer("s", "g", type=Order).windows():
        reveal_type(window.messages[0].data)  # Order
        reveal_type(window.filter(lambda m: m.data.amount > 1))  # AsyncWindow[Order]
    sync.consumer("s", "g", type=Order).process(on_window)

async def others(queen: AsyncQueen, message: AsyncMessage[Order]) -> None:
    transaction = queen.transaction().ack(message).queue("q").partition("p").push([1])
    reveal_type(await transaction.commit())  # TransactionResult
    async with queen.queue("q", type=Order).buffered(backpressure=Backpressure("error", 10)) as producer:
        pushed = await producer.push(Order("ann", 1))
        reveal_type(await pushed.result())  # PushResult
"""

# What is expected after #: the code of the error.
WRONG = """
async def streams(queen: AsyncQueen) -> None:
    await queen.stream("s").sources(["q"]).define()  # attr-defined
    await queen.stream("s").sources(["q"]).partitioned().grace_period(1).define()  # attr-defined
    await queen.consumer("s", "g", type=Order).process(later_other)  # arg-type
    await queen.consumer("s", "g", type=Order).process(later_all)  # arg-type

async def transactions(queen: AsyncQueen, message: AsyncMessage[Order]) -> None:
    await queen.transaction().queue("q").commit()  # attr-defined
    await queen.transaction().ack(message).queue("q").partition("p").commit()  # attr-defined
    queen.transaction().push([1])  # attr-defined
    queen.transaction().ack("t")  # arg-type
    queen.transaction().ack(message, "done")  # arg-type

def handlers(queen: Queen) -> None:
    orders = queen.queue("orders", type=Order)
    orders.each().consume(on_messages)  # arg-type
    orders.consume(on_message)  # arg-type
    orders.each().consume(on_other)  # arg-type
    orders.each().consume(later)  # arg-type
    orders.each().each()  # attr-defined

async def async_handlers(queen: AsyncQueen) -> None:
    orders = queen.queue("orders", type=Order)
    await orders.each().consume(later_all)  # arg-type
    await orders.consume(later)  # arg-type

def payloads(queen: Queen) -> None:
    orders = queen.queue("orders", type=Order)
    orders.push(Other())  # call-overload
    orders.push({"user": "ann"})  # call-overload
    orders.push([Order("ann", 1)], transaction_id="t")  # call-overload
    orders.push(Order("ann", 1), transaction_ids=["t"])  # call-overload
    orders.buffered().push(Other())  # arg-type
    orders.pop()[0].data.colour  # attr-defined

def words(queen: Queen) -> None:
    queen.queue("q").config(lease_tme=5)  # call-arg
    queen.queue("q").config(lease_time="5s")  # arg-type
    queen.queue("q").batch("10")  # arg-type
    queen.queue("q").subscription_mode("newest")  # arg-type
    queen.queue("q", type=Order, on_invalid="drop")  # call-overload
    queen.queue("q").buffered(backpressure="explode")  # arg-type
    Backpressure("drop")  # arg-type
    queen.queue("q").pop().commit()  # attr-defined

async def forgotten(queen: AsyncQueen) -> None:
    for message in queen.queue("q").messages():  # attr-defined
        pass
    with queen:  # attr-defined
        pass
"""
_LINE = re.compile(r"^[^:]+:(\d+): (error|note): (.*)$")


def said(folder: Path, text: str) -> tuple[dict[int, list[str]], dict[int, str]]:
    """What mypy says of each line, and what was expected of it."""
    file = folder / "snippets.py"
    file.write_text(text)
    flags = ["--strict", "--no-error-summary", "--hide-error-context", "--no-color-output"]
    out, err, _ = api.run([*flags, "--cache-dir", str(folder / "cache"), str(file)])
    assert not err
    found: dict[int, list[str]] = {}
    for line in out.splitlines():
        match = _LINE.match(line)
        if match is not None:
            found.setdefault(int(match[1]), []).append(match[3])
    expected = {
        number: line.rsplit("  # ", 1)[1]
        for number, line in enumerate(text.splitlines(), 1)
        if "  # " in line
    }
    return found, expected


@pytest.fixture(scope="module")
def checked(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[int, list[str]], dict[int, str]]:
    """One run for all: it takes seconds."""
    wrong = re.sub(r"^((?:async )?def )", r"\1wrong_", WRONG, flags=re.MULTILINE)
    return said(tmp_path_factory.mktemp("typing"), HEAD + RIGHT + wrong)


def _first_wrong() -> int:
    return len((HEAD + RIGHT).splitlines()) + 1


def test_right_chains_pass_with_the_right_types(
    checked: tuple[dict[int, list[str]], dict[int, str]],
) -> None:
    found, expected = checked
    revealed = {}
    for number, lines in found.items():
        if number < _first_wrong():
            [line] = lines  # an error would be a second one, or one where nothing is expected
            match = re.fullmatch(r'Revealed type is "(.*)"', line)
            assert match is not None, f"line {number}: {line}"
            revealed[number] = re.sub(r"\b(?:\w+\.)+", "", match[1])
    assert revealed == {number: kind for number, kind in expected.items() if number < _first_wrong()}


def test_wrong_chains_fail(checked: tuple[dict[int, list[str]], dict[int, str]]) -> None:
    found, expected = checked
    codes = {}
    for number, lines in found.items():
        if number >= _first_wrong():
            ends = [match[1] for line in lines if (match := re.search(r"\[([a-z-]+)\]$", line))]
            codes[number] = ends[0] if ends else "a note"
    assert codes == {number: code for number, code in expected.items() if number >= _first_wrong()}
