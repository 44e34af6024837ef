"""The tasks of upkeep: each by itself, in batches, reported; and what Spark may still need stays."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import asyncpg
import httpx
import pytest

from queenstream import AsyncQueen
from queenstream.broker.app import Broker
from queenstream.broker.ops import maintenance, tasks
from tests.conftest import StartBroker

LAST_TASK = maintenance.RECORDS[-1].name  # the task that runs last


@pytest.fixture(autouse=True)
def by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    """The broker's own upkeep runs once, at its start; then only when a test says so."""
    for name in ("EXPIRE_SECONDS", "COMPACT_SECONDS", "FORGET_SECONDS"):
        monkeypatch.setattr(tasks, name, 3600.0)


@pytest.fixture
async def broker(start_broker: StartBroker) -> Broker:
    """A broker whose own upkeep has run."""
    started = await start_broker()
    async with asyncio.timeout(20):
        while LAST_TASK not in started.metrics.upkeep:  # noqa: ASYNC110 - there is no event to wait for
            await asyncio.sleep(0.01)
    return started


@pytest.fixture
async def db(database_url: str) -> AsyncIterator[Any]:
    connection = await asyncpg.connect(database_url)
    yield connection
    await connection.close(timeout=5)


async def fill(db: Any, traces: int, acts: int) -> None:
    await db.execute(
        "insert into queen.traces (partition_id, transaction_id, event_type, data, created_at) "
        "select 1, n::text, 'info', '{}', now() - interval '400 days' from generate_series(1, $1) n",
        traces,
    )
    await db.execute(
        "insert into queen.audit (at, role, action, target, details) "
        "select now() - interval '400 days', 'admin', 'push', 'x', '{}' from generate_series(1, $1) n",
        acts,
    )


async def test_a_task_that_fails_is_reported_and_stops_no_other(
    broker: Broker, http: httpx.AsyncClient, db: Any
) -> None:
    await fill(db, traces=1, acts=3)
    await db.execute(
        "create function public.refuse() returns trigger language plpgsql "
        "as $$ begin raise exception 'the disk has a bad page'; end $$; "
        "create trigger refuse before delete on queen.traces for each row execute function public.refuse()"
    )
    await broker.background.forget()
    assert await db.fetchval("select count(*) from queen.audit") == 0
    async with AsyncQueen(broker.address) as queen:
        [state] = (await queen.admin.system_metrics()).brokers
    traces, audit = state.upkeep["traces"], state.upkeep["audit"]
    assert (traces.error, traces.rows, audit.error, audit.rows) == ("RaiseError", 0, None, 3)
    assert audit.last_success_at is not None
    text = (await http.get("/metrics")).text
    assert 'queen_upkeep_errors_total{task="traces"} 1.0' in text
    assert 'queen_upkeep_rows_total{task="audit"} 3.0' in text
    assert 'queen_upkeep_last_success_timestamp_seconds{task="audit"}' in text

    await db.execute("drop trigger refuse on queen.traces")
    await broker.background.forget()
    assert await db.fetchval("select count(*) from queen.traces") == 0
    assert broker.metrics.upkeep["traces"].error is None


async def test_a_backlog_goes_in_batches_in_one_run(broker: Broker, db: Any) -> None:
    many = maintenance.BATCH_ROWS + 10
    await fill(db, traces=many, acts=many)
    await db.execute(
        f"create function public.count_rows() returns trigger language plpgsql as $$ begin "
        f"if (select count(*) from gone) > {maintenance.BATCH_ROWS} then raise exception 'too many at once'; "
        f"end if; return null; end $$"
    )
    for table in ("traces", "audit"):
        await db.execute(
            f"create trigger counted after delete on queen.{table} referencing old table as gone "
            "for each statement execute function public.count_rows()"
        )
    runs = broker.metrics.upkeep["traces"].runs
    await broker.background.forget()
    for task in ("traces", "audit"):
        assert await db.fetchval(f"select count(*) from queen.{task}") == 0
        assert broker.metrics.upkeep[task].rows == many
    assert broker.metrics.upkeep["traces"].runs == runs + 1


async def test_staged_rows_go_when_nothing_was_staged_for_their_sink_for_long(
    start_broker: StartBroker, db: Any
) -> None:
    """The first rows of a batch may be old while its last tasks still run."""
    broker = await start_broker(staged_retention="2d")
    # At once: the broker's own upkeep may run in between.
    await db.executemany(
        "insert into queen.staged (sink, batch_id, attempt, chunk, partitions, counts, transactions, "
        "payloads, ends, staged_at) values ($1, 1, $2, 0, '{p}', '{1}', '{t}', '1', '{0,1}', "
        "now() - make_interval(days => $3))",
        [
            (sink, f"{sink}{days}", days)
            for sink, days in (("live", 5), ("live", 1), ("dead", 5), ("dead", 3))
        ],
    )
    await broker.background.forget()
    left = await db.fetch("select attempt from queen.staged order by 1")
    assert [row["attempt"] for row in left] == ["live1", "live5"]


async def test_the_last_batch_of_a_sink_is_kept_unless_nothing_comes_back_to_it(
    start_broker: StartBroker, db: Any
) -> None:
    """A query that comes back after years must find the batch that it may store again, and its number."""
    broker = await start_broker()
    # At once: the broker's own upkeep may run in between.
    await db.execute(
        "insert into queen.sinks (sink, last_batch, temporary, committed_at) values "
        "('live', 2, false, now() - interval '300 days'), ('idle', 8, false, now() - interval '400 days'), "
        "('gone', 5, true, now() - interval '400 days'); "
        "insert into queen.sink_batches (sink, batch_id) values "
        "('live', 1), ('live', 2), ('idle', 7), ('idle', 8), ('gone', 4), ('gone', 5)"
    )
    for _ in range(2):
        await broker.background.forget()
    left = await db.fetch("select sink, batch_id from queen.sink_batches order by 1, 2")
    assert [tuple(row) for row in left] == [("idle", 8), ("live", 1), ("live", 2)]
    sinks = await db.fetch("select sink, last_batch from queen.sinks order by 1")
    assert [tuple(row) for row in sinks] == [("idle", 8), ("live", 2)]
