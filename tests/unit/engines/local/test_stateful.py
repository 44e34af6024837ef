"""Steps with state: values by key, timers, the end of what nobody touches; and deduplication."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from queenstream.pipeline.builder import Pipeline
from queenstream.pipeline.policies import DeadLetters, retry
from queenstream.pipeline.state import State
from tests.unit.engines.local.driving import Driven, Row, at, ignore, source


def keyed() -> Pipeline[Row]:
    return source().event_time("at").key_by("k")


def event(seconds: float, key: str = "a", **fields: Any) -> Row:
    return {"k": key, "at": seconds * 1000, **fields}


def total(key: Any, record: Row, state: State) -> Row:
    state.set("sum", state.get("sum", 0) + record["v"])
    return {"k": key, "sum": state.get("sum")}


async def test_state_is_by_key_and_in_order() -> None:
    driven = Driven(keyed().stateful(total).to(ignore, name="out"))
    rows = await driven.send(event(1, v=1), event(2, "b", v=10), event(0, v=2))
    assert rows == [{"k": "a", "sum": 1}, {"k": "b", "sum": 10}, {"k": "a", "sum": 3}]


async def test_keys_of_several_parts_are_tuples_and_no_event_time_is_needed() -> None:
    def see(key: Any, record: Row, state: State) -> Row:
        return {"key": key}

    driven = Driven(source().key_by("x", "y").stateful(see).to(ignore, name="out"))
    assert await driven.send({"x": 1, "y": 2}) == [{"key": (1, 2)}]


async def test_values_can_be_deleted_and_cleared() -> None:
    def step(key: Any, record: Row, state: State) -> Row | None:
        if record["do"] == "set":
            state.set("x", 1)
            state.set("y", 2)
        elif record["do"] == "delete":
            state.delete("x")
            state.delete("nothing")
        elif record["do"] == "clear":
            state.clear()
        else:
            return {"x": state.get("x"), "y": state.get("y", "none")}
        return None

    driven = Driven(source().key_by("k").stateful(step).to(ignore, name="out"))
    orders = ("set", "show", "delete", "show", "clear", "show")
    rows = await driven.send(*({"k": "a", "do": each} for each in orders))
    assert rows == [{"x": 1, "y": 2}, {"x": None, "y": 2}, {"x": None, "y": "none"}]


async def test_what_is_emitted_comes_before_what_is_returned() -> None:
    def step(key: Any, record: Row, state: State) -> Row:
        state.emit({"n": 1})
        state.emit({"n": 2})
        return {"n": 3, "at": state.time}

    driven = Driven(keyed().stateful(step).to(ignore, name="out"))
    assert await driven.send(event(7)) == [{"n": 1}, {"n": 2}, {"n": 3, "at": at(7)}]


def abandoned(key: Any, timer: str, state: State) -> Row:
    found = {"k": key, "timer": timer, "time": state.time, "sum": state.get("sum")}
    state.clear()
    return found


def wait_for_more(key: Any, record: Row, state: State) -> None:
    state.set("sum", state.get("sum", 0) + record["v"])
    state.set_timer("quiet", after="10s")


async def test_a_timer_comes_with_the_watermark_and_moves_when_set_again() -> None:
    driven = Driven(keyed().stateful(wait_for_more, on_timer=abandoned).to(ignore, name="out"))
    assert await driven.send(event(0, v=1), event(5, v=2)) == []
    assert await driven.advance(14.999) == []
    assert await driven.advance(15) == [{"k": "a", "timer": "quiet", "time": at(15), "sum": 3}]
    assert await driven.finish() == []


async def test_timers_by_time_and_timers_that_are_cancelled() -> None:
    def step(key: Any, record: Row, state: State) -> None:
        state.set_timer("one", at=at(20))
        state.set_timer("two", at=at(10))
        state.set_timer("never", at=at(5))
        state.cancel_timer("never")

    driven = Driven(keyed().stateful(step, on_timer=lambda key, timer, state: timer).to(ignore, name="out"))
    await driven.send(event(0))
    assert await driven.finish() == ["two", "one"]


async def test_a_timer_may_set_another_one() -> None:
    def tick(key: Any, timer: str, state: State) -> Row:
        state.set_timer("tick", after="10s")
        return {"time": state.time}

    def begin(key: Any, record: Row, state: State) -> None:
        state.set_timer("tick", after="10s")

    driven = Driven(keyed().stateful(begin, on_timer=tick).to(ignore, name="out"))
    await driven.send(event(0))
    assert await driven.advance(35) == [{"time": at(10)}, {"time": at(20)}, {"time": at(30)}]
    # At the end only what is set by then comes: this one would never stop.
    assert await driven.finish() == [{"time": at(40)}]


async def test_a_timer_without_somebody_to_call_is_an_error() -> None:
    driven = Driven(keyed().on_error(DeadLetters("failed")).stateful(wait_for_more).to(ignore, name="out"))
    await driven.send(event(0, v=1))
    assert "on_timer" in driven.letters[0]["error"]


async def test_state_that_nobody_touches_is_forgotten() -> None:
    driven = Driven(keyed().stateful(total, ttl="10s").to(ignore, name="out"))
    await driven.send(event(0, v=1), event(0, "b", v=5))
    assert await driven.send(event(9.999, v=1)) == [{"k": "a", "sum": 2}]
    await driven.advance(15)
    assert await driven.send(event(15, v=1), event(15, "b", v=1)) == [
        {"k": "a", "sum": 3},
        {"k": "b", "sum": 1},
    ]


async def test_in_one_batch_too() -> None:
    """How the records are cut into batches must not show."""
    driven = Driven(keyed().stateful(total, ttl="10s").to(ignore, name="out"))
    rows = await driven.send(event(0, v=1), event(9, v=1), event(19, v=1))
    assert [each["sum"] for each in rows] == [1, 2, 1]


async def test_a_timer_before_the_end_of_life_comes_and_one_after_it_does_not() -> None:
    def step(key: Any, record: Row, state: State) -> None:
        state.set("x", 1)
        state.set_timer("t", after=record["after"])

    pipeline = (
        keyed().stateful(step, on_timer=lambda key, timer, state: key, ttl="10s").to(ignore, name="out")
    )
    driven = Driven(pipeline)
    await driven.send(event(0, "soon", after="5s"), event(0, "too late", after="11s"))
    assert await driven.advance(60) == ["soon"]


async def test_a_call_that_fails_leaves_the_state_as_it_was() -> None:
    def fragile(key: Any, record: Row, state: State) -> Row:
        state.set("sum", state.get("sum", 0) + record["v"])
        if record["v"] < 0:
            raise ValueError("negative")
        return {"sum": state.get("sum")}

    on_error = retry(1, delay="1s", then=DeadLetters("failed"))
    driven = Driven(source().key_by("k").stateful(fragile, on_error=on_error).to(ignore, name="out"))
    rows = await driven.send(*({"k": "a", "v": v} for v in (1, -5, 2)))
    assert rows == [{"sum": 1}, {"sum": 3}]
    assert [(letter["record"]["v"], letter["attempts"]) for letter in driven.letters] == [(-5, 2)]


async def test_a_timer_that_fails_is_told_with_its_key() -> None:
    def broken(key: Any, timer: str, state: State) -> Row:
        raise ValueError("no")

    step = keyed().stateful(wait_for_more, on_timer=broken, on_error=DeadLetters("failed"))
    driven = Driven(step.to(ignore, name="out"))
    await driven.send(event(0, v=1))
    await driven.finish()
    assert driven.letters[0]["record"] == {"key": "a", "timer": "quiet"}


async def test_the_event_time_where_there_is_none_says_what_to_do() -> None:
    def look(key: Any, record: Row, state: State) -> Row:
        return {"time": state.time}

    driven = Driven(
        source().key_by("k").on_error(DeadLetters("failed")).stateful(look).to(ignore, name="out")
    )
    await driven.send({"k": 1})
    assert "event_time" in driven.letters[0]["error"]


calls = st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 100), st.integers(0, 9)), max_size=30)


@settings(deadline=None, max_examples=80)
@given(calls, st.lists(st.integers(1, 6), max_size=8))
def test_a_crash_between_any_two_batches_does_not_show(
    drawn: list[tuple[str, int, int]], sizes: list[int]
) -> None:
    pipeline = (
        keyed()
        .deduplicate("k", "v", within="5s", grace="20s")
        .stateful(wait_for_more, on_timer=abandoned, ttl="30s")
        .to(ignore, name="out")
    )
    records = [event(time, key, v=value) for key, time, value in drawn]

    async def run(crashes: bool) -> list[Row]:
        driven = Driven(pipeline, tracking=crashes)
        rows, rest = [], records
        for size in [*sizes, len(records)]:
            rows += await driven.send(*rest[:size])
            rest = rest[size:]
            if crashes:
                driven.crash()
        return [*rows, *await driven.finish()]

    def ordered(rows: list[Row]) -> list[Row]:
        return sorted(rows, key=repr)

    assert ordered(asyncio.run(run(crashes=True))) == ordered(asyncio.run(run(crashes=False)))


def deduplicated(grace: str = "0s") -> Driven:
    pipeline = (
        source()
        .event_time("at")
        .deduplicate("id", within="10s", grace=grace)
        .late(ignore, name="late")
        .to(ignore, name="out")
    )
    return Driven(pipeline)


@pytest.mark.parametrize("split", [False, True])
async def test_only_the_first_of_equal_records_passes(split: bool) -> None:
    driven = deduplicated(grace="60s")
    records = [{"id": 1, "at": t * 1000} for t in (0, 0, 10, 15, 20, 4, 26)]
    batches = [[record] for record in records] if split else [records]
    # 10 is within 10 s of 0; 15 passes, and so 20 and 4 are within 10 s of something that did; 26 is not.
    passed = [each["at"] // 1000 for batch in batches for each in await driven.send(*batch)]
    assert passed == [0, 15, 26]


async def test_other_values_are_other_records_and_null_is_a_value() -> None:
    rows = await deduplicated().send(*({"id": each, "at": 0} for each in (1, 2, None, "1", None, 1.0)))
    assert [each["id"] for each in rows] == [1, 2, None, "1"]


async def test_what_comes_after_the_grace_is_late_and_not_let_through() -> None:
    driven = deduplicated(grace="5s")
    assert len(await driven.send({"id": 1, "at": 20_000})) == 1
    assert len(await driven.send({"id": 2, "at": 15_000})) == 1
    assert await driven.send({"id": 3, "at": 14_999}) == []
    assert driven.rows("late")[0]["lateness_ms"] == 5_001


async def test_what_passed_is_forgotten_when_nothing_equal_can_come() -> None:
    driven = Driven(
        source().event_time("at").deduplicate("id", within="10s").to(ignore, name="out"), tracking=True
    )
    await driven.send(*({"id": n, "at": 0} for n in range(100)))
    driven.crash()
    assert len(driven.stored["deduplicate"]) == 101
    await driven.advance(10.001)
    driven.crash()
    assert len(driven.stored["deduplicate"]) == 1  # its watermark
