"""Tables, files and look-ups in whole pipelines: on both engines the same rows, against real servers."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from queenstream import (
    DeadLetters,
    Files,
    Function,
    Memory,
    Pipeline,
    Postgres,
    Queen,
    Queue,
    count,
    sum_,
    tumbling,
)
from queenstream.pipeline.engine_api import EngineName
from tests.integration.tables.conftest import Sql
from tests.processes import up
from tests.sparks import local_session

Row = dict[str, Any]
pytestmark = pytest.mark.timeout(600)


@pytest.fixture(scope="module", params=["local", "spark"])
def engine(request: pytest.FixtureRequest) -> EngineName:
    if request.param == "spark":
        local_session()
    name: EngineName = request.param
    return name


@pytest.fixture(scope="module")
def broker() -> Iterator[str]:
    with up("--ephemeral", "--port", "0") as started:
        yield started.ready()


class Collected:
    """Sinks by name, with what they were given."""

    def __init__(self) -> None:
        self.rows: dict[str, list[Row]] = {}

    def sink(self, name: str) -> Function:
        return Function(self.rows.setdefault(name, []).append, name=name)


# Look-ups

USERS = """
    create table users (id int primary key, segment text, country text);
    insert into users values (1, 'premium', 'de'), (2, 'basic', null);
"""


def looked_up(sql: Sql, to: Collected) -> Pipeline[Any]:
    """One query of Spark for all that a look-up can be told."""
    orders = [{"order": n, "user_id": user} for n, user in enumerate([1, 2, 3, None, "1", "x", 1])]
    users = Postgres("users", url=sql.url)
    letters = DeadLetters(to.sink("letters"))
    begin = Pipeline("enrich").source(Memory(orders, schema="order int, user_id variant")).on_error(letters)
    on = ("user_id", "id")
    named = begin.lookup(users, on=on, fields={"user_segment": "segment"}, name="named").to(to.sink("named"))
    nested = begin.lookup(users, on=on, into="user", how="inner", name="nested").to(to.sink("nested"))
    latest = begin.lookup(Queue("profiles"), on="user_id", fields=["name"], name="latest").to(
        to.sink("latest")
    )
    everything = begin.lookup(Memory([{"id": 1, "order": 99, "x": 5}]), on=on, name="all").to(to.sink("all"))
    return named.union(nested, latest, everything)


def test_a_record_gets_what_is_there_for_its_key(engine: EngineName, sql: Sql, broker: str) -> None:
    sql.script(USERS)
    with Queen(broker) as queen:
        for user, name in (("1", "old"), ("1", "Ann"), ("2", "Bob")):
            queen.queue("profiles").partition(user).push({"name": name})
    found = Collected()
    looked_up(sql, found).to(lambda _: None).run(engine=engine, url=broker)
    rows = {name: sorted(each, key=lambda row: row.get("order", -1)) for name, each in found.rows.items()}
    assert [(row["order"], row["user_segment"]) for row in rows["named"]] == [
        (0, "premium"), (1, "basic"), (2, None), (3, None), (4, "premium"), (6, "premium"),
    ]  # fmt: skip
    ann = {"id": 1, "segment": "premium", "country": "de"}
    bob = {"id": 2, "segment": "basic", "country": None}
    assert [(row["order"], row["user"]) for row in rows["nested"]] == [(0, ann), (1, bob), (4, ann), (6, ann)]
    assert [(row["order"], row["name"]) for row in rows["latest"]] == [
        (0, "Ann"), (1, "Bob"), (2, None), (3, None), (4, "Ann"), (5, None), (6, "Ann"),
    ]  # fmt: skip
    # A field that both have is the record's; a key is equal as Python has it.
    assert rows["all"][0] == {"order": 0, "user_id": 1, "id": 1, "x": 5}
    assert rows["all"][4] == {"order": 4, "user_id": "1"}
    # What is no key of the table hits its record.
    letters = [(row["step"], row["record"]["order"], row["error"]) for row in rows["letters"]]
    why = "id must be a whole number (int), not 'x'"
    assert sorted(letters) == [("named", 5, why), ("nested", 5, why)]


# Tables


def summed(sql: Sql, after: int = 0) -> Pipeline[Any]:
    """From a table to three: one row for each key, all rows, and windows in a table that is made."""
    source = Postgres("sales", url=sql.url, schema="id bigint, shop string, amount double, at timestamp")
    sales = Pipeline("sales").source(source).filter(f"id > {after}")
    copies = sales.select("id", "shop").to(Postgres("copies", url=sql.url, key="id"))
    checked = sales.select("id", "amount").to(
        Postgres("checked", url=sql.url), on_error=DeadLetters(Postgres("letters", url=sql.url))
    )
    windows = (
        sales.key_by("shop")
        .window(tumbling("1m"), time="at")
        .aggregate(n=count(), total=sum_("amount"))
        .to(Postgres("totals", url=sql.url, key=("shop", "window_start"), create_table=True))
    )
    return copies.union(checked, windows)


def test_from_a_table_to_tables(engine: EngineName, sql: Sql, tmp_path: Path) -> None:
    sql.script(
        "create table sales (id bigserial primary key, shop text, amount double precision, at timestamptz);"
        "insert into sales (shop, amount, at) select chr(97 + n % 2), n, timestamptz '2026-01-31 12:00Z' "
        "+ n * interval '10 seconds' from generate_series(0, 11) n;"
        "create table copies (id bigint primary key, shop text, times int default 0);"
        "create table checked (id bigint, amount double precision check (amount <> 7));"
        "create table letters (pipeline text, step text, record jsonb, error text, error_type text, "
        "attempts int, failed_at timestamptz, time timestamptz, key jsonb, input int)"
    )
    for _ in range(2):  # the second run finds all done
        summed(sql).to(lambda _: None).run(engine=engine, checkpoint=str(tmp_path))
    assert sql.rows("select count(*), count(distinct shop), sum(times) from copies") == [(12, 2, 0)]
    assert sql.rows("select count(*), sum(amount) from checked") == [(11, sum(range(12)) - 7)]
    [(step, record, why)] = sql.rows("select step, record::text, error from letters")
    assert (step, json.loads(record)) == ("postgres:checked", {"id": 8, "amount": 7.0})
    assert "violates check constraint" in why
    first, second = datetime(2026, 1, 31, 12, tzinfo=UTC), datetime(2026, 1, 31, 12, 1, tzinfo=UTC)
    assert sql.rows("select shop, window_start, n, total from totals order by shop, window_start") == [
        ("a", first, 3, 0 + 2 + 4),
        ("a", second, 3, 6 + 8 + 10),
        ("b", first, 3, 1 + 3 + 5),
        ("b", second, 3, 7 + 9 + 11),
    ]


# Files

SALES = "shop string, n int, at timestamp"


def copied(folder: Path) -> Pipeline[Any]:
    """A folder of CSV that grows, into all formats."""
    source = Files(folder / "in", format="csv", follow=True, schema=SALES)
    sales = (
        Pipeline("copies")
        .source(source, on_error="skip")
        .transform("double", lambda row: {**row, "n": 2 * row["n"]})
    )
    for form in ("csv", "parquet", "ndjson"):
        sales = sales.to(Files(folder / form, format=form, schema=SALES), name=form)
    return sales


def place(folder: Path, name: str, *rows: str) -> None:
    """A file that appears whole, as files should that somebody reads."""
    hidden = folder / "in" / f".{name}"
    hidden.write_text("".join(f"{row}\n" for row in ("shop,n,at", *rows)))
    hidden.rename(folder / "in" / name)


def test_a_folder_that_grows_is_copied_into_all_formats(engine: EngineName, tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    state = str(tmp_path / "state")
    place(tmp_path, "1.csv", '"a, b",1,2026-01-31T12:00:00Z', "c,x,2026-01-31T12:00:00Z")
    copied(tmp_path).run(engine=engine, checkpoint=state, until="caught_up")
    place(tmp_path, "2.csv", "ü,2,2026-01-31T13:00:00Z")
    copied(tmp_path).run(engine=engine, checkpoint=state, until="caught_up")
    noon = datetime(2026, 1, 31, 12, tzinfo=UTC)
    expected = [
        {"shop": "a, b", "n": 2, "at": noon},
        {"shop": "ü", "n": 4, "at": noon.replace(hour=13)},
    ]
    found: dict[str, list[Row]] = {}
    for form in ("csv", "parquet", "ndjson"):
        found[form] = []
        written = Files(tmp_path / form, format=form, schema=SALES)
        Pipeline("look").source(written).to(found[form].append).run(engine="local")
        assert not list((tmp_path / form).glob(".*")), "nothing unfinished is left"
    assert found == dict.fromkeys(found, expected)
