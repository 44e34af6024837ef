"""Cases: anomalies and patterns, in order, out of order, and too late."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from queenstream.pipeline.builder import Pipeline
from queenstream.pipeline.policies import DeadLetters
from tests.conformance.pipelines.casebook import Casebook, batches_of
from tests.conformance.pipelines.cases_records import LETTER_TIMES, letter
from tests.conformance.pipelines.engines import Ends, Row, at

BOOK = Casebook()


def reading(sensor: str, second: float, value: Any) -> Row:
    return {"sensor": sensor, "at": second * 1_000, "value": value}


def click(user: str, second: int, action: str = "click") -> Row:
    return {"user": user, "at": second * 1_000, "action": action}


def anomaly(sensor: str, second: int, value: float, mean: float, deviation: float, score: float) -> Row:
    return {
        "detector": "anomalies:value",
        "key": sensor,
        "time": at(second * 1_000),
        "field": "value",
        "algorithm": "zscore",
        "value": value,
        "mean": mean,
        "deviation": deviation,
        "score": score,
        "anomaly": True,
    }


def match(pattern: str, user: str, start: int, end: int, value: float | None, events: list[Row]) -> Row:
    return {
        "pattern": pattern,
        "key": user,
        "start": at(start * 1_000),
        "end": at(end * 1_000),
        "value": value,
        "events": events,
    }


SPIKE = anomaly("a", 5, 20.0, 2.0, 1.0, 18.0)


@BOOK.case(
    batches_of(
        [reading("a", 1, 1), reading("b", 1, 100), reading("a", 2, 3)],
        [reading("a", 3, 1.0), reading("a", 4, 3), reading("a", 5, 20), reading("b", 6, 99)],
        [reading("a", 7, 2)],
    ),
    {"out": [SPIKE]},
)
def a_number_unlike_those_before_it_is_an_anomaly_of_its_key(ends: Ends) -> Pipeline[Any]:
    source = Pipeline("p").source(ends.source("in"), name="in").event_time("at")
    found = source.anomalies("value", by="sensor", window="1m", threshold=4, min_samples=4, on_error="skip")
    return found.to(ends.sink("out"))


@BOOK.case(
    batches_of(
        [reading("a", 2, 3), reading("a", 1, 1), reading("a", 5, 20)],
        [reading("a", 4, 3), reading("a", 3, 1)],
        [reading("a", 8, 2), reading("a", 9, 2)],
        [reading("a", 1, 1_000), reading("a", 30, 2)],
    ),
    {
        "out": [SPIKE],
        "late": [
            {
                "record": reading("a", 1, 1_000),
                "event_time": at(1_000),
                "lateness_ms": 8_000,
                "step": "anomalies:value",
                "window_start": None,
                "window_end": None,
            }
        ],
    },
)
def out_of_order_inside_the_grace_it_is_the_same_anomaly(ends: Ends) -> Pipeline[Any]:
    source = Pipeline("p").source(ends.source("in"), name="in").event_time("at")
    found = source.anomalies("value", by="sensor", window="1m", threshold=4, min_samples=4, grace="3s")
    return found.late(ends.sink("late")).to(ends.sink("out"))


@BOOK.case(
    batches_of(
        [reading("a", second, 1 + 2 * (second % 2)) for second in range(1, 5)],
        [reading("a", 5, 20), reading("a", 5.0007, 2)],
        [reading("a", 5.0004, 1_000)],
    ),
    {
        "out": [SPIKE],
        "late": [
            {
                "record": reading("a", 5.0004, 1_000),
                "event_time": at(5_000) + timedelta(microseconds=400),
                "lateness_ms": 0,
                "step": "anomalies:value",
                "window_start": None,
                "window_end": None,
            }
        ],
    },
)
def a_part_of_a_millisecond_is_late_too(ends: Ends) -> Pipeline[Any]:
    source = Pipeline("p").source(ends.source("in"), name="in").event_time("at")
    found = source.anomalies("value", by="sensor", window="1m", threshold=4, min_samples=4)
    return found.late(ends.sink("late")).to(ends.sink("out"))


@BOOK.case(
    batches_of(
        [reading("a", second, 1 + 2 * (second % 2)) for second in range(1, 5)],
        [reading("a", 5, None), reading("a", 5, "20"), reading("a", 5, True)],
        [reading("a", 5, 20)],
    ),
    {"out": [SPIKE]},
)
def what_is_no_number_is_left_out(ends: Ends) -> Pipeline[Any]:
    source = Pipeline("p").source(ends.source("in"), name="in").event_time("at")
    found = source.anomalies("value", by="sensor", window="1m", threshold=4, min_samples=4, on_error="skip")
    return found.to(ends.sink("out"))


@BOOK.case(
    batches_of(
        [reading("a", second, 1 + 2 * (second % 2)) for second in range(1, 5)],
        [reading("a", 5, 20), reading("a", 6, "much")],
    ),
    {
        "out": [SPIKE],
        "failed": [
            letter(
                reading("a", 6, "much"),
                "value is 'much', and not a number; mend the record or filter it out",
                "ValueError",
                "anomalies:value",
                "p",
                time=at(6_000),
                key="a",
            )
        ],
    },
    ignoring=LETTER_TIMES,
)
def what_is_no_number_can_be_a_dead_letter(ends: Ends) -> Pipeline[Any]:
    source = Pipeline("p").source(ends.source("in"), name="in").event_time("at")
    letters = DeadLetters(ends.sink("failed"))
    found = source.anomalies("value", by="sensor", window="1m", threshold=4, min_samples=4, on_error=letters)
    return found.to(ends.sink("out"))


@BOOK.case(
    batches_of(
        [click("u", 1), click("u", 2), click("v", 2), click("u", 3, "view")],
        [click("u", 4), click("u", 5), click("v", 6)],
        [click("u", 40), click("u", 41), click("u", 42)],
    ),
    {
        "out": [
            match("rapid", "u", 1, 4, 3, [click("u", 2), click("u", 4)]),
            match("rapid", "u", 40, 42, 3, [click("u", 41), click("u", 42)]),
        ]
    },
)
def a_pattern_fires_when_it_becomes_true_and_again_after_it_was_false(ends: Ends) -> Pipeline[Any]:
    source = Pipeline("p").source(ends.source("in"), name="in").event_time("at")
    rapid = "COUNT(*) > 2 IN 30s WHERE action = 'click'"
    return source.patterns(rapid=rapid, by="user", events=2).to(ends.sink("out"))


@BOOK.case(
    batches_of(
        [click("u", 4), click("u", 1)],
        [click("u", 2), click("u", 8)],
        [click("u", 5), click("u", 20)],
    ),
    {"out": [match("rapid", "u", 1, 4, 3, [click("u", 1), click("u", 2), click("u", 4)])]},
)
def out_of_order_it_fires_where_it_would_in_order(ends: Ends) -> Pipeline[Any]:
    source = Pipeline("p").source(ends.source("in"), name="in").event_time("at")
    return source.patterns(rapid="COUNT(*) > 2 IN 30s", by="user", grace="5s").to(ends.sink("out"))


@BOOK.case(
    batches_of(
        [click("u", 0, "login"), click("v", 0, "login")],
        [click("u", 60, "buy"), click("v", 200, "view")],
        [click("w", 301, "view")],
    ),
    {
        "out": [
            match("bought", "u", 0, 60, None, [click("u", 0, "login"), click("u", 60, "buy")]),
            match("left", "v", 0, 300, None, [click("v", 0, "login")]),
        ]
    },
)
def one_follows_the_other_or_does_not(ends: Ends) -> Pipeline[Any]:
    source = Pipeline("p").source(ends.source("in"), name="in").event_time("at")
    texts = {"bought": "login THEN buy WITHIN 5m", "left": "login THEN NOT buy WITHIN 5m"}
    return source.patterns(texts, by="user", event="action").to(ends.sink("out"))


@BOOK.case(
    batches_of([click("u", 0, "login")]),
    {"out": [match("left", "u", 0, 300, None, [click("u", 0, "login")])]},
    end=True,
)
def at_the_end_nothing_more_comes(ends: Ends) -> Pipeline[Any]:
    source = Pipeline("p").source(ends.source("in"), name="in").event_time("at")
    return source.patterns(left="login THEN NOT buy WITHIN 5m", by="user", event="action").to(
        ends.sink("out")
    )
