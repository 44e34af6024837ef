"""Tables that Spark's tasks read: the rows of the local engine, in batches, from one moment, and once."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark.sql.types import IntegerType, LongType, StructType
from typer.testing import CliRunner

from queenstream import DeadLetters, Function, Pipeline, Postgres, count, sum_, tumbling
from queenstream.cli.pipeline import app
from queenstream.core.schemas import Schema
from queenstream.engines.spark.checkpoints import inspection
from queenstream.engines.spark.sources.load import Sources
from queenstream.engines.spark.sources.tables.options import Limits, packed_value
from queenstream.engines.spark.sources.tables.postgres import PostgresReading
from queenstream.engines.spark.sources.tables.stream_reader_4_1 import CappedTableReader
from queenstream.errors import ConfigError, DatabaseUnusable, RunFailed
from queenstream.pipeline.engine_api import EngineName, RunOptions
from tests.integration.tables.conftest import Sql
from tests.processes import clean_environment
from tests.sparks import QUICK, is_native

Row = dict[str, Any]
ROOT = Path(__file__).parents[3]
pytestmark = [pytest.mark.usefixtures("spark"), pytest.mark.timeout(600)]


@pytest.fixture(scope="module", autouse=True)
def _session(spark: SparkSession) -> None:
    """Started first: what follows waits for it."""


# Values

VALUES = """
    create type mood as enum ('sad', 'glad');
    create domain label as text;
    create table t (
        id bigint primary key, small smallint, n int, x double precision, r real, yes boolean,
        price numeric(10, 2), any_number numeric, name text not null, short varchar(9), fixed char(4), u uuid,
        feeling mood, tag label, at timestamptz, local timestamp, day date, raw bytea, doc jsonb,
        plain json, pause interval,
        numbers int[], texts text[], reals real[], numerics numeric[], times timestamptz[], docs jsonb[],
        matrix int[], fixeds char(3)[]
    );
    insert into t values (
        1, -5, 7, 1e300, 0.1, true, 9.5, 12345678901234567890.123, 'a ü', 'b', 'c',
        '00000000-0000-0000-0000-000000000005', 'glad', 'it''s', '2026-01-31 13:00:00.123456+01',
        '2026-01-31 12:00', '2026-01-31', '\\x00ff', '{"a": [1, 2.5, null]}', '[1, "x"]', '1 day 02:00',
        '{1,null,3}', '{"a,b",null,"{"}', '{0.1,NaN}',
        '{1.50,null}', '{2026-01-31 12:00Z}', '{"{\\"k\\": [1]}"}',
        '{{1,2},{3,4}}', '{a,bcd}'
    );
    insert into t (id, x, name) values (2, 'Infinity', '');
    insert into t (id, small, n, x, r, yes, price, any_number, name)
        values (3, 1, 2, 3, 4, false, 0.1, 42, 'z');
    update t set at = '1969-12-31 23:59:59.9Z', day = '0001-01-01' where id = 2;
"""
SOME = (
    "id bigint, small int, n double, x double, r double, yes boolean, price decimal(10,2), "
    "any_number double, name string not null, short string, fixed string, u string, feeling string, "
    "tag string, at timestamp, local timestamp, day date, raw binary, pause string"
)


@pytest.mark.parametrize(
    ("schema", "native"),
    [
        (None, False),
        (SOME, True),
        (
            "id string, n string, price double, day date, numbers array<bigint>, "
            "doc map<string, array<double>>",
            True,
        ),
        ("id smallint, price decimal(4,1), any_number decimal(30,3), x float, tag string", True),
    ],
)
def test_records_are_those_of_the_local_engine(
    sql: Sql, spark: SparkSession, schema: str | None, native: bool
) -> None:
    sql.script(VALUES)

    def copied(to: list[Row]) -> Pipeline[Any]:
        return Pipeline("copy").source(Postgres("t", url=sql.url, schema=schema)).to(to.append)

    found: dict[EngineName, list[Row]] = {"local": [], "spark": []}
    for engine, rows in found.items():
        copied(rows).run(engine=engine)
    assert is_native(copied([]).plan(), spark) == native
    assert len(found["local"]) == 3
    assert repr(found["spark"]) == repr(found["local"])  # NaN equals nothing


@pytest.mark.parametrize("in_python", [False, True])
def test_what_does_not_fit_is_a_dead_letter_of_the_source(
    sql: Sql, spark: SparkSession, in_python: bool
) -> None:
    sql.script(
        "create table t (id int primary key, n bigint, name text);"
        "insert into t values (1, 5, 'a'), (2, 70000, 'b'), (3, 6, null), (4, 7, 'd')"
    )
    found: dict[EngineName, tuple[list[Row], list[Row]]] = {"local": ([], []), "spark": ([], [])}
    for engine, (rows, letters) in found.items():
        source = Postgres("t", url=sql.url, schema="id int, n smallint, name string not null")
        begin = Pipeline("p").source(source, on_error=DeadLetters(Function(letters.append, name="letters")))
        if in_python:
            begin = begin.transform("same", dict)
        made = begin.to(rows.append)
        assert is_native(made.plan(), spark) != in_python
        made.run(engine=engine)

    def told(letters: list[Row]) -> list[tuple[Any, ...]]:
        return sorted((each["record"]["id"], each["record"], each["error"]) for each in letters)

    assert (
        found["spark"][0]
        == found["local"][0]
        == [{"id": 1, "n": 5, "name": "a"}, {"id": 4, "n": 7, "name": "d"}]
    )
    assert told(found["spark"][1]) == told(found["local"][1])
    assert len(found["spark"][1]) == 2


# Batches

TABLES = {
    "a key of two columns": "create table t (a text, n int, primary key (a, n)); "
    "insert into t select chr(97 + n % 7), n from generate_series(1, 40000) n",
    "a key that is a uuid": "create table t (n int, id uuid primary key default gen_random_uuid()); "
    "insert into t select n from generate_series(1, 40000) n",
    "no key": "create table t (n int, more text default repeat('x', 100)); "
    "insert into t select n from generate_series(1, 40000) n",
    "heirs": "create table t (n int); create table u () inherits (t); "
    "insert into t select n from generate_series(1, 20000) n; "
    "insert into u select n from generate_series(20001, 40000) n",
    "partitions without a key": "create table t (n int) partition by range (n); "
    "create table low partition of t for values from (0) to (20001); "
    "create table high partition of t default; "
    "insert into t select n from generate_series(1, 40000) n",
    "partitions with a key": "create table t (n int primary key) partition by range (n); "
    "create table low partition of t for values from (0) to (20001); "
    "create table high partition of t default; "
    "insert into t select n from generate_series(1, 40000) n",
    "a view": "create view t as select n from generate_series(1, 40000) n",
    "nothing in it": "create table t (n int primary key)",
}


@pytest.mark.parametrize("table", TABLES)
def test_every_row_comes_once_in_batches(sql: Sql, table: str) -> None:
    sql.script(TABLES[table])
    rows: list[Row] = []
    run = Pipeline("copy").source(Postgres("t", url=sql.url, schema="n int")).to(rows.append)
    figures = run.run(max_batch_rows=13_000).get_stats()
    assert sorted(row["n"] for row in rows) == [row[0] for row in sql.rows("select n from t order by n")]
    if table in ("a view", "heirs", "partitions without a key", "nothing in it"):
        assert figures["batches"] == 1
    else:
        assert 4 <= figures["batches"] <= 5
    if table == "a key of two columns":
        assert [row["n"] for row in rows] == [row[0] for row in sql.rows("select n from t order by a, n")]


def test_bytes_limit_a_batch_too(sql: Sql) -> None:
    sql.script("create table t (n int primary key, more text default repeat('x', 1000)); "
               "insert into t select n from generate_series(1, 1000) n")  # fmt: skip
    rows: list[Row] = []
    made = Pipeline("copy").source(Postgres("t", url=sql.url, schema="n int, more string")).to(rows.append)
    figures = made.run(max_batch_bytes=300_000).get_stats()
    assert (len(rows), figures["batches"]) == (1_000, 4)


# Snapshots


@pytest.mark.parametrize("key", ["primary key", ""])
def test_a_snapshot_is_of_one_moment_over_all_batches(sql: Sql, key: str) -> None:
    sql.script(
        f"create table t (n int {key}, v text default 'old'); insert into t select generate_series(1, 20000)"
    )
    rows: list[Row] = []

    def take(batch: list[Row]) -> None:
        if not rows:
            sql.script(
                "update t set v = 'new'; delete from t where n > 15000; insert into t values (20001, 'new')"
            )
        rows.extend(batch)

    source = Pipeline("copy").source(Postgres("t", url=sql.url, schema="n int, v string"))
    figures = source.to(Function(take, batch=True)).run(max_batch_rows=6_000).get_stats()
    assert figures["batches"] > 3
    assert sorted(row["n"] for row in rows) == [*range(1, 20_001)]
    assert {row["v"] for row in rows} == {"old"}
    assert sql.rows("select count(*) from pg_stat_activity where state like 'idle in%'") == [(0,)]


class Breaks:
    """A sink that fails at its second batch, once."""

    def __init__(self) -> None:
        self.rows: list[Row] = []
        self.batches = 0

    def __call__(self, batch: list[Row]) -> None:
        self.batches += 1
        if self.batches == 2:
            raise OSError("full")
        self.rows += batch


def copied_in_two_runs(sql: Sql, folder: Path, between: Callable[[], None]) -> list[Row]:
    sink = Breaks()

    def run() -> None:
        source = Pipeline("copy").source(Postgres("t", url=sql.url, schema="n int"))
        source.to(Function(sink, batch=True, name="sink")).run(checkpoint=str(folder), max_batch_rows=6_000)

    with pytest.raises(RunFailed, match="full"):
        run()
    between()
    run()
    run()  # it is done: nothing comes again
    return sink.rows


def test_an_interrupted_snapshot_goes_on_after_its_last_batch(sql: Sql, tmp_path: Path) -> None:
    sql.script("create table t (n int primary key); insert into t select generate_series(1, 20000)")
    rows = copied_in_two_runs(sql, tmp_path, lambda: sql.script("insert into t values (0), (20001)"))
    assert [row["n"] for row in rows] == [*range(1, 20_002)]
    newest, *_ = inspection.batches(tmp_path, "copy")
    [position] = newest.positions
    position.pop("behind", None)  # which is there on Spark 4.1
    assert position == {"after": ["20001"], "seq": 20_001, "done": True}
    shown = CliRunner().invoke(app, ["checkpoints", "--checkpoint", str(tmp_path), "--output", "json"])
    assert json.loads(shown.output.splitlines()[0])["id"] == str(newest.id)


def test_without_a_key_an_interrupted_snapshot_says_so(sql: Sql, tmp_path: Path) -> None:
    sql.script("create table t (n int); insert into t select generate_series(1, 20000)")
    with pytest.raises(RunFailed, match="was interrupted, and without a primary key nobody can say where"):
        copied_in_two_runs(sql, tmp_path, lambda: None)


# By a column that only grows


def test_a_row_that_commits_late_is_not_passed_over(sql: Sql, tmp_path: Path) -> None:
    sql.script("create table t (id bigserial primary key, n int); insert into t (n) values (1), (2)")
    rows: list[Row] = []
    source = Postgres("t", url=sql.url, cursor="id", schema="id bigint, n int")
    made = Pipeline("follow").source(source).filter("n > 0").to(rows.append)

    def caught_up() -> list[int]:
        made.run(checkpoint=str(tmp_path), until="caught_up")
        return [row["n"] for row in rows]

    assert caught_up() == [1, 2]
    late = sql.connect()
    sql.script("begin; insert into t (n) values (3)", on=late)
    sql.script("insert into t (n) values (4)")
    run = made.start(checkpoint=str(tmp_path))
    try:
        assert not run.wait(2.0)
        assert [row["n"] for row in rows] == [1, 2]
        sql.script("commit", on=late)
        while len(rows) < 4:
            assert not run.wait(0.05)
    finally:
        run.stop()
    assert caught_up() == [1, 2, 3, 4]
    assert inspection.batches(tmp_path, "follow")[0].positions[0]["after"] == ["4"]


def test_a_snapshot_ends_beside_a_table_that_grows(sql: Sql) -> None:
    sql.script(
        "create table old (n int primary key); insert into old select generate_series(1, 5); "
        "create table t (n bigserial primary key); insert into t select from generate_series(1, 5)"
    )
    rows: list[Row] = []
    old = Pipeline("both").source(Postgres("old", url=sql.url, schema="n int"), name="old")
    run = old.union(Pipeline("both").source(Postgres("t", url=sql.url, cursor="n"), name="new")).to(
        rows.append
    )
    started = run.start()
    try:
        while len(rows) < 10:
            assert not started.wait(0.05)
        sql.script("insert into t default values; insert into old values (6)")
        while len(rows) < 11:
            assert not started.wait(0.05)
        assert not started.wait(0.5)
    finally:
        started.stop()
    assert sorted(row["n"] for row in rows) == sorted([*range(1, 6), *range(1, 7)])


def test_rows_that_share_a_time_are_cut_by_their_key(sql: Sql) -> None:
    sql.script("create table t (n int primary key, at timestamptz default now()); "
               "insert into t select generate_series(1, 20000)")  # fmt: skip
    rows: list[Row] = []
    made = Pipeline("p").source(Postgres("t", url=sql.url, cursor="at")).to(rows.append)
    figures = made.run(until="caught_up", max_batch_rows=7_000).get_stats()
    assert [row["n"] for row in rows] == [*range(1, 20_001)]
    assert figures["batches"] == 3


def test_the_reader_for_spark_4_1_remembers_where_the_query_is(sql: Sql) -> None:
    sql.script("create table t (n int primary key); insert into t select generate_series(1, 20000)")
    options = {
        "table": "t", "pg": sql.url, "node": "read", "schema": packed_value(Schema.of("n int")),
        **Limits(rows=6_000, bytes=1 << 30, tasks=2).options(),
    }  # fmt: skip
    columns = StructType().add("kind", IntegerType()).add("seq", LongType()).add("time", LongType())
    columns = columns.add("record", StructType().add("n", IntegerType()))

    def reader() -> CappedTableReader:
        return CappedTableReader(PostgresReading(options, columns), final=True)

    first = reader()
    offsets = [first.initialOffset()]
    while not offsets[-1]["done"]:
        offsets.append(first.latestOffset())
    assert [each["seq"] for each in offsets] == [0, 6_000, 12_000, 18_000, 20_000]
    assert first.latestOffset() == offsets[-1], "nothing is new"
    again = reader()
    assert again.partitions(offsets[2], offsets[2]) == [], "as a query shows where it is when it starts"
    assert again.latestOffset() == offsets[3]
    rows = [batch for part in again.partitions(offsets[2], offsets[3]) for batch in again.read(part)]
    assert sorted(each["n"] for batch in rows for each in batch.column("record").to_pylist()) == [
        *range(12_001, 18_001)
    ]
    first.stop()
    again.stop()


# What is told


def test_late_records_are_counted(sql: Sql, spark: SparkSession) -> None:
    sql.script(
        "create table t (id serial primary key, at timestamptz);"
        "insert into t (at) values ('2026-01-31 12:00Z'), ('2026-01-31 13:00Z'), ('2026-01-31 12:00Z'), "
        "('2026-01-31 12:00Z'), ('2026-01-31 13:00Z')"
    )
    rows: list[Row] = []
    source = Pipeline("late").source(Postgres("t", url=sql.url, schema="id int, at timestamp"))
    made = source.window(tumbling("1m"), time="at").aggregate(n=count(), ids=sum_("id")).to(rows.append)
    assert is_native(made.plan(), spark)
    figures = made.run(max_batch_rows=2).get_stats()
    assert sorted((row["n"], row["ids"]) for row in rows) == [(1, 1), (2, 7)]
    assert sum(value for name, value in figures.items() if name.endswith(".late")) == 2


def test_what_is_wrong_with_a_table_is_said_before_anything_runs(sql: Sql) -> None:
    sql.script("create table t (n int primary key, day date)")

    def run(table: str, **options: Any) -> None:
        Pipeline("p").source(Postgres(table, url=sql.url, **options)).to(print).run(until="caught_up")

    with pytest.raises(DatabaseUnusable, match="there is no table nothing"):
        run("nothing")
    with pytest.raises(ConfigError, match="has no column 'colour'; it has n, day"):
        run("t", schema="colour string")
    with pytest.raises(ConfigError, match="take a number that a sequence draws"):
        run("t", cursor="day")


def test_no_plan_shows_the_password(
    sql: Sql, spark: SparkSession, capsys: pytest.CaptureFixture[str]
) -> None:
    sql.script("create table t (n int primary key)")
    url = sql.url.replace("postgres@", "postgres:planted-secret@")
    made = Pipeline("p").source(Postgres("t", url=url, schema="n int")).to(print).plan()
    [read] = made.sources
    frame = Sources(spark, made, RunOptions()).rows(read, read.source.columns)
    frame.explain("extended")
    shown = capsys.readouterr().out
    assert "queen-postgres" in shown
    assert "planted-secret" not in shown + str(frame._jdf.queryExecution().toString())


LARGE = """
import sys
from queenstream import Pipeline, Postgres, count, sum_, tumbling
from queenstream.spark import session

session("large", "local[2]", conf={"spark.driver.maxResultSize": "1m", "spark.driver.memory": "512m",
                                   "spark.sql.shuffle.partitions": "2"})
source = Postgres("t", url=sys.argv[1], schema="id bigint, shop string, n bigint, more string, at timestamp")
rows = []
windows = Pipeline("large").source(source).filter("n >= 0 and more is not null").key_by("shop")
windows = windows.window(tumbling("1d"), time="at").aggregate(n=count(), total=sum_("n"))
windows.to(rows.append).run()
print(sorted((row["shop"], row["n"], row["total"]) for row in rows))
"""


def test_more_rows_than_the_driver_may_take(sql: Sql) -> None:
    """Far more than 1 MB, in a driver of its own."""
    number = 400_000
    sql.script(
        "create table t (id bigint primary key, shop text, n bigint, more text, "
        "at timestamptz default '2026-01-31'); insert into t select n, chr(97 + (n % 2)::int), n, "
        f"md5(n::text) || md5((-n)::text) from generate_series(1, {number}) n"
    )
    done = subprocess.run(
        [sys.executable, "-c", LARGE, sql.url],
        cwd=ROOT, env=clean_environment(SPARK_LOCAL_IP="127.0.0.1", JDK_JAVA_OPTIONS=QUICK),
        capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    half = number // 2
    expected = [("a", half, half * (half + 1)), ("b", half, half * half)]
    assert done.stdout.splitlines()[-1] == repr(expected)
