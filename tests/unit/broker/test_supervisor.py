"""The supervisor: whatever ends a long-lived task, it is counted, logged and started again."""

from __future__ import annotations

import asyncio

import pytest

from queenstream.broker.ops import supervisor
from queenstream.broker.ops.metrics import Metrics
from queenstream.broker.ops.supervisor import Supervisor


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervisor, "FIRST_BACKOFF_SECONDS", 0.001)


def cancelled() -> asyncio.Future[None]:
    """As of a helper that was cancelled: awaiting it raises CancelledError in a task that was not."""
    future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    future.cancel()
    return future


async def test_a_task_that_fails_is_restarted_counted_and_logged(caplog: pytest.LogCaptureFixture) -> None:
    metrics = Metrics()
    supervised = Supervisor(metrics)
    runs = 0
    recovered = asyncio.Event()

    async def work() -> None:
        nonlocal runs
        runs += 1
        if runs == 1:
            raise KeyError("a defect")
        if runs == 2:
            await cancelled()
        recovered.set()
        await asyncio.Event().wait()

    supervised.start("worker", work)
    await asyncio.wait_for(recovered.wait(), 5)
    assert metrics.task_restarts == {"worker": 2}
    assert supervised.failing == ["worker"]
    assert "task worker failed" in caplog.text
    assert "a defect" in caplog.text
    text = metrics.prometheus({}).decode()
    assert 'queen_task_restarts_total{task="worker"} 2.0' in text
    await asyncio.wait_for(supervised.close(), 5)


async def test_a_task_that_returns_or_is_stopped_is_not_restarted() -> None:
    metrics = Metrics()
    supervised = Supervisor(metrics)
    begun = asyncio.Event()

    async def listen() -> None:
        begun.set()
        await asyncio.Event().wait()

    async def finish() -> None:
        return

    ended = asyncio.Event()
    supervised.start("short", finish).on_end(ended.set)
    await asyncio.wait_for(ended.wait(), 5)
    task = supervised.start("long", listen)
    await begun.wait()
    await asyncio.wait_for(task.stop(), 5)
    await supervised.close()
    assert metrics.task_restarts == {}
    assert supervised.failing == []
