"""What migrations do to the rows that are there."""

from __future__ import annotations

import asyncpg

from queenstream.broker.storage import sql


async def test_queues_that_exist_keep_their_ttl(database_url: str) -> None:
    connection = await asyncpg.connect(database_url)
    try:
        async with connection.transaction():
            await connection.execute("alter table queen.queues alter column ttl_seconds set default 3600")
            await connection.execute("insert into queen.queues (name) values ('before')")
            (migration,) = [each for each in sql.MIGRATIONS if each.name == "0008_ttl"]
            await connection.execute(migration.text)
            await connection.execute("insert into queen.queues (name) values ('after')")
        rows = await connection.fetch("select name, ttl_seconds from queen.queues order by id")
    finally:
        await connection.close()
    assert [tuple(row) for row in rows] == [("before", 3600), ("after", 0)]
