"""Rows into tables: typed by the table, the same after a repeat; what does not fit is refused."""

from __future__ import annotations

import asyncio
import decimal
import signal
import time
import uuid
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

import pytest

from queenstream import Cassandra
from queenstream.core.schemas import Schema
from queenstream.errors import CheckpointError, ConfigError, OwnershipLost, RunFailed
from tests.integration.cassandra.tools import KEYSPACE, Cql, Endpoint, login, read, writer, written
from tests.servers.cassandra import Node

NOON = datetime(2026, 1, 31, 12, tzinfo=UTC)
ID, TIME_ID = uuid.UUID("8c1f3c1a-5d2b-4b0e-9d0c-0123456789ab"), uuid.uuid1()

# By name: the column's type, what a record may have for it, and what comes back of it.
COLUMNS: dict[str, tuple[str, Any, Any]] = {
    "ascii": ("ascii", "plain", "plain"),
    "text": ("text", "zwölf", "zwölf"),
    "a boolean": ("boolean", "true", True),
    "tiny": ("tinyint", -128, -128),
    "small": ("smallint", "300", 300),
    "whole": ("int", 5.0, 5),
    "big": ("bigint", -(1 << 63), -(1 << 63)),
    "huge": ("varint", -(1 << 200), -(1 << 200)),
    "exact": ("decimal", "-12.5000", decimal.Decimal("-12.5000")),
    "single": ("float", 0.5, 0.5),
    "double": ("double", "1.25", 1.25),
    "at": ("timestamp", "2026-01-31T12:00:00.123Z", NOON.replace(microsecond=123_000)),
    "day": ("date", "1969-12-31", date(1969, 12, 31)),
    "time": ("time", "12:30:00.5", "12:30:00.500000000"),
    "uuid": ("uuid", str(ID), str(ID)),
    "timeuuid": ("timeuuid", TIME_ID, str(TIME_ID)),
    "inet": ("inet", "2001:db8::1", "2001:db8::1"),
    "blob": ("blob", b"\x00\xff", b"\x00\xff"),
    "list": ("frozen<list<int>>", [3, "1", 3], [3, 1, 3]),
    "set": ("set<text>", ["b", "a", "b"], ["a", "b"]),
    "map": ("map<text, double>", {"x": 1}, {"x": 1.0}),
    "pair": ("tuple<int, text>", (1, None), [1, None]),
    "place": ("place", {"city": "Bern", "at": [1.5, 2]}, {"city": "Bern", "at": [1.5, 2.0], "zip": None}),
    "places": ("map<int, frozen<place>>", {7: {"zip": 1}}, {7: {"city": None, "at": None, "zip": 1}}),
    "vector": ("vector<float, 2>", [0.5, 1], [0.5, 1.0]),
}


async def test_every_type_of_column_takes_what_fits_it_and_gives_it_back(
    cql: Cql, table: str, endpoint: Endpoint
) -> None:
    cql.run(f"create type {KEYSPACE}.place (city text, at frozen<list<double>>, zip int)")
    columns = ", ".join(f'"{name}" {kind}' for name, (kind, _, _) in COLUMNS.items())
    cql.run(f"create table {KEYSPACE}.{table} (id int primary key, {columns}, long duration, open list<int>)")
    full = {"id": 1} | {name: value for name, (_, value, _) in COLUMNS.items()}
    assert await written(endpoint(), [full, {"id": 2, "text": None}]) == []
    nothing = dict.fromkeys([*COLUMNS, "long", "open"])
    back = {name: value for name, (_, _, value) in COLUMNS.items()}
    found = {record["id"]: record for record in await read(endpoint())}
    assert found == {1: {"id": 1, **nothing, **back}, 2: {"id": 2, **nothing}}
    # What came out goes in again, and is the same.
    again = {name: value for name, value in found[1].items() if value is not None}
    assert await written(endpoint(), [again], "a-0000000002") == []
    assert [record for record in await read(endpoint()) if record["id"] == 1] == [found[1]]


async def test_a_table_is_made_from_a_schema_and_holds_what_the_schema_says(
    cql: Cql, table: str, endpoint: Endpoint
) -> None:
    schema = Schema.of(
        "name string, at timestamp, yes boolean, t tinyint, s smallint, i int, b bigint, f float, d double, "
        "day date, raw binary, money decimal(10,2), words array<string>, tags map<string, string>, "
        "deep map<string, array<map<string, int>>>, place struct<city: string, spots: array<struct<x: int>>>"
    )
    record = {
        "name": "cpu", "at": NOON, "yes": False, "t": 1, "s": 2, "i": 3, "b": 4, "f": 0.5, "d": 0.25,
        "day": date(2026, 1, 31), "raw": b"raw", "money": decimal.Decimal("9.50"), "words": ["b", "a"],
        "tags": {"host": "a"}, "deep": {"x": [{"y": 1}]}, "place": {"city": "Bern", "spots": [{"x": 1}]},
    }  # fmt: skip
    sink = endpoint(schema=schema, create_table=True, partition_key=("name", "i"), clustering_key="at")
    for epoch in ("a-0000000001", "a-0000000001", "a-0000000002"):  # what is there is not made again
        assert await written(sink, [{**record, "more": 1}], epoch) == []
    assert await read(endpoint(schema=schema)) == [record]
    assert await read(endpoint(schema="i int, name string")) == [{"i": 3, "name": "cpu"}]
    columns = cql.run(
        "select column_name, type, kind, position from system_schema.columns "
        "where keyspace_name = %s and table_name = %s", KEYSPACE, table,
    )  # fmt: skip
    types = {row["column_name"]: row["type"] for row in columns}
    assert types["tags"] == "map<text, text>"
    assert types["words"] == "frozen<list<text>>"
    assert types["place"] == f"frozen<{table}_place>"
    keys = {row["column_name"]: (row["kind"], row["position"]) for row in columns}
    assert keys["name"] == ("partition_key", 0)
    assert keys["i"] == ("partition_key", 1)
    assert keys["at"] == ("clustering", 0)


async def test_a_row_that_does_not_fit_is_refused_and_the_rest_goes_on(
    cql: Cql, table: str, endpoint: Endpoint
) -> None:
    cql.run(
        f"create table {KEYSPACE}.{table} "
        "(name text, n int, tags map<text, text>, open list<int>, long duration, primary key (name, n))"
    )
    bad: list[tuple[Any, str]] = [
        ({"name": "a"}, "n must be there, as a row cannot be without it"),
        ({"name": None, "n": "x"}, "name must be there.*; n must be a whole number"),
        ({"name": "a", "n": 1 << 31}, "n must be a int, from -2147483648"),
        ({"name": "a", "n": 1, "colour": "red"}, "colour is not a column of the table, which has name, n"),
        ({"name": "a", "n": 1, "tags": {"x": None}}, "tags.x must be a value, as null cannot stand there"),
        ({"name": "a", "n": 1, "tags": ["x"]}, "tags must be a map"),
        ({"name": "a\ud800", "n": 1}, "name must be text that UTF-8 can hold"),
        ({"name": "a", "n": 1, "open": [1]}, "a list that is not frozen would be longer after a repeat"),
        ({"name": "a", "n": 1, "long": "1h"}, "values of the type duration are not known here"),
        (7, "has no named fields"),
        ({"name": "x" * 70_000, "n": 1}, "Cassandra refused the row: .*longer than maximum of 65535"),
        ({"name": "y" * 70_000, "n": 1}, "Cassandra refused the row"),
        ({"name": "y" * 70_000, "n": 2}, "Cassandra refused the row"),  # with the one before it, in a batch
    ]
    rows: list[Any] = []
    for n, (row, _) in enumerate(bad):
        rows += [row, {"name": "good", "n": n}]
    refused = await written(endpoint(), rows)
    assert [index for index, _ in refused] == [2 * n for n in range(len(bad))]
    for (_, error), (_, expected) in zip(refused, bad, strict=True):
        with pytest.raises(type(error), match=expected):
            raise error
    assert [row["n"] for row in cql.rows(table)] == list(range(len(bad)))


async def test_a_large_epoch_travels_in_batches_of_one_partition(
    node: Node, cql: Cql, table: str, endpoint: Endpoint
) -> None:
    cql.run(f"create table {KEYSPACE}.{table} (a text, b int, n int, primary key ((a, b), n))")
    rows = [{"a": f"a{n % 3}", "b": n % 2, "n": n} for n in range(2_500)]
    assert await written(endpoint(concurrency=4), rows) == []
    found = cql.rows(table)
    assert sorted(found, key=lambda row: row["n"]) == rows
    assert "Unlogged batch covering" not in node.log.read_text()


async def test_a_repeat_changes_nothing_and_leaves_what_others_wrote_since(
    cql: Cql, table: str, endpoint: Endpoint
) -> None:
    cql.run(f"create table {KEYSPACE}.{table} (k text primary key, v int, tags map<text, text>, s set<int>)")
    rows = [{"k": name, "v": n, "tags": {"x": name}, "s": [n]} for n, name in enumerate("abc")]
    sink = endpoint(ttl=1_000)
    columns = "k, v, tags, s, writetime(v), ttl(v)"

    def state() -> list[dict[str, Any]]:
        return sorted(cql.rows(table, columns), key=lambda row: str(row["k"]))

    before = time.time_ns() // 1_000
    assert await written(sink, rows) == []
    first = state()
    times = [row["writetime(v)"] for row in first]
    assert before <= times[0] < times[1] < times[2] <= time.time_ns() // 1_000 + 3
    assert all(990 <= row["ttl(v)"] <= 1_000 for row in first)
    cql.run(f"update {KEYSPACE}.{table} set v = 100 where k = 'b'")
    cql.run(f"delete from {KEYSPACE}.{table} where k = 'c'")
    assert await written(sink, rows) == []  # another process, after a crash
    then = state()
    assert [(row["k"], row["v"]) for row in then] == [("a", 0), ("b", 100)]
    assert then[0]["writetime(v)"] == times[0]
    # Cassandra keeps the later end of two equal writes: a repeat prolongs a row by the seconds in between.
    assert all(990 <= row["ttl(v)"] <= 1_000 for row in then if row["k"] == "a")
    assert then[0]["tags"] == {"x": "a"}
    assert await written(sink, rows, "a-0000000002") == []
    assert [row["v"] for row in state()] == [0, 1, 2]


async def test_the_last_row_of_a_key_stays(cql: Cql, table: str, endpoint: Endpoint) -> None:
    cql.run(f"create table {KEYSPACE}.{table} (k text primary key, v int, w int)")
    rows = [{"k": "a", "v": 9, "w": 9}, {"k": "a", "v": 1}, {"k": "b", "v": 5}, {"k": "b", "v": None}]
    async with writer(endpoint()) as sink:
        assert await sink.write("a-0000000001", rows) == []
        assert {row["k"]: (row["v"], row["w"]) for row in cql.rows(table)} == {"a": (1, 9), "b": (None, None)}
        for n in range(2, 20):
            assert await sink.write(f"a-{n:010}", [{"k": "a", "v": -n}, {"k": "a", "v": -n - 100}]) == []
    assert {row["v"] for row in cql.rows(table, where="where k = 'a'")} == {-119}


async def test_times_never_run_backwards(cql: Cql, table: str, endpoint: Endpoint) -> None:
    cql.run(f"create table {KEYSPACE}.{table} (k text primary key, v int)")
    assert await written(endpoint(), [{"k": "a", "v": 9}]) == []
    # As if that had been on a machine whose clock was an hour ahead.
    ahead = time.time_ns() // 1_000 + 3_600_000_000
    cql.run(f"update {KEYSPACE}.{table} using timestamp {ahead} set v = 9 where k = 'a'")
    cql.run(
        f"insert into {KEYSPACE}.queenstream_epochs (sink, epoch, started, ended) values (%s, %s, %s, %s) ",
        f"{table}:{endpoint().slug}", "a-0000000001", ahead - 1, ahead,
    )  # fmt: skip
    times: list[int] = []
    for epoch in ("a-0000000002", "a-0000000003", "a-0000000003"):
        assert await written(endpoint(), [{"k": "a", "v": len(times)}], epoch) == []
        times += [row["writetime(v)"] for row in cql.rows(table, "writetime(v)")]
    assert ahead < times[0] < times[1] == times[2]


async def test_an_older_epoch_and_another_run_do_not_win_over_newer_rows(
    cql: Cql, table: str, endpoint: Endpoint
) -> None:
    cql.run(f"create table {KEYSPACE}.{table} (k text primary key, v int)")
    async with writer(endpoint()) as paused:
        assert await paused.write("a-0000000001", [{"k": "a", "v": 1}]) == []
        assert await written(endpoint(), [{"k": "a", "v": 2}], "a-0000000002") == []
        with pytest.raises(OwnershipLost, match="another run has written epoch a-0000000002 to the sink"):
            await paused.write("b-0000000001", [{"k": "a", "v": 3}])
    with pytest.raises(CheckpointError, match=r"epoch a-0000000001 .* comes after epoch a-0000000002"):
        await written(endpoint(), [{"k": "a", "v": 4}])
    assert await written(endpoint(), [{"k": "a", "v": 2}], "a-0000000002") == []
    assert [row["v"] for row in cql.rows(table)] == [2]


async def test_a_field_can_say_when_a_row_was_written(cql: Cql, table: str, endpoint: Endpoint) -> None:
    cql.run(f"create table {KEYSPACE}.{table} (k text primary key, v int)")
    sink = endpoint(timestamp_by="meta.at")

    def row(key: str, value: int, second: int) -> dict[str, Any]:
        return {"k": key, "v": value, "meta": {"at": NOON.replace(second=second)}}

    rows = [row("a", 1, 5), row("a", 2, 3), row("b", 9, 1), row("b", 1, 1), {"k": "c", "v": 1}]
    refused = await written(sink, rows)
    assert [(index, str(error)) for index, error in refused] == [
        (4, "meta.at: None is no event time; write a time, ISO 8601 text or milliseconds since 1970")
    ]
    found = {row["k"]: row for row in cql.rows(table, "k, v, writetime(v)")}
    assert {key: row["v"] for key, row in found.items()} == {"a": 1, "b": 1}
    assert found["a"]["writetime(v)"] == int(NOON.timestamp() + 5) * 1_000_000
    assert await written(sink, [row("a", 3, 4)], "a-0000000002") == []  # late, and in another epoch
    assert {row["v"] for row in cql.rows(table)} == {1}


async def test_what_is_wrong_is_said_before_the_first_row(
    cql: Cql, table: str, endpoint: Endpoint, node: Node
) -> None:
    cql.run(f"create table {KEYSPACE}.{table} (a text, n int, v int, primary key (a, n))")
    cql.run(f"create table {KEYSPACE}.{table}_counts (a text primary key, n counter)")
    new = {"create_table": True, "partition_key": "a"}
    cases = [
        (endpoint("nowhere"), f"there is no table nowhere in the keyspace {KEYSPACE}, which has "),
        (endpoint(f"{table}_counts"), "counts in n, and what comes again would count twice"),
        (endpoint(partition_key="n"), r"has the partition_key \('a',\), not \('n',\)"),
        (endpoint(clustering_key=("v",)), r"has the clustering_key \('n',\), not \('v',\)"),
        (endpoint(schema="a string, n int, w int"), "has no column w, unlike the schema"),
        (endpoint(schema="a string"), "has n in its key, unlike the schema"),
        (endpoint("new", schema="a string, v variant", **new), "v is any JSON, for which Cassandra has no"),
        (endpoint("new", schema="a array<int>", **new), r"a is array<int>, and a key is a single value"),
        (endpoint("new", schema="b int", **new), "the key has a, which the schema has not"),
        (endpoint("new", **new), "cannot be made without a schema"),
    ]
    for sink, expected in cases:
        with pytest.raises(ConfigError, match=expected):
            await written(sink, [])
    with pytest.raises(ConfigError, match=r"there is no keyspace other in Cassandra at 127\.0\.0\.1 port"):
        await written(Cassandra("other.t", **login(node)), [])
    with pytest.raises(ConfigError, match="cassandra t has no keyspace"):
        await written(Cassandra("t", **login(node)), [])
    with pytest.raises(ConfigError, match=r"Cassandra at 127\.0\.0\.1 port 1 does not answer"):
        await written(Cassandra("k.t", port=1), [])
    with pytest.raises(ConfigError, match="has no column w, which the schema names; it has a, n, v"):
        await read(endpoint(schema="a string, w int"))


async def test_who_may_not_is_told_what_and_no_password_is_shown(
    cql: Cql, table: str, endpoint: Endpoint, caplog: pytest.LogCaptureFixture
) -> None:
    cql.run(
        f"create keyspace {table} with replication = {{'class': 'SimpleStrategy', 'replication_factor': 1}}"
    )
    cql.run(f"create table {table}.t (k int primary key)")
    cql.run(f"create role {table} with password = 'open sesame' and login = true")
    cql.run(f"grant select on {table}.t to {table}")
    wrong = endpoint("t", keyspace=table, user=table, password="sesame open")
    with pytest.raises(ConfigError, match="does not let us in; check user and password") as refused:
        await written(wrong, [])
    assert "sesame" not in f"{refused.value!r} {caplog.text} {wrong!r} {wrong.options()}"
    reading = endpoint("t", keyspace=table, user=table, password="open sesame")
    assert await read(reading) == []
    with pytest.raises(ConfigError, match=r"does not allow 'create table if not exists .*queenstream_epochs"):
        await written(reading, [])
    by_field = endpoint("t", keyspace=table, user=table, password="open sesame", timestamp_by="at")
    with pytest.raises(RunFailed, match=r"cannot be written: .*no MODIFY permission"):
        await written(by_field, [{"k": 1, "at": NOON}])


async def test_a_connection_can_be_encrypted(
    cql: Cql, table: str, endpoint: Endpoint, node: Node, tmp_path: Path
) -> None:
    cql.run(f"create table {KEYSPACE}.{table} (k int primary key)")
    assert await written(endpoint(tls=node.certificate), [{"k": 1}]) == []
    async with writer(endpoint(tls=str(node.certificate))):
        speaking = cql.run("select port, ssl_enabled from system_views.clients")
    assert any(each["ssl_enabled"] for each in speaking)
    with pytest.raises(ConfigError, match=r"does not answer: .*certificate verify failed"):
        await written(endpoint(tls=True), [])  # nobody vouches for the node
    with pytest.raises(ConfigError, match=r"tls='.*nowhere' cannot be used: .*No such file"):
        await written(endpoint(tls=tmp_path / "nowhere"), [])


async def test_a_keyspace_is_made_with_its_replicas(cql: Cql, node: Node) -> None:
    sink = Cassandra(
        "made_here.t",
        create_keyspace=1,
        create_table=True,
        partition_key="k",
        schema="k int",
        **login(node),
    )
    assert await written(sink, [{"k": 1}]) == []
    assert cql.run("select * from made_here.t") == [{"k": 1}]
    [row] = cql.run("select replication from system_schema.keyspaces where keyspace_name = 'made_here'")
    assert row["replication"]["class"].endswith("NetworkTopologyStrategy")
    assert row["replication"]["datacenter1"] == "1"


async def test_a_write_can_be_cancelled_while_the_node_hangs(
    cql: Cql, table: str, endpoint: Endpoint, node: Node
) -> None:
    """The event loop runs on meanwhile, and nobody waits for a node that does not answer."""
    cql.run(f"create table {KEYSPACE}.{table} (k int primary key)")
    async with writer(endpoint(concurrency=2)) as sink:
        assert await sink.write("a-0000000001", [{"k": 0}]) == []
        node.signal(signal.SIGSTOP)
        try:
            writing = asyncio.ensure_future(sink.write("a-0000000002", [{"k": n} for n in range(10)]))
            done, _ = await asyncio.wait([writing], timeout=0.5)
            assert not done
            writing.cancel()
            begun = time.monotonic()
            done, _ = await asyncio.wait([writing], timeout=20)
            assert time.monotonic() - begun < 5
            assert writing.cancelled()
        finally:
            node.signal(signal.SIGCONT)
        assert await sink.write("a-0000000002", [{"k": n} for n in range(10)]) == []
    assert len(cql.rows(table)) == 10


async def test_a_table_that_is_dropped_meanwhile_ends_the_run(
    cql: Cql, table: str, endpoint: Endpoint
) -> None:
    """And does not make dead letters of every row."""
    cql.run(f"create table {KEYSPACE}.{table} (k int primary key)")
    async with writer(endpoint()) as sink:
        assert await sink.write("a-0000000001", [{"k": 0}]) == []
        cql.run(f"drop table {KEYSPACE}.{table}")
        with pytest.raises(ConfigError, match=f"cassandra {KEYSPACE}.{table} has changed"):
            await sink.write("a-0000000002", [{"k": 1}])
