"""Upkeep beside traffic: cursors written anew under a held transaction, expiry that takes nothing in use."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import uuid
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from typing import Any

import asyncpg
import httpx
import pytest

from queenstream.broker.app import Broker
from queenstream.broker.ops import tasks as background
from queenstream.broker.storage import sql
from tests.acceptance.speaking import configure
from tests.conftest import Clock

Connection = Any

ROWS = "select c::text as row from queen.cursors c order by partition_id, group_id"
PAGES = "select pg_relation_size('queen.cursors') / 8192"


@contextlib.asynccontextmanager
async def session(url: str) -> AsyncIterator[Connection]:
    connection = await asyncpg.connect(url)
    try:
        yield connection
    finally:
        await connection.close(timeout=5)


@contextlib.asynccontextmanager
async def held(url: str) -> AsyncIterator[None]:
    """Somebody's transaction, with a number and a snapshot, left open."""
    async with session(url) as connection:
        await connection.execute("create table if not exists public.elsewhere (at timestamptz)")
        await connection.execute("begin isolation level repeatable read")
        await connection.execute("insert into public.elsewhere values (now())")
        yield


async def push(http: httpx.AsyncClient, queue: str, partitions: int, each: int = 1, start: int = 0) -> None:
    items = [
        {"queue": queue, "partition": str(p), "transactionId": f"{p}-{n}", "payload": n}
        for p in range(partitions)
        for n in range(start, start + each)
    ]
    answer = await http.post("/api/v1/push", json={"items": items})
    assert answer.status_code == 201, answer.text


async def pop(http: httpx.AsyncClient, queue: str, **query: Any) -> list[dict[str, Any]]:
    answer = await http.get(f"/api/v1/pop/queue/{queue}", params=query)
    assert answer.status_code in (200, 204), answer.text
    return answer.json()["messages"] if answer.status_code == 200 else []


async def ack(http: httpx.AsyncClient, messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    fields = ("transactionId", "partitionId", "leaseId", "consumerGroup")
    acks = [{name: m[name] for name in fields} | {"status": "completed"} for m in messages]
    answer = await http.post("/api/v1/ack/batch", json={"acknowledgments": acks})
    assert answer.status_code == 200, answer.text
    results: list[dict[str, Any]] = answer.json()
    return results


async def churn(connection: Connection, updates: int) -> None:
    """Dead versions of the cursors, as pops and acks make them; the rows end as they began."""
    done = 0
    while done < updates:
        for step in ("+", "-"):
            statement = f"update queen.cursors set ready_at = ready_at {step} interval '1 ms'"
            done += int((await connection.execute(statement)).split()[-1])


@pytest.fixture
def by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    """The broker's own upkeep runs once, at its start; then only when a test says so."""
    for name in ("EXPIRE_SECONDS", "COMPACT_SECONDS"):
        monkeypatch.setattr(background, name, 3600.0)


# Cursors written anew


@pytest.mark.usefixtures("by_hand")
async def test_cursors_are_written_anew_exactly_as_they_were(
    broker: Broker, http: httpx.AsyncClient, database_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    await push(http, "q", 20, 3)
    out = await pop(http, "q", batch=15, partitions=5)
    partial = await pop(http, "q", batch=3, consumerGroup="g")
    assert all(r["success"] for r in await ack(http, partial[1:]))  # out of order
    async with session(database_url) as connection, held(database_url):
        await churn(connection, 8_000)
        before, pages = await connection.fetch(ROWS), await connection.fetchval(PAGES)
        with caplog.at_level(logging.INFO, "queenstream.broker.ops.maintenance"):
            await broker.background.compact()
        assert "40 cursors written anew" in caplog.text
        assert await connection.fetch(ROWS) == before
        assert pages > 64
        assert await connection.fetchval(PAGES) <= 4
        await broker.background.compact()  # nothing to do any more
        assert caplog.text.count("written anew") == 1
    assert all(r["success"] for r in await ack(http, out))
    assert all(r["success"] for r in await ack(http, partial[:1]))
    rest = await pop(http, "q", batch=200, partitions=20)
    assert len(rest) == 60 - len(out)
    assert all(r["success"] for r in await ack(http, rest))


@pytest.mark.usefixtures("by_hand")
async def test_traffic_while_cursors_are_written_anew_loses_nothing(
    broker: Broker, http: httpx.AsyncClient, database_url: str
) -> None:
    seen: list[str] = []
    partitions, rounds = 20, 15
    done = asyncio.Event()

    async def produce() -> None:
        for n in range(rounds):
            await push(http, "q", partitions, 3, start=3 * n)
            await asyncio.sleep(0.02)
        done.set()

    async def consume() -> None:
        while True:
            finished = done.is_set()
            messages = await pop(http, "q", batch=10, partitions=2)
            if messages:
                assert all(r["success"] for r in await ack(http, messages))
                seen.extend(m["transactionId"] for m in messages)
            elif finished and len(seen) >= partitions * rounds * 3:
                return
            else:
                await asyncio.sleep(0.005)

    async def compact() -> int:
        times = 0
        async with session(database_url) as connection:
            while not done.is_set() or times == 0:
                await connection.execute(  # waits for no row, so it is in no deadlock with a push
                    "do $$ begin for i in 1 .. 200 loop "
                    "update queen.cursors set retry_at = retry_at where (partition_id, group_id) in "
                    "(select partition_id, group_id from queen.cursors for update skip locked); "
                    "commit; end loop; end $$"
                )
                row = await connection.fetchrow(sql.bind("select * from queen.compact(200000)"))
                times += row["outcome"] == "done"
        return times

    await push(http, "q", partitions, start=1_000_000)
    assert len(await pop(http, "q", batch=100, partitions=100, autoAck=True)) == partitions
    async with held(database_url), asyncio.timeout(60), asyncio.TaskGroup() as tasks:
        tasks.create_task(produce())
        compacting = tasks.create_task(compact())
        for _ in range(4):
            tasks.create_task(consume())
    assert compacting.result() > 0
    assert len(seen) == len(set(seen)) == partitions * rounds * 3


@pytest.mark.usefixtures("by_hand")
async def test_a_table_that_is_in_use_is_left_alone_for_longer_and_longer(
    broker: Broker, http: httpx.AsyncClient, database_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    await push(http, "q", 20)
    assert len(await pop(http, "q", batch=1)) == 1
    async with session(database_url) as connection, session(database_url) as reader, held(database_url):
        await churn(connection, 8_000)
        await reader.execute("begin; select from queen.cursors limit 1")
        pages = await connection.fetchval(PAGES)
        with caplog.at_level(logging.DEBUG, "queenstream.broker.ops.maintenance"):
            started = asyncio.get_running_loop().time()
            await broker.background.compact()
            assert asyncio.get_running_loop().time() - started < 5
            await broker.background.compact()  # not tried again yet
        assert caplog.text.count("could not be locked") == 1
        assert [r for r in caplog.records if r.levelno > logging.INFO] == []
        assert await connection.fetchval(PAGES) == pages
        await reader.execute("rollback")
        assert (
            await connection.fetchval(sql.bind("select outcome from queen.compact(10)")) is None
        )  # too many rows
        async with session(database_url + "&application_name=pg_dump"):
            assert await connection.fetchval(sql.bind("select outcome from queen.compact(200000)")) == "busy"
        await connection.execute("begin isolation level repeatable read")
        assert await connection.fetchval(sql.bind("select outcome from queen.compact(200000)")) is None
        await connection.execute("rollback")
        assert await connection.fetchval(sql.bind("select outcome from queen.compact(200000)")) == "done"


# Expiry


POP = sql.bind(
    "select * from queen.pop($1, null, $2, '{10}', '{1}', '{false}', 1000000, false, $3) where request > 0"
)


@pytest.mark.usefixtures("by_hand")
async def test_what_a_pop_takes_that_has_not_committed_is_not_expired_under_it(
    broker: Broker, http: httpx.AsyncClient, clock: Clock, database_url: str
) -> None:
    await configure(http, "q", ttl=60, leaseTime=300)
    assert await pop(http, "q") == []
    await push(http, "q", 1, 3)
    await push(http, "other", 1, 3)
    clock.turn(59)
    lease = uuid.uuid4()
    async with session(database_url) as connection, session(database_url) as look:
        await configure(http, "other", ttl=60)
        group = await look.fetchval("select id from queen.groups")
        async with connection.transaction():
            row = await connection.fetchrow(POP, [group], [lease], clock())
            assert len(row["ids"]) == 3
            clock.turn(2)
            await asyncio.wait_for(broker.background.expire(), 5)
            kept = await look.fetch(
                "select q.name, count(*) from queen.messages m "
                "join queen.partitions p on p.id = m.partition_id "
                "join queen.queues q on q.id = p.queue_id group by 1"
            )
            assert [tuple(k) for k in kept] == [("q", 3)]  # the other queue's are gone
        await broker.background.expire()  # a lease that has committed holds them as well
        assert await look.fetchval("select count(*) from queen.messages") == 3
        messages = [
            {
                "transactionId": name, "partitionId": str(row["partition_id"]),
                "leaseId": str(lease), "consumerGroup": await look.fetchval("select name from queen.groups"),
            }
            for name in row["transactions"]
        ]  # fmt: skip
        results = await ack(http, messages)
        assert all(r["success"] for r in results), results
        await broker.background.expire()
        assert await look.fetchval("select count(*) from queen.messages") == 0


@pytest.mark.usefixtures("by_hand")
async def test_a_lease_holds_what_it_has_and_the_rest_before_it_goes(
    broker: Broker, http: httpx.AsyncClient, clock: Clock, database_url: str
) -> None:
    await configure(http, "q", ttl=60, leaseTime=300)
    await push(http, "q", 1, 6)
    assert all(r["success"] for r in await ack(http, await pop(http, "q", batch=2)))
    out = await pop(http, "q", batch=2)
    assert await pop(http, "q", consumerGroup="idle", batch=1)
    clock.turn(301)  # both leases are over
    await push(http, "q", 1, 1, start=100)
    (fresh,) = await pop(http, "q", batch=1)
    assert out[0]["transactionId"] != fresh["transactionId"] == "0-100"
    await broker.background.expire()
    async with session(database_url) as look:
        assert await look.fetchval("select array_agg(transaction_id) from queen.messages") == ["0-100"]
    assert (await ack(http, [fresh]))[0]["success"]


@pytest.mark.usefixtures("by_hand")
async def test_a_backlog_goes_in_steps_that_nobody_notices(
    broker: Broker, http: httpx.AsyncClient, clock: Clock, database_url: str
) -> None:
    await configure(http, "q", ttl=60)
    await push(http, "q", 4)
    async with session(database_url) as connection:
        await connection.execute(
            "insert into queen.messages (partition_id, id, seq, created_at, transaction_id, payload) "
            "select p.id, 1000000000 + n, 1 + n, $1::timestamptz, 't' || n, '1' "
            "from queen.partitions p, generate_series(1, 25000) n where p.name <> 'Default'",
            datetime.now(UTC) + timedelta(seconds=1),
        )
        clock.turn(30)
        await connection.execute(
            "insert into queen.messages (partition_id, id, seq, created_at, transaction_id, payload) "
            "select p.id, 2000000000, 25002, $1::timestamptz, 'young', '1' from queen.partitions p "
            "where p.name <> 'Default'",
            clock(),
        )
        clock.turn(40)
        first = await connection.fetch(sql.bind("select * from queen.expire(7000, $1)"), clock())
        assert [(r["queue_name"], r["deleted"], r["more"]) for r in first] == [("q", 7000, True)]
        await asyncio.wait_for(broker.background.expire(), 30)
        left = await connection.fetch("select transaction_id from queen.messages")
        assert [r["transaction_id"] for r in left] == ["young"] * 4
    assert broker.metrics.queue("q").expired == 4 * 25_001 - 7000


@pytest.mark.usefixtures("by_hand")
async def test_what_every_group_completed_goes_without_a_lock_on_its_cursor(
    broker: Broker, http: httpx.AsyncClient, clock: Clock, database_url: str
) -> None:
    await configure(http, "q", retentionEnabled=True, completedRetentionSeconds=30)
    await push(http, "q", 1, 4)
    for group in ("a", "b"):
        assert all(r["success"] for r in await ack(http, await pop(http, "q", batch=3, consumerGroup=group)))
    clock.turn(31)
    async with session(database_url) as busy, session(database_url) as look:
        await busy.execute("begin; select from queen.cursors for update")  # pops of both, under way
        await asyncio.wait_for(broker.background.expire(), 5)
        assert await look.fetchval("select array_agg(transaction_id) from queen.messages") == ["0-3"]
