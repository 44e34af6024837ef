"""What clients see when the database fails: 503 with Retry-After, and work again as soon as it can."""

from __future__ import annotations

import asyncio
import socket

import asyncpg
import httpx
import pytest

from queenstream import postgres
from queenstream.broker.storage import database
from queenstream.broker.storage.pool import Pool
from queenstream.broker.storage.sqlstate import MEANINGS, Connections, meaning_of
from tests.conftest import StartBroker
from tests.integration.test_system import push

FAILING = """
create table public.failing (code text);
create function public.fail() returns trigger language plpgsql as $$
declare
    code text := (select f.code from public.failing f);
begin
    if code is not null then
        raise exception 'told to fail' using errcode = code;
    end if;
    return null;
end $$;
create trigger failing before insert on queen.messages execute function public.fail();
"""


async def test_each_failure_of_the_database_is_a_503_and_the_next_push_works(
    start_broker: StartBroker, database_url: str
) -> None:
    broker = await start_broker(pool=1)
    connection = await asyncpg.connect(database_url)
    await connection.execute(FAILING)
    codes = [code.ljust(5, "0") for code, meaning in MEANINGS.items() if not meaning.repeat]
    async with httpx.AsyncClient(base_url=broker.address, timeout=20) as http:
        await push(http, "q", "first")
        for code in codes:
            before = await _backend(broker.database)
            await connection.execute("insert into public.failing values ($1)", code)
            item = {"queue": "q", "transactionId": code, "payload": code}
            answer = await http.post("/api/v1/push", json={"items": [item]})
            assert (answer.status_code, answer.headers.get("retry-after")) == (503, "1"), (code, answer.text)
            await connection.execute("delete from public.failing")
            await push(http, "q", code)
            meaning = MEANINGS.get(code) or MEANINGS[code[:2]]
            kept = await _backend(broker.database) == before
            assert kept == (meaning.connections is Connections.KEEP), code
        stored = await connection.fetchval("select count(*) from queen.messages")
        assert stored == len(codes) + 1
        await connection.execute("insert into public.failing values ('XX000')")
        answer = await http.post("/api/v1/push", json={"items": [{"queue": "q", "payload": 1}]})
        assert answer.status_code == 500
    await connection.close()


async def _backend(pools: object) -> int:
    rows = await pools.hot("select pg_backend_pid() as pid")  # type: ignore[attr-defined]
    return int(rows[0]["pid"])


async def test_a_database_that_becomes_read_only_is_not_ready(
    start_broker: StartBroker, database_url: str
) -> None:
    """As a managed server does on a full disk, and as what an address leads to does after a failover."""
    broker = await start_broker(pool=2)
    admin = await asyncpg.connect(database_url)
    name = await admin.fetchval("select current_database()")
    async with httpx.AsyncClient(base_url=broker.address, timeout=20) as http:
        await push(http, "q", "a")
        assert (await http.get("/health/ready")).status_code == 200
        await admin.execute(f"alter database {name} set default_transaction_read_only = on")
        try:
            # Connections that are open now would go on writing; those made from here on cannot.
            broker.database.renew()
            answer = await http.post("/api/v1/push", json={"items": [{"queue": "q", "payload": "b"}]})
            assert (answer.status_code, answer.headers["retry-after"]) == (503, "1")
            assert "read-only" in answer.json()["error"]
            for path in ("/health", "/health/ready"):
                health = await http.get(path)
                assert (health.status_code, health.headers["retry-after"]) == (503, "1")
                assert "read-only" in health.json()["reason"]
            assert (await http.get("/health/live")).status_code == 200
        finally:
            await admin.execute("set default_transaction_read_only = off")
            await admin.execute(f"alter database {name} reset default_transaction_read_only")
        await push(http, "q", "b")
        assert (await http.get("/health/ready")).status_code == 200
    await admin.close()


async def test_a_server_that_turned_into_a_standby_under_open_connections(
    start_broker: StartBroker, database_url: str
) -> None:
    """One refused statement is enough: no other connection to that server is used again."""
    broker = await start_broker(pool=3)
    opened: list[int] = []

    async def connect() -> asyncpg.Connection[asyncpg.Record]:
        opened.append(1)
        return await asyncpg.connect(database_url)

    pool = broker.database._hot = Pool(connect, 3)
    connections = [await pool.acquire() for _ in range(3)]
    for connection in connections[:2]:
        pool.release(connection)
    await connections[2].execute("set default_transaction_read_only = on")
    pool.release(connections[2])
    async with httpx.AsyncClient(base_url=broker.address, timeout=20) as http:
        answer = await http.post("/api/v1/push", json={"items": [{"queue": "q", "payload": "b"}]})
        assert answer.status_code == 503
        assert all(connection.is_closed() for connection in connections)
        await push(http, "q", "b")
    assert len(opened) == 4


async def test_a_host_that_does_not_answer_costs_no_time(server: postgres.Server) -> None:
    """A machine that is off, named before the one that serves."""
    [(folder, port)] = postgres.hosts_of(server.url)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        silent_port = silent.getsockname()[1]
        url = f"postgresql://postgres@/queen?host=127.0.0.1,{folder}&port={silent_port},{port}"
        async with asyncio.timeout(5):
            connection = await database.open_connection(url)
    assert await connection.fetchval("select 1") == 1
    await connection.close()


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (ConnectionResetError(), "away"),
        (TimeoutError(), "away"),
        (asyncpg.InterfaceError("connection is closed"), "away"),
        (asyncpg.ConnectionDoesNotExistError(), "away"),
        (asyncpg.CrashShutdownError(), "stops or starts"),
        (asyncpg.InvalidPasswordError(), "refuses the broker's user"),
        (asyncpg.TargetServerAttributeNotMatched(), "read-only"),
        (asyncpg.TooManyConnectionsError(), "too many connections"),
    ],
)
def test_what_else_a_failure_can_be(error: Exception, message: str) -> None:
    meaning = meaning_of(error)
    assert meaning is not None
    assert message in meaning.message


def test_what_is_no_failure_of_the_database() -> None:
    for error in (ValueError(), asyncpg.UniqueViolationError(), asyncpg.InternalServerError()):
        assert meaning_of(error) is None
