"""Where event time is at each step of a run, which steps work, and which are held up by them."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import pytest

from queenstream.engines.local.run import LocalRun, start
from queenstream.pipeline.builder import Pipeline
from queenstream.pipeline.endpoints import Generator
from queenstream.pipeline.engine_api import RunOptions
from queenstream.pipeline.shorthand import count, tumbling
from tests.integration.streams.streaming import eventually

Row = dict[str, Any]
pytestmark = pytest.mark.timeout(60)


@pytest.fixture
def release() -> Iterator[threading.Event]:
    """What a step of the test waits for; at its end it may go on."""
    made = threading.Event()
    yield made
    made.set()


async def seconds() -> AsyncIterator[Row]:
    """A record for each of some seconds after 1970, then one every moment; it never ends."""
    for n in range(100):
        yield {"n": n, "user": "ann", "at": n * 1_000}
    while True:
        await asyncio.sleep(0.01)
        yield {"n": 100, "user": "ann", "at": 100_000}


def source(**options: Any) -> Pipeline[Any]:
    return Pipeline("p").source(Generator(seconds, endless=True), name="in", **options)


async def shown(run: LocalRun, fits: Callable[[dict[str, float]], bool]) -> dict[str, float]:
    """The run's figures, once they are as they should be."""

    async def look() -> dict[str, float] | None:
        found = run.get_stats()
        return found if fits(found) else None

    found: dict[str, float] = await eventually(look, 20)
    return found


async def ended(run: LocalRun) -> None:
    run.stop()
    assert await asyncio.to_thread(run.wait, 20)


async def test_the_watermark_of_the_steps_that_have_one() -> None:
    timed = source().event_time("at").transform("parse", lambda row: row).key_by("user")
    windows = timed.window(tumbling("10s")).aggregate(n=count(), step_name="sum")
    run = start(windows.to(lambda _: None, name="out").plan(), RunOptions())
    try:
        at = "steps.{}.watermark_timestamp_seconds".format
        stats = await shown(run, lambda found: found.get(at("sum")) == 100.0)
    finally:
        await ended(run)
    assert stats[at("event_time")] == 100.0
    assert {name for name in stats if name.endswith("_timestamp_seconds")} <= {
        at("in"),
        at("event_time"),
        at("sum"),
    }
    assert b'queen_pipeline_step_watermark_timestamp_seconds{pipeline="p",step="sum"} 100.0' in run.metrics()


async def test_a_slow_step_is_busy_and_holds_up_those_before_it(release: threading.Event) -> None:
    steps = (
        source().transform("parse", lambda row: row).transform("slow", lambda row: release.wait(30) and row)
    )
    run = start(steps.to(lambda _: None, name="out").plan(), RunOptions())
    try:
        stats = await shown(run, lambda found: found["steps.slow.busy_ratio"] > 0.5)
    finally:
        release.set()
        await ended(run)
    for step in ("in", "parse"):
        assert stats[f"steps.{step}.backpressure_ratio"] >= 0.5, step
        assert stats[f"steps.{step}.busy_ratio"] < 0.2, step
    assert stats["steps.slow.backpressure_ratio"] == stats["steps.out.backpressure_ratio"] == 0
    assert b'queen_pipeline_step_backpressure_ratio{pipeline="p",step="in"}' in run.metrics()


async def test_a_slow_sink_holds_up_all_steps(release: threading.Event) -> None:
    async def write(_: Row) -> None:
        await asyncio.to_thread(release.wait, 30)

    run = start(source().transform("parse", lambda row: row).to(write, name="out").plan(), RunOptions())
    try:
        stats = await shown(run, lambda found: found["steps.parse.backpressure_ratio"] > 0.5)
    finally:
        release.set()
        await ended(run)
    assert stats["steps.out.busy_ratio"] > 0.5
    assert stats["steps.in.backpressure_ratio"] > 0.5
    assert stats["steps.out.backpressure_ratio"] == 0


async def test_a_source_that_drops_is_held_up_as_its_buffer_is_full(release: threading.Event) -> None:
    async def write(_: Row) -> None:
        await asyncio.to_thread(release.wait, 30)

    read = source(backpressure="drop_oldest", threshold=10)
    run = start(read.to(write, name="out").plan(), RunOptions())
    try:
        await shown(run, lambda found: found["dropped"] > 0 and found["steps.in.backpressure_ratio"] == 1)
    finally:
        release.set()
        await ended(run)
