"""Rows of tables of a real PostgreSQL, as an engine reads them: nothing twice, nothing passed over."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Mapping
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import asyncpg
import pytest

from queenstream.connectors import Context, Reader, reader_for
from queenstream.errors import ConfigError, DatabaseUnusable
from queenstream.pipeline.endpoints import Postgres
from tests.integration.tables.conftest import Connection


class Readers:
    """Opens readers of one database, and closes those that are left."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._opened: list[Reader] = []

    async def open(self, table: str, positions: Mapping[str, Any] | None = None, **options: Any) -> Reader:
        reader = reader_for(Postgres(table, url=self._url, **options), Context("p", "in"))
        await reader.open(positions or {})
        self._opened.append(reader)
        return reader

    async def close(self) -> None:
        for reader in self._opened:
            await reader.close()


@pytest.fixture
async def readers(empty_database_url: str) -> AsyncIterator[Readers]:
    made = Readers(empty_database_url)
    yield made
    await made.close()


@pytest.fixture
async def other(empty_database_url: str) -> AsyncIterator[Connection]:
    """Somebody else who writes."""
    connection = await asyncpg.connect(empty_database_url)
    yield connection
    await connection.close()


async def numbers(reader: Reader, most: int = 100, wait_seconds: float = 0.0) -> list[Any]:
    batch = await reader.read(most, wait_seconds)
    assert batch is not None, "it has ended"
    return [record["n"] for record in batch.records]


# Snapshots


async def test_a_table_is_read_as_of_one_moment(db: Connection, readers: Readers) -> None:
    await db.execute("create table t (n int primary key); insert into t select generate_series(1, 10)")
    reader = await readers.open("t")
    assert await numbers(reader, 4) == [1, 2, 3, 4]
    await db.execute("insert into t values (11); delete from t where n = 5; update t set n = 60 where n = 6")
    assert await numbers(reader, 4) == [5, 6, 7, 8]
    assert await numbers(reader, 4) == [9, 10]
    assert await reader.read(4, 0.0) is None
    done = reader.changes()
    assert await (await readers.open("t", done)).read(4, 0.0) is None, "a snapshot is read once"


async def test_a_snapshot_that_was_interrupted_goes_on_after_its_last_row(
    db: Connection, readers: Readers
) -> None:
    await db.execute("create table t (n int, k text, primary key (k, n)); "
                     "insert into t select n, chr(97 + n % 3) from generate_series(1, 9) n")  # fmt: skip
    reader = await readers.open("t")
    assert await numbers(reader, 4) == [3, 6, 9, 1]
    positions = reader.changes()
    assert reader.changes() == {}
    again = await readers.open("t", positions)
    assert await numbers(again, 100) == [4, 7, 2, 5, 8]
    # The server hangs up in the middle: as a restart.
    await db.execute(
        "select pg_terminate_backend(pid) from pg_stat_activity where application_name = 'queen in'"
    )
    assert await numbers(reader, 4, 0.1) == []
    assert await numbers(reader, 100) == [4, 7, 2, 5, 8]


async def test_without_a_key_an_interrupted_snapshot_says_so(db: Connection, readers: Readers) -> None:
    await db.execute("create table t (n int); insert into t values (1), (2), (3)")
    reader = await readers.open("t")
    assert await numbers(reader, 2) == [1, 2]
    with pytest.raises(ConfigError, match="was interrupted, and without a primary key"):
        await readers.open("t", reader.changes())
    assert await numbers(reader, 2) == [3]
    assert await (await readers.open("t", reader.changes())).read(2, 0.0) is None


async def test_values_of_python(db: Connection, readers: Readers) -> None:
    await db.execute(
        "create table t (id uuid, price numeric, at timestamptz, local timestamp, day date, doc jsonb, "
        "raw bytea, list int[], pause interval, yes boolean, x double precision);"
        "insert into t values ('00000000-0000-0000-0000-000000000005', 9.50, '2026-01-31 13:00+01', "
        "'2026-01-31 12:00', '2026-01-31', '{\"a\": [1]}', '\\x00ff', '{1,null}', '1 day', true, 'Infinity')"
    )
    noon = datetime(2026, 1, 31, 12, tzinfo=UTC)
    batch = await (await readers.open("t")).read(10, 0.0)
    assert batch is not None
    assert batch.records == [
        {
            "id": "00000000-0000-0000-0000-000000000005", "price": Decimal("9.50"), "at": noon, "local": noon,
            "day": date(2026, 1, 31), "doc": {"a": [1]}, "raw": b"\x00\xff", "list": [1, None],
            "pause": "1 day", "yes": True, "x": float("inf"),
        }
    ]  # fmt: skip
    batch = await (await readers.open("t", schema="day string, price double")).read(10, 0.0)
    assert batch is not None
    assert [str(error) for _, error in batch.failures] == ["day must be text, not datetime.date(2026, 1, 31)"]
    with pytest.raises(ConfigError, match="has no column 'colour'; it has id, price"):
        await readers.open("t", schema="colour string")


# By a column that only grows


@pytest.mark.parametrize("kind", ["bigserial unique", "timestamptz default clock_timestamp()"])
async def test_it_goes_on_with_what_is_added(db: Connection, readers: Readers, kind: str) -> None:
    await db.execute(f"create table t (n int primary key, c {kind}); insert into t values (1), (2), (3)")
    reader = await readers.open("t", cursor="c")
    assert reader.lag() == 3
    assert await numbers(reader, 2) == [1, 2]
    positions = reader.changes()
    assert await numbers(reader, 2) == [3]
    assert await numbers(reader) == []
    assert reader.drained()
    waiting = asyncio.create_task(numbers(reader, 100, 10.0))
    await db.execute("insert into t values (4)")
    assert await waiting == [4]
    again = await readers.open("t", positions, cursor="c")
    assert again.lag() == 2
    assert await numbers(again) == [3, 4]


@pytest.mark.parametrize("kind", ["bigserial", "timestamptz default now()"])
async def test_a_row_that_commits_late_is_not_passed_over(
    db: Connection, other: Connection, readers: Readers, kind: str
) -> None:
    await db.execute(f"create table t (n int, c {kind} primary key)")
    reader = await readers.open("t", cursor="c")
    late = other.transaction()
    await late.start()
    await other.execute("insert into t values (1)")
    await db.execute("insert into t values (2)")
    assert await numbers(reader, 100, 0.1) == []
    assert not reader.drained()
    await db.execute("insert into t values (3)")  # who comes later is not waited for
    await late.commit()
    assert await numbers(reader, 100, 5.0) == [1, 2]
    assert await numbers(reader, 100, 5.0) == [3]


async def test_a_time_is_drawn_when_a_transaction_begins(
    db: Connection, other: Connection, readers: Readers
) -> None:
    """It has not touched the table, and no transaction id, when another row is there already."""
    await db.execute("create table t (n int, at timestamptz primary key default now())")
    reader = await readers.open("t", cursor="at")
    early = other.transaction()
    await early.start()
    await other.execute("select 1")
    await db.execute("insert into t values (2)")
    assert await numbers(reader, 100, 0.1) == []
    await other.execute("insert into t values (1)")
    await early.commit()
    assert await numbers(reader, 100, 5.0) == [1, 2]


@pytest.mark.parametrize("kind", ["bigserial", "timestamptz default now()"])
async def test_who_may_only_read_sees_who_writes(
    db: Connection, other: Connection, empty_database_url: str, kind: str
) -> None:
    """Of others' sessions PostgreSQL tells such a user little."""
    await db.execute(
        f"create table t (n int, c {kind} primary key); drop role if exists onlooker; "
        "create role onlooker login; grant select on t to onlooker"
    )
    readers = Readers(empty_database_url.replace("postgres@", "onlooker@"))
    try:
        reader = await readers.open("t", cursor="c")
        async with other.transaction():
            await other.execute("insert into t values (1)")
            await db.execute("insert into t values (2)")
            assert await numbers(reader, 100, 0.1) == []
        assert await numbers(reader, 100, 5.0) == [1, 2]
    finally:
        await readers.close()
        await db.execute("drop owned by onlooker; drop role onlooker")


async def test_a_reader_of_the_table_holds_nobody_up(
    db: Connection, other: Connection, readers: Readers
) -> None:
    await db.execute("create table t (n bigserial primary key); insert into t default values")
    async with other.transaction(isolation="repeatable_read"):
        await other.execute("select count(*) from t")
        assert await numbers(await readers.open("t", cursor="n")) == [1]


async def test_partitions_count_as_the_table(db: Connection, other: Connection, readers: Readers) -> None:
    await db.execute("create table t (n bigserial) partition by range (n); "
                     "create table low partition of t (primary key (n)) for values from (1) to (100);"
                     "alter table t add primary key (n)")  # fmt: skip
    reader = await readers.open("t", cursor="n")
    async with other.transaction():
        await other.execute("insert into low default values")
        await db.execute("insert into t default values")
        assert await numbers(reader, 100, 0.05) == []
    assert await numbers(reader, 100, 5.0) == [1, 2]


async def test_rows_of_one_value_wait_for_a_higher_one(db: Connection, readers: Readers) -> None:
    """Of a number that is not unique nobody knows whether more rows come."""
    await db.execute("create table t (n text primary key, load int); insert into t values ('b', 1), ('c', 2)")
    reader = await readers.open("t", cursor="load")
    assert await numbers(reader) == ["b"]
    await db.execute("insert into t values ('a', 2), ('d', 2)")
    assert await numbers(reader) == []
    await db.execute("insert into t values ('z', 3), ('y', null)")
    assert [await numbers(reader, 2), await numbers(reader, 2)] == [["a", "c"], ["d"]]
    assert await numbers(reader) == []


async def test_rows_of_one_value_are_told_apart_by_their_key(db: Connection, readers: Readers) -> None:
    await db.execute("create table t (n int primary key, at timestamptz default now()); "
                     "insert into t select generate_series(1, 5)")  # fmt: skip
    reader = await readers.open("t", cursor="at")
    assert await numbers(reader, 2) == [1, 2]
    again = await readers.open("t", reader.changes(), cursor="at")
    assert await numbers(again, 2) == [3, 4]
    assert await numbers(again, 2) == [5]


async def test_many_who_write_at_once_lose_no_row(
    db: Connection, empty_database_url: str, readers: Readers
) -> None:
    await db.execute("create table t (n bigserial primary key)")
    reader = await readers.open("t", cursor="n")
    chance = random.Random(4)

    async def write() -> None:
        connection = await asyncpg.connect(empty_database_url)
        for _ in range(60):
            transaction = connection.transaction()
            await transaction.start()
            await connection.execute("insert into t default values")
            await asyncio.sleep(chance.random() * 0.01)
            await (transaction.rollback() if chance.random() < 0.2 else transaction.commit())
        await connection.close()

    writers = asyncio.gather(*(write() for _ in range(4)))
    found: list[int] = []
    while not writers.done():
        found += await numbers(reader, 7, 0.02)
    await writers
    while some := await numbers(reader, 50, 0.1):
        found += some
    assert found == [row[0] for row in await db.fetch("select n from t order by n")]
    assert len(found) > 100


async def test_a_server_that_was_away_is_asked_again(db: Connection, readers: Readers) -> None:
    await db.execute(
        "create table t (n bigserial primary key); insert into t select from generate_series(1, 4)"
    )
    reader = await readers.open("t", cursor="n")
    assert await numbers(reader, 2) == [1, 2]
    await db.execute(
        "select pg_terminate_backend(pid) from pg_stat_activity where application_name = 'queen in'"
    )
    found: list[int] = []
    while len(found) < 2:
        found += await numbers(reader, 2, 0.2)
    assert found == [3, 4]


@pytest.mark.parametrize(
    ("columns", "why"),
    [
        ("c text primary key", "take a number that a sequence draws, or a timestamp"),
        ("c timestamptz(0) primary key", "has no microseconds"),
        ("c date primary key", "take a number"),
        ("c int", "has no primary key to tell rows of one value apart"),
        ("c bigint primary key generated by default as identity (cache 10)", "with a cache of 10"),
        ("n int primary key", "has no column 'c'"),
    ],
)
async def test_a_column_that_could_lose_rows_is_refused(
    db: Connection, readers: Readers, columns: str, why: str
) -> None:
    await db.execute(f"create table t ({columns})")
    with pytest.raises(ConfigError, match=why):
        await readers.open("t", cursor="c")


async def test_what_is_no_table_is_said(db: Connection, readers: Readers) -> None:
    await db.execute("create table t (n bigserial primary key); create view seen as select * from t")
    with pytest.raises(DatabaseUnusable, match="there is no table nothing"):
        await readers.open("nothing")
    with pytest.raises(ConfigError, match="of a view or a foreign table; read the table itself"):
        await readers.open("seen", cursor="n")
    assert await (await readers.open("seen")).read(10, 0.0) is None
