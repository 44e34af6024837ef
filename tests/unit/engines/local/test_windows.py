"""Windows: what lies in which, when they close, what is late for them, and what their rows look like."""

from __future__ import annotations

import pytest

from queenstream.core.aggregates import (
    avg,
    collect_list,
    collect_set,
    count,
    count_distinct,
    first,
    last,
    max_,
    min_,
    percentile,
    stddev,
    sum_,
)
from queenstream.core.windows import Count, Definition
from queenstream.pipeline.builder import Pipeline
from queenstream.pipeline.expr.expressions import lit
from queenstream.pipeline.plan.nodes import Emit
from queenstream.pipeline.shorthand import count as counting
from queenstream.pipeline.shorthand import session, sliding, tumbling
from tests.unit.engines.local.driving import Driven, Row, at, ignore, row, source


def windowed(window: Definition, grace: str = "0s", emit: Emit = "final", keys: bool = True) -> Pipeline[Row]:
    begin = source().key_by("k") if keys else source()
    made = begin.window(window, grace=grace, time="at").aggregate(values=collect_list("v"), emit=emit)
    late = made if isinstance(window, Count) else made.late(ignore, name="late")
    return late.to(ignore, name="out")


def event(seconds: float, value: object = None, key: str = "a") -> Row:
    return {"at": seconds * 1000, "v": seconds if value is None else value, "k": key}


async def test_a_tumbling_window_closes_when_the_watermark_reaches_its_end() -> None:
    driven = Driven(windowed(tumbling("10s")))
    assert await driven.send(event(1), event(9.999)) == []
    assert await driven.send(event(10)) == [row(0, 10, k="a", values=[1, 9.999])]
    assert await driven.finish() == [row(10, 20, k="a", values=[10])]


async def test_before_1970_too() -> None:
    assert await Driven(windowed(tumbling("10s"))).all([event(-1)]) == [row(-10, 0, k="a", values=[-1])]


async def test_time_moves_at_the_end_of_a_batch() -> None:
    driven = Driven(windowed(tumbling("10s")))
    # Out of order inside of one batch, nothing is late.
    assert await driven.send(event(25), event(1)) == [row(0, 10, k="a", values=[1])]
    assert await driven.send(event(2)) == []
    assert driven.rows("late") == [
        {
            "record": event(2),
            "event_time": at(2),
            "lateness_ms": 23_000,
            "step": "aggregate",
            "window_start": at(0),
            "window_end": at(10),
        }
    ]
    assert driven.engine.counts["aggregate"].late == 1


async def test_grace_keeps_a_window_open() -> None:
    driven = Driven(windowed(tumbling("10s"), grace="5s"))
    assert await driven.send(event(14.999)) == []
    assert await driven.send(event(3)) == []
    assert await driven.send(event(15)) == [row(0, 10, k="a", values=[3])]


async def test_rows_have_their_keys_or_none() -> None:
    window = tumbling("1s")
    pipeline = source().key_by("a", "b").window(window, time="at").aggregate(n=count()).to(ignore, name="out")
    records = [{"a": 1, "b": 2, "at": 0}, {"a": 1, "b": 3, "at": 1}, {"a": 1, "b": 2, "at": 2}]
    assert await Driven(pipeline).all(records) == [row(0, 1, a=1, b=2, n=2), row(0, 1, a=1, b=3, n=1)]
    one = source().key_by(all=lit("x")).window(window, time="at").aggregate(n=count()).to(ignore, name="out")
    assert await Driven(one).all(records) == [row(0, 1, all="x", n=3)]
    none = source().window(window, time="at").aggregate(n=count()).to(ignore, name="out")
    assert await Driven(none).all(records) == [row(0, 1, n=3)]


async def test_every_aggregate() -> None:
    pipeline = (
        source()
        .window(tumbling("1s"), time="at")
        .aggregate(
            n=count(),
            some=count("v"),
            total=sum_("v"),
            mean=avg("v"),
            least=min_("v"),
            most=max_("v"),
            early=first("v"),
            late=last("v"),
            listed=collect_list("v"),
            distinct=collect_set("v"),
            different=count_distinct("v"),
            spread=stddev("v"),
            half=percentile("v", 0.5),
        )
        .to(ignore, name="out")
    )
    values = [3, None, 1.5, 3, True, "x"]
    records = [{"at": 10 - index, "v": value} for index, value in enumerate(values)]
    [made] = await Driven(pipeline).all(records[:3], records[3:])
    assert made == row(
        0,
        1,
        n=6,
        some=5,
        total=7.5,
        mean=2.5,
        least=True,
        most="x",
        early="x",
        late=3,
        listed=["x", True, 3, 1.5, 3],
        distinct=["x", True, 3, 1.5],
        different=4,
        spread=pytest.approx(0.7071067811865476),
        half=3.0,
    )


async def test_sliding_windows_hold_an_event_as_often_as_it_lies_in_one() -> None:
    driven = Driven(windowed(sliding("10s", "4s")))
    assert await driven.all([event(9)]) == [
        row(0, 10, k="a", values=[9]),
        row(4, 14, k="a", values=[9]),
        row(8, 18, k="a", values=[9]),
    ]


async def test_a_partly_late_event_counts_in_the_windows_that_are_open() -> None:
    driven = Driven(windowed(sliding("10s", "5s")))
    assert await driven.send(event(10)) == []
    assert await driven.send(event(8)) == []  # [0, 10) is closed, [5, 15) is not
    assert driven.rows("late") == []
    assert await driven.send(event(4)) == []
    assert driven.rows("late")[0]["window_start"] == at(0)
    assert await driven.finish() == [row(5, 15, k="a", values=[8, 10]), row(10, 20, k="a", values=[10])]


async def test_sessions_grow_and_end_after_the_gap() -> None:
    driven = Driven(windowed(session("10s")))
    assert await driven.send(event(0), event(9)) == []
    assert await driven.send(event(15)) == []
    assert await driven.send(event(24.999, key="b")) == []
    assert await driven.send(event(25, key="b")) == [row(0, 25, k="a", values=[0, 9, 15])]
    assert await driven.finish() == [row(24.999, 35, k="b", values=[24.999, 25])]


async def test_an_event_exactly_one_gap_later_starts_a_session_of_its_own() -> None:
    assert await Driven(windowed(session("10s"))).all([event(0), event(10)]) == [
        row(0, 10, k="a", values=[0]),
        row(10, 20, k="a", values=[10]),
    ]


async def test_a_late_event_bridges_two_open_sessions() -> None:
    for batches in ([[event(0), event(15), event(8)]], [[event(0)], [event(15)], [event(8)]]):
        driven = Driven(windowed(session("10s"), grace="10s"))
        assert await driven.all(*batches) == [row(0, 25, k="a", values=[0, 8, 15])]


async def test_sessions_that_meet_in_one_batch_lose_nothing() -> None:
    times = [0, 20, 40, 10, 30, 50]  # five sessions become one, each link after its neighbours
    driven = Driven(windowed(session("11s")))
    assert await driven.all(map(event, times)) == [row(0, 61, k="a", values=sorted(times))]


@pytest.mark.parametrize("split", [False, True])
async def test_what_sessions_hold_adds_up_when_they_meet(split: bool) -> None:
    made = (
        source()
        .window(session("10s"), grace="1h", time="at")
        .aggregate(
            n=count(), whole=sum_("w"), all=sum_("v"), mean=avg("v"), least=min_("v"), early=first("v")
        )
        .to(ignore, name="out")
    )
    records = [
        {"at": at * 1000, "v": v, "w": w}
        for at, v, w in [(0, 1, 1), (30, 2.5, 2), (15, 3, 3), (8, 4, 4), (22, 5, 5)]
    ]
    batches = [[record] for record in records] if split else [records]
    assert await Driven(made).all(*batches) == [
        row(0, 40, n=5, whole=15, all=15.5, mean=3.1, least=1, early=1)
    ]


async def test_an_event_is_late_for_sessions_if_no_open_one_takes_it() -> None:
    driven = Driven(windowed(session("10s"), grace="5s"))
    await driven.send(event(0))
    assert await driven.send(event(14, key="b")) == []
    await driven.send(event(5))  # the session that it is in is still open, with its grace
    assert await driven.send(event(30, key="b")) == [
        row(0, 15, k="a", values=[0, 5]),
        row(14, 24, k="b", values=[14]),
    ]
    await driven.send(event(15))
    assert [each["record"]["at"] for each in driven.rows("late")] == [15_000]
    await driven.send(event(16))  # would end at 26, with its grace at 31
    assert driven.rows("late") == []


async def test_count_windows_close_with_their_last_record() -> None:
    driven = Driven(windowed(counting(3)))
    assert await driven.send(event(5), event(1), event(2, key="b")) == []
    assert await driven.send(event(3), event(4)) == [row(1, 5.000001, k="a", values=[1, 3, 5])]
    # What is not full at the end is no window.
    assert await driven.finish() == []


async def test_count_windows_slide() -> None:
    driven = Driven(windowed(counting(3, slide=2), keys=False))
    rows = await driven.send(*map(event, range(7)))
    assert [each["values"] for each in rows] == [[0, 1, 2], [2, 3, 4], [4, 5, 6]]


async def test_nothing_is_late_for_a_count_window() -> None:
    driven = Driven(windowed(counting(2)))
    await driven.send(event(1000))
    assert len(await driven.send(event(1))) == 1
    assert driven.engine.counts["aggregate"].late == 0


@pytest.mark.parametrize("window", [tumbling("10s"), session("10s"), counting(10)])
async def test_updates_come_whenever_a_window_changed(window: Definition) -> None:
    driven = Driven(windowed(window, emit="update"))
    [once] = await driven.send(event(1), event(2))
    assert once["values"] == [1, 2]
    [again] = await driven.send(event(3))
    assert again["values"] == [1, 2, 3]
    assert await driven.finish() == []


async def test_updates_of_sliding_windows() -> None:
    driven = Driven(windowed(sliding("10s", "5s"), emit="update"))
    assert [each["window_start"] for each in await driven.send(event(7))] == [at(0), at(5)]


async def test_windows_of_windows() -> None:
    """A row's event time is the last instant of its window, and nothing of what closes is late further on."""
    pipeline = (
        source()
        .key_by("k")
        .window(tumbling("10s"), grace="5s", time="at")
        .aggregate(n=count())
        .window(tumbling("30s"))
        .aggregate(n=sum_("n"))
        .to(ignore, name="out")
    )
    driven = Driven(pipeline)
    assert await driven.send(*map(event, (1, 11, 21, 29))) == []
    assert await driven.send(event(34.999)) == []
    # The last small window closes at 35 by its grace, and takes the big one with it.
    assert await driven.send(event(35)) == [row(0, 30, k="a", n=4)]
    assert await driven.finish() == [row(30, 60, k="a", n=2)]
    assert driven.engine.counts["aggregate-2"].late == 0


async def test_a_run_after_the_end_takes_what_is_new_and_not_what_was_closed() -> None:
    driven = Driven(windowed(tumbling("10s")), tracking=True)
    assert await driven.all([event(5)]) == [row(0, 10, k="a", values=[5])]
    driven.crash()
    assert await driven.send(event(6), event(12)) == []
    assert [each["record"]["at"] for each in driven.rows("late")] == [6_000]
    assert await driven.finish() == [row(10, 20, k="a", values=[12])]
