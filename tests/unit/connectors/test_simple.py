"""Memory, generators and functions."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from queenstream.connectors import Context, writer_for
from queenstream.errors import ConfigError, PayloadInvalid
from queenstream.pipeline.endpoints import Function, Generator, Memory
from tests.unit.connectors.reading import CONTEXT, everything, opened, some


def numbers() -> Iterator[int]:
    yield from range(10)


async def numbers_later() -> AsyncIterator[int]:
    for number in range(10):
        await asyncio.sleep(0)
        yield number


def numbers_from(taken: int) -> Iterator[int]:
    yield from range(taken, 10)


async def numbers_later_from(taken: int) -> AsyncIterator[int]:
    for number in range(taken, 10):
        yield number


SOURCES = [
    Memory(range(10)),
    Generator(numbers),
    Generator(numbers_later),
    Generator(numbers_from),
    Generator(numbers_later_from),
    Generator(lambda: list(range(10)), name="list"),
]


@pytest.mark.parametrize("source", SOURCES, ids=lambda source: source.label)
async def test_all_records_come_and_then_the_end(source: Memory[int] | Generator[int]) -> None:
    assert (await everything(source, most=3)).records == list(range(10))


@pytest.mark.parametrize("source", SOURCES, ids=lambda source: source.label)
async def test_a_reader_goes_on_after_its_position(source: Memory[int] | Generator[int]) -> None:
    reader = await opened(source)
    taken = (await some(reader, most=4)).records
    position = reader.changes()
    assert reader.changes() == {}
    taken += (await some(reader, most=1)).records  # not in the position: it comes again
    await reader.commit()
    await reader.close()
    assert (await everything(source, position)).records == list(range(len(taken) - 1, 10))


async def test_records_that_do_not_fit_the_schema_are_failures() -> None:
    batch = await everything(Memory([{"n": "1"}, {"n": "x"}, {"n": 3}], schema="n int"))
    assert batch.records == [{"n": 1}, {"n": 3}]
    [(record, error)] = batch.failures
    assert record == {"n": "x"}
    assert isinstance(error, PayloadInvalid)
    assert "n must be a whole number" in str(error)


async def test_memory_knows_its_lag() -> None:
    reader = await opened(Memory(range(10)))
    await some(reader, most=4)
    assert reader.lag() == 6


async def test_what_a_generator_raises_comes_after_its_records() -> None:
    def broken() -> Iterator[int]:
        yield 1
        raise RuntimeError("no more")

    async def broken_later() -> AsyncIterator[int]:
        yield 1
        raise RuntimeError("no more")

    for function in (broken, broken_later):
        reader = await opened(Generator(function))
        assert (await some(reader)).records == [1]
        with pytest.raises(RuntimeError, match="no more"):
            await some(reader)
        await reader.close()


async def test_a_generator_that_waits_holds_up_nobody() -> None:
    go_on = threading.Event()

    def slow() -> Iterator[int]:
        yield 1
        go_on.wait(30)
        yield 2

    reader = await opened(Generator(slow))
    assert (await some(reader)).records == [1]
    before = time.monotonic()
    batch = await reader.read(100, 0.05)
    assert batch is not None
    assert batch.empty
    assert time.monotonic() - before < 10
    go_on.set()
    assert (await some(reader)).records == [2]
    await reader.close()


@pytest.mark.parametrize("later", [False, True])
async def test_a_generator_runs_no_further_ahead_than_it_may(later: bool) -> None:
    made = 0

    def endless() -> Iterator[int]:
        nonlocal made
        while True:
            made += 1
            yield made

    async def endless_later() -> AsyncIterator[int]:
        for number in endless():
            yield number

    reader = await opened(Generator(endless_later if later else endless, endless=True))
    taken = 0
    for _ in range(5):
        taken += len(await some(reader, most=100))
    assert made <= taken + 10_001
    await reader.close()


async def test_a_function_that_gives_no_records_is_said() -> None:
    def nothing() -> Any:
        return 7

    with pytest.raises(ConfigError, match="gave int, not records; write it with yield"):
        await opened(Generator(nothing))


# Functions as sinks


async def test_functions_get_rows_in_order_and_refuse_by_raising() -> None:
    seen: list[int] = []

    def take(row: int) -> None:
        if row == 2:
            raise ValueError("not 2")
        seen.append(row)

    async def take_later(row: int) -> None:
        await asyncio.sleep(0)
        take(row)

    class Taker:
        async def __call__(self, row: int) -> None:
            take(row)

    for function in (take, take_later, Taker()):
        seen.clear()
        writer = writer_for(Function(function, name="f"), CONTEXT)
        await writer.open()
        refused = await writer.write("g-1", [1, 2, 3])
        await writer.close()
        assert seen == [1, 3]
        assert [(index, str(error)) for index, error in refused] == [(1, "not 2")]


async def test_a_function_of_batches_takes_or_refuses_them_whole() -> None:
    seen: list[list[int]] = []

    async def take(rows: list[int]) -> None:
        if 0 in rows:
            raise ValueError("zero")
        seen.append(rows)

    writer = writer_for(Function(take, batch=True), CONTEXT)
    assert await writer.write("g-1", [1, 2]) == []
    assert [index for index, _ in await writer.write("g-2", [3, 0])] == [0, 1]
    assert seen == [[1, 2]]


async def test_a_function_of_so_many_rows_refuses_only_those_of_a_call() -> None:
    seen: list[list[int]] = []

    def take(rows: list[int]) -> None:
        seen.append(rows)
        if 0 in rows:
            raise ValueError("zero")

    writer = writer_for(Function(take, batch_size=2), CONTEXT)
    refused = await writer.write("g-1", [1, 2, 0, 4, 5])
    assert seen == [[1, 2], [0, 4], [5]]
    assert [(index, str(error)) for index, error in refused] == [(2, "zero"), (3, "zero")]
    with pytest.raises(ConfigError, match="batch_size is 0"):
        Function(take, batch_size=0)


async def test_a_plain_function_may_block() -> None:
    """It runs beside the event loop, which here has to end its wait."""
    reached = threading.Event()
    writer = writer_for(Function(lambda row: reached.wait(30)), CONTEXT)
    writing = asyncio.get_running_loop().create_task(writer.write("g-1", [1]))
    done, _ = await asyncio.wait({writing}, timeout=0.05)
    assert not done
    reached.set()
    assert await writing == []


def test_a_delivery_has_a_name_of_bounded_length() -> None:
    assert Context("p", "queue:out").delivery("g-7") == "p:queue:out:g-7"
    long, other = Context("p" * 300, "out"), Context("p" * 299, "out")
    assert len(long.delivery("g-7")) <= 200
    assert len({each.delivery(epoch) for each in (long, other) for epoch in ("g-7", "g-8")}) == 4
