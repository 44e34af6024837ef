"""Micro-batching: what waits together goes together, and nothing is left behind."""

from __future__ import annotations

import asyncio

import pytest

from queenstream.broker.messaging.batcher import Batcher
from queenstream.errors import Unavailable


class Recorder:
    """Answers each number with its double, and keeps the batches."""

    def __init__(self) -> None:
        self.batches: list[list[int]] = []
        self.alone: list[bool] = []
        self.gate = asyncio.Event()
        self.gate.set()

    async def run(self, batch: list[int], alone: bool) -> list[int | BaseException]:
        self.batches.append(batch)
        self.alone.append(alone)
        await self.gate.wait()
        return [ValueError(str(n)) if n < 0 else 2 * n for n in batch]


async def test_one_after_the_other_each_gets_its_answer() -> None:
    """A lane that has just ended must not be counted on."""
    recorder = Recorder()
    batcher = Batcher(recorder.run, lanes=1)
    for number in range(500):
        assert await asyncio.wait_for(batcher.ask(number, 1), 5) == 2 * number
    assert len(recorder.batches) == 500


async def test_what_waits_together_goes_together() -> None:
    recorder = Recorder()
    recorder.gate.clear()
    batcher = Batcher(recorder.run, lanes=1, batch_bytes=10)
    answers = [batcher.ask(0, 1)]
    await asyncio.sleep(0)
    answers += [batcher.ask(number, 1) for number in range(1, 25)]
    recorder.gate.set()
    assert await asyncio.gather(*answers) == [2 * number for number in range(25)]
    assert [len(batch) for batch in recorder.batches] == [1, 10, 10, 4]


async def test_a_second_lane_starts_when_enough_waits() -> None:
    recorder = Recorder()
    recorder.gate.clear()
    batcher = Batcher(recorder.run, lanes=2, lane_bytes=5, batch_bytes=5)
    answers = [batcher.ask(number, 1) for number in range(10)]
    await asyncio.sleep(0)
    assert recorder.batches == [[0, 1, 2, 3, 4], [5, 6, 7, 8, 9]]
    recorder.gate.set()
    assert await asyncio.gather(*answers) == [2 * number for number in range(10)]
    assert recorder.alone == [False, False]


async def test_a_batch_that_is_promised_to_be_alone_is_alone() -> None:
    recorder = Recorder()
    recorder.gate.clear()
    batcher = Batcher(recorder.run, lanes=2, lane_bytes=5)
    answers = [batcher.ask(0, 1)]
    await asyncio.sleep(0)
    answers += [batcher.ask(number, 1) for number in range(1, 20)]
    await asyncio.sleep(0)
    assert recorder.batches == [[0]], "however much waits"
    recorder.gate.set()
    assert await asyncio.gather(*answers) == [2 * number for number in range(20)]
    assert recorder.alone == [True, False]


async def test_an_error_goes_to_its_request_and_a_failure_to_all() -> None:
    recorder = Recorder()
    batcher = Batcher(recorder.run)
    good, bad = batcher.ask(1, 1), batcher.ask(-1, 1)
    assert await good == 2
    with pytest.raises(ValueError, match="-1"):
        await bad

    async def fail(batch: list[int], _alone: bool) -> list[int | BaseException]:
        raise RuntimeError("broken")

    broken = Batcher(fail)
    for answer in (broken.ask(1, 1), broken.ask(2, 1)):
        with pytest.raises(RuntimeError, match="broken"):
            await answer


async def test_what_waits_is_bounded() -> None:
    recorder = Recorder()
    recorder.gate.clear()
    batcher = Batcher(recorder.run, lanes=1, pending_bytes=100)
    first = batcher.ask(1, 100)
    await asyncio.sleep(0)
    second = batcher.ask(2, 100)
    with pytest.raises(Unavailable):
        batcher.ask(3, 1)
    recorder.gate.set()
    assert (await first, await second) == (2, 4)
    await batcher.drain()
    assert await batcher.ask(3, 100) == 6


async def test_a_batch_with_too_few_answers_fails_and_the_lane_goes_on() -> None:
    async def run(batch: list[int], _alone: bool) -> list[int | BaseException]:
        return [] if 0 in batch else [*batch]

    batcher = Batcher(run, lanes=1)
    with pytest.raises(RuntimeError, match="0 answers to 1 requests"):
        await asyncio.wait_for(batcher.ask(0, 1), 5)
    assert await asyncio.wait_for(batcher.ask(1, 1), 5) == 1
