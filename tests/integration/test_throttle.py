"""Expensive reads have their own few places and connections: messages and new names never wait for them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import asyncpg
import httpx
import jwt
import pytest

from queenstream.broker.app import Broker
from queenstream.broker.http import throttle
from tests.conftest import StartBroker

SECRET = "s" * 32
BLOCKED = """
select count(*) from pg_locks l join pg_stat_activity a using (pid)
where not l.granted and l.mode = 'AccessShareLock' and l.relation = 'queen.dead_letters'::regclass
  and a.query not like '%queen.forget%'  -- upkeep looks at dead letters, too
"""


def token(subject: str, role: str) -> dict[str, str]:
    claims = {"sub": subject, "role": role, "exp": 4_000_000_000}
    return {"Authorization": "Bearer " + jwt.encode(claims, SECRET, "HS256")}


@pytest.fixture
async def guarded(start_broker: StartBroker) -> Broker:
    """A broker that knows its callers apart."""
    return await start_broker(auth_secret=SECRET)


@pytest.fixture
async def client(guarded: Broker) -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(base_url=guarded.address, timeout=60) as http:
        yield http


@pytest.fixture
async def blocker(database_url: str) -> AsyncIterator[Any]:
    """Holds up every read that counts dead letters, until it is closed."""
    connection = await asyncpg.connect(database_url)
    await connection.execute("begin; lock table queen.dead_letters in access exclusive mode")
    yield connection
    await connection.close(timeout=5)


async def until_blocked(connection: Any, count: int) -> None:
    async with asyncio.timeout(20):
        while await connection.fetchval(BLOCKED) != count:
            await asyncio.sleep(0.01)
            await connection.execute("select pg_stat_clear_snapshot()")  # one is kept in a transaction


async def read(http: httpx.AsyncClient, subject: str) -> httpx.Response:
    return await http.get("/api/v1/status", headers=token(subject, "read-only"))


async def push(http: httpx.AsyncClient, partition: str) -> int:
    items = [{"queue": "q", "partition": partition, "payload": 1}]
    answer = await http.post("/api/v1/push", json={"items": items}, headers=token("p", "read-write"))
    return answer.status_code


async def test_pushes_to_new_partitions_do_not_wait_for_expensive_reads(
    client: httpx.AsyncClient, blocker: Any
) -> None:
    reads = [asyncio.create_task(read(client, "alice")) for _ in range(6)]
    await until_blocked(blocker, 2)  # the others of alice's wait for a place
    reads += [asyncio.create_task(read(client, name)) for name in ("bob", "carol", "dave")]
    await until_blocked(blocker, 3)  # bob has the last place
    async with asyncio.timeout(5):
        assert [await push(client, str(n)) for n in range(3)] == [201, 201, 201]
        answer = await client.get(
            "/api/v1/pop/queue/q", params={"consumerGroup": "new"}, headers=token("p", "read-write")
        )
        assert answer.status_code == 200
        configured = await client.post(
            "/api/v1/configure", json={"queue": "other"}, headers=token("p", "read-write")
        )
        assert configured.status_code == 201
    await blocker.execute("rollback")
    assert {answer.status_code for answer in await asyncio.gather(*reads)} == {200}


async def test_who_waits_too_long_for_a_place_is_told_when_to_come_back(
    client: httpx.AsyncClient, blocker: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = [asyncio.create_task(read(client, "alice")) for _ in range(2)]
    await until_blocked(blocker, 2)
    monkeypatch.setattr(throttle, "WAIT_SECONDS", 0.05)
    refused = await read(client, "alice")
    assert (refused.status_code, refused.headers["retry-after"]) == (503, "1")
    assert "2 of your expensive requests run already" in refused.json()["error"]
    last = asyncio.create_task(read(client, "bob"))
    await until_blocked(blocker, 3)
    refused = await read(client, "carol")
    assert (refused.status_code, refused.headers["retry-after"]) == (503, "1")
    assert "too many expensive requests" in refused.json()["error"]
    await blocker.execute("rollback")
    assert {answer.status_code for answer in await asyncio.gather(*first, last)} == {200}
    assert (await read(client, "alice")).status_code == 200


async def test_an_offset_that_skips_too_much_is_refused_with_the_remedy(http: httpx.AsyncClient) -> None:
    for path in ("/api/v1/resources/partitions", "/api/v1/resources/queues", "/api/v1/dlq"):
        refused = await http.get(path, params={"offset": 100_001})
        assert refused.status_code == 400
        assert "offset" in refused.json()["error"]
        assert "narrow the list down" in refused.json()["error"]
        assert (await http.get(path, params={"offset": 100_000})).status_code == 200
        assert (await http.get(path, params={"limit": 1_001})).status_code == 400
