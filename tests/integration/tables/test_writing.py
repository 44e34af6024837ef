"""Rows into tables of a real PostgreSQL, as an engine writes them."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any
from uuid import UUID

import pytest

from queenstream.connectors import Context, Writer, writer_for
from queenstream.connectors.base import SinkClaim
from queenstream.connectors.postgres.sinks import SinkTable
from queenstream.connectors.postgres.writer import KEPT
from queenstream.errors import CheckpointError, ConfigError, DatabaseUnusable, OwnershipLost, PostgresError
from queenstream.pipeline.endpoints import Postgres
from tests.integration.tables.conftest import Connection
from tests.processes import free_port

ANN = {"id": 1, "name": "Ann"}
OURS = "pg_stat_activity where application_name = 'queen out'"


@asynccontextmanager
async def writing(table: str, url: str, **options: Any) -> AsyncIterator[Writer]:
    writer = writer_for(Postgres(table, url=url, **options), Context("p", "out"))
    await writer.open()
    try:
        yield writer
    finally:
        await writer.close()


async def written(
    url: str, table: str, rows: Sequence[Any], epoch: str = "e1", **options: Any
) -> list[tuple[int, str]]:
    """Write as a new run does; gives what was refused, in words."""
    async with writing(table, url, **options) as writer:
        return [(index, str(error)) for index, error in await writer.write(epoch, rows)]


async def stored(db: Connection, query: str) -> list[tuple[Any, ...]]:
    return [tuple(row) for row in await db.fetch(query)]


async def test_rows_are_appended_once_for_each_epoch(db: Connection, empty_database_url: str) -> None:
    await db.execute("create table people (id int, name text, seen int default 7)")
    bob = {"id": 2, "name": None, "seen": None}
    for _ in range(2):  # the second time as after a crash
        assert await written(empty_database_url, "people", [ANN, bob]) == []
    assert await written(empty_database_url, "people", [ANN], "e2") == []
    assert await stored(db, "select * from people order by id desc") == [
        (2, None, None),
        (1, "Ann", 7),  # what a row does not have is the column's default
        (1, "Ann", 7),
    ]


async def test_a_run_that_lost_its_sink_writes_nothing_more(db: Connection, empty_database_url: str) -> None:
    await db.execute("create table people (id int, name text)")
    first, second = SinkClaim("run people", "first"), SinkClaim("run people", "second")
    sinks = SinkTable("public")
    await db.execute(sinks.statement)
    await sinks.claim(db, first, 1, "process 1 on host-a", temporary=False)
    sink = Postgres("people", url=empty_database_url)
    writer = writer_for(sink, Context("p", "out", claim=first))
    await writer.open()
    assert await writer.write("e1", [ANN]) == []
    await sinks.begin(db, first, 7)
    await sinks.claim(db, second, 2, "process 2 on host-b", temporary=False)
    with pytest.raises(OwnershipLost, match="process 2 on host-b has taken over the sink run people"):
        await writer.write("e2", [ANN])
    await writer.close()
    with pytest.raises(OwnershipLost, match="process 2 on host-b"):
        await sinks.begin(db, first, 8)
    with pytest.raises(OwnershipLost, match="process 2 on host-b"):
        await sinks.claim(db, SinkClaim("run people", "copy"), 2, "process 3 on host-c", temporary=False)
    for batch in (7, 9):  # the last one again, and a new one
        await sinks.begin(db, second, batch)
    with pytest.raises(CheckpointError, match="batch 8 of run people comes after batch 9"):
        await sinks.begin(db, second, 8)
    assert await stored(db, "select * from people") == [(1, "Ann")]


async def test_what_an_epoch_was_refused_is_told_again(db: Connection, empty_database_url: str) -> None:
    await db.execute("create table people (id int primary key, name text not null)")
    rows = [ANN, {"id": 1, "name": "twice"}, {"id": 2}, {"id": "x", "name": "Cid"}, {"id": 3, "name": "Cid"}]
    first = await written(empty_database_url, "people", rows)
    assert [index for index, _ in first] == [1, 2, 3]
    assert "duplicate key" in first[0][1]
    assert "not-null" in first[1][1]
    assert first[2][1] == "id must be a whole number (int), not 'x'"
    assert await written(empty_database_url, "people", rows) == first
    assert await stored(db, "select * from people order by id") == [(1, "Ann"), (3, "Cid")]


async def test_one_bad_row_among_many_is_found(db: Connection, empty_database_url: str) -> None:
    await db.execute("create table numbers (n int check (n <> 4711))")
    refused = await written(empty_database_url, "numbers", [{"n": n} for n in range(12_000)])
    assert [index for index, _ in refused] == [4711]
    assert await stored(db, "select count(*), sum(n) from numbers") == [(11_999, sum(range(12_000)) - 4711)]


async def test_a_constraint_that_waits_for_the_commit_blames_its_row(
    db: Connection, empty_database_url: str
) -> None:
    await db.execute(
        "create table users (id int primary key);"
        "create table orders (user_id int references users deferrable initially deferred);"
        "insert into users values (1)"
    )
    refused = await written(empty_database_url, "orders", [{"user_id": 1}, {"user_id": 2}])
    assert [index for index, _ in refused] == [1]
    assert await stored(db, "select * from orders") == [(1,)]


async def test_with_a_key_the_last_row_stays(db: Connection, empty_database_url: str) -> None:
    await db.execute(
        "create table totals (shop text, day date, n int, note text default 'new', primary key (day, shop))"
    )
    day = "2026-01-31"
    rows = [
        {"shop": "a", "day": day, "n": 1},
        {"shop": "b", "day": day, "n": 1, "note": "b"},
        {"shop": "a", "day": day, "n": 2, "note": "later"},
        {"shop": "a", "day": date(2026, 1, 31), "n": 3},  # the same day in another type
        {"shop": None, "day": day, "n": 9},
    ]
    [(index, why)] = await written(empty_database_url, "totals", rows, key=("shop", "day"))
    assert (index, why) == (4, "the row has no shop, which is its key; add it, or filter such rows")
    assert await written(empty_database_url, "totals", [rows[0]], "e2", key=("shop", "day")) == []
    found = await stored(db, "select shop, day, n, note from totals order by shop")
    # What a row does not have stays as it is; in a new row it is the default.
    assert found == [("a", date(2026, 1, 31), 1, "later"), ("b", date(2026, 1, 31), 1, "b")]


async def test_what_no_table_can_hold_is_refused_and_told(db: Connection, empty_database_url: str) -> None:
    await db.execute("create table t (word text)")

    class Odd(dict[str, Any]):
        def items(self) -> Any:
            raise TypeError("\0 and \ud800")

        __iter__ = keys = items

    rows = [{"word": "\0"}, {"word": "\ud800"}, Odd(), {"word": "fine"}]
    for _ in range(2):
        refused = await written(empty_database_url, "t", rows)
        assert [index for index, _ in refused] == [0, 1, 2]
    assert await stored(db, "select word from t") == [("fine",)]


async def test_of_the_rows_of_a_key_only_the_bad_ones_are_refused(
    db: Connection, empty_database_url: str
) -> None:
    await db.execute("create table totals (id text primary key, n int check (n < 100))")
    rows = [{"id": "a", "n": 1}, {"id": "b", "n": 2}, {"id": "a", "n": 3}, {"id": "a", "n": 100}]
    refused = await written(empty_database_url, "totals", rows, key="id")
    assert [index for index, _ in refused] == [3]
    assert await stored(db, "select * from totals order by id") == [("a", 3), ("b", 2)]


async def test_keys_that_only_the_table_finds_equal(db: Connection, empty_database_url: str) -> None:
    await db.execute("create table totals (id uuid primary key, n int)")
    one = "6ba7b810-9dad-11d1-80b4-00c04fd430c8"
    rows = [{"id": one, "n": 1}, {"id": one.upper(), "n": 2}]
    assert await written(empty_database_url, "totals", rows, key="id") == []
    assert await stored(db, "select * from totals") == [(UUID(one), 2)]


async def test_values_become_the_table_s_own_types(db: Connection, empty_database_url: str) -> None:
    await db.execute("create type mood as enum ('sad', 'ok')")
    types = {
        "small": "smallint", "big": "bigint", "exact": "numeric(40, 2)", "approx": "double precision",
        "yes": "boolean", "at": "timestamptz", "local": "timestamp", "day": "date", "raw": "bytea",
        "id": "uuid", "doc": "jsonb", "list": "int[]", "pause": "interval", "feels": "mood",
        "word": "varchar(3)",
    }  # fmt: skip
    columns = ", ".join(f"{name} {kind}" for name, kind in types.items())
    await db.execute(f"create table t ({columns})")
    noon = datetime(2026, 1, 31, 12, tzinfo=UTC)
    rows = [
        {
            "small": "42", "big": 2**53 + 1, "exact": Decimal("1e30"), "approx": math.inf, "yes": True,
            "at": 1_769_860_800_000, "local": "2026-01-31T13:00:00+01:00", "day": "2026-01-31",
            "raw": b"\x00\xff",
            "id": UUID(int=5), "doc": {"a": [1, {"b": None}]}, "list": [3, None], "pause": "1 day",
            "feels": "ok",
            "word": "abc",
        },
        {
            "small": 42.0, "exact": 2**70, "approx": math.nan, "at": noon, "local": noon, "raw": "ä",
            "doc": "text",
        },
    ]  # fmt: skip
    bad = [{"small": 40_000}, {"feels": "happy"}, {"word": "long"}, {"word": {"no": "text"}}, {"word": "\0"}]
    refused = await written(empty_database_url, "t", [*rows, *bad, {"doc": object()}])
    assert [index for index, _ in refused] == [2, 3, 4, 5, 6, 7]
    [one, two] = await stored(
        db,
        "select small, big, exact, approx, yes, at, local, day, raw, id, doc::text, list, pause::text, "
        "feels, word from t order by big nulls last",
    )
    naive = noon.replace(tzinfo=None)
    assert one == (42, 2**53 + 1, Decimal("1e30"), math.inf, True, noon, naive, date(2026, 1, 31),
                   b"\x00\xff", UUID(int=5), '{"a": [1, {"b": null}]}', [3, None], "1 day", "ok",
                   "abc")  # fmt: skip
    assert (two[0], two[2], two[5], two[6], two[8], two[10]) == (
        42,
        2**70,
        noon,
        naive,
        "ä".encode(),
        '"text"',
    )
    assert math.isnan(two[3])


async def test_what_the_table_has_no_column_for_is_refused(db: Connection, empty_database_url: str) -> None:
    await db.execute(
        "create table t (id int generated always as identity, n int, "
        "twice int generated always as (2 * n) stored)"
    )
    refused = await written(empty_database_url, "t", [{"n": 1}, {"n": 1, "x": 1}, {"n": 1, "twice": 2}, 5])
    assert [index for index, _ in refused] == [1, 2, 3]
    assert refused[0][1] == "the table t has no column 'x'; add it, or .select(…) others"
    assert await stored(db, "select * from t") == [(1, 1, 2)]
    # With a schema of its own a sink takes what is in that, and drops the rest.
    assert await written(empty_database_url, "t", [{"n": "2", "x": 1}], "e2", schema="n int") == []
    assert await stored(db, "select n from t order by n") == [(1,), (2,)]


async def test_a_table_is_made_from_a_schema(db: Connection, empty_database_url: str) -> None:
    schema = (
        "id bigint, name string not null, price decimal(10,2), tags map<string,string>, "
        "days array<date>, parts array<struct<n:int>>, at timestamp, any variant"
    )
    row = {
        "id": 1,
        "name": "x",
        "price": "9.5",
        "tags": {"a": "b"},
        "days": ["2026-01-31"],
        "parts": [{"n": 1}],
    }
    await db.execute('create schema "My shop"')
    table = '"My shop"."Or.ders"'
    for epoch in ("e1", "e2"):
        said = {"schema": schema, "create_table": True, "key": "id"}
        assert await written(empty_database_url, table, [row], epoch, **said) == []
    assert await stored(db, f"select id, price, days, at from {table}") == [
        (1, Decimal("9.50"), [date(2026, 1, 31)], None)
    ]
    kinds = (
        "select column_name, data_type, is_nullable from information_schema.columns "
        "where table_schema = 'My shop' and table_name = 'Or.ders' order by ordinal_position"
    )
    assert await stored(db, kinds) == [
        ("id", "bigint", "NO"),
        ("name", "text", "NO"),
        ("price", "numeric", "YES"),
        ("tags", "jsonb", "YES"),
        ("days", "ARRAY", "YES"),
        ("parts", "jsonb", "YES"),
        ("at", "timestamp with time zone", "YES"),
        ("any", "jsonb", "YES"),
    ]
    assert await stored(db, 'select count(*) from "My shop".queen_deliveries') == [(2,)]


async def test_only_the_last_epochs_are_remembered(db: Connection, empty_database_url: str) -> None:
    await db.execute("create table t (n int)")
    async with writing("t", empty_database_url) as writer:
        for number in range(KEPT + 100):
            await writer.write(f"e{number:05}", [{"n": number}])
        assert await writer.write(f"e{KEPT + 99:05}", [{"n": -1}]) == []
    assert await stored(db, "select count(*), min(n) from t") == [(KEPT + 100, 0)]
    [(kept,)] = await stored(db, "select count(*) from queen_deliveries")
    assert KEPT <= kept < KEPT + 100


async def waits_for_a_lock(db: Connection) -> None:
    """Until the writer does. Nobody sends a signal for that: PostgreSQL is asked."""
    async with asyncio.timeout(30):
        while not await db.fetchval(f"select count(*) from {OURS} and wait_event_type = 'Lock'"):  # noqa: ASYNC110
            await asyncio.sleep(0.01)


async def test_a_server_that_hangs_up_is_waited_for(
    db: Connection, empty_database_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    await db.execute("create table t (n int)")
    async with writing("t", empty_database_url) as writer:
        await writer.write("e1", [{"n": 1}])
        await db.execute("begin; lock table t")  # so that the next epoch hangs in the middle
        under_way = asyncio.create_task(writer.write("e2", [{"n": 2}]))
        await waits_for_a_lock(db)
        await db.execute(f"select pg_terminate_backend(pid) from {OURS}; commit")
        assert await under_way == []
    assert await stored(db, "select * from t order by n") == [(1,), (2,)]
    assert "out waits for PostgreSQL" in caplog.text


async def test_what_cannot_be_written_is_said_before_the_first_row(
    db: Connection, empty_database_url: str
) -> None:
    await db.execute("create table t (id int)")
    nowhere = f"postgresql://ann:secret@127.0.0.1:{free_port()}/shop"
    with pytest.raises(
        PostgresError, match=r"127.0.0.1:\d+/shop does not let us in .*start the server"
    ) as away:
        await written(nowhere, "t", [])
    assert "secret" not in str(away.value)
    with pytest.raises(DatabaseUnusable, match="there is no table nothing"):
        await written(empty_database_url, "nothing", [])
    with pytest.raises(DatabaseUnusable, match=r'create unique index on "public"\."t" \("id"\)'):
        await written(empty_database_url, "t", [], key="id")
    with pytest.raises(ConfigError, match="has no column 'x'; it has id"):
        await written(empty_database_url, "t", [], key="x")
    for name in ("a.b.c", "", "a b", 'a"b', "a."):
        with pytest.raises(ConfigError, match="is no table"):
            await written(empty_database_url, name, [])
    with pytest.raises(ConfigError, match="the url is none") as wrong:
        await written("mysql://ann:secret@host/db", "t", [])
    assert "secret" not in str(wrong.value)
    with pytest.raises(ConfigError, match="postgres t has no server; write url"):
        writer_for(Postgres("t"), Context("p", "out"))


async def test_a_user_without_rights_is_told_what_to_ask_for(db: Connection, empty_database_url: str) -> None:
    await db.execute(
        "create table t (n int); drop role if exists reader; create role reader login; "
        "grant insert, select on t to reader; revoke create on schema public from public"
    )
    user, _, rest = empty_database_url.partition("://")[2].partition("@")
    url = empty_database_url.replace(f"{user}@", "reader@") if rest else empty_database_url
    try:
        with pytest.raises(
            DatabaseUnusable, match="grant create on the schema, or let somebody run: create table"
        ):
            await written(url, "t", [{"n": 1}])
    finally:
        await db.execute("drop owned by reader; drop role reader")
