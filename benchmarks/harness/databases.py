"""What is driven straight at PostgreSQL: the limits (COPY, INSERT) and pgmq; and SQL that is shared."""

from __future__ import annotations

import asyncio
import os
import random
import time
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from typing import Any

import asyncpg

from harness.roles import Copy, Insert, Order, PgmqSend, Result, result_of
from queenstream.cli.bench.connections import Tally

COLUMNS = ["partition_id", "id", "seq", "created_at", "transaction_id", "payload"]
DURABLE = {"synchronous_commit": "on", "application_name": "benchmark", "jit": "off"}


def query(url: str, *statements: str) -> list[Any]:
    """Run statements one after the other, each its own transaction; gives the rows of the last."""

    async def ask() -> list[Any]:
        connection = await asyncpg.connect(url, server_settings=DURABLE)
        try:
            for statement in statements[:-1]:
                await connection.execute(statement)
            return list(await connection.fetch(statements[-1]))
        finally:
            await connection.close()

    return asyncio.run(ask())


def check_durable(url: str) -> None:
    """The comparison is only worth something when a commit is on the disk."""
    for name in ("fsync", "synchronous_commit"):
        value = query(url, f"show {name}")[0][0]
        assert value == "on", f"{name} is {value}"


def make_limit_table(url: str, name: str = "limit_messages") -> None:
    """A table with the columns and indexes of queen.messages, which nobody else knows."""
    query(url, f"create table {name} (like queen.messages including all)")


async def work(role: Copy | Insert | PgmqSend, order: Order, tally: Tally, payload: bytes) -> Result:
    """Keep the connections busy until the time is over."""
    pool = [await asyncpg.connect(order.url, server_settings=DURABLE) for _ in range(role.connections)]
    if isinstance(role, Copy):
        step = _copy(role, payload)
    elif isinstance(role, Insert):
        step = _insert(role, payload)
    else:
        step = _send(role, payload)
    tally.restart(order.seconds)

    async def one(connection: Any) -> None:
        while (began := time.perf_counter()) < tally.ends:
            tally.add(await step(connection), time.perf_counter() - began)

    await asyncio.gather(*(one(connection) for connection in pool))
    for connection in pool:
        await connection.close()
    return result_of(tally)


Step = Callable[[Any], Awaitable[int]]


def _rows(count: int, partitions: int, first: int, payload: bytes) -> list[tuple[Any, ...]]:
    now = datetime.now(UTC)
    ids = os.urandom(18 * count).hex()
    start = random.randrange(partitions)
    return [
        ((start + at) % partitions, first + at, first + at, now, ids[at * 36 : at * 36 + 36], payload)
        for at in range(count)
    ]


def _copy(role: Copy, payload: bytes) -> Step:
    drawn = time.time_ns()  # ids rise over all runs

    async def step(connection: Any) -> int:
        nonlocal drawn
        drawn += role.rows
        records = _rows(role.rows, role.partitions, drawn, payload)
        await connection.copy_records_to_table(role.table, records=records, columns=COLUMNS)
        return role.rows

    return step


def _insert(role: Insert, payload: bytes) -> Step:
    drawn = time.time_ns()
    text = f"insert into {role.table} ({', '.join(COLUMNS)}) values ($1, $2, $3, $4, $5, $6)"

    async def step(connection: Any) -> int:
        nonlocal drawn
        drawn += 1
        await connection.execute(text, *_rows(1, 100, drawn, payload)[0])
        return 1

    return step


def _send(role: PgmqSend, payload: bytes) -> Step:
    text = payload.decode()

    async def step(connection: Any) -> int:
        await connection.fetchval("select pgmq.send($1::text, $2::text::jsonb)", role.queue, text)
        return 1

    return step
