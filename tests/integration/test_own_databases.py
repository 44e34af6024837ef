"""The databases of the tests themselves: what one test leaves does not reach the next."""

from __future__ import annotations

import asyncpg

from tests.databases import EMPTY, SHAPE

CHANGES = [
    "create table public.left_behind (n int)",
    "alter table queen.queues rename to elsewhere",
    "alter table queen.queues add column elsewhere text",
    "create or replace function queen.left_behind() returns int language sql as 'select 1'",
    "grant select on queen.queues to public",
    "delete from queen.migrations where number = (select max(number) from queen.migrations)",
    "do $$ begin execute format('alter database %I set work_mem = ''1MB''', current_database()); end $$",
]


async def test_a_database_that_was_changed_is_not_used_again(database_url: str) -> None:
    connection = await asyncpg.connect(database_url)
    before = await connection.fetchval(SHAPE)
    for change in CHANGES:
        undone = connection.transaction()
        await undone.start()
        await connection.execute(change)
        assert await connection.fetchval(SHAPE) != before, change
        await undone.rollback()
    assert await connection.fetchval(SHAPE) == before
    await connection.close()


async def test_a_database_that_is_emptied_is_as_it_was(database_url: str) -> None:
    connection = await asyncpg.connect(database_url)
    before = await connection.fetchval(SHAPE)
    made = "insert into queen.queues (name) select 'q' || n from generate_series(1, $1) n returning id"
    for rows in (3, 5_000, 1):  # deleted, and cut off
        other = await asyncpg.connect(database_url)
        await other.execute("begin; lock table queen.queues")
        await connection.execute(EMPTY)
        assert other.is_closed() or not await _answers(other)
        assert min(row["id"] for row in await connection.fetch(made, rows)) == 1
        assert await connection.fetchval("select count(*) from queen.queues") == rows
    assert await connection.fetchval(SHAPE) == before
    await connection.close()


async def _answers(connection: asyncpg.Connection[asyncpg.Record]) -> bool:
    try:
        return bool(await connection.fetchval("select true"))
    except (asyncpg.PostgresError, asyncpg.InterfaceError):
        return False
