"""Cases: windows of all kinds, late output, emission, aggregates."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from queenstream.core.aggregates import (
    avg,
    collect_list,
    collect_set,
    count_distinct,
    custom,
    first,
    last,
    max_,
    min_,
    percentile,
    stddev,
    sum_,
)
from queenstream.pipeline.builder import Pipeline
from queenstream.pipeline.policies import DeadLetters
from queenstream.pipeline.shorthand import count, session, sliding, tumbling
from tests.conformance.pipelines.casebook import Casebook, batches_of, one
from tests.conformance.pipelines.cases_records import letter
from tests.conformance.pipelines.engines import Ends, Idle, Row, at

BOOK = Casebook()
ONE_US = timedelta(microseconds=1)


def click(user: str | None, time: int, value: Any = 1) -> Row:
    return {"user": user, "at": time, "value": value}


def window(start: int, end: int, user: str | None, **values: Any) -> Row:
    return {"window_start": at(start), "window_end": at(end), "user": user, **values}


def late(record: Row, lateness_ms: int, start: int, end: int) -> Row:
    return {
        "record": record,
        "event_time": at(record["at"]),
        "lateness_ms": lateness_ms,
        "step": "aggregate",
        "window_start": at(start),
        "window_end": at(end),
    }


def clicks(io: Ends) -> Pipeline[Any]:
    return Pipeline("p").source(io.source("in"), name="in").key_by("user")


# Tumbling


@BOOK.case(
    batches_of([click("ann", 0), click("ann", 9_999), click("bob", 5_000)], [click("ann", 10_000)]),
    {"out": [window(0, 10_000, "ann", n=2), window(0, 10_000, "bob", n=1)]},
)
def a_window_closes_when_time_reaches_its_end(io: Ends) -> Pipeline[Any]:
    return clicks(io).window(tumbling("10s"), time="at").aggregate(n=count()).to(io.sink("out"))


@BOOK.case(batches_of([click("ann", 0)], [click("ann", 9_999)]), {"out": []})
def a_window_stays_open_until_then(io: Ends) -> Pipeline[Any]:
    return clicks(io).window("10s", time="at").aggregate(n=count()).to(io.sink("out"))


@BOOK.case(one(click("ann", 12_000), click("ann", 1_000)), {"out": [window(0, 10_000, "ann", n=1)]})
def nothing_is_late_by_what_came_in_its_own_batch(io: Ends) -> Pipeline[Any]:
    return clicks(io).window(tumbling("10s"), time="at").aggregate(n=count()).to(io.sink("out"))


@BOOK.case(
    batches_of(
        [click("ann", 1_000)],
        [click("ann", 14_999)],
        [click("ann", 2_000)],  # in time: the window takes records until 15,000
        [click("bob", 15_000)],
        [click("ann", 3_000), click("ann", 11_000)],
    ),
    {
        "out": [window(0, 10_000, "ann", n=2)],
        "late": [late(click("ann", 3_000), 12_000, 0, 10_000)],
    },
)
def a_grace_keeps_a_window_open_and_what_is_later_is_late(io: Ends) -> Pipeline[Any]:
    return (
        clicks(io)
        .window(tumbling("10s"), grace="5s", time="at")
        .aggregate(n=count())
        .late(io.sink("late"))
        .to(io.sink("out"))
    )


@BOOK.case(
    batches_of([click("ann", -1), click("ann", -10_000), click("ann", -10_001), click("ann", 0)]),
    {
        "out": [
            window(-20_000, -10_000, "ann", n=1),
            window(-10_000, 0, "ann", n=2),
            window(0, 10_000, "ann", n=1),
        ]
    },
    end=True,
)
def windows_before_1970_are_aligned_alike(io: Ends) -> Pipeline[Any]:
    return clicks(io).window(tumbling("10s"), time="at").aggregate(n=count()).to(io.sink("out"))


@BOOK.case(
    batches_of([click(None, 0), click("ann", 1)], [click(None, 20_000)]),
    {"out": [window(0, 10_000, None, n=1), window(0, 10_000, "ann", n=1)]},
)
def null_is_a_key_like_others(io: Ends) -> Pipeline[Any]:
    return clicks(io).window(tumbling("10s"), time="at").aggregate(n=count()).to(io.sink("out"))


@BOOK.case(
    one(click("ann", 0, 2), click("bob", 1, 3)),
    {"out": [{"window_start": at(0), "window_end": at(10_000), "total": 5}]},
    end=True,
)
def without_a_key_all_are_one(io: Ends) -> Pipeline[Any]:
    return (
        Pipeline("p")
        .source(io.source("in"), name="in")
        .window(tumbling("10s"), time="at")
        .aggregate(total=sum_("value"))
        .to(io.sink("out"))
    )


@BOOK.case(
    batches_of(
        [click("ann", 1_000), click("ann", 2_000), click("bob", 3_000)],
        [click("ann", 4_000)],
        [click("bob", 30_000)],
        [click("ann", 5_000)],  # late: that window is closed, also for updates
    ),
    {
        "out": [
            window(0, 10_000, "ann", n=2),
            window(0, 10_000, "bob", n=1),
            window(0, 10_000, "ann", n=3),
            window(30_000, 40_000, "bob", n=1),
        ],
        "late": [late(click("ann", 5_000), 25_000, 0, 10_000)],
    },
    end=True,
)
def updates_come_with_every_batch_that_changed_a_window(io: Ends) -> Pipeline[Any]:
    return (
        clicks(io)
        .window(tumbling("10s"), time="at")
        .aggregate(n=count(), emit="update")
        .late(io.sink("late"))
        .to(io.sink("out"))
    )


@BOOK.case(
    batches_of(
        [click("ann", 1_000), click("ann", 2_000), click("bob", 11_000)],
        [click("ann", 21_000)],
        [click("ann", 61_000)],
        [click("ann", 121_000)],
    ),
    # Rows of the first are from the last instant of their windows, so all of the first minute are in one.
    {
        "out": [
            window(0, 60_000, "ann", busiest=2, windows=2),
            window(0, 60_000, "bob", busiest=1, windows=1),
            window(60_000, 120_000, "ann", busiest=1, windows=1),
        ]
    },
)
def windows_of_windows(io: Ends) -> Pipeline[Any]:
    return (
        clicks(io)
        .window(tumbling("10s"), time="at")
        .aggregate(n=count(), step_name="tens")
        .window(tumbling("1m"))
        .aggregate(busiest=max_("n"), windows=count(), step_name="minutes")
        .to(io.sink("out"))
    )


@BOOK.case(
    [
        {"a": [click("ann", 1_000)], "b": [click("ann", 2_000)]},
        {"a": [click("ann", 30_000)]},  # b is still at 2,000
        Idle("b"),
        {"b": [click("ann", 3_000)]},  # too late: a went on alone
    ],
    {
        "out": [window(0, 10_000, "ann", n=2)],
        "late": [late(click("ann", 3_000), 27_000, 0, 10_000)],
    },
)
def a_source_that_is_idle_holds_nobody_back(io: Ends) -> Pipeline[Any]:
    other = Pipeline("other").source(io.source("b"), name="b", idle_timeout="5s").event_time("at")
    mine = Pipeline("p").source(io.source("a"), name="a").event_time("at")
    return (
        mine.union(other)
        .key_by("user")
        .window(tumbling("10s"))
        .aggregate(n=count())
        .late(io.sink("late"))
        .to(io.sink("out"))
    )


@BOOK.case(
    [{"a": [click("ann", 1_000)], "b": [click("ann", 2_000)]}, {"a": [click("ann", 30_000)]}],
    {"out": []},
)
def a_source_that_is_behind_holds_the_others(io: Ends) -> Pipeline[Any]:
    other = Pipeline("other").source(io.source("b"), name="b").event_time("at")
    mine = Pipeline("p").source(io.source("a"), name="a").event_time("at")
    joined = mine.union(other).key_by("user")
    return joined.window(tumbling("10s")).aggregate(n=count()).to(io.sink("out"))


# Sliding


@BOOK.case(
    batches_of([click("ann", 9_000)], [click("ann", 30_000)]),
    {
        # Every 4 s one of 10 s; 9,000 lies in those from 0, 4,000 and 8,000.
        "out": [
            window(0, 10_000, "ann", n=1),
            window(4_000, 14_000, "ann", n=1),
            window(8_000, 18_000, "ann", n=1),
        ]
    },
)
def a_record_is_in_every_window_over_it_also_where_the_slide_does_not_divide_the_size(
    io: Ends,
) -> Pipeline[Any]:
    return clicks(io).window(sliding("10s", "4s"), time="at").aggregate(n=count()).to(io.sink("out"))


@BOOK.case(
    batches_of(
        [click("ann", 12_000)],  # the watermark: windows up to 12,000 are closed
        [click("ann", 9_000), click("ann", 1_000)],
        [click("ann", 60_000)],
    ),
    {
        "out": [
            window(5_000, 15_000, "ann", n=2),
            window(10_000, 20_000, "ann", n=1),
        ],
        "late": [late(click("ann", 1_000), 11_000, 0, 10_000)],
    },
)
def a_record_that_is_late_for_some_windows_counts_in_the_others(io: Ends) -> Pipeline[Any]:
    return (
        clicks(io)
        .window(sliding("10s", "5s"), time="at")
        .aggregate(n=count())
        .late(io.sink("late"))
        .to(io.sink("out"))
    )


# Sessions


@BOOK.case(
    batches_of(
        [click("ann", 0), click("ann", 4_999), click("ann", 9_999), click("bob", 2_000)],
        [click("ann", 40_000)],
    ),
    # A gap of exactly 5 s parts two sessions.
    {
        "out": [
            window(0, 9_999, "ann", n=2),
            window(9_999, 14_999, "ann", n=1),
            window(2_000, 7_000, "bob", n=1),
        ]
    },
)
def a_session_lasts_from_its_first_record_to_its_last_plus_the_gap(io: Ends) -> Pipeline[Any]:
    return clicks(io).window(session("5s"), time="at").aggregate(n=count()).to(io.sink("out"))


@BOOK.case(
    batches_of(
        [click("ann", 1_000, 1), click("ann", 9_000, 2)],
        [click("ann", 5_000, 4)],  # bridges both
        [click("ann", 30_000, 8)],
        [click("ann", 8_000, 16)],  # too late for a session of its own, and none is open
    ),
    {
        "out": [window(1_000, 14_000, "ann", n=3, values=[1, 4, 2])],
        "late": [late(click("ann", 8_000, 16), 22_000, 8_000, 13_000)],
    },
)
def a_record_may_bridge_two_sessions(io: Ends) -> Pipeline[Any]:
    return (
        clicks(io)
        .window(session("5s"), grace="10s", time="at")
        .aggregate(n=count(), values=collect_list("value"))
        .late(io.sink("late"))
        .to(io.sink("out"))
    )


@BOOK.case(
    batches_of(
        [click("ann", 1_000), click("ann", 9_000)],
        [click("ann", 5_000)],
    ),
    {
        "out": [
            window(1_000, 6_000, "ann", n=1),
            window(9_000, 14_000, "ann", n=1),
            window(1_000, 14_000, "ann", n=3),
        ]
    },
)
def updates_of_a_session(io: Ends) -> Pipeline[Any]:
    return (
        clicks(io)
        .window(session("5s"), grace="10s", time="at")
        .aggregate(n=count(), emit="update")
        .to(io.sink("out"))
    )


# Count windows


@BOOK.case(
    batches_of(
        [click("ann", 5_000, 1), click("bob", 0, 10), click("ann", 1_000, 2)],
        [click("ann", 3_000, 3), click("ann", 9_000, 4)],
    ),
    {
        "out": [
            {"window_start": at(1_000), "window_end": at(5_000) + ONE_US, "user": "ann", "total": 3},
            {"window_start": at(3_000), "window_end": at(9_000) + ONE_US, "user": "ann", "total": 7},
        ]
    },
    end=True,
)
def a_count_window_closes_with_its_last_record(io: Ends) -> Pipeline[Any]:
    return clicks(io).window(count(2), time="at").aggregate(total=sum_("value")).to(io.sink("out"))


@BOOK.case(
    batches_of([click("ann", 0, n) for n in range(1, 6)]),
    {
        "out": [
            {"window_start": at(0), "window_end": at(0) + ONE_US, "user": "ann", "values": [1, 2, 3]},
            {"window_start": at(0), "window_end": at(0) + ONE_US, "user": "ann", "values": [3, 4, 5]},
        ]
    },
)
def a_count_window_may_slide(io: Ends) -> Pipeline[Any]:
    return (
        clicks(io)
        .window(count(3, slide=2), time="at")
        .aggregate(values=collect_list("value"))
        .to(io.sink("out"))
    )


@BOOK.case(
    batches_of([click("ann", 0)], [click("ann", 0), click("ann", 0)]),
    {
        "out": [
            {"window_start": at(0), "window_end": at(0) + ONE_US, "user": "ann", "n": 1},
            {"window_start": at(0), "window_end": at(0) + ONE_US, "user": "ann", "n": 2},
            {"window_start": at(0), "window_end": at(0) + ONE_US, "user": "ann", "n": 1},
        ]
    },
)
def updates_of_a_count_window(io: Ends) -> Pipeline[Any]:
    return clicks(io).window(count(2), time="at").aggregate(n=count(), emit="update").to(io.sink("out"))


# Aggregates


@BOOK.case(
    one(
        click("ann", 3_000, 4),
        click("ann", 1_000, 2),
        click("ann", 2_000, None),
        click("ann", 4_000, 4),
    ),
    {
        "out": [
            window(
                0, 10_000, "ann",
                n=4, present=3, total=10, mean=10 / 3, least=2, most=4, earliest=2, latest=4,
                everything=[2, 4, 4], different=[2, 4], kinds=2, spread=0.942809042, middle=4, tenth=2.4,
            )
        ]
    },
    end=True,
)  # fmt: skip
def every_aggregate(io: Ends) -> Pipeline[Any]:
    return (
        clicks(io)
        .window(tumbling("10s"), time="at")
        .aggregate(
            n=count(),
            present=count("value"),
            total=sum_("value"),
            mean=avg("value"),
            least=min_("value"),
            most=max_("value"),
            earliest=first("value"),
            latest=last("value"),
            everything=collect_list("value"),
            different=collect_set("value"),
            kinds=count_distinct("value"),
            spread=stddev("value"),
            middle=percentile("value", 0.5),
            tenth=percentile("value", 0.1),
        )
        .to(io.sink("out"))
    )


@BOOK.case(
    one(click("ann", 0, None)),
    {
        "out": [
            window(
                0, 10_000, "ann",
                n=1, present=0, total=0, mean=None, least=None, most=None, earliest=None, everything=[],
                kinds=0, spread=None, middle=None,
            )
        ]
    },
    end=True,
)  # fmt: skip
def aggregates_of_nothing(io: Ends) -> Pipeline[Any]:
    return (
        clicks(io)
        .window(tumbling("10s"), time="at")
        .aggregate(
            n=count(),
            present=count("value"),
            total=sum_("value"),
            mean=avg("value"),
            least=min_("value"),
            most=max_("value"),
            earliest=first("value"),
            everything=collect_list("value"),
            kinds=count_distinct("value"),
            spread=stddev("value"),
            middle=percentile("value", 0.5),
        )
        .to(io.sink("out"))
    )


@BOOK.case(
    one(click("ann", 0, 2), click("ann", 1, 5)),
    {"out": [window(0, 10_000, "ann", n=2, total=7, values=[2, 5])]},
    end=True,
)
def aggregates_written_as_a_dictionary(io: Ends) -> Pipeline[Any]:
    return (
        clicks(io)
        .window(tumbling("10s"), time="at")
        .aggregate({"n": {"$sum": 1}, "total": {"$sum": "value"}, "values": {"$addToSet": "value"}})
        .to(io.sink("out"))
    )


def multiply(held: int, value: int) -> int:
    return held * value


@BOOK.case(
    batches_of(
        [click("ann", 0, 2), click("ann", 8_000, 3)], [click("ann", 4_000, 7), click("ann", 5_000, "x")]
    ),
    {
        "out": [window(0, 13_000, "ann", product=42, n=3)],
        "failed": [
            letter(
                click("ann", 5_000, "x"),
                "can't multiply sequence by non-int of type 'str'",
                "TypeError",
                "aggregate",
                "p",
                time=at(5_000),
                key="ann",
            )
        ],
    },
    end=True,
    ignoring=("failed_at", "error"),
)
def an_aggregate_of_one_s_own_and_a_record_that_it_fails_on(io: Ends) -> Pipeline[Any]:
    product = custom(lambda: 1, _multiplied, multiply, lambda held: held, "value")
    return (
        clicks(io)
        .window(session("5s"), time="at", grace="1h")
        .aggregate(product=product, n=count(), on_error=DeadLetters(io.sink("failed")))
        .to(io.sink("out"))
    )


def _multiplied(held: int, value: Any) -> int:
    if isinstance(value, str):
        raise TypeError(f"{value!r} is no number")
    return multiply(held, value)
