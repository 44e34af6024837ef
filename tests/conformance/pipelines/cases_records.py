"""Cases: steps on one record, errors, unions, several sinks."""

from __future__ import annotations

import asyncio
import time
from datetime import UTC, datetime
from typing import Any

from queenstream.pipeline.builder import Pipeline
from queenstream.pipeline.expr.expressions import col, lit, when
from queenstream.pipeline.policies import DeadLetters, retry
from queenstream.pipeline.shorthand import count, tumbling
from tests.conformance.pipelines.casebook import Casebook, batches_of, one
from tests.conformance.pipelines.engines import Ends, Row, at

BOOK = Casebook()
LETTER_TIMES = ("failed_at",)


def letter(
    record: Any,
    error: str,
    kind: str,
    step: str,
    pipeline: str,
    attempts: int = 1,
    *,
    time: datetime | None = None,
    key: Any = None,
    port: int | None = 0,
) -> Row:
    return {
        "record": record,
        "error": error,
        "error_type": kind,
        "step": step,
        "attempts": attempts,
        "pipeline": pipeline,
        "time": time,
        "key": key,
        "input": port,
    }


# transform, filter, flat_map: the user's functions


@BOOK.case(one({"n": 1}, {"n": 2}), {"out": [{"n": 1, "twice": 2}, {"n": 2, "twice": 4}]}, in_order=True)
def a_function_makes_new_records(io: Ends) -> Pipeline[Any]:
    return (
        Pipeline("p")
        .source(io.source("in"), name="in")
        .transform("double", lambda record: {**record, "twice": record["n"] * 2})
        .to(io.sink("out"))
    )


@BOOK.case(one({"n": 1}, {"n": 0}, {"n": 3}), {"out": [{"n": 1}, {"n": 3}]})
def a_function_keeps_what_is_true(io: Ends) -> Pipeline[Any]:
    return (
        Pipeline("p").source(io.source("in"), name="in").filter(lambda record: record["n"]).to(io.sink("out"))
    )


@BOOK.case(
    one({"words": ["a", "b"]}, {"words": []}, {"words": ["c"]}),
    {"out": [{"word": "a"}, {"word": "b"}, {"word": "c"}]},
    in_order=True,
)
def a_function_makes_none_one_or_many(io: Ends) -> Pipeline[Any]:
    return (
        Pipeline("p")
        .source(io.source("in"), name="in")
        .flat_map(lambda record: [{"word": word} for word in record["words"]])
        .to(io.sink("out"))
    )


async def slowest_first(record: Row) -> Row:
    await asyncio.sleep((4 - record["n"]) / 100)
    return {"n": record["n"], "seen": True}


@BOOK.case(
    one(*({"n": n} for n in range(5))),
    {"out": [{"n": n, "seen": True} for n in range(5)]},
    in_order=True,
)
def async_calls_keep_the_order_of_records(io: Ends) -> Pipeline[Any]:
    return (
        Pipeline("p")
        .source(io.source("in"), name="in")
        .transform("look up", slowest_first, concurrency=5)
        .to(io.sink("out"))
    )


async def hangs_on_two(record: Row) -> Row:
    if record["n"] == 2:
        await asyncio.sleep(60)
    return record


@BOOK.case(
    one({"n": 1}, {"n": 2}, {"n": 3}),
    {
        "out": [{"n": 1}, {"n": 3}],
        "failed": [letter({"n": 2}, "ask took longer than 50ms", "TimeoutError", "ask", "p")],
    },
    ignoring=LETTER_TIMES,
)
def a_call_that_takes_too_long_is_an_error(io: Ends) -> Pipeline[Any]:
    return (
        Pipeline("p")
        .source(io.source("in"), name="in")
        .transform("ask", hangs_on_two, timeout="50ms", on_error=DeadLetters(io.sink("failed")))
        .to(io.sink("out"))
    )


def sleeps(record: Row) -> bool:
    time.sleep((3 - record["n"]) / 100)
    return bool(record["n"] != 1)


@BOOK.case(one(*({"n": n} for n in range(4))), {"out": [{"n": 0}, {"n": 2}, {"n": 3}]}, in_order=True)
def plain_functions_in_threads_keep_the_order_too(io: Ends) -> Pipeline[Any]:
    return (
        Pipeline("p")
        .source(io.source("in"), name="in")
        .filter(sleeps, concurrency=4, timeout="10s")
        .to(io.sink("out"))
    )


# Expressions


@BOOK.case(
    one(
        {"amount": 150, "country": "DE"}, {"amount": 150, "country": "US"}, {"amount": None, "country": "DE"}
    ),
    {"out": [{"amount": 150, "country": "DE"}]},
)
def an_expression_keeps_what_is_true_not_what_is_null(io: Ends) -> Pipeline[Any]:
    return (
        Pipeline("p")
        .source(io.source("in"), name="in")
        .filter((col("amount") > 100) & col("country").is_in(["DE", "FR"]))
        .to(io.sink("out"))
    )


@BOOK.case(
    one({"price": 3, "quantity": 2, "user": {"id": "ann"}}),
    {"out": [{"id": "ann", "total": 6, "size": "small"}]},
)
def select_has_only_its_fields(io: Ends) -> Pipeline[Any]:
    size = when(col("quantity") > 10, "large").otherwise(lit("small"))
    return (
        Pipeline("p")
        .source(io.source("in"), name="in")
        .select("user.id", total=col("price") * col("quantity"), size=size)
        .to(io.sink("out"))
    )


@BOOK.case(one({"a": 1, "b": 2}), {"out": [{"a": 2, "b": 1, "c": 3}]})
def with_columns_computes_all_from_the_record_as_it_came(io: Ends) -> Pipeline[Any]:
    return (
        Pipeline("p")
        .source(io.source("in"), name="in")
        .with_columns(a="b", b="a", c="a + b")
        .to(io.sink("out"))
    )


@BOOK.case(one({"price": 2, "n": 3}), {"out": [{"price": 2, "n": 3, "total": 6}]})
def a_transform_by_an_expression_sets_one_field(io: Ends) -> Pipeline[Any]:
    return (
        Pipeline("p")
        .source(io.source("in"), name="in")
        .transform("total", col("price") * col("n"))
        .to(io.sink("out"))
    )


# Errors


def fails_on_two(record: Row) -> Row:
    if record["n"] == 2:
        raise ValueError("two is too much")
    return record


@BOOK.case(one({"n": 1}, {"n": 2}, {"n": 3}), {"out": [{"n": 1}, {"n": 3}]})
def a_step_that_raises_hits_one_record(io: Ends) -> Pipeline[Any]:
    return (
        Pipeline("p")
        .source(io.source("in"), name="in")
        .transform("check", fails_on_two, on_error="skip")
        .to(io.sink("out"))
    )


@BOOK.case(
    one({"n": 2}, {"n": 1}),
    {"out": [{"n": 1}], "failed": [letter({"n": 2}, "two is too much", "ValueError", "check", "p", 3)]},
    ignoring=LETTER_TIMES,
)
def after_the_last_try_a_record_goes_to_the_dead_letters(io: Ends) -> Pipeline[Any]:
    policy = retry(2, backoff="constant", delay="10ms", then=DeadLetters(io.sink("failed")))
    return (
        Pipeline("p")
        .source(io.source("in"), name="in")
        .transform("check", fails_on_two, on_error=policy)
        .to(io.sink("out"))
    )


def fails_in_two_ways(record: Row) -> Row:
    raise TimeoutError("away") if record["n"] == 1 else ValueError("wrong")


@BOOK.case(
    one({"n": 1}, {"n": 2}),
    {"out": [], "failed": [letter({"n": 1}, "away", "TimeoutError", "ask", "p", 2)]},
    ignoring=LETTER_TIMES,
)
def a_policy_chooses_by_exception(io: Ends) -> Pipeline[Any]:
    failed = DeadLetters(io.sink("failed"))
    policy = retry(1, delay="1ms", on=(TimeoutError,), then=failed, otherwise="skip")
    return (
        Pipeline("p")
        .source(io.source("in"), name="in")
        .transform("ask", fails_in_two_ways, on_error=policy)
        .to(io.sink("out"))
    )


@BOOK.case(
    one({"n": 1}, {"n": 2}),
    {"out": [], "failed": [letter({"n": 2}, "wrong", "ValueError", "ask", "p")]},
    ignoring=LETTER_TIMES,
)
def a_policy_chooses_by_a_function_of_error_and_record(io: Ends) -> Pipeline[Any]:
    def bad(error: Exception, record: Row) -> bool:
        return record["n"] == 2 and "wrong" in str(error)

    return (
        Pipeline("p")
        .source(io.source("in"), name="in")
        .transform("ask", fails_in_two_ways)
        .on_error(retry(0, on=bad, then=DeadLetters(io.sink("failed")), otherwise="skip"))
        .to(io.sink("out"))
    )


def fails_on_none(record: Row) -> Row:
    return {"n": record["n"] + 1}


@BOOK.case(
    one({"n": 2}, {"n": None}, {"n": 1}),
    {"out": [{"n": 2}], "failed": [letter({"n": 2}, "two is too much", "ValueError", "check", "p")]},
    ignoring=LETTER_TIMES,
)
def a_step_s_own_policy_comes_before_the_pipeline_s(io: Ends) -> Pipeline[Any]:
    return (
        Pipeline("p")
        .source(io.source("in"), name="in")
        .transform("check", fails_on_two)
        .transform("add", fails_on_none, on_error="skip")
        .on_error(DeadLetters(io.sink("failed")))
        .to(io.sink("out"))
    )


@BOOK.case(
    one({"n": "1"}, {"n": "one"}),
    {"out": [{"n": 1}], "failed": [letter({"n": "one"}, "", "", "in", "p")]},
    ignoring=(*LETTER_TIMES, "error", "error_type"),
)
def a_record_that_does_not_fit_the_schema_is_an_error_of_the_source(io: Ends) -> Pipeline[Any]:
    return (
        Pipeline("p")
        .source(io.source("in", "n int"), name="in", on_error=DeadLetters(io.sink("failed")))
        .to(io.sink("out"))
    )


# Event time, keys


@BOOK.case(
    one(
        {"id": 1, "t": 1_500},
        {"id": 2, "t": "1970-01-01T00:00:01.5Z"},
        {"id": 3, "t": datetime(1970, 1, 1, 0, 0, 1, 500_000, UTC)},
        {"id": 4, "t": "yesterday"},
    ),
    {
        "out": [{"window_start": at(1_000), "window_end": at(2_000), "n": 3}],
        "failed": [letter({"id": 4, "t": "yesterday"}, "", "", "event_time", "p")],
    },
    end=True,
    ignoring=(*LETTER_TIMES, "error", "error_type"),
)
def an_event_time_is_a_time_a_text_or_milliseconds(io: Ends) -> Pipeline[Any]:
    return (
        Pipeline("p")
        .source(io.source("in"), name="in")
        .event_time("t", on_error=DeadLetters(io.sink("failed")))
        .window(tumbling("1s"))
        .aggregate(n=count())
        .to(io.sink("out"))
    )


@BOOK.case(
    one(
        {"shop": "x", "user": {"country": "de"}, "n": 7, "at": 0},
        {"shop": "x", "user": {"country": "DE"}, "n": 8, "at": 1},
        {"shop": "y", "user": {"country": "fr"}, "n": 9, "at": 2},
    ),
    {
        "out": [
            {
                "window_start": at(0),
                "window_end": at(1_000),
                "shop": "x",
                "country": "DE",
                "odd": True,
                "n": 1,
            },
            {
                "window_start": at(0),
                "window_end": at(1_000),
                "shop": "x",
                "country": "DE",
                "odd": False,
                "n": 1,
            },
            {
                "window_start": at(0),
                "window_end": at(1_000),
                "shop": "y",
                "country": "FR",
                "odd": True,
                "n": 1,
            },
        ]
    },
    end=True,
)
def a_key_has_parts_by_path_expression_and_function(io: Ends) -> Pipeline[Any]:
    return (
        Pipeline("p")
        .source(io.source("in"), name="in")
        .key_by("shop", country=col("user.country").upper(), odd=lambda record: record["n"] % 2 == 1)
        .window(tumbling("1s"), time="at")
        .aggregate(n=count())
        .to(io.sink("out"))
    )


@BOOK.case(
    one({"user": "ann", "at": 0}),
    {"out": [{"window_start": at(0), "window_end": at(1_000), "user": "ann", "n": 1}]},
    end=True,
)
def a_key_stays_what_it_was_whatever_later_steps_change(io: Ends) -> Pipeline[Any]:
    return (
        Pipeline("p")
        .source(io.source("in"), name="in")
        .key_by("user")
        .with_columns(user=lit("nobody"))
        .window(tumbling("1s"), time="at")
        .aggregate(n=count())
        .to(io.sink("out"))
    )


# Unions, several sinks


@BOOK.case(
    [{"a": [{"id": 1}], "b": [{"id": 2}]}, {"b": [{"id": 3}]}],
    {"out": [{"id": 1}, {"id": 2}, {"id": 3}]},
)
def a_union_has_all_records_of_all(io: Ends) -> Pipeline[Any]:
    other = Pipeline("other").source(io.source("b"), name="b")
    return Pipeline("p").source(io.source("a"), name="a").union(other).to(io.sink("out"))


@BOOK.case(
    [{"a": [{"at": 10}, {"at": 30}], "b": [{"at": 40}, {"at": 20}]}, {"a": [{"at": 5}], "b": [{"at": 50}]}],
    {"out": [{"at": 10}, {"at": 20}, {"at": 30}, {"at": 40}, {"at": 5}, {"at": 50}]},
    in_order=True,
)
def a_union_by_timestamp_puts_what_waits_in_order(io: Ends) -> Pipeline[Any]:
    other = Pipeline("other").source(io.source("b"), name="b").event_time("at")
    mine = Pipeline("p").source(io.source("a"), name="a").event_time("at")
    return mine.union(other, coordination="timestamp").to(io.sink("out"))


def spoil(record: Row) -> Row:
    record["n"] = -1
    return record


@BOOK.case(
    batches_of([{"n": 1}], [{"n": 2}]),
    {"before": [{"n": 1}, {"n": 2}], "after": [{"n": -1}, {"n": -1}]},
)
def a_step_that_changes_its_record_changes_no_other_branch(io: Ends) -> Pipeline[Any]:
    return (
        Pipeline("p")
        .source(io.source("in"), name="in")
        .to(io.sink("before"))
        .transform("spoil", spoil)
        .to(io.sink("after"))
    )


def a_failure_ends_the_pipeline(io: Ends) -> Pipeline[Any]:
    """For a test of its own: there are no rows to compare."""
    return (
        Pipeline("p").source(io.source("in"), name="in").transform("check", fails_on_two).to(io.sink("out"))
    )
