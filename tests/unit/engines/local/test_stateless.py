"""Steps on single records: expressions, functions, keys, event times, unions; in order, none shared."""

from __future__ import annotations

import asyncio
import threading
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import pytest

from queenstream.core.aggregates import collect_list, count
from queenstream.core.records import event_time
from queenstream.pipeline.expr.expressions import col
from queenstream.pipeline.shorthand import count as counting
from queenstream.pipeline.shorthand import tumbling
from tests.unit.engines.local.driving import Driven, Row, ignore, row, source


async def test_functions_map_filter_and_flatten() -> None:
    pipeline = (
        source()
        .filter(lambda record: record["n"] % 2 == 0)
        .transform("ten times", lambda record: {"n": record["n"] * 10})
        .flat_map(lambda record: [record, {"n": record["n"] + 1}])
        .to(ignore, name="out")
    )
    assert await Driven(pipeline).send({"n": 1}, {"n": 2}, {"n": 4}) == [
        {"n": 20},
        {"n": 21},
        {"n": 40},
        {"n": 41},
    ]


async def test_expressions_filter_and_make_columns() -> None:
    pipeline = (
        source()
        .filter(col("n") > 1)
        .with_columns(double=col("n") * 2, n=col("n") + 1)
        .to(ignore, name="out")
        .select("double", half=col("n") / 2)
        .to(ignore, name="selected")
    )
    driven = Driven(pipeline)
    rows = await driven.send({"n": 1}, {"n": None}, {"n": 3, "x": "kept"})
    assert rows == [{"n": 4, "x": "kept", "double": 6}]
    assert driven.rows("selected") == [{"double": 6, "half": 2.0}]


@dataclass
class Click:
    user: str
    n: int


async def test_objects_are_records_too() -> None:
    pipeline = source().with_columns(twice=col("n") * 2).to(ignore, name="out")
    assert await Driven(pipeline).send(Click("a", 2)) == [{"user": "a", "n": 2, "twice": 4}]


async def test_a_branch_that_changes_its_records_changes_no_other_branch() -> None:
    def spoil(record: Row) -> Row:
        record["tags"].append("spoilt")
        record["n"] = -1
        return record

    begin = source().to(ignore, name="before")
    driven = Driven(begin.filter(col("n") > 0).transform("spoil", spoil).to(ignore, name="out"))
    mine = {"n": 1, "tags": ["a"]}
    assert await driven.send(mine) == [{"n": -1, "tags": ["a", "spoilt"]}]
    assert driven.rows("before") == [{"n": 1, "tags": ["a"]}]
    assert mine == {"n": 1, "tags": ["a"]}


async def test_async_calls_run_at_once_and_keep_the_order() -> None:
    running = most = 0
    last_started = asyncio.Event()

    async def slow(record: Row) -> Row:
        nonlocal running, most
        running += 1
        most = max(most, running)
        if record["n"] == 7:
            last_started.set()
        if record["n"] == 0:
            await last_started.wait()  # the first one ends last
        else:
            await asyncio.sleep(0)
        running -= 1
        return {"n": record["n"]}

    pipeline = source().transform("slow", slow, concurrency=4).to(ignore, name="out")
    rows = await Driven(pipeline).send(*({"n": n} for n in range(8)))
    assert [each["n"] for each in rows] == list(range(8))
    assert most == 4


async def test_plain_functions_run_in_threads_and_keep_the_order() -> None:
    both = threading.Barrier(2)

    def meet(record: Row) -> Row:
        both.wait(10)  # passes only if two calls are under way
        return {"n": record["n"]}

    pipeline = source().transform("meet", meet, concurrency=2).to(ignore, name="out")
    driven = Driven(pipeline)
    assert [each["n"] for each in await driven.send(*({"n": n} for n in range(6)))] == list(range(6))
    driven.engine.close()


@pytest.mark.parametrize("concurrency", [1, 3])
async def test_async_filters_and_flat_maps(concurrency: int) -> None:
    async def even(record: Row) -> bool:
        return bool(record["n"] % 2 == 0)

    async def twice(record: Row) -> list[Row]:
        return [record, record]

    pipeline = (
        source()
        .filter(even, concurrency=concurrency)
        .flat_map(twice, concurrency=concurrency)
        .to(ignore, name="out")
    )
    rows = await Driven(pipeline).send({"n": 1}, {"n": 2}, {"n": 4})
    assert [each["n"] for each in rows] == [2, 2, 4, 4]


@pytest.mark.parametrize(
    ("value", "us"),
    [
        (1_500, 1_500_000),
        (1.5, 1_500),
        (-1, -1_000),
        ("1970-01-01T00:00:02Z", 2_000_000),
        ("1970-01-01T02:00:02+02:00", 2_000_000),
        ("1970-01-01T00:00:02", 2_000_000),
        (datetime(1970, 1, 1, 0, 0, 2, tzinfo=UTC), 2_000_000),
        (datetime(1970, 1, 1, 0, 0, 2), 2_000_000),  # noqa: DTZ001 - without a zone it is UTC
    ],
)
def test_event_times_in_all_their_forms(value: Any, us: int) -> None:
    assert event_time(value) == us


@pytest.mark.parametrize("value", [None, True, "soon", float("nan"), float("inf"), 10**18, [1]])
async def test_a_record_without_an_event_time_is_an_error_of_that_step(value: Any) -> None:
    pipeline = source().event_time("at", on_error="skip").to(ignore, name="out")
    driven = Driven(pipeline)
    assert await driven.send({"at": value}, {"at": 1}) == [{"at": 1}]
    assert driven.engine.counts["event_time"].failed == 1


async def test_keys_by_field_expression_and_function() -> None:
    pipeline = (
        source()
        .key_by("user.id", country=col("user.country").upper(), odd=lambda record: record["n"] % 2)
        .window(counting(2))
        .aggregate(n=count())
        .to(ignore, name="out")
    )
    records = [{"user": {"id": 1, "country": "de"}, "n": n} for n in (1, 2, 3)]
    assert await Driven(pipeline).send(*records) == [row(None, None, id=1, country="DE", odd=1, n=2)]


async def test_a_key_that_cannot_be_one_is_an_error_of_that_step() -> None:
    keyed = source().on_error("skip").key_by("k")
    driven = Driven(keyed.window(counting(1)).aggregate(n=count()).to(ignore, name="out"))
    rows = await driven.send({"k": [1]}, {"k": "a"})
    assert [each["k"] for each in rows] == ["a"]
    assert driven.engine.counts["key_by"].failed == 1


async def test_the_key_is_what_it_was_when_it_was_set() -> None:
    pipeline = (
        source()
        .key_by("k")
        .transform("rename", lambda record: {"k": "changed", "v": record["v"]})
        .window(counting(2))
        .aggregate(values=collect_list("v"))
        .to(ignore, name="out")
    )
    rows = await Driven(pipeline).send({"k": "a", "v": 1}, {"k": "b", "v": 2}, {"k": "a", "v": 3})
    assert rows == [row(None, None, k="a", values=[1, 3])]


async def test_unions_come_as_they_arrive_or_by_time() -> None:
    for coordination, expected in (("arrival", [30, 10, 20]), ("timestamp", [10, 20, 30])):
        left = source("left").event_time("at")
        right = source("right").event_time("at")
        pipeline = left.union(right, coordination=coordination).to(ignore, name="out")  # type: ignore[arg-type]
        driven = Driven(pipeline)
        rows = await driven.send_all({"left": [{"at": 30}], "right": [{"at": 10}, {"at": 20}]})
        assert [each["at"] for each in rows] == expected


async def test_a_source_that_is_quiet_holds_the_windows_of_others_until_it_is_idle() -> None:
    left, right = source("left").event_time("at"), source("right").event_time("at")
    pipeline = left.union(right).window(tumbling("1s")).aggregate(n=count()).to(ignore, name="out")
    driven = Driven(pipeline)
    assert await driven.send_all({"left": [{"at": 100}, {"at": 5_000}]}) == []
    assert await driven.send_all({}, idle=["right"]) == [row(0, 1, n=1)]
    # Back again, and behind: what it brings is late, and holds what is open.
    assert await driven.send_all({"left": [{"at": 9_000}], "right": [{"at": 200}]}) == []
    assert driven.engine.counts["aggregate"].late == 1
    assert await driven.send_all({}, ended=["right"]) == [row(5, 6, n=1)]
    assert await driven.finish() == [row(9, 10, n=1)]
