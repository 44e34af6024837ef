"""Tables that Spark's tasks write: staged by COPY, stored in one transaction, and rows that are refused.

The driver is killed between two tables; ``QUEENSTREAM_LONG=1``: before and after them, too.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import asyncpg
import psutil
import pytest
from pyspark.sql import SparkSession

from queenstream import DeadLetters, Function, Memory, Pipeline, Postgres, count, postgres, sum_, tumbling
from queenstream.errors import QueenstreamError, RunFailed
from queenstream.pipeline.engine_api import EngineName
from tests.integration.tables.conftest import Sql
from tests.processes import clean_environment, folder, free_port
from tests.sparks import QUICK, is_native

Row = dict[str, Any]
ROOT = Path(__file__).parents[3]
STAGING = "select count(*) from pg_class where relname like 'queen\\_staged\\_%'"
STAGED_DELIVERIES = "select count(*) from queen_deliveries where delivery like '%-staged'"
pytestmark = [pytest.mark.usefixtures("spark"), pytest.mark.timeout(600)]


@pytest.fixture(scope="module", autouse=True)
def _session(spark: SparkSession) -> None:
    """Started first: what follows waits for it."""


def check_staged(sql: Sql, batches: int = 1) -> None:
    """The rows of so many batches went by staging tables, of which none is left."""
    assert sql.rows(STAGED_DELIVERIES) == [(batches,)]
    assert sql.rows(STAGING) == [(0,)]


# Values

KINDS = (
    "small smallint, n int, big bigint, x double, word string, yes boolean, at timestamp, day date, "
    "raw binary, price decimal(10,2)"
)
COLUMNS = (
    "small int, n smallint, big numeric, x double precision, word varchar(8), yes boolean, at timestamptz, "
    "day date, raw bytea, price numeric(9,1), more text default 'more'"
)
VALUES: list[Row] = [
    {
        "small": 1, "n": -2, "big": 2**62, "x": 1.5, "word": "ü b", "yes": True,
        "at": "2026-01-31T12:00:00.123456Z", "day": "2026-01-31", "raw": b"\x00\xff", "price": "12.25",
    },
    {"small": 2, "x": float("nan")},
    {"small": 3, "x": float("inf"), "at": "1969-12-31T23:59:59Z", "day": "0001-01-01", "word": ""},
]  # fmt: skip


def test_values_are_those_of_the_local_engine(sql: Sql, spark: SparkSession) -> None:
    sql.script(f"create table spark ({COLUMNS}); create table local ({COLUMNS})")
    engines: tuple[EngineName, ...] = ("local", "spark")
    for engine in engines:
        made = Pipeline("copy").source(Memory(VALUES, schema=KINDS)).to(Postgres(engine, url=sql.url))
        assert is_native(made.plan(), spark)
        made.run(engine=engine)
    check_staged(sql)
    found = [repr(sql.rows(f"select * from {engine} order by small")) for engine in engines]
    assert found[0] == found[1]  # NaN equals nothing
    assert sql.rows("select count(*), count(word), min(more) from spark") == [(3, 2, "more")]


def test_sums_beyond_64_bits_and_windows_by_key(sql: Sql, spark: SparkSession) -> None:
    sql.script(
        "create table sales (id bigint primary key, shop text, n bigint, at timestamptz);"
        "insert into sales select i, chr(97 + (i % 3)::int), 9223372036854775807, timestamptz "
        "'2026-01-31 12:00Z' + i * interval '1 s' from generate_series(0, 299) i;"
        "create table totals (shop text, window_start timestamptz, window_end timestamptz, n bigint, "
        "total numeric, primary key (shop, window_start))"
    )
    source = Postgres("sales", url=sql.url, schema="id bigint, shop string, n bigint, at timestamp")
    windows = Pipeline("totals").source(source).key_by("shop").window(tumbling("1m"), time="at")
    made = windows.aggregate(n=count(), total=sum_("n")).to(
        Postgres("totals", url=sql.url, key=("shop", "window_start"))
    )
    assert is_native(made.plan(), spark)
    made.run()
    assert sql.rows("select count(*), min(n), max(n), min(total) from totals") == [
        (15, 20, 20, 20 * (2**63 - 1))
    ]
    assert sql.rows(STAGING) == [(0,)]


def test_without_the_right_to_create_tables_rows_are_written_all_the_same(sql: Sql) -> None:
    sql.script("create table t (id int); drop role if exists writer; create role writer login")
    rows = Pipeline("p").source(Memory([{"id": 1}], schema="id int"))
    rows.to(Postgres("t", url=sql.url)).run()  # as the owner, who has these tables made
    sql.script("grant insert, select on t to writer; grant all on queen_deliveries, queen_sinks to writer")
    try:
        rows.to(Postgres("t", url=sql.url.replace("postgres@", "writer@"))).run()
        assert sql.rows("select count(*) from t") == [(2,)]
        check_staged(sql, batches=1)
    finally:
        sql.script("drop owned by writer; drop role writer")


# Keys


def test_the_last_row_of_a_key_stays_over_tasks_and_batches(sql: Sql) -> None:
    sql.script(
        "create table events (id int primary key, person int, note text);"
        "insert into events select i, i % 7, case when i > 29000 then null else 'x' end "
        "from generate_series(1, 30000) i;"
        "create table latest (person int primary key, id int, note text, kept text default 'kept');"
        "insert into latest values (0, 0, 'old', 'mine')"
    )
    source = Postgres("events", url=sql.url, schema="id int, person int, note string")
    made = Pipeline("latest").source(source).to(Postgres("latest", url=sql.url, key="person"))
    made.run(max_batch_rows=20_000)
    check_staged(sql, batches=2)
    assert sql.rows("select person, id, note, kept from latest order by person") == [
        (person, max(range(person or 7, 30_001, 7)), None, "mine" if person == 0 else "kept")
        for person in range(7)
    ]


# Rows that the table refuses

CHECKED = "create table checked (id int primary key, n int check (n <> 7), word text)"
LETTERS = (
    "create table letters (pipeline text, step text, record jsonb, error text, error_type text, "
    "attempts int, failed_at timestamptz, time timestamptz, key jsonb, input int)"
)
ROWS: list[Row] = [{"id": id, "n": id % 10, "word": "w"} for id in range(50)]
BAD = [id for id in range(50) if id % 10 == 7]


def checked(sql: Sql, rows: list[Row], *, key: str | tuple[str, ...], policy: Any) -> Pipeline[Any]:
    begin = Pipeline("p").source(Memory(rows, schema="id int, n int, word string"))
    return begin.to(Postgres("checked", url=sql.url, key=key), on_error=policy, name="out")


@pytest.mark.parametrize("key", ["", "id"])
def test_refused_rows_are_dead_letters_and_all_others_are_stored(sql: Sql, key: str) -> None:
    sql.script(CHECKED)
    sql.script(LETTERS)
    policy = DeadLetters(Postgres("letters", url=sql.url))
    made = checked(sql, [*ROWS, {"id": 50, "n": 7, "word": None}], key=key or (), policy=policy)
    figures = made.run().get_stats()
    assert sql.rows("select id from checked order by id") == [(id,) for id in range(50) if id not in BAD]
    letters = sql.rows("select (record->>'id')::int, step from letters where error like '%violates check%'")
    assert sorted(letters) == [(id, "out") for id in (*BAD, 50)]
    assert figures["steps.out.failed"] == len(BAD) + 1
    assert sql.rows(STAGING) == [(0,)]


@pytest.mark.parametrize("policy", ["fail", "skip"])
def test_refused_rows_are_skipped_or_end_the_run(sql: Sql, policy: str) -> None:
    sql.script(CHECKED)
    made = checked(sql, ROWS, key=(), policy=policy)
    if policy == "fail":
        with pytest.raises(QueenstreamError, match="violates check constraint"):
            made.run()
    else:
        made.run()
    assert sql.rows("select count(*) from checked") == [(50 - len(BAD),)]
    assert sql.rows(STAGING) == [(0,)]


def test_rows_without_a_key_and_texts_with_nul_are_refused_by_themselves(sql: Sql) -> None:
    sql.script(CHECKED)
    rows: list[Row] = [
        {"id": 1, "n": 1, "word": "fine"},
        {"id": None, "n": 2, "word": "no key"},
        {"id": 3, "n": 3, "word": "a\0b"},
        {"id": 4, "n": 4, "word": None},
    ]
    figures = checked(sql, rows, key="id", policy="skip").run().get_stats()
    check_staged(sql)
    assert sql.rows("select id, word from checked order by id") == [(1, "fine"), (4, None)]
    assert figures["steps.out.failed"] == 2


# Crashes


class Breaks:
    """A sink that is called on the driver; something happens at one of the calls."""

    def __init__(self, event: Callable[[], None], call: int = 1) -> None:
        self.rows: list[Row] = []
        self._event = event
        self._until = call

    def __call__(self, batch: list[Row]) -> None:
        self._until -= 1
        if self._until == 0:
            self._event()
        self.rows += batch

    @property
    def sink(self) -> Function:
        return Function(self, batch=True, name="breaks")


def fail() -> None:
    raise OSError("full")


def test_a_batch_that_is_stored_is_not_stored_again(sql: Sql, tmp_path: Path) -> None:
    sql.script("create table t (id int); create table u (id int)")
    breaks = Breaks(fail)

    def run() -> None:
        begin = Pipeline("p").source(Memory([{"id": id} for id in range(20)], schema="id int"))
        made = begin.to(Postgres("t", url=sql.url), breaks.sink, Postgres("u", url=sql.url))
        made.run(checkpoint=str(tmp_path))

    with pytest.raises(RunFailed, match="full"):
        run()
    assert (sql.rows("select count(*) from t"), sql.rows("select count(*) from u")) == ([(20,)], [(0,)])
    assert sql.rows(STAGING) == [(1,)], "what is prepared for the second table stays"
    run()
    assert len(breaks.rows) == 20
    for table in "tu":
        assert sql.rows(f"select count(*), count(distinct id) from {table}") == [(20, 20)]
    check_staged(sql, batches=2)


@pytest.fixture
def own_server() -> Iterator[postgres.Server]:
    """A server that a test may kill."""
    with folder() as place:
        server = postgres.start(place / "data", port=free_port())
        yield server
        postgres.start(place / "data").stop()


def crash(server: postgres.Server) -> None:
    """Kill a server and start it again: its unlogged tables are empty then."""
    process = psutil.Process(server.pid)
    doomed = [process, *process.children(recursive=True)]
    for each in doomed:
        each.send_signal(signal.SIGKILL)
    psutil.wait_procs(doomed, timeout=10)
    assert server.tcp_url is not None
    postgres.start(server.data, port=int(server.tcp_url.rpartition(":")[2].partition("/")[0]))


def test_rows_that_a_crash_of_the_server_took_are_staged_again(
    own_server: postgres.Server, tmp_path: Path
) -> None:
    url = own_server.tcp_url
    assert url is not None

    async def ask(*statements: str) -> list[Any]:
        connection = await asyncpg.connect(url)
        try:
            for each in statements[:-1]:
                await connection.execute(each)
            return [tuple(row) for row in await connection.fetch(statements[-1])]
        finally:
            await connection.close()

    asyncio.run(ask("create table t (id int)", "select 1"))
    breaks = Breaks(lambda: crash(own_server), call=2)
    begin = Pipeline("p").source(Memory([{"id": id} for id in range(20)], schema="id int"))
    begin.to(breaks.sink, Postgres("t", url=url)).run(checkpoint=str(tmp_path), max_batch_rows=10)
    assert asyncio.run(ask("select count(*), count(distinct id) from t")) == [(20, 20)]
    assert asyncio.run(ask(STAGING)) == [(0,)]
    assert len(breaks.rows) == 20, "the function had the second batch, and does not get it again"


KILLED = """
import json, os, signal, sys, time
from pathlib import Path
from queenstream import Function, Pipeline, Postgres
from queenstream.spark import session

folder, url, conf = Path(sys.argv[1]), sys.argv[2], json.loads(sys.argv[3])
session("killed", "local[2]", conf=conf)

def kill(name):
    def call(row):
        if not (folder / name).exists():
            (folder / name).touch()
            os.kill(os.getpid(), signal.SIGKILL)
            time.sleep(30)
    return Function(call, name=name)

rows = Pipeline("killed").source(Postgres("events", url=url, schema="id int, person int"))
rows = rows.to(kill("prepared"), Postgres("copies", url=url), kill("between"))
rows.to(Postgres("latest", url=url, key="person"), kill("committed")).run(checkpoint=str(folder / "state"))
"""
KILLS = {"prepared", "between", "committed"} if os.environ.get("QUEENSTREAM_LONG") else {"between"}


def test_the_driver_is_killed_around_the_commits(sql: Sql, tmp_path: Path) -> None:
    sql.script(
        "create table events (id int primary key, person int); create table copies (id int, person int);"
        "insert into events select i, i % 7 from generate_series(1, 12000) i;"
        "create table latest (person int primary key, id int)"
    )
    conf = json.dumps({"spark.sql.shuffle.partitions": "2"})
    for spared in {"prepared", "between", "committed"} - KILLS:
        (tmp_path / spared).touch()

    def run() -> int:
        done = subprocess.run(
            [sys.executable, "-c", KILLED, str(tmp_path), sql.url, conf],
            cwd=ROOT, env=clean_environment(SPARK_LOCAL_IP="127.0.0.1", JDK_JAVA_OPTIONS=QUICK),
            capture_output=True, text=True, timeout=200, check=False,
        )  # fmt: skip
        assert done.returncode in (0, -signal.SIGKILL), done.stdout + done.stderr
        return done.returncode

    assert [run() for _ in range(len(KILLS) + 1)] == [-signal.SIGKILL] * len(KILLS) + [0]
    assert sql.rows("select count(*), count(distinct id) from copies") == [(12_000, 12_000)]
    assert sql.rows("select person, id from latest order by person") == [
        (person, max(range(person or 7, 12_001, 7))) for person in range(7)
    ]
    check_staged(sql, batches=2)
