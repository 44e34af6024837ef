"""SIGTERM and SIGINT: a consumer finishes what it does, gives back the rest, and ends."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import sys
import time
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from queenstream import AsyncQueen
from queenstream.broker.app import Broker
from tests.integration.client.test_stream import one_window
from tests.integration.streams.streaming import eventually

ROOT = Path(__file__).parents[3]


@contextlib.asynccontextmanager
async def worker(what: str, broker: Broker) -> AsyncIterator[Process]:
    command = (sys.executable, "-m", "tests.integration.client.worker", what, broker.address)
    process = await asyncio.create_subprocess_exec(*command, cwd=ROOT, stdin=PIPE, stdout=PIPE, stderr=PIPE)
    try:
        yield process
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()


async def line(process: Process) -> str:
    assert process.stdout is not None
    return (await asyncio.wait_for(process.stdout.readline(), 20)).decode().strip()


async def release(process: Process) -> None:
    """Let the handler end."""
    assert process.stdin is not None
    process.stdin.write(b"\n")
    await process.stdin.drain()


async def no_lag(queen: AsyncQueen) -> bool:
    return (await queen.admin.group("g")).total_lag == 0


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("what", ["consume", "consume_async"])
async def test_a_handler_that_runs_is_finished(
    queen: AsyncQueen, broker: Broker, what: str, number: signal.Signals
) -> None:
    await queen.queue("q").push([1, 2, 3])
    async with worker(what, broker) as process:
        assert await line(process) == "begin 1"
        process.send_signal(number)
        await asyncio.sleep(0.2)  # the signal is there while the handler runs
        assert process.returncode is None
        await release(process)
        assert await line(process) == "end 1"
        assert await line(process) == "handled 1 failed 0"
        assert await asyncio.wait_for(process.wait(), 10) == 0
    rest = await queen.queue("q").group("g").batch(10).pop()  # at once: nothing is left leased
    assert [(message.data, message.retry_count) for message in rest] == [(2, 0), (3, 0)]


@pytest.mark.parametrize("what", ["consume", "consume_async"])
async def test_a_consumer_that_waits_ends_at_once(queen: AsyncQueen, broker: Broker, what: str) -> None:
    await queen.queue("q").push(1)
    async with worker(what, broker) as process:
        assert await line(process) == "begin 1"
        await release(process)
        assert await line(process) == "end 1"
        await eventually(lambda: no_lag(queen))  # until it has said so, and waits for the next
        began = time.monotonic()
        process.send_signal(signal.SIGTERM)
        assert await line(process) == "handled 1 failed 0"
        assert time.monotonic() - began < 5  # a poll would take 30
        assert await asyncio.wait_for(process.wait(), 10) == 0


@pytest.mark.parametrize("what", ["consume", "consume_async"])
async def test_a_second_signal_does_not_wait(queen: AsyncQueen, broker: Broker, what: str) -> None:
    await queen.queue("q").push(1)
    async with worker(what, broker) as process:
        assert await line(process) == "begin 1"
        ended = asyncio.create_task(process.wait())
        async with asyncio.timeout(5):
            while not ended.done():  # two at once would be one: a busy process may get them late
                process.send_signal(signal.SIGTERM)
                await asyncio.wait([ended], timeout=0.3)
        assert ended.result() == -signal.SIGTERM


@pytest.mark.parametrize("what", ["process", "process_async"])
async def test_windows(queen: AsyncQueen, broker: Broker, what: str) -> None:
    await one_window(queen, "q", "s")
    async with worker(what, broker) as process:
        assert await line(process) == "begin __GLOBAL__"
        process.send_signal(signal.SIGTERM)
        await asyncio.sleep(0.2)
        assert process.returncode is None
        await release(process)
        assert await line(process) == "end __GLOBAL__"
        assert await line(process) == "handled 1 failed 0"
        assert await asyncio.wait_for(process.wait(), 5) == 0
    [group] = (await queen.admin.stream("s")).groups
    assert (group.leased, group.lag) == (0, 0)
