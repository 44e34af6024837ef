"""The parts of the engine that stand alone: what is due, keys as text, figures, sources that do not wait."""

from __future__ import annotations

import asyncio
import heapq
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, timezone
from decimal import Decimal
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from queenstream.core.batches import Batch
from queenstream.core.records import as_row, moment
from queenstream.engines.local.intake import Dropping, Pressure, intake_for
from queenstream.engines.local.timers import Due
from queenstream.errors import BufferFull
from queenstream.pipeline.builder import Pipeline
from queenstream.pipeline.endpoints import Memory
from queenstream.pipeline.policies import Strategy
from queenstream.runtime.keys import entry_name, key_text
from queenstream.runtime.metrics import Meter, step_stats


@given(
    st.integers(1, 1_000),
    st.lists(
        st.one_of(
            st.tuples(st.just("add"), st.integers(-500, 500)),
            st.tuples(st.just("pop"), st.integers(-500, 500)),
        )
    ),
)
def test_what_is_due_comes_in_order_like_from_one_heap(usual: int, actions: list[tuple[str, int]]) -> None:
    due, heap = Due[int](usual), list[tuple[int, int]]()
    for number, (what, time) in enumerate(actions):
        if what == "add":
            due.add(time, number)
            heapq.heappush(heap, (time, number))
        else:
            expected = heapq.heappop(heap) if heap and heap[0][0] <= time else None
            assert due.pop(time) == expected
        assert len(due) == len(heap)


def test_equal_keys_have_equal_texts() -> None:
    zone = timezone(timedelta(hours=2))
    equal: list[list[Any]] = [
        [1, 1.0, True, Decimal(1)],
        [datetime(2026, 1, 1, 2, tzinfo=zone), datetime(2026, 1, 1, tzinfo=UTC)],
        [("a", 1), ("a", 1.0)],
    ]
    texts = [{key_text(key) for key in keys} for keys in equal]
    assert [len(each) for each in texts] == [1, 1, 1]
    assert len({key_text(key) for key in (1, "1", None, 1.5, ("1",), (1,), "a\nb")}) == 7
    assert entry_name("a\nb", 7).split("\n") == ['"a\\nb"', "7"]


@given(st.one_of(st.none(), st.integers(), st.floats(), st.text(), st.booleans(), st.binary()))
def test_every_key_has_a_text_without_a_line_break(key: Any) -> None:
    assert "\n" not in key_text(key)


class Struct(msgspec.Struct):
    a: int


@dataclass
class Plain:
    a: int


class Model:
    """As pydantic's models look."""

    model_fields = {"a": None}  # noqa: RUF012 - as pydantic has it

    def __init__(self) -> None:
        self.a = 1


@pytest.mark.parametrize("record", [{"a": 1}, Struct(1), Plain(1), Model()])
def test_records_of_all_kinds_are_rows(record: Any) -> None:
    assert as_row(record) == {"a": 1}


@pytest.mark.parametrize("record", [1, "text", [1], None, Plain])
def test_what_has_no_fields_is_no_row(record: Any) -> None:
    with pytest.raises(TypeError, match="no named fields"):
        as_row(record)


def test_the_ends_of_the_calendar_are_no_error() -> None:
    assert moment(10**18) == datetime.max.replace(tzinfo=UTC)
    assert moment(-(10**18)) == datetime.min.replace(tzinfo=UTC)


def test_rates_and_latencies() -> None:
    now = 100.0
    meter = Meter(clock=lambda: now)
    for _ in range(20):
        now += 1
        meter.took(50)
    meter.delivered(90, 0.010)
    meter.delivered(9, 0.200)
    meter.delivered(1, 1.000)
    stats = meter.stats()
    assert stats["messages"] == 1_000
    assert stats["messages_per_second"] == pytest.approx(50, rel=0.15)
    assert (stats["latency_p50_ms"], stats["latency_p95_ms"], stats["latency_p99_ms"]) == (10, 200, 200)
    now += 60
    assert meter.stats()["messages_per_second"] == 0


def test_figures_of_steps() -> None:
    counts = {
        "in": {"taken": 98, "given": 98, "failed": 2},
        "map": {"taken": 98, "given": 96, "failed": 2, "late": 1},
    }
    stats = step_stats(counts, ["in"])
    assert (stats["errors"], stats["error_rate"], stats["late"]) == (4, 4, 1)
    assert stats["steps.map.given"] == 96


class Firehose:
    """A reader whose source does not wait: it gives the test's batches one after the other."""

    def __init__(self, *batches: Batch) -> None:
        self.batches = list(batches)
        self.read_up_to = self.told = 0
        self.all_read = asyncio.Event()

    async def open(self, positions: Any) -> None: ...

    async def read(self, most: int, wait_seconds: float) -> Batch | None:
        if not self.batches:
            self.all_read.set()
            await asyncio.sleep(0)
            return None
        batch = self.batches.pop(0)
        self.read_up_to += len(batch)
        return batch

    def changes(self) -> dict[str, Any]:
        return {"at": self.read_up_to}

    async def commit(self) -> None: ...

    def drained(self) -> bool:
        return True

    def lag(self) -> float | None:
        return 7

    async def close(self) -> None: ...


def numbers(start: int, end: int) -> Batch:
    return Batch(list(range(start, end)), list(range(start, end)))


async def pumped(strategy: Strategy, *batches: Batch) -> tuple[Dropping, list[Pressure]]:
    """A source of which ten records may wait, after it has been read to its end."""
    begin = Pipeline("test").source(Memory[Any]([]), backpressure=strategy, threshold=10)
    [node] = begin.to(print).plan().sources
    told: list[Pressure] = []
    reader = Firehose(*batches)
    intake = intake_for(node, reader, told.append)
    assert isinstance(intake, Dropping)
    await reader.all_read.wait()
    return intake, told


@pytest.mark.parametrize(
    ("strategy", "kept"),
    [("drop_oldest", list(range(15, 25))), ("drop_newest", [*range(9), 9])],
)
async def test_what_is_too_much_is_dropped_and_counted(strategy: Strategy, kept: list[int]) -> None:
    intake, told = await pumped(strategy, numbers(0, 8), numbers(8, 20), numbers(20, 25))
    assert (intake.waiting, intake.dropped, intake.lag()) == (10, 15, 17)
    batch = await intake.take(0)
    assert batch is not None
    assert (batch.records, batch.times) == (kept, kept)
    # That it was read is true of the dropped ones too.
    assert intake.changes() == {"at": 25}
    assert [(each.on, each.waiting) for each in told] == [(True, 20), (False, 0)]
    assert await intake.take(10) is None
    await intake.close()


async def test_a_source_that_keeps_below_its_threshold_loses_nothing() -> None:
    intake, told = await pumped("drop_oldest", numbers(0, 5), numbers(5, 10))
    batch = await intake.take(0)
    assert batch is not None
    assert batch.records == list(range(10))
    assert (intake.dropped, told) == (0, [])
    await intake.close()


async def test_failures_of_a_source_are_no_records_to_drop() -> None:
    bad = Batch([1], failures=[("{", ValueError("no JSON"))])
    intake, _ = await pumped("drop_oldest", bad)
    batch = await intake.take(0)
    assert batch is not None
    assert [record for record, _ in batch.failures] == ["{"]
    await intake.close()


async def test_error_ends_the_run_and_says_what_to_do() -> None:
    begin = Pipeline("test").source(Memory[Any]([]), backpressure="error", threshold=10)
    [node] = begin.to(print).plan().sources
    intake = intake_for(node, Firehose(numbers(0, 11)), lambda pressure: None)
    assert await intake.take(10) is not None  # what was read before
    with pytest.raises(BufferFull, match="11 records wait, 10 may"):
        await intake.take(10)
    await intake.close()
