"""Runs of the local engine from queues of a real broker: once each, whatever happens in between."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import Any

import pytest

from queenstream import AsyncQueen
from queenstream.broker.app import Broker
from queenstream.core.aggregates import count, sum_
from queenstream.engines.local.run import start
from queenstream.errors import RunAborted
from queenstream.pipeline.builder import Pipeline
from queenstream.pipeline.endpoints import Queue
from queenstream.pipeline.engine_api import RunOptions
from queenstream.pipeline.shorthand import tumbling
from tests.integration.local.collecting import Collected

Row = dict[str, Any]


async def test_from_queues_to_a_queue_stopped_in_between(broker: Broker, tmp_path: Path) -> None:
    """Many partitions, a window over them, a restart from the checkpoint: every row, and once."""
    queen = AsyncQueen(broker.address)
    for user in range(5):
        await (
            queen.queue("orders")
            .partition(f"u{user}")
            .push([{"user": user, "n": n, "at": n * 1000} for n in range(40)])
        )
    pipeline = (
        Pipeline("totals")
        .source(Queue("orders"))
        .key_by("user")
        .window(tumbling("10s"), grace="60s", time="at")
        .aggregate(n=count(), total=sum_("n"))
        .to(Queue("totals", partition_by="user"))
    )
    where = {"checkpoint": str(tmp_path), "url": broker.address}
    first = start(pipeline.plan(), RunOptions.of({**where, "until": "caught_up"}))  # type: ignore[typeddict-item]
    assert await asyncio.to_thread(first.wait, 60)
    assert first.get_stats()["messages"] == 200
    # Enough later to close everything before it.
    await queen.queue("orders").partition("u0").push([{"user": 0, "n": 0, "at": 1_000_000}])
    again = start(pipeline.plan(), RunOptions.of({**where, "until": "caught_up"}))  # type: ignore[typeddict-item]
    assert await asyncio.to_thread(again.wait, 60)
    assert again.get_stats()["messages"] == 1
    messages = await queen.queue("totals").group("check").batch(1000).partitions(100).pop()
    rows = sorted(
        (message.data["user"], message.data["window_start"], message.data["total"]) for message in messages
    )
    assert [(user, total) for user, _, total in rows] == [
        (user, sum(range(start, start + 10))) for user in range(5) for start in range(0, 40, 10)
    ]
    await queen.close()


async def test_what_comes_again_after_a_crash_is_passed_over_and_acknowledged(
    broker: Broker, tmp_path: Path
) -> None:
    """Committed, but neither delivered nor acknowledged when the run ended."""
    queen = AsyncQueen(broker.address)
    await queen.queue("orders").push([{"n": n} for n in range(20)])
    entered, rows = threading.Event(), Collected()
    hanging = True

    async def sink(row: Row) -> None:
        if hanging:
            entered.set()
            await asyncio.Event().wait()
        rows(row)

    plan = Pipeline("p").source(Queue("orders")).to(sink).plan()
    options = RunOptions(checkpoint=str(tmp_path), url=broker.address, until="caught_up")
    first = start(plan, options)
    assert await asyncio.to_thread(entered.wait, 30)
    first.stop()
    first.stop()
    with pytest.raises(RunAborted):
        await asyncio.to_thread(first.wait, 30)
    hanging = False
    again = start(plan, options)
    assert await asyncio.to_thread(again.wait, 60)
    assert [row["n"] for row in rows.rows] == list(range(20))
    assert again.get_stats()["messages"] == 0
    assert not await queen.queue("orders").group("p").batch(100).wait(0).pop()
    standing = (await queen.admin.group("p")).queues["orders"]
    assert standing.lag == 0
    await queen.close()


async def test_a_queue_that_gives_no_more_before_a_commit_gets_one(broker: Broker, tmp_path: Path) -> None:
    """A partition is given in order, so its rest waits for what was given to be acknowledged."""
    queen = AsyncQueen(broker.address)
    await queen.queue("orders").push([{"n": n} for n in range(30)])
    rows = Collected()
    plan = Pipeline("p").source(Queue("orders"), threshold=10).to(rows).plan()
    options = {"checkpoint": str(tmp_path), "url": broker.address, "interval": "1h"}
    run = start(plan, RunOptions.of({**options, "until": "caught_up"}))  # type: ignore[typeddict-item]
    assert await asyncio.to_thread(run.wait, 30)
    assert [row["n"] for row in rows.rows] == list(range(30))
    await queen.close()
