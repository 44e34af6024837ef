"""What stands between a look-up and its table: together, remembered for a while, never for ever."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from queenstream.connectors import Context, lookups
from queenstream.connectors.lookups import MOST_FINDERS, Finder, Key, kept_finder
from queenstream.core.schemas import Schema
from queenstream.errors import ConfigError
from queenstream.pipeline.builder import Pipeline
from queenstream.pipeline.endpoints import Cassandra, Files, Memory, Postgres, Queue
from queenstream.pipeline.expr.expressions import col
from queenstream.pipeline.lookups import Found
from queenstream.pipeline.plan import nodes
from queenstream.testing import PipelineDriver


class Table:
    """A table that writes down what it is asked; "bad" is no key, "slow" is never answered."""

    def __init__(self) -> None:
        self.asked: list[list[Key]] = []
        self.opened = self.closed = 0

    async def open(self) -> None:
        self.opened += 1

    async def fetch(self, keys: Sequence[Key]) -> list[Found]:
        self.asked.append(list(keys))
        if ("slow",) in keys:
            await asyncio.Event().wait()
        if ("gone",) in keys:
            raise ConnectionError("hung up")
        return [
            ValueError("no key") if key == ("bad",) else None if key == ("none",) else {"k": key[0]}
            for key in keys
        ]

    async def close(self) -> None:
        self.closed += 1


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def table() -> Table:
    return Table()


@pytest.fixture
def clock() -> Clock:
    return Clock()


def step(**said: Any) -> nodes.Lookup:
    pipeline = Pipeline("p").source(Memory([{}])).lookup(Postgres("t"), on="k", **said).to(print)
    [found] = [node for node in pipeline.plan().nodes if isinstance(node, nodes.Lookup)]
    return found


@pytest.fixture
def finder(table: Table, clock: Clock) -> Iterator[Finder]:
    made = Finder(step(cache=3, max_age="10s", timeout="50ms"), table, clock)
    yield made
    made.close()


def keys(*names: str | None) -> list[Key | None]:
    return [None if name is None else (name,) for name in names]


def test_keys_are_asked_for_together_and_once(finder: Finder, table: Table) -> None:
    assert finder.find(keys("a", None, "b", "a", "none")) == [{"k": "a"}, None, {"k": "b"}, {"k": "a"}, None]
    assert finder.find(keys("none", "b", "a")) == [None, {"k": "b"}, {"k": "a"}]
    assert table.asked == [[("a",), ("b",), ("none",)]], "what is not there is remembered, too"
    assert table.opened == 1


def test_what_is_remembered_grows_old(finder: Finder, table: Table, clock: Clock) -> None:
    finder.find(keys("a"))
    clock.now = 9.9
    finder.find(keys("a"))
    assert len(table.asked) == 1
    clock.now = 10.0
    finder.find(keys("a"))
    assert len(table.asked) == 2


def test_only_so_much_is_remembered(finder: Finder, table: Table) -> None:
    finder.find(keys("a", "b", "c"))
    finder.find(keys("a"))
    finder.find(keys("d"))  # in the place of b, which nobody has asked for since
    finder.find(keys("a", "b", "c", "d"))
    assert table.asked[-1] == [("b",)]
    assert len(finder.find(keys(*map(str, range(100))))) == 100, (
        "more than that at once are found all the same"
    )


def test_an_error_is_of_the_keys_that_it_hits_and_is_not_remembered(finder: Finder, table: Table) -> None:
    good, bad = finder.find(keys("a", "bad"))
    assert (good, str(bad)) == ({"k": "a"}, "no key")
    finder.find(keys("bad"))
    assert table.asked[-1] == [("bad",)]
    assert [str(each) for each in finder.find(keys("a", "gone", "b"))] == ["{'k': 'a'}", "hung up", "hung up"]
    assert finder.find(keys("b")) == [{"k": "b"}]
    assert (table.opened, table.closed) == (2, 1), "it began anew"


def test_nobody_waits_for_ever(finder: Finder) -> None:
    [error] = finder.find(keys("slow"))
    assert str(error) == "looking up 1 keys in postgres t took longer than 50ms"
    assert finder.find(keys("a")) == [{"k": "a"}]


def test_without_a_cache_everything_is_asked(table: Table) -> None:
    finder = Finder(step(cache=0), table)
    finder.find(keys("a"))
    finder.find(keys("a"))
    finder.close()
    assert len(table.asked) == 2
    assert table.closed == 1


def test_the_finders_of_a_process_outlive_their_tasks(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Table] = []

    def make(node: nodes.Lookup, context: Context) -> Table:
        made.append(Table())
        return made[-1]

    monkeypatch.setattr(lookups, "_LOOKUPS", {Postgres: make})
    monkeypatch.setattr(lookups, "_kept", OrderedDict())
    here = Context("p", "in")
    first = kept_finder(step(), here)
    assert kept_finder(step(), here) is first
    others = [kept_finder(step(cache=number + 1), here) for number in range(MOST_FINDERS)]
    assert len({id(each) for each in others}) == MOST_FINDERS
    assert [each.closed for each in made] == [1] + [0] * MOST_FINDERS, "the first had to make room"
    assert kept_finder(step(), here) is not first
    for finder in lookups._kept.values():
        finder.close()


# What is said of a look-up


def test_what_cannot_be_looked_up_is_said_at_its_line() -> None:
    begin = Pipeline("p").source(Queue("in"))
    with pytest.raises(ConfigError, match="cannot be looked up; write Postgres"):
        begin.lookup(Files("users.csv"), on="id")
    with pytest.raises(ConfigError, match="compares nothing"):
        begin.lookup(Postgres("t"), on=[])
    with pytest.raises(ConfigError, match="by the names of its partitions"):
        begin.lookup(Queue("t"), on=("user_id", "id"))
    with pytest.raises(ConfigError, match="how is 'outer'; write 'left' or 'inner'"):
        begin.lookup(Postgres("t"), on="id", how="outer")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="cache is -1"):
        begin.lookup(Postgres("t"), on="id", cache=-1)
    with pytest.raises(ConfigError, match="write timeout='2s'"):
        begin.lookup(Postgres("t"), on="id", timeout=0)


def test_a_plan_shows_it_without_its_password() -> None:
    table = Postgres("users", url="postgresql://ann:secret@db/shop")
    plan = (
        Pipeline("p")
        .source(Queue("in", schema="user_id int, n int"))
        .lookup(table, on=("user_id", "id"), fields={"kind": "segment"}, how="inner", name="enrich")
        .filter(col("kind") == "premium")
        .to(Queue("out"))
        .plan()
    )
    for form in ("text", "json", "svg"):
        assert "secret" not in plan.describe(form)
    assert "postgres users, on user_id = id, fields kind = segment, how inner, max_age 1m" in plan.describe()
    assert plan.schemas["enrich"] == Schema.of("user_id int, n int, kind variant")


@pytest.mark.parametrize(
    ("said", "fields"),
    [
        ({}, "a int, b string, c double"),
        ({"fields": ["b", "c"]}, "a int, b string, c double"),
        ({"into": "b"}, "a int, b struct<a:bigint,b:string,c:double>"),
    ],
)
def test_the_fields_of_its_rows_are_known(said: dict[str, Any], fields: str) -> None:
    known: Memory[Any] = Memory([], schema="a bigint, b string, c double")
    plan = Pipeline("p").source(Queue("in", schema="a int")).lookup(known, on="a", **said).to(print).plan()
    assert plan.schemas["lookup"] == Schema.of(fields)
    unknown = (
        Pipeline("p").source(Queue("in", schema="a int")).lookup(Cassandra("t"), on="a").to(print).plan()
    )
    assert unknown.schemas["lookup"] is None


def test_a_driver_looks_up_in_memory() -> None:
    users = Memory([{"id": 1, "name": "Ann"}, {"id": 2, "name": "Bob"}])
    pipeline = (
        Pipeline("p").source(Queue("in")).lookup(users, on=("user", "id"), fields=["name"]).to(Queue("out"))
    )
    with PipelineDriver(pipeline) as driver:
        driver.send({"user": 1}, {"user": 3})
        assert driver.rows() == [{"user": 1, "name": "Ann"}, {"user": 3, "name": None}]
