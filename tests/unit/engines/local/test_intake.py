"""How much of a source is in memory at once: bounded by records, and by bytes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from queenstream.core.batches import Batch
from queenstream.engines.local.intake import (
    MOST,
    MOST_BYTES,
    Intake,
    Pressure,
    Sizes,
    intake_for,
    size_of,
)
from queenstream.pipeline.builder import Pipeline
from queenstream.pipeline.endpoints import Memory
from queenstream.pipeline.plan.nodes import Read, Replay
from queenstream.pipeline.policies import DeadLetters

MEGABYTE_BYTES = 1 << 20
MEGABYTE = "x" * MEGABYTE_BYTES


def read_of(threshold: int = 10_000) -> Read:
    [read] = Pipeline("p").source(Memory([]), threshold=threshold).to(print).plan().sources
    return read


class Endless:
    """A source that gives as much as it is asked for."""

    def __init__(self, record: Any) -> None:
        self.record = record
        self.asked: list[int] = []

    async def read(self, most: int, wait_seconds: float) -> Batch | None:
        self.asked.append(most)
        return Batch([self.record] * most)

    async def open(self, positions: object) -> None: ...
    def changes(self) -> dict[str, Any]:
        return {"": len(self.asked)}

    async def commit(self) -> None: ...
    def drained(self) -> bool:
        return False

    def lag(self) -> float | None:
        return None

    async def close(self) -> None: ...


def intake(node: Read, source: Endless, max_rows: int | None = None, max_bytes: int | None = None) -> Intake:
    pressures: list[Pressure] = []
    return intake_for(node, source, pressures.append, max_rows=max_rows, max_bytes=max_bytes)


async def test_small_records_come_by_the_thousand() -> None:
    source = Endless({"n": 1})
    taken = intake(read_of(), source)
    for _ in range(6):
        await taken.take(0)
    assert source.asked == [32, 256, 2_048, MOST, MOST, MOST]
    assert taken.bytes == MOST * len('{"n":1}')


async def test_large_records_come_in_small_batches() -> None:
    source = Endless({"text": MEGABYTE})
    taken = intake(read_of(), source)
    for _ in range(5):
        batch = await taken.take(0)
        assert batch is not None
        assert sum(map(size_of, batch.records)) <= MOST_BYTES * 1.01
    assert set(source.asked[1:]) == {MOST_BYTES // size_of({"text": MEGABYTE})}


async def test_one_at_a_time_is_the_least() -> None:
    source = Endless({"text": MEGABYTE * 40})
    sizes = Sizes()
    sizes.saw(Batch([source.record]))
    assert sizes.most == 1


async def test_records_that_shrink_come_in_larger_batches_again() -> None:
    source = Endless({"text": MEGABYTE})
    taken = intake(read_of(), source)
    await taken.take(0)
    source.record = {"n": 1}
    for _ in range(5):
        await taken.take(0)
    assert source.asked[-1] == MOST


async def test_a_threshold_below_is_kept() -> None:
    source = Endless({"n": 1})
    taken = intake(read_of(threshold=20), source)
    for _ in range(3):
        await taken.take(0)
    assert source.asked == [20, 20, 20]


async def test_a_run_may_set_the_limits_of_a_batch() -> None:
    source = Endless({"n": 1})
    taken = intake(read_of(), source, max_rows=40)
    for _ in range(3):
        await taken.take(0)
    assert source.asked == [32, 40, 40]
    large = Endless({"text": MEGABYTE})
    taken = intake(read_of(), large, max_bytes=4 * MEGABYTE_BYTES)
    for _ in range(3):
        await taken.take(0)
    assert large.asked == [32, 3, 3]


@pytest.mark.parametrize("record", [object(), {1: object()}, {(1, 2): 3}, float("nan"), "\ud800", 1 << 100])
def test_anything_has_a_size(record: Any) -> None:
    assert size_of(record) > 0


def replay_of() -> Iterator[Replay]:
    plan = Pipeline("p").source(Memory([])).on_error(DeadLetters("x")).to(print).plan()
    return (read for read in plan.sources if isinstance(read, Replay))


async def test_what_is_read_beside_waits_until_its_positions_are_taken() -> None:
    """Else what was not worked on could be acknowledged with what was."""
    source = Endless({"n": 1})
    taken = intake(next(replay_of()), source)
    assert taken.changes() == {}
    first = await taken.take(5)
    assert first is not None
    assert len(first) == 32
    assert (await taken.take(5)) == Batch([])
    assert len(source.asked) == 1
    assert taken.changes() == {"": 1}
    assert taken.changes() == {}
    second = await taken.take(5)
    assert second is not None
    assert len(second) == 256
    await taken.close()
