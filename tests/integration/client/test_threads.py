"""``consume`` with the synchronous client: handlers in threads; against a real broker."""

from __future__ import annotations

import threading
import time
from typing import Any

import pytest

from queenstream import AsyncQueen, Message, Messages, Queen
from queenstream.errors import ConfigError
from tests.integration.client.conftest import InThread
from tests.integration.client.test_consume import left


async def test_threads(in_thread: InThread, queen: AsyncQueen) -> None:
    for name in "abc":
        await queen.queue("q").partition(name).push([f"{name}{n}" for n in range(4)])
    everybody = threading.Barrier(3)
    seen: list[str] = []

    def handle(messages: Messages[Any]) -> None:
        assert isinstance(messages, Messages)
        if len(seen) < 3:
            everybody.wait(10)  # passes only if three threads are here at once
        seen.extend(message.data for message in messages)

    def work(queen: Queen) -> None:
        result = queen.queue("q").group("g").batch(4).concurrency(3).limit(12).consume(handle)
        assert (result.handled, result.failed) == (12, 0)

    await in_thread(work)
    assert sorted(seen) == [f"{name}{n}" for name in "abc" for n in range(4)]
    assert await left(queen, "q") == []


async def test_threads_that_fail_and_take_long(in_thread: InThread, queen: AsyncQueen) -> None:
    await queen.queue("q").config(lease_time=1, retry_limit=0, retry_delay=0).create()
    await queen.queue("q").push(["bad", "slow", "fine"])
    seen: list[str] = []

    def handle(message: Message[Any]) -> None:
        seen.append(message.data)
        if message.data == "bad":
            raise ValueError("no")
        if message.data == "slow":
            time.sleep(1.6)
            assert not message.lost

    def work(queen: Queen) -> None:
        asked = queen.queue("q").group("g").batch(3).idle_timeout("300ms").concurrency(2).each()
        result = asked.consume(handle)
        assert (result.handled, result.failed, result.lost) == (2, 1, 0)

    await in_thread(work)
    assert seen == ["bad", "slow", "fine"]
    assert [letter.error_message for letter in await queen.dlq("q").list()] == ["ValueError: no"]


async def test_threads_stop_at_once(in_thread: InThread) -> None:
    def work(queen: Queen) -> float:
        stop = threading.Event()
        began = time.monotonic()
        threading.Timer(0.3, stop.set).start()
        queen.queue("q").concurrency(3).consume(lambda ms: None, stop=stop)
        return time.monotonic() - began

    assert 0.3 <= await in_thread(work) < 5  # a poll would take 30


async def test_a_coroutine_is_no_handler_for_threads(in_thread: InThread, queen: AsyncQueen) -> None:
    await queen.queue("q").push(1)

    async def handle(message: Message[Any]) -> None:
        raise AssertionError("never awaited")

    def work(queen: Queen) -> None:
        with pytest.raises(ConfigError, match="the handler is an async function; use AsyncQueen"):
            queen.queue("q").group("g").limit(1).each().consume(handle)

    await in_thread(work)
    assert await left(queen, "q") == [1]
