"""Runs tell the broker of themselves, and a broker that is not there is no matter of theirs."""

from __future__ import annotations

import asyncio
import logging
import socketserver
import threading
from pathlib import Path
from typing import Any

import pytest

from queenstream import AsyncQueen
from queenstream.broker.app import Broker
from queenstream.connectors import reporter
from queenstream.connectors.reporter import broker_of
from queenstream.engines.local.run import LocalRun, start
from queenstream.errors import StepFailed
from queenstream.pipeline.builder import Pipeline
from queenstream.pipeline.endpoints import Memory, Queue
from queenstream.pipeline.engine_api import RunOptions
from queenstream.pipeline.plan.planner import Plan
from queenstream.pipeline.policies import DeadLetters
from tests.conftest import StartBroker
from tests.integration.streams.streaming import eventually
from tests.integration.test_roles import SECRET, token

Row = dict[str, Any]


def numbers(count: int) -> list[Row]:
    return [{"n": n} for n in range(count)]


def run_of(pipeline: Pipeline[Any], url: str, **options: Any) -> LocalRun:
    return start(pipeline.plan(), RunOptions(url=url, **options))


async def test_a_run_is_seen_while_it_runs_and_after_it_has_ended(broker: Broker, tmp_path: Path) -> None:
    release = threading.Event()

    def wait(row: Row) -> Row:
        assert release.wait(30)
        return row

    pipeline = Pipeline("totals").source(Memory(numbers(3)), name="in").transform("wait", wait).to(print)
    async with AsyncQueen(broker.address) as queen:
        run = run_of(pipeline, broker.address, checkpoint=str(tmp_path))
        await eventually(lambda: _listed(queen))
        [listed] = await queen.admin.pipelines()
        assert (listed.name, listed.state, listed.engine) == ("totals", "running", "local")
        release.set()
        assert await asyncio.to_thread(run.wait, 30)
        shown = await queen.admin.pipeline("totals")
    assert (shown.state, shown.error, shown.checkpoint) == ("stopped", None, str(tmp_path))
    assert (shown.stats["messages"], shown.stats["steps.in.taken"]) == (3, 3)
    assert shown.plan is not None
    assert [node["name"] for node in shown.plan["nodes"]][:2] == ["in", "wait"]
    assert shown.series[-1].messages == 3


async def _listed(queen: AsyncQueen) -> bool:
    return bool(await queen.admin.pipelines())


async def test_a_plan_of_very_many_steps_is_seen_without_its_steps(broker: Broker) -> None:
    pipeline: Pipeline[Any] = Pipeline("long").source(Memory(numbers(1)))
    for number in range(300):
        pipeline = pipeline.filter("n >= 0", name=f"{'step ' * 50}{number}")
    run = run_of(pipeline.to(lambda row: None), broker.address)
    assert await asyncio.to_thread(run.wait, 60)
    async with AsyncQueen(broker.address) as queen:
        shown = await queen.admin.pipeline("long")
    assert (shown.state, shown.stats["messages"]) == ("stopped", 1)
    assert not [name for name in shown.stats if name.startswith("steps.")]


async def test_a_run_that_fails_says_why(broker: Broker) -> None:
    pipeline = (
        Pipeline("strict")
        .source(Memory(numbers(1)))
        .transform("divide", lambda row: {"n": 1 / row["n"]}, on_error="fail")
        .to(print)
    )
    run = run_of(pipeline, broker.address)
    with pytest.raises(StepFailed):
        await asyncio.to_thread(run.wait, 30)
    async with AsyncQueen(broker.address) as queen:
        shown = await queen.admin.pipeline("strict")
    assert shown.state == "failed"
    assert (shown.error or "").startswith("StepFailed: ")
    assert "ZeroDivisionError" in (shown.error or "")


def test_a_broker_that_is_away_is_told_of_once(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reporter, "CALL_SECONDS", 0.2)
    monkeypatch.setattr(reporter, "FIRST_PAUSE_SECONDS", 0.01)
    tried = threading.Semaphore(0)

    class Rude(socketserver.BaseRequestHandler):
        """Hangs up at once."""

        def handle(self) -> None:
            tried.release()

    def wait(row: Row) -> Row:
        for _ in range(3):
            assert tried.acquire(timeout=30)
        return row

    rows: list[Row] = []
    pipeline = Pipeline("alone").source(Memory(numbers(1))).transform("wait", wait).to(rows.append)
    with (
        socketserver.ThreadingTCPServer(("127.0.0.1", 0), Rude) as server,
        caplog.at_level(logging.WARNING, "queenstream.reporting"),
    ):
        threading.Thread(target=server.serve_forever, daemon=True).start()
        run = run_of(pipeline, f"http://127.0.0.1:{server.server_address[1]}")
        assert run.wait(30)
        server.shutdown()
    assert rows == [{"n": 0}]
    [warning] = [each for each in caplog.records if each.name == "queenstream.reporting"]
    assert "cannot tell the broker of itself, and goes on" in warning.getMessage()


async def test_who_may_only_read_cannot_tell_and_runs_all_the_same(
    start_broker: StartBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker = await start_broker(auth_secret=SECRET)
    monkeypatch.setenv("QUEEN_TOKEN", token("read-only"))
    rows: list[Row] = []
    run = run_of(Pipeline("p").source(Memory(numbers(2))).to(rows.append), broker.address)
    assert await asyncio.to_thread(run.wait, 30)
    assert len(rows) == 2
    async with AsyncQueen(broker.address) as queen:  # the token may read
        assert await queen.admin.pipelines() == []


def test_which_broker_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("QUEEN_URL", raising=False)
    memory: Pipeline[Row] = Pipeline("p").source(Memory([{}]))
    alone = memory.to(print).plan()

    def told(plan: Plan, **said: Any) -> tuple[str, str | None] | None:
        found = broker_of(plan, RunOptions(token="secret", **said))
        return None if found is None else (found.url, found.token)

    assert told(alone) is None
    assert told(alone, url="http://a:1") == ("http://a:1", "secret")
    assert told(alone, url="postgresql://a/queen") is None
    assert told(memory.to(Queue("q")).plan()) == ("http://127.0.0.1:6632", "secret")
    # The token is for the run's own broker, not for one that an endpoint names.
    assert told(memory.to(Queue("q", url="http://b:2")).plan()) == ("http://b:2", None)
    letters = memory.transform("t", dict, on_error=DeadLetters(Queue("q", url="http://c:3"))).to(print)
    assert told(letters.plan()) == ("http://c:3", None)
    monkeypatch.setenv("QUEEN_URL", "http://e:5")
    assert told(alone) == ("http://e:5", "secret")
