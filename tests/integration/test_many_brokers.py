"""Several brokers on one database, many waiting pops on one broker, and the schema made by many at once."""

from __future__ import annotations

import asyncio
import base64
import json
import os
import sys
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from typing import Any
from urllib.parse import quote

import asyncpg
import httpx
import psutil
import pytest

from queenstream import postgres
from queenstream.broker.app import Broker
from queenstream.broker.messaging import pop as popping
from queenstream.broker.storage import database, sql
from queenstream.broker.storage.database import prepare
from queenstream.errors import DatabaseUnusable
from tests.conftest import Clock, StartBroker

KEY = "k1:" + base64.b64encode(bytes(range(32))).decode()


class Site:
    """A broker and plain HTTP to it."""

    def __init__(self, broker: Broker, http: httpx.AsyncClient) -> None:
        self.broker = broker
        self.http = http

    async def push(self, queue: str, *names: str, partition: str = "Default", status: int = 201) -> Any:
        items = [{"queue": queue, "partition": partition, "transactionId": n, "payload": n} for n in names]
        answer = await self.http.post("/api/v1/push", json={"items": items})
        assert answer.status_code == status, answer.text
        return answer.json()

    async def pop(self, queue: str, **query: Any) -> dict[str, Any]:
        answer = await self.http.get(f"/api/v1/pop/queue/{queue}", params=query)
        assert answer.status_code in (200, 204), answer.text
        popped: dict[str, Any] = {"messages": []} if answer.status_code == 204 else answer.json()
        return popped

    async def ack(self, popped: dict[str, Any], status: str = "completed") -> list[bool]:
        acks = [
            {key: m[key] for key in ("transactionId", "partitionId", "leaseId", "consumerGroup")}
            | {"status": status}
            for m in popped["messages"]
        ]
        answer = await self.http.post("/api/v1/ack/batch", json={"acknowledgments": acks})
        assert answer.status_code == 200, answer.text
        return [result["success"] for result in answer.json()]

    async def configure(self, queue: str, **options: Any) -> None:
        answer = await self.http.post("/api/v1/configure", json={"queue": queue, "options": options})
        assert answer.status_code in (200, 201), answer.text

    async def delete(self, path: str) -> None:
        answer = await self.http.delete(path)
        assert answer.status_code == 200, answer.text

    def deafen(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Whatever the other brokers say is lost."""
        monkeypatch.setattr(self.broker.notices, "_received", lambda notice: None)


def names(popped: dict[str, Any]) -> list[str]:
    return [message["transactionId"] for message in popped["messages"]]


@pytest.fixture
async def sites(start_broker: StartBroker, clock: Clock) -> AsyncIterator[list[Site]]:
    """Three brokers on one database."""
    async with AsyncExitStack() as stack:
        found = []
        for _ in range(3):
            broker = await start_broker(clock=clock, encryption_keys=KEY)
            http = httpx.AsyncClient(base_url=broker.address, timeout=60)
            found.append(Site(broker, await stack.enter_async_context(http)))
        yield found


async def until(holds: Callable[[], bool], seconds: float = 20) -> None:
    """Until something is seen to hold that tells nobody when it does."""
    async with asyncio.timeout(seconds):
        while not holds():  # noqa: ASYNC110 - there is no event to wait for
            await asyncio.sleep(0.01)


async def until_waiting(broker: Broker, count: int = 1) -> None:
    """Until that many pops wait and none of them is being looked at."""
    popper = broker.popper
    await until(lambda: popper.waiting == count and not any(lane.task for lane in popper._lanes.values()))


# Waking


async def test_a_long_poll_is_answered_from_another_broker(sites: list[Site]) -> None:
    a, b, c = sites
    await a.configure("q")
    for site in (b, c):
        waiting = asyncio.create_task(site.pop("q", wait=True, timeout=20_000, autoAck=True))
        await until_waiting(site.broker)
        started = time.monotonic()
        await a.push("q", f"to {site.broker.port}")
        assert names(await waiting) == [f"to {site.broker.port}"]
        assert time.monotonic() - started < 0.5


async def test_an_ack_elsewhere_wakes_a_long_poll(sites: list[Site]) -> None:
    a, b, _ = sites
    await a.push("q", "1", "2")
    popped = await a.pop("q")
    waiting = asyncio.create_task(b.pop("q", wait=True, timeout=20_000))
    await until_waiting(b.broker)
    started = time.monotonic()
    assert await a.ack(popped) == [True]
    assert names(await waiting) == ["2"]
    assert time.monotonic() - started < 0.5


async def test_a_queue_that_comes_into_being_elsewhere_wakes_a_long_poll(sites: list[Site]) -> None:
    a, b, _ = sites
    waiting = asyncio.create_task(b.pop("q", wait=True, timeout=20_000, subscriptionMode="new"))
    await until_waiting(b.broker)
    await a.push("q", "1")
    async with asyncio.timeout(1):
        assert names(await waiting) == ["1"]


def listener(site: Site) -> int | None:
    """The process of the database that this broker listens with."""
    connection = site.broker.notices._connection
    return None if connection is None or connection.is_closed() else connection.get_server_pid()


async def terminate(url: str, pid: int) -> None:
    connection = await asyncpg.connect(url)
    try:
        assert await connection.fetchval("select pg_terminate_backend($1, 2000)", pid)
    finally:
        await connection.close()


async def test_a_listener_that_broke_comes_back(sites: list[Site], database_url: str) -> None:
    a, b, _ = sites
    await a.configure("q")
    waiting = asyncio.create_task(b.pop("q", wait=True, timeout=20_000, autoAck=True))
    await until_waiting(b.broker)
    old = listener(b)
    assert old is not None
    await terminate(database_url, old)
    await a.push("q", "while it was away")
    async with asyncio.timeout(5):
        assert names(await waiting) == ["while it was away"]
    await until(lambda: listener(b) not in (None, old))
    waiting = asyncio.create_task(b.pop("q", wait=True, timeout=20_000))
    await until_waiting(b.broker)
    started = time.monotonic()
    await a.push("q", "after")
    assert names(await waiting) == ["after"]
    assert time.monotonic() - started < 0.5


async def test_a_listener_that_meets_an_error_nobody_foresaw_comes_back(
    sites: list[Site], database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever it is, it is counted and shown, and the broker hears the others again."""
    a, b, _ = sites
    await a.configure("q")
    old = listener(b)
    assert old is not None
    woken = []

    def fail_once() -> None:
        woken.append(1)
        if len(woken) == 1:
            raise LookupError("a defect in what follows a reconnect")

    monkeypatch.setattr(b.broker.streams, "wake_all", fail_once)
    await terminate(database_url, old)
    await until(lambda: len(woken) > 1)
    await until(lambda: listener(b) not in (None, old) and b.broker.metrics.task_restarts["notices"] >= 2)
    health = (await b.http.get("/health")).json()
    assert (health["status"], health["failingTasks"]) == ("healthy", ["notices"])
    assert 'queen_task_restarts_total{task="notices"}' in (await b.http.get("/metrics")).text
    waiting = asyncio.create_task(b.pop("q", wait=True, timeout=20_000))
    await until_waiting(b.broker)
    started = time.monotonic()
    await a.push("q", "after")
    assert names(await waiting) == ["after"]
    assert time.monotonic() - started < 0.5


async def test_the_slow_poll_is_the_net(sites: list[Site], monkeypatch: pytest.MonkeyPatch) -> None:
    """A notice that never comes costs a while, not the message."""
    a, b, _ = sites
    monkeypatch.setattr(popping, "NET_SECONDS", 0.5)
    b.deafen(monkeypatch)
    await a.configure("q")
    waiting = asyncio.create_task(b.pop("q", wait=True, timeout=20_000))
    await until_waiting(b.broker)
    await a.push("q", "1")
    async with asyncio.timeout(2):
        assert names(await waiting) == ["1"]


# One state


async def test_a_lease_holds_on_every_broker(sites: list[Site], clock: Clock) -> None:
    a, b, c = sites
    await a.push("q", "1", "2")
    popped = await a.pop("q")
    assert names(await b.pop("q")) == []
    extended = await c.http.post(f"/api/v1/lease/{popped['leaseId']}/extend", json={"seconds": 100})
    assert extended.json()[0]["success"]
    assert await b.ack(popped) == [True]
    assert names(await c.pop("q")) == ["2"]


async def test_a_seek_voids_a_lease_held_elsewhere(sites: list[Site]) -> None:
    a, b, _ = sites
    await a.push("q", "1", "2")
    popped = await b.pop("q", batch=2, consumerGroup="g")
    path = "/api/v1/consumer-groups/g/queues/q/seek"
    answer = await a.http.post(path, json={"timestamp": "2000-01-01T00:00:00Z"})
    assert answer.status_code == 200, answer.text
    for status in ("failed", "completed", "dlq"):
        assert await b.ack(popped, status) == [False, False]
    again = await b.pop("q", batch=2, consumerGroup="g")
    assert [(m["transactionId"], m["retryCount"]) for m in again["messages"]] == [("1", 0), ("2", 0)]
    assert (await a.http.post(path, json={"toEnd": True})).status_code == 200
    assert names(await b.pop("q", consumerGroup="g")) == []


@pytest.mark.parametrize("deaf", [False, True])
async def test_new_options_hold_everywhere_at_once(
    sites: list[Site], monkeypatch: pytest.MonkeyPatch, database_url: str, deaf: bool
) -> None:
    """Even before the notice arrives: a push carries the version of the queue that it knows."""
    a, b, _ = sites
    await b.push("q", "1")
    if deaf:
        b.deafen(monkeypatch)
    await a.configure("q", encryptionEnabled=True, maxSize=2)
    await b.push("q", "2")
    refused = await b.push("q", "3", status=429)
    assert "maxSize" in refused["error"]
    connection = await asyncpg.connect(database_url)
    keys = await connection.fetch("select transaction_id, key_id from queen.messages order by id")
    await connection.close()
    assert [(row[0], row[1] and row[1].split(":")[0]) for row in keys] == [("1", None), ("2", "k1")]
    popped = await b.pop("q", batch=5)
    assert [m["data"] for m in popped["messages"]] == ["1", "2"]


@pytest.mark.parametrize("deaf", [False, True])
async def test_a_queue_made_anew_elsewhere(
    sites: list[Site], monkeypatch: pytest.MonkeyPatch, deaf: bool
) -> None:
    """What a broker remembers of the old queue does no harm, to pushes or to pops."""
    a, b, c = sites
    for site in (b, c):
        await site.push("q", f"old {site.broker.port}")
        assert len((await site.pop("q"))["messages"]) == (1 if site is b else 0)
        if deaf:
            site.deafen(monkeypatch)
    await a.delete("/api/v1/resources/queues/q")
    await a.push("q", "new")
    assert names(await c.pop("q", batch=5)) == ["new"]
    assert names(await b.pop("q", batch=5, consumerGroup="other")) == ["new"]
    assert (await b.push("q", "newer"))[0]["status"] == "queued"
    assert names(await b.pop("q", batch=5, consumerGroup="third")) == ["new", "newer"]


async def test_a_queue_deleted_again_and_again_while_others_push(sites: list[Site]) -> None:
    """No request fails for it, and what is pushed after the last deletion is there."""
    a, b, c = sites
    deleting = True

    async def keep_pushing(site: Site, which: str) -> None:
        number = 0
        while deleting:
            number += 1
            await site.push("q", f"{which}{number}", partition=f"p{number % 5}")
            await site.pop("q", batch=3, autoAck=True)

    async with asyncio.TaskGroup() as tasks:
        for which in "xyz":
            tasks.create_task(keep_pushing(b, f"b{which}"))
            tasks.create_task(keep_pushing(c, f"c{which}"))
        for _ in range(25):
            await a.delete("/api/v1/resources/queues/q")
            await asyncio.sleep(0.02)
        deleting = False
    await a.delete("/api/v1/resources/queues/q")
    await b.push("q", "1")
    await c.push("q", "2")
    assert names(await a.pop("q", batch=10)) == ["1", "2"]


@pytest.mark.parametrize("deaf", [False, True])
@pytest.mark.parametrize("keep", [True, False])
async def test_a_group_deleted_elsewhere(
    sites: list[Site], monkeypatch: pytest.MonkeyPatch, keep: bool, deaf: bool
) -> None:
    """It begins anew, as it was subscribed or as it asks now; its leases are void."""
    a, b, _ = sites
    await a.push("q", "1", "2")
    assert names(await b.pop("q", batch=1, consumerGroup="g", autoAck=True)) == ["1"]
    popped = await b.pop("q", batch=1, consumerGroup="g")
    if deaf:
        b.deafen(monkeypatch)
    await a.delete(f"/api/v1/consumer-groups/g?deleteMetadata={str(not keep).lower()}")
    assert await b.ack(popped) == [False]
    mode = "new" if keep else "all"
    assert names(await b.pop("q", batch=5, consumerGroup="g", subscriptionMode=mode)) == ["1", "2"]


async def test_a_group_deleted_again_and_again_while_others_pop(sites: list[Site]) -> None:
    a, b, c = sites
    await a.push("q", *[f"{n}" for n in range(20)])
    deleting = True

    async def keep_popping(site: Site) -> None:
        while deleting:
            popped = await site.pop("q", batch=3, consumerGroup="g")
            if popped["messages"]:
                await site.ack(popped)

    async with asyncio.TaskGroup() as tasks:
        for site in (b, b, c):
            tasks.create_task(keep_popping(site))
        for _ in range(20):
            await asyncio.sleep(0.02)
            answer = await a.http.delete("/api/v1/consumer-groups/g?deleteMetadata=true")
            assert answer.status_code in (200, 404), answer.text
        deleting = False
    await a.http.delete("/api/v1/consumer-groups/g?deleteMetadata=true")
    assert len((await c.pop("q", batch=50, consumerGroup="g"))["messages"]) == 20


# A thousand waiting pops


class Poll:
    """A long poll on a bare socket."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.writer = writer
        self.answer = asyncio.create_task(self._read(reader))

    async def _read(self, reader: asyncio.StreamReader) -> list[str]:
        head = await reader.readuntil(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 200"), head
        lines = head.decode().lower().split("\r\n")
        length = next(int(line[15:]) for line in lines if line.startswith("content-length:"))
        return names(json.loads(await reader.readexactly(length)))


async def start_poll(broker: Broker) -> Poll:
    reader, writer = await asyncio.open_connection("127.0.0.1", broker.port)
    path = "/api/v1/pop/queue/q?wait=true&timeout=60000"
    writer.write(f"GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
    return Poll(reader, writer)


async def database_work(url: str) -> tuple[int, int]:
    """Backends of the broker, and those of them that are doing something or hold a transaction."""
    connection = await asyncpg.connect(url)
    try:
        rows = await connection.fetch(
            "select state from pg_stat_activity where datname = current_database() "
            "and pid <> pg_backend_pid() and application_name = 'queenstream'"
        )
    finally:
        await connection.close()
    return len(rows), sum(1 for row in rows if row["state"] != "idle")


@pytest.mark.slow
async def test_a_thousand_long_polls(start_broker: StartBroker, database_url: str) -> None:
    """They hold no connection of the database; one message wakes one of them, ten lanes wake ten."""
    broker = await start_broker()
    async with httpx.AsyncClient(base_url=broker.address) as http:
        site = Site(broker, http)
        await site.configure("q")
        before = psutil.Process().memory_info().rss
        started = time.monotonic()
        polls = [await start_poll(broker) for _ in range(1000)]
        try:
            await until_waiting(broker, 1000)
            assert time.monotonic() - started < 15
            assert psutil.Process().memory_info().rss - before < 200 * 2**20
            assert broker.database.usage[0] == 0
            backends, busy = await database_work(database_url)
            assert busy == 0
            assert backends <= broker.settings.pool + 11

            await site.push("q", "1")
            await until_waiting(broker, 999)
            assert [p.answer.result() for p in polls if p.answer.done()] == [["1"]]

            items = [
                {"queue": "q", "partition": f"p{n}", "transactionId": f"{n}", "payload": 0} for n in range(10)
            ]
            assert (await http.post("/api/v1/push", json={"items": items})).status_code == 201
            await until_waiting(broker, 989)
            await until(lambda: sum(p.answer.done() for p in polls) >= 11)
            answers = sorted(name for p in polls if p.answer.done() for name in p.answer.result())
            assert answers == sorted(["1", *[f"{n}" for n in range(10)]])
            assert broker.database.usage[0] == 0
        finally:
            for poll in polls:
                poll.answer.cancel()
                poll.writer.transport.abort()
            await asyncio.gather(*[poll.answer for poll in polls], return_exceptions=True)


async def test_a_pop_that_does_not_wait_is_answered_at_once(sites: list[Site]) -> None:
    """Whoever else asks or waits at the same time."""
    site = sites[0]
    await site.configure("q")

    async def pop_later(seconds: float) -> list[str]:
        await asyncio.sleep(seconds)
        return names(await site.pop("q"))

    async with asyncio.timeout(2):
        assert not any(await asyncio.gather(*[pop_later(number / 1000) for number in range(50)]))
    polls = [await start_poll(site.broker) for _ in range(popping.TOGETHER + 6)]
    await until_waiting(site.broker, len(polls))
    async with asyncio.timeout(2):
        assert names(await site.pop("q")) == []
        assert not any(await asyncio.gather(*[pop_later(number / 1000) for number in range(20)]))
    for poll in polls:
        poll.answer.cancel()
        poll.writer.transport.abort()
    await asyncio.gather(*[poll.answer for poll in polls], return_exceptions=True)


# The schema

PREPARE = (
    "import asyncio, sys; from queenstream.broker.storage.database import prepare; "
    "asyncio.run(prepare(sys.argv[1]))"
)


PUSH_SIGNATURE = (
    "select oid::regprocedure from pg_proc "
    "where pronamespace = 'queen'::regnamespace and proname = 'push_' || $1"
)


async def describe(url: str) -> list[tuple[Any, ...]]:
    """Everything in our schema, as PostgreSQL describes it."""
    connection = await asyncpg.connect(url)
    try:
        rows = await connection.fetch(
            "select 'column', table_name::text, column_name::text, data_type::text, column_default::text, "
            "is_nullable::text from information_schema.columns where table_schema = 'queen' "
            "union all select 'index', tablename, indexname, indexdef, null, null from pg_indexes "
            "where schemaname = 'queen' "
            "union all select 'constraint', conrelid::regclass::text, conname, pg_get_constraintdef(oid), "
            "null, null from pg_constraint where connamespace = 'queen'::regnamespace "
            "union all select 'function', oid::regprocedure::text, prosrc, null, null, null from pg_proc "
            "where pronamespace = 'queen'::regnamespace "
            "union all select 'migration', number::text, name, functions, applied_at::text, null "
            "from queen.migrations order by 1, 2, 3, 4"
        )
    finally:
        await connection.close()
    return [tuple(row) for row in rows]


@pytest.mark.slow
async def test_ten_processes_make_the_schema_at_once(empty_database_url: str) -> None:
    processes = [
        await asyncio.create_subprocess_exec(
            sys.executable, "-c", PREPARE, empty_database_url,
            stderr=asyncio.subprocess.PIPE, env=dict(os.environ),
        )
        for _ in range(10)
    ]  # fmt: skip
    for process in processes:
        _, said = await process.communicate()
        assert process.returncode == 0, said.decode()
    made = await describe(empty_database_url)
    assert sorted(int(row[1]) for row in made if row[0] == "migration") == [
        migration.number for migration in sql.MIGRATIONS
    ]


async def test_ten_tasks_make_the_schema_at_once(empty_database_url: str) -> None:
    await asyncio.gather(*[prepare(empty_database_url) for _ in range(10)])
    made = await describe(empty_database_url)
    await prepare(empty_database_url)
    assert await describe(empty_database_url) == made


async def test_two_releases_have_their_own_functions(
    empty_database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a release needs is there after its start, and the functions of the other one are untouched."""

    def own(made: list[tuple[Any, ...]], ending: str) -> list[tuple[Any, ...]]:
        return [row for row in made if row[0] == "function" and row[1].partition("(")[0].endswith(ending)]

    await prepare(empty_database_url)
    first = await describe(empty_database_url)
    other = "0123456789"
    for name in ("FUNCTIONS", "INTERFACE"):
        monkeypatch.setattr(sql, name, getattr(sql, name).replace(sql.FUNCTION_SET, other))
    monkeypatch.setattr(sql, "FUNCTION_SET", other)
    await prepare(empty_database_url)
    both = await describe(empty_database_url)
    monkeypatch.undo()
    assert own(both, sql.FUNCTION_SET) == own(first, sql.FUNCTION_SET) != []
    assert len(own(both, other)) == len(own(both, sql.FUNCTION_SET)) == sql.FUNCTION_COUNT
    await prepare(empty_database_url)  # the first release starts again
    assert await describe(empty_database_url) == both


async def test_functions_of_a_release_that_nobody_uses_are_dropped(
    start_broker: StartBroker, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    other, unused = "0123456789", "fedcba9876"
    connection = await asyncpg.connect(database_url)
    for ending, age in ((other, "1 hour"), (unused, "2 days")):
        await connection.execute(sql.FUNCTIONS.replace(sql.FUNCTION_SET, ending))
        await connection.execute(
            "insert into queen.function_sets (name, version, schema, used_at) "
            f"values ('{ending}', '1', 1, now() - interval '{age}')"
        )
    await connection.execute("create function queen.of_before() returns integer language sql as 'select 1'")
    await connection.execute(
        "insert into queen.function_sets (name, version, schema, used_at) "
        "values ('', '', 0, now() - interval '2 days') "
        "on conflict (name) do update set used_at = excluded.used_at"
    )
    broker = await start_broker()
    await broker.background.forget()
    rows = await connection.fetch(
        "select right(proname, 10) as ending, count(*) as count from pg_proc "
        "where pronamespace = 'queen'::regnamespace group by 1"
    )
    counts = {row["ending"]: row["count"] for row in rows}
    assert counts[sql.FUNCTION_SET] == counts[other] == sql.FUNCTION_COUNT
    assert unused not in counts
    there = "select to_regproc($1) is not null"
    assert not await connection.fetchval(there, "queen.of_before")
    assert all([await connection.fetchval(there, f"queen.{name}") for name in sql.INTERFACE_NAMES])
    assert not await connection.fetchval("select count(*) from queen.function_sets where name = $1", unused)
    await connection.close()


async def test_functions_that_are_gone_come_back(start_broker: StartBroker, database_url: str) -> None:
    """As after a restore of a dump without them, under a running broker."""
    broker = await start_broker()
    async with httpx.AsyncClient(base_url=broker.address, timeout=20) as http:
        site = Site(broker, http)
        await site.push("q", "a")
        connection = await asyncpg.connect(database_url)
        await connection.execute(
            f"drop function {await connection.fetchval(PUSH_SIGNATURE, sql.FUNCTION_SET)}"
        )
        await connection.execute("delete from queen.function_sets where name = $1", sql.FUNCTION_SET)
        await site.push("q", "b", status=503)
        await broker.background.heartbeat()
        await site.push("q", "b")
        await connection.close()


async def test_a_migration_waits_for_locks_without_standing_in_the_way(
    empty_database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While a long transaction holds a table, reads go on between the tries; then the migration is made."""
    await prepare(empty_database_url)
    newest = sql.MIGRATIONS[-1].number + 1
    text = "alter table queen.queues add column of_a_test integer"
    monkeypatch.setattr(
        sql, "MIGRATIONS", (*sql.MIGRATIONS, sql.Migration(newest, "of_a_test", text, newest - 1))
    )
    monkeypatch.setattr(database, "MIGRATION_LOCK_SECONDS", 0.2)
    holder, reader = [await asyncpg.connect(empty_database_url) for _ in range(2)]
    holding = holder.transaction()
    await holding.start()
    await holder.execute("select count(*) from queen.queues")
    migrating = asyncio.create_task(prepare(empty_database_url))
    for _ in range(10):
        await reader.fetch("select count(*) from queen.queues", timeout=5)
        await asyncio.sleep(0.05)
    assert not migrating.done()
    await holding.rollback()
    await migrating
    row = await reader.fetchrow("select * from queen.migrations order by number desc limit 1")
    assert row is not None
    assert (row["number"], row["compatible_from"]) == (newest, newest - 1)
    # A broker of the release before works beside it, and may start again.
    monkeypatch.undo()
    await prepare(empty_database_url)

    monkeypatch.setattr(database, "MIGRATE_SECONDS", 0.3)
    monkeypatch.setattr(database, "MIGRATION_LOCK_SECONDS", 0.1)
    text = "alter table queen.queues drop column of_a_test"
    monkeypatch.setattr(
        sql, "MIGRATIONS", (*sql.MIGRATIONS, sql.Migration(newest + 1, "too_busy", text, newest + 1))
    )
    async with holder.transaction():
        await holder.execute("select count(*) from queen.queues")
        with pytest.raises(DatabaseUnusable, match="other transactions hold its tables"):
            await prepare(empty_database_url)
    await holder.close()
    await reader.close()


async def test_a_newer_schema_is_refused(database_url: str, start_broker: StartBroker) -> None:
    connection = await asyncpg.connect(database_url)
    await connection.execute("insert into queen.migrations (number, name, functions) values (999, 'x', 'y')")
    before = await describe(database_url)
    with pytest.raises(DatabaseUnusable, match=r"schema is 999.*upgrade Queenstream"):
        await prepare(database_url)
    assert await describe(database_url) == before
    await connection.close()


async def test_a_server_that_is_too_old_is_refused(
    empty_database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(database, "OLDEST_SERVER", 990_000)
    with pytest.raises(DatabaseUnusable, match="too old; Queenstream needs"):
        await prepare(empty_database_url)


async def test_a_user_without_rights_is_told_which(empty_database_url: str) -> None:
    connection = await asyncpg.connect(empty_database_url)
    await connection.execute("create role powerless login")
    try:
        url = empty_database_url.replace("postgres@", "powerless@")
        with pytest.raises(DatabaseUnusable, match=r"lacks a right: .*grant it CREATE on the database"):
            await prepare(url)
    finally:
        await connection.execute("drop owned by powerless; drop role powerless")
        await connection.close()


async def test_a_read_only_server_is_refused(empty_database_url: str) -> None:
    options = quote("-c default_transaction_read_only=on")
    with pytest.raises(DatabaseUnusable, match=r"read-only; give the URL of the primary"):
        await prepare(f"{empty_database_url}&options={options}")


async def test_what_cannot_be_reached_is_said_in_one_line(server: postgres.Server) -> None:
    missing = server.url.replace("/queen?", "/missing?")
    with pytest.raises(DatabaseUnusable, match=r'database "missing" does not exist; create it'):
        await prepare(missing)
    with pytest.raises(DatabaseUnusable, match="refuses the user"):
        await prepare(server.url.replace("postgres@", "nobody@"))
    with pytest.raises(DatabaseUnusable, match="no PostgreSQL answers"):
        await prepare("postgresql://postgres:secret@127.0.0.1:9/queen")
