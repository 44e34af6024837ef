"""Sets of rules: the routes, and pipelines on the local engine whose rules change while they run."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from queenstream import AsyncQueen, Pipeline, Queue
from queenstream.broker.api import rules as routes
from queenstream.broker.app import Broker
from queenstream.connectors import rules as connector
from queenstream.engines.local.run import LocalRun, start
from queenstream.errors import ConfigError
from queenstream.pipeline.engine_api import RunOptions
from tests.conftest import StartBroker
from tests.integration.local.collecting import Collected

PATH = "/api/v1/rules/fraud"
RAPID = {"rapid": "COUNT(*) > 2 IN 30s"}


def body(patterns: dict[str, str] = RAPID, **more: Any) -> dict[str, Any]:
    return {"rules": {"patterns": patterns}, **more}


# The routes


async def test_a_set_has_versions(http: httpx.AsyncClient) -> None:
    spend = {"field": "amount", "window": "1m", "threshold": 5}
    says = {"event": "action", "patterns": RAPID, "anomalies": {"spend": spend}}
    first = (await http.post(PATH, json={"rules": says})).json()
    assert (first["name"], first["changed"]) == ("fraud", True)
    again = (await http.post(PATH, json={"rules": says})).json()
    assert (again["version"], again["changed"], again["changedAt"]) == (
        first["version"],
        False,
        first["changedAt"],
    )
    shown = (await http.get(PATH)).json()
    assert shown == {
        "name": "fraud",
        "version": first["version"],
        "changedAt": first["changedAt"],
        "rules": {**says, "anomalies": {"spend": {**spend, "threshold": 5.0}}},
    }
    second = (await http.post(PATH, json=body())).json()
    assert second["version"] > first["version"]
    assert (await http.get(PATH, params={"known": first["version"]})).json()["rules"] == {"patterns": RAPID}
    assert (await http.get(PATH, params={"known": second["version"]})).json()["rules"] is None
    listed = (await http.get("/api/v1/rules")).json()
    assert [(each["name"], each["patterns"], each["anomalies"]) for each in listed["rules"]] == [
        ("fraud", 1, 0)
    ]
    assert listed["pagination"]["total"] == 1

    assert (await http.delete(PATH)).json() == {"deleted": True, "name": "fraud", "existed": True}
    assert (await http.delete(PATH)).json()["existed"] is False
    gone = await http.get(PATH)
    assert (gone.status_code, "there is no set of rules 'fraud'" in gone.text) == (404, True)
    made = (await http.post(PATH, json={"rules": says})).json()
    assert made["version"] > second["version"], "one that comes back is newer than it was"


async def test_who_has_not_seen_a_change_does_not_undo_it(http: httpx.AsyncClient) -> None:
    version = (await http.post(PATH, json=body(expectedVersion=0))).json()["version"]
    for stale in (0, version + 1):
        refused = await http.post(PATH, json=body({}, expectedVersion=stale))
        assert refused.status_code == 409
        assert f"(now: version {version})" in refused.json()["error"]
    assert (await http.post(PATH, json=body({}, expectedVersion=version))).status_code == 200
    await http.delete(PATH)
    refused = await http.post(PATH, json=body(expectedVersion=version))
    assert (refused.status_code, "(now: deleted)" in refused.text) == (409, True)


@pytest.mark.parametrize(
    ("sent", "status"),
    [
        ({}, 400),
        ({"rules": {"pattern": {}}}, 400),
        ({"rules": {"patterns": {"": "x"}}}, 400),
        ({"rules": {"patterns": {"x": ""}}}, 400),
        ({"rules": {"patterns": {"x": "y" * 10_001}}}, 400),
        ({"rules": {"patterns": {str(n): "x" for n in range(201)}}}, 400),
        ({"rules": {"anomalies": {"x": {"field": "f"}}}}, 400),
        ({"rules": {"anomalies": {"x": {"field": "f", "window": "1m", "by": "y"}}}}, 400),
        ({"rules": {}, "expectedVersion": -1}, 400),
        ({"rules": {"patterns": {str(n): "y" * 10_000 for n in range(30)}}}, 413),
    ],
)
async def test_what_does_not_fit_is_refused(http: httpx.AsyncClient, sent: Any, status: int) -> None:
    answer = await http.post(PATH, json=sent)
    assert answer.status_code == status, answer.text
    assert (await http.get("/api/v1/rules")).json()["rules"] == []


async def test_there_is_an_end_to_sets(http: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(routes, "MOST_SETS", 1)
    await http.post(PATH, json=body())
    full = await http.post("/api/v1/rules/other", json=body())
    assert (full.status_code, "1 sets of rules already" in full.text) == (409, True)
    assert (await http.post(PATH, json=body({}))).status_code == 200


# Pipelines


@pytest.fixture
async def queen(broker: Broker) -> AsyncIterator[AsyncQueen]:
    async with AsyncQueen(broker.address) as client:
        yield client


@pytest.fixture(autouse=True)
def _quickly(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each look asks the broker: a change holds from the next record on, and no test waits for a clock."""
    monkeypatch.setattr(connector, "POLL_SECONDS", 0.0)


def clicks(rows: Collected) -> Pipeline[Any]:
    found = Pipeline("clicks").source(Queue("clicks")).event_time("at").patterns(rules="fraud", by="user")
    return found.to(lambda row: rows((row["pattern"], row["value"])))


async def started(pipeline: Pipeline[Any], broker: Broker, checkpoint: Path | None = None) -> LocalRun:
    """In a thread: it asks the broker, which is in this one."""
    options = RunOptions(url=broker.address, checkpoint=None if checkpoint is None else str(checkpoint))
    return await asyncio.to_thread(start, pipeline.plan(), options)


async def stopped(run: LocalRun) -> None:
    run.stop()
    assert await asyncio.to_thread(run.wait, 30)


Push = Callable[..., Any]


@pytest.fixture
async def push(queen: AsyncQueen) -> Push:
    async def push(*seconds: int, action: str = "click") -> None:
        records = [{"user": "ann", "at": at * 1_000, "action": action} for at in seconds]
        await queen.queue("clicks").push(records)

    return push


async def test_rules_change_while_it_runs_and_others_go_on(
    broker: Broker, queen: AsyncQueen, push: Push, tmp_path: Path
) -> None:
    four, two = "COUNT(*) > 3 IN 1h", "COUNT(*) > 1 IN 1h"
    await queen.admin.apply_rules("fraud", {"patterns": {"steady": four, "other": two, "gone": two}})
    rows = Collected()
    run = await started(clicks(rows), broker, tmp_path)
    await push(1, 2)
    await asyncio.to_thread(rows.wait_for, 2)
    assert sorted(rows.rows) == [("gone", 2.0), ("other", 2.0)]

    three = "COUNT(*) > 2 IN 1h"
    await queen.admin.apply_rules("fraud", {"patterns": {"steady": four, "other": three}})
    await push(3, 4)
    await asyncio.to_thread(rows.wait_for, 3)
    assert rows.rows[2:] == [("steady", 4.0)], "it has counted from the beginning; the other begins anew"

    await stopped(run)
    await queen.admin.apply_rules("fraud", {"patterns": {"steady": four, "other": three, "new": two}})
    again = await started(clicks(rows), broker, tmp_path)
    await push(5, 6)
    await asyncio.to_thread(rows.wait_for, 5)
    assert rows.rows[3:] == [("other", 3.0), ("new", 2.0)], "steady has fired, and remembers it"
    await stopped(again)


async def test_rules_stay_if_the_new_ones_cannot_be_read_or_are_gone(
    broker: Broker, queen: AsyncQueen, push: Push, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "queenstream.rules")
    await queen.admin.apply_rules("fraud", {"patterns": RAPID})
    rows = Collected()
    run = await started(clicks(rows), broker)
    await push(1)
    await queen.admin.apply_rules("fraud", {"patterns": {"rapid": "COUNT(*) is large"}})
    await push(2, 3)
    await asyncio.to_thread(rows.wait_for, 1)
    assert rows.rows == [("rapid", 3.0)]
    [told] = [record.getMessage() for record in caplog.records]
    assert told.startswith("fraud: the rules stay those of version ")
    assert "fraud.patterns.rapid: expected a comparison" in told

    await queen.admin.delete_rules("fraud")
    await push(100, 101, 102)
    await asyncio.to_thread(rows.wait_for, 2)
    assert len(caplog.records) == 1, "it is told once"
    await queen.admin.apply_rules("fraud", {"patterns": {"many": "COUNT(*) > 3 IN 1h"}})
    await push(200, 201, 202, 203)
    await asyncio.to_thread(rows.wait_for, 3)
    assert rows.rows[2] == ("many", 4.0)
    await stopped(run)


async def test_a_pipeline_whose_rules_are_not_there_does_not_start(broker: Broker) -> None:
    with pytest.raises(
        ConfigError, match=r"there is no set of rules 'fraud' at http.*queen rules apply FILE"
    ):
        await started(clicks(Collected()), broker)


async def test_rules_stay_while_the_broker_is_away(
    broker: Broker, start_broker: StartBroker, push: Push, caplog: pytest.LogCaptureFixture
) -> None:
    """The run's broker has the rules; its queue is read through another one."""
    other = await start_broker()
    async with AsyncQueen(other.address) as through:
        await through.admin.apply_rules("fraud", {"patterns": RAPID})
        rows = Collected()
        source = Pipeline("clicks").source(Queue("clicks", url=other.address)).event_time("at")
        found = source.patterns(rules="fraud", by="user").to(lambda row: rows(row["pattern"]))
        await push(1, 2, 3)
        run = await started(found, broker)
        await asyncio.to_thread(rows.wait_for, 1)
        await broker.stop()
        late = [{"user": "bob", "at": at * 1_000} for at in (4, 5, 6)]
        await through.queue("clicks").push(late)
        await asyncio.to_thread(rows.wait_for, 2)
        assert rows.rows == ["rapid", "rapid"]
        told = [each.getMessage() for each in caplog.records if each.name == "queenstream.rules"]
        assert len(told) == 1
        assert "the rules stay those of version" in told[0]
        await stopped(run)
