"""Joins: pairs in a bound of time, records that stay alone, what is late; and a plain oracle."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from queenstream.core.aggregates import count
from queenstream.pipeline.builder import Pipeline
from queenstream.pipeline.endpoints import Memory
from queenstream.pipeline.plan.nodes import How
from queenstream.pipeline.shorthand import tumbling
from tests.unit.engines.local.driving import Driven, Row, at, ignore, row, source


def joined(how: How = "inner", *, within: str = "5s", grace: str = "0s", on: Any = "id") -> Pipeline[Row]:
    left, right = source("left").event_time("at"), source("right").event_time("at")
    return (
        left.join(right, on=on, within=within, how=how, grace=grace)
        .late(ignore, name="late")
        .to(ignore, name="out")
    )


def seconds(time: float, key: object = 1, **fields: Any) -> Row:
    return {"id": key, "at": time * 1000, **fields}


async def test_pairs_lie_at_most_so_far_apart() -> None:
    driven = Driven(joined())
    rows = await driven.send_all(
        {"left": [seconds(10, a=1)], "right": [seconds(t, b=t) for t in (4.999, 5, 15, 15.001)]}
    )
    assert [(each["at"], each["right_at"], each["b"]) for each in rows] == [
        (10_000, 5_000, 5),
        (10_000, 15_000, 15),
    ]


async def test_both_sides_may_come_first() -> None:
    driven = Driven(joined())
    assert await driven.send(seconds(1, a=1), source="left") == []
    [pair] = await driven.send(seconds(2, b=2), source="right")
    assert pair == {"id": 1, "at": 1_000, "a": 1, "right_at": 2_000, "b": 2}
    [pair] = await driven.send(seconds(3, a=3), source="left")
    assert (pair["a"], pair["b"]) == (3, 2)


async def test_null_equals_nothing_and_several_fields_must_all_agree() -> None:
    driven = Driven(joined(on=["id", ("x", "y")]))
    left = [seconds(1, None, x=1), seconds(1, 1, x=None), seconds(1, 1, x=2), seconds(1, 1, x=3)]
    right = [seconds(1, None, y=1), seconds(1, 1, y=None), seconds(1, 1, y=2), seconds(1, 2, y=3)]
    [pair] = await driven.send_all({"left": left, "right": right})
    assert (pair["id"], pair["x"], pair["y"]) == (1, 2, 2)


@pytest.mark.parametrize(
    ("how", "expected"),
    [
        ("inner", []),
        ("left", [{"id": 1, "at": 0, "a": 1}]),
        ("right", [{"id": 2, "at": 0, "b": 2}]),
        ("full", [{"id": 1, "at": 0, "a": 1}, {"id": 2, "at": 0, "b": 2}]),
    ],
)
async def test_a_record_without_a_partner_comes_alone_when_none_can_come(
    how: How, expected: list[Row]
) -> None:
    driven = Driven(joined(how, grace="1s"))
    assert await driven.send_all({"left": [seconds(0, 1, a=1)], "right": [seconds(0, 2, b=2)]}) == []
    assert await driven.advance(6) == []
    assert await driven.advance(6.001) == expected
    assert await driven.finish() == []


async def test_who_found_a_partner_does_not_come_alone() -> None:
    driven = Driven(joined("full"))
    rows = await driven.send_all({"left": [seconds(0)], "right": [seconds(1)]})
    assert len(rows) == 1
    assert await driven.finish() == []


async def test_the_joined_fields_have_the_value_of_the_side_that_is_there() -> None:
    left = Pipeline("test").source(Memory[Row]([], schema="user string, at bigint"), name="left")
    right = Pipeline("test").source(Memory[Row]([], schema="id string, at bigint, b int"), name="right")
    joined = left.event_time("at").join(right.event_time("at"), on=("user", "id"), within="1s", how="full")
    driven = Driven(joined.to(ignore, name="out"))
    await driven.send_all({"left": [{"user": "u", "at": 0}], "right": [{"id": "i", "at": 0, "b": 1}]})
    assert await driven.finish() == [
        {"user": "u", "at": 0, "id": "u", "right_at": None, "b": None},
        {"user": "i", "at": None, "id": "i", "right_at": 0, "b": 1},
    ]


async def test_a_record_in_order_is_never_late_and_one_behind_the_grace_is() -> None:
    driven = Driven(joined(grace="2s"))
    await driven.send_all({"left": [seconds(10)], "right": [seconds(10)]})
    assert len(await driven.send(seconds(8), source="left")) == 1
    assert await driven.send(seconds(7.999), source="left") == []
    assert driven.rows("late") == [
        {
            "record": seconds(7.999),
            "event_time": at(7.999),
            "lateness_ms": 2_001,
            "step": "join",
            "window_start": None,
            "window_end": None,
        }
    ]


async def test_the_slower_side_holds_the_records_of_the_faster() -> None:
    driven = Driven(joined("left"))
    await driven.send(seconds(0), seconds(100), source="left")
    assert len(await driven.send(seconds(0), source="right")) == 1
    assert await driven.send(seconds(100), source="right") == [{"id": 1, "at": 100_000, "right_at": 100_000}]


async def test_windows_after_a_join_wait_for_what_may_still_come_of_it() -> None:
    left, right = source("left").event_time("at"), source("right").event_time("at")
    pipeline = (
        left.join(right, on="id", within="5s", how="left")
        .window(tumbling("1s"))
        .aggregate(n=count())
        .to(ignore, name="out")
    )
    driven = Driven(pipeline)
    both = {"left": [seconds(0.5)], "right": [seconds(3, 2)]}
    assert await driven.send_all(both) == []
    assert await driven.advance(5.6) == []  # the lonely row is in its window, which is still open
    assert await driven.advance(6) == [row(0, 1, n=1)]
    assert driven.engine.counts["aggregate"].late == 0


async def test_a_record_that_cannot_be_compared_is_an_error_of_the_join() -> None:
    driven = Driven(joined().on_error("skip"))
    assert await driven.send_all({"left": [seconds(0, [1]), seconds(0)], "right": [seconds(0)]}) != []
    assert driven.engine.counts["join"].failed == 1


sides = st.lists(st.tuples(st.sampled_from([1, 2, None]), st.integers(0, 60)), max_size=12)


def rows_of(drawn: list[tuple[Any, int]], name: str) -> list[Row]:
    return [{"id": key, "at": time, name: number} for number, (key, time) in enumerate(drawn)]


def oracle(left: list[Row], right: list[Row], within: int, how: str) -> list[tuple[Any, Any]]:
    pairs = [
        (one["a"], two["b"])
        for one in left
        for two in right
        if one["id"] is not None and one["id"] == two["id"] and abs(one["at"] - two["at"]) <= within
    ]
    if how in ("left", "full"):
        pairs += [(one["a"], None) for one in left if one["a"] not in {a for a, _ in pairs}]
    if how in ("right", "full"):
        pairs += [(None, two["b"]) for two in right if two["b"] not in {b for _, b in pairs}]
    return pairs


@settings(deadline=None, max_examples=100)
@given(
    sides,
    sides,
    st.integers(0, 30),
    st.sampled_from(["inner", "left", "right", "full"]),
    st.lists(st.integers(1, 5), min_size=1, max_size=6),
    st.booleans(),
)
def test_joins_are_those_of_a_batch_over_everything(
    one: list[tuple[Any, int]],
    two: list[tuple[Any, int]],
    within: int,
    how: How,
    sizes: Sequence[int],
    crashes: bool,
) -> None:
    """Shuffled, with grace enough that nothing is late; in batches of these sizes, and with crashes."""
    left, right = rows_of(one, "a"), rows_of(two, "b")

    async def run() -> list[tuple[Any, Any]]:
        driven = Driven(joined(how, within=f"{within}ms", grace="60ms"), tracking=crashes)
        rows, pending = [], {"left": left, "right": right}
        for size in [*sizes, 12]:
            rows += await driven.send_all({name: each[:size] for name, each in pending.items()})
            assert driven.rows("late") == []
            pending = {name: each[size:] for name, each in pending.items()}
            if crashes:
                driven.crash()
        rows += await driven.finish()
        return [(each.get("a"), each.get("b")) for each in rows]

    made = asyncio.run(run())
    assert sorted(made, key=repr) == sorted(oracle(left, right, within, how), key=repr)
