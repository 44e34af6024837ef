"""What runs of pipelines tell the broker, and what it shows of that."""

from __future__ import annotations

from collections.abc import AsyncIterator
from itertools import pairwise
from typing import Any

import httpx
import pytest

from queenstream import AsyncQueen
from queenstream.broker.api import pipelines
from queenstream.broker.app import Broker
from queenstream.broker.ops import maintenance
from queenstream.broker.ops.gauges import LOST_SECONDS
from queenstream.client._async.admin.api import AsyncAdmin
from queenstream.client._base.responses.pipelines import Reported
from queenstream.core import metric_names
from queenstream.errors import Conflict, InvalidRequest, NotFound, TooLarge
from tests.conftest import Clock

PLAN = '{"name": "totals", "nodes": [{"name": "in"}]}'


@pytest.fixture
async def admin(broker: Broker) -> AsyncIterator[AsyncAdmin]:
    async with AsyncQueen(broker.address) as queen:
        yield queen.admin


async def tell(admin: AsyncAdmin, name: str = "totals", **said: Any) -> Reported:
    body: dict[str, Any] = {
        "engine": "local",
        "instance": "a",
        "state": "running",
        "stats": {"messages": 1.0},
    }
    return await admin.report_pipeline(name, **(body | said))


async def test_the_last_report_is_shown_with_the_plan_that_came_once(admin: AsyncAdmin, clock: Clock) -> None:
    first = await tell(admin, stats={"messages": 5, "steps.in.taken": 5}, plan=PLAN, checkpoint="state/")
    assert (first.stored, first.wants_plan) == (True, False)
    clock.turn(5)
    await tell(
        admin,
        stats={"messages": 9, "queue_depth": 2, "steps.in.taken": 9, "sinks.q.rows": 9},
        checkpoint="state/",
    )
    [listed] = await admin.pipelines()
    assert (listed.name, listed.engine, listed.state, listed.checkpoint) == (
        "totals", "local", "running", "state/",
    )  # fmt: skip
    assert listed.stats == {"messages": 9, "queue_depth": 2}
    shown = await admin.pipeline("totals")
    assert shown.stats == {"messages": 9, "queue_depth": 2, "steps.in.taken": 9, "sinks.q.rows": 9}
    assert shown.plan is not None
    assert shown.plan["nodes"] == [{"name": "in"}]
    assert (shown.reported_at - shown.started_at).total_seconds() == pytest.approx(5, abs=1)
    assert [run.instance for run in shown.runs] == ["a"]


async def test_a_run_says_how_it_ended(admin: AsyncAdmin) -> None:
    await tell(admin)
    await tell(admin, state="failed", error="in failed on {}: KeyError: 'n'\0")
    shown = await admin.pipeline("totals")
    assert (shown.state, shown.error) == ("failed", "in failed on {}: KeyError: 'n'")


async def test_a_run_that_tells_nothing_any_more_is_lost(admin: AsyncAdmin, clock: Clock) -> None:
    await tell(admin)
    await tell(admin, "done", state="stopped")
    clock.turn(LOST_SECONDS + 1)
    assert [(each.name, each.state) for each in await admin.pipelines()] == [
        ("done", "stopped"),
        ("totals", "lost"),
    ]
    await tell(admin)
    assert (await admin.pipeline("totals")).state == "running"


async def test_the_newest_run_is_the_pipelines_and_an_older_one_that_still_tells_is_not(
    admin: AsyncAdmin, clock: Clock
) -> None:
    await tell(admin, instance="old", stats={"messages": 70})
    clock.turn(20)
    await tell(admin, instance="new", stats={"messages": 3})
    clock.turn(20)
    await tell(
        admin, instance="old", state="failed", error="another run has taken over", stats={"messages": 90}
    )
    shown = await admin.pipeline("totals")
    assert (shown.instance, shown.state, shown.stats["messages"]) == ("new", "running", 3)
    assert [(run.instance, run.state) for run in shown.runs] == [("new", "running"), ("old", "failed")]
    assert [point.messages for point in shown.series] == [70, 3]


async def test_figures_over_time_at_a_bounded_resolution(
    admin: AsyncAdmin, broker: Broker, clock: Clock
) -> None:
    for number in range(40):
        await tell(admin, stats={"messages": number, "messages_per_second": 2})
        clock.turn(5)
    series = (await admin.pipeline("totals")).series
    assert 13 <= len(series) <= 15
    assert series[-1].messages == 39
    assert (series[-1].messages_per_second, series[-1].state_rows) == (2, None)
    assert all(later.time > point.time for point, later in pairwise(series))
    assert len((await admin.pipeline("totals", minutes=1)).series) in (3, 4)
    clock.turn(maintenance.PIPELINE_SERIES_SECONDS - 100)
    await broker.background.forget()
    left = (await admin.pipeline("totals", minutes=360)).series
    assert 0 < len(left) < len(series)


async def test_what_tells_too_often_is_not_stored_unless_its_state_changes(admin: AsyncAdmin) -> None:
    assert (await tell(admin, plan=PLAN, stats={"messages": 1})).stored
    assert not (await tell(admin, stats={"messages": 2})).stored
    assert (await admin.pipeline("totals")).stats["messages"] == 1
    assert (await tell(admin, state="stopped", stats={"messages": 3})).stored
    assert (await admin.pipeline("totals")).stats["messages"] == 3


async def test_a_plan_that_was_forgotten_is_asked_for_again(admin: AsyncAdmin, clock: Clock) -> None:
    await tell(admin, plan=PLAN)
    assert (await admin.delete_pipeline("totals")).existed
    assert not (await admin.delete_pipeline("totals")).existed
    clock.turn(5)
    assert (await tell(admin)).wants_plan
    assert (await admin.pipeline("totals")).plan is None
    assert not (await tell(admin, plan=PLAN)).wants_plan


async def test_old_runs_and_old_pipelines_go(admin: AsyncAdmin, broker: Broker, clock: Clock) -> None:
    for number in range(pipelines.MOST_RUNS + 5):
        await tell(admin, instance=f"run {number}")
        clock.turn(1)
    runs = (await admin.pipeline("totals")).runs
    assert [run.instance for run in runs] == [f"run {number}" for number in range(24, 4, -1)]
    clock.turn(maintenance.PIPELINE_SECONDS - 100)
    await broker.background.forget()
    assert len(await admin.pipelines()) == 1
    await tell(admin, "other")
    clock.turn(200)
    await broker.background.forget()
    assert [each.name for each in await admin.pipelines()] == ["other"]


async def test_what_is_hostile_is_refused(admin: AsyncAdmin, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InvalidRequest, match="1 to 255 characters"):
        await tell(admin, "x" * 256)
    with pytest.raises(InvalidRequest, match="plan is no object"):
        await tell(admin, plan="[1]")
    with pytest.raises(InvalidRequest, match="NUL"):
        await tell(admin, stats={"a\0b": 1})
    with pytest.raises(InvalidRequest, match="300"):
        await tell(admin, stats={"x" * 301: 1})
    with pytest.raises(TooLarge, match="the plan has"):
        await tell(admin, plan=f'{{"x": "{"y" * pipelines.MOST_PLAN_BYTES}"}}')
    with pytest.raises(TooLarge, match="stats has"):
        await tell(admin, stats={f"{'x' * 290}{number}": 1 for number in range(500)})
    with pytest.raises(NotFound, match="no run of a pipeline totals"):
        await admin.pipeline("totals")
    monkeypatch.setattr(pipelines, "MOST_PIPELINES", 2)
    await tell(admin, "a/b ?\n")
    await tell(admin, "second")
    with pytest.raises(Conflict, match="2 pipelines already"):
        await tell(admin, "third")
    assert [each.name for each in await admin.pipelines(limit=1, offset=0)] == ["a/b ?\n"]
    assert (await admin.pipelines(limit=1, offset=5)).total == 2


async def test_an_infinite_figure_is_refused(http: httpx.AsyncClient) -> None:
    body = '{"engine":"local","instance":"a","state":"running","stats":{"messages":1e999}}'
    answer = await http.post("/api/v1/pipelines/p/report", content=body)
    assert answer.status_code == 400


PARTS = {"sinks.queue:out.rows": 3, "sinks.queue:out.bytes": 90, "phases.commit.seconds": 1.5}


async def test_running_pipelines_are_among_the_brokers_metrics(admin: AsyncAdmin, clock: Clock) -> None:
    await tell(admin, stats={"messages": 9, "steps.in put.taken": 9, "queue_depth": 2, **PARTS})
    await tell(admin, "done", state="stopped")
    await admin.refresh_stats()
    text = await admin.prometheus()
    assert 'queen_pipeline_messages_total{pipeline="totals"} 9.0' in text
    assert f"# HELP queen_pipeline_queue_depth {metric_names.GAUGES['queue_depth']}" in text
    assert 'queen_pipeline_step_taken_total{pipeline="totals",step="in put"} 9.0' in text
    assert 'queen_pipeline_sink_bytes_total{pipeline="totals",sink="queue:out"} 90.0' in text
    assert 'queen_pipeline_phase_seconds_total{phase="commit",pipeline="totals"} 1.5' in text
    assert f"# HELP queen_pipeline_sink_bytes_total {metric_names.SINKS['bytes']}" in text
    assert f"# HELP queen_pipeline_phase_seconds_total {metric_names.PHASES['seconds']}" in text
    assert 'pipeline="done"' not in text
    clock.turn(LOST_SECONDS + 1)
    await admin.refresh_stats()
    assert 'pipeline="totals"' not in await admin.prometheus()
