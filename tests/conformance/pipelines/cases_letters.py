"""Dead letters that come back: a record goes on at the step that failed on it, as it is or edited."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from queenstream.pipeline.builder import Pipeline
from queenstream.pipeline.policies import DeadLetters
from queenstream.pipeline.shorthand import count, tumbling
from queenstream.pipeline.state import State
from tests.conformance.pipelines.casebook import Casebook
from tests.conformance.pipelines.cases_records import LETTER_TIMES, letter
from tests.conformance.pipelines.engines import Ends, Row, at

BOOK = Casebook()
BACK = "replay:failed"  # the step that takes the letters of the sink "failed"


def letters(io: Ends) -> DeadLetters:
    return DeadLetters(io.sink("failed"), replay=io.source(BACK))


def back(record: Any, step: str, *, ms: int | None = None, key: Any = None, port: int | None = 0) -> Row:
    """A letter of the pipeline p as it comes back from a queue: JSON, so times are text."""
    row = letter(record, "no", "ValueError", step, "p", time=None, key=key, port=port)
    return {**row, "time": None if ms is None else at(ms).isoformat(), "failed_at": at(0).isoformat()}


def tenfold(record: Row) -> Row:
    if record["n"] < 0:
        raise ValueError("below zero")
    return {**record, "n": record["n"] * 10}


@BOOK.case(
    [{"in": [{"n": 1}, {"n": -2}]}, {BACK: [back({"n": 2}, "tenfold")]}, {"in": [{"n": 3}]}],
    {
        "out": [{"n": 11}, {"n": 21}, {"n": 31}],
        "failed": [letter({"n": -2}, "below zero", "ValueError", "tenfold", "p")],
    },
    ignoring=LETTER_TIMES,
    in_order=True,
)
def an_edited_record_goes_on_where_it_failed(io: Ends) -> Pipeline[Any]:
    return (
        Pipeline("p")
        .source(io.source("in"), name="in")
        .transform("tenfold", tenfold)
        .transform("one more", lambda record: {"n": record["n"] + 1})
        .on_error(letters(io))
        .to(io.sink("out"))
    )


@BOOK.case(
    [{"in": [{"n": 1}]}, {BACK: [back({"n": -2}, "tenfold")]}],
    {
        "out": [{"n": 10}],
        "failed": [letter({"n": -2}, "below zero", "ValueError", "tenfold", "p")],
    },
    ignoring=LETTER_TIMES,
)
def what_fails_again_is_a_dead_letter_again(io: Ends) -> Pipeline[Any]:
    return (
        Pipeline("p")
        .source(io.source("in"), name="in")
        .transform("tenfold", tenfold, on_error=letters(io))
        .to(io.sink("out"))
    )


@BOOK.case(
    [
        {"in": [{"n": 1}]},
        {
            BACK: [
                {"no": "letter"},
                {"record": {"n": 2}},
                {**back({"n": 3}, "tenfold"), "pipeline": "another"},
                back({"n": 4}, "no such step"),
                back({"n": 5}, "plain"),
                back({"n": 6}, "tenfold", port=None),
                back({"n": 7}, "tenfold", port=1),
                back({"n": 8}, "tenfold"),
            ]
        },
    ],
    {
        "out": [{"n": 10}, {"n": 80}],
        "failed": [
            letter(record, "", "", BACK, "p")
            for record in (
                {"no": "letter"},
                {"record": {"n": 2}},
                back({"n": 4}, "no such step"),
                back({"n": 5}, "plain"),
                back({"n": 6}, "tenfold", port=None),
                back({"n": 7}, "tenfold", port=1),
            )
        ],
    },
    ignoring=(*LETTER_TIMES, "error", "error_type"),
)
def what_is_no_letter_of_these_steps_goes_back_to_the_dead_letters(io: Ends) -> Pipeline[Any]:
    return (
        Pipeline("p")
        .source(io.source("in"), name="in")
        .transform("plain", lambda record: record, on_error="skip")
        .transform("tenfold", tenfold, on_error=letters(io))
        .to(io.sink("out"))
    )


def summed(key: Any, record: Row, state: State) -> Row:
    if record["n"] is None:
        raise ValueError("no number")
    state.set("sum", state.get("sum", 0) + record["n"])
    return {"key": list(key), "sum": state.get("sum"), "told": record.get("told")}


@BOOK.case(
    [
        {"in": [{"shop": "s", "user": 7, "n": 1}, {"shop": "s", "user": 7, "n": None}]},
        # Without the fields that the key was made of: it is the letter's.
        {BACK: [back({"n": 5, "told": "by hand"}, "summed", key=["s", 7])]},
        {"in": [{"shop": "s", "user": 7, "n": 2}]},
    ],
    {
        "out": [
            {"key": ["s", 7], "sum": 1, "told": None},
            {"key": ["s", 7], "sum": 6, "told": "by hand"},
            {"key": ["s", 7], "sum": 8, "told": None},
        ],
        "failed": [
            letter(
                {"shop": "s", "user": 7, "n": None}, "no number", "ValueError", "summed", "p", key=["s", 7]
            )
        ],
    },
    ignoring=LETTER_TIMES,
)
def a_step_with_state_gets_the_key_back(io: Ends) -> Pipeline[Any]:
    return (
        Pipeline("p")
        .source(io.source("in"), name="in")
        .key_by("shop", "user")
        .stateful(summed, name="summed", on_error=letters(io))
        .to(io.sink("out"))
    )


@BOOK.case(
    [
        {"in": [{"user": "ann", "t": 100, "n": 1}, {"user": "ann", "t": 200, "n": -1}]},
        # The first still finds its window, however old it is by now; that far ahead moves no clock.
        {BACK: [back({"user": "?", "n": 2}, "tenfold", ms=200, key="ann")]},
        {BACK: [back({"user": "?", "n": 2}, "tenfold", ms=900_000, key="ann")]},
        {"in": [{"user": "bob", "t": 1_500, "n": 1}]},
        {BACK: [back({"user": "?", "n": 4}, "tenfold", ms=300, key="ann")]},
    ],
    {
        "out": [{"window_start": at(0), "window_end": at(1_000), "user": "ann", "n": 2}],
        "late": [
            {
                "record": {"user": "?", "n": 40},
                "event_time": at(300),
                "lateness_ms": 1_200,
                "step": "aggregate",
                "window_start": at(0),
                "window_end": at(1_000),
            }
        ],
        "failed": [
            letter(
                {"user": "ann", "t": 200, "n": -1},
                "below zero",
                "ValueError",
                "tenfold",
                "p",
                time=at(200),
                key="ann",
            )
        ],
    },
    ignoring=LETTER_TIMES,
)
def a_record_that_comes_back_has_its_time_and_may_be_late(io: Ends) -> Pipeline[Any]:
    return (
        Pipeline("p")
        .source(io.source("in"), name="in")
        .event_time("t")
        .key_by("user")
        .transform("tenfold", tenfold, on_error=letters(io))
        .window(tumbling("1s"))
        .aggregate(n=count())
        .late(io.sink("late"))
        .to(io.sink("out"))
    )


@BOOK.case(
    [
        {
            "in": [{"id": "a", "t": 100}],
            "others": [{"id": ["a"], "t": 200, "name": "Ann"}],
        },
        {BACK: [back({"id": "a", "t": 200, "name": "Ann"}, "join", ms=200, port=1)]},
    ],
    {
        "out": [{"id": "a", "t": 100, "right_t": 200, "name": "Ann"}],
        "failed": [letter({"id": ["a"], "t": 200, "name": "Ann"}, "", "", "join", "p", time=at(200), port=1)],
    },
    ignoring=(*LETTER_TIMES, "error", "error_type"),
)
def a_record_comes_back_on_its_own_side_of_a_join(io: Ends) -> Pipeline[Any]:
    others = Pipeline("others").source(io.source("others"), name="others").event_time("t")
    return (
        Pipeline("p")
        .source(io.source("in"), name="in")
        .event_time("t")
        .on_error(letters(io))
        .join(others, on="id", within="5s")
        .to(io.sink("out"))
    )


@BOOK.case(
    [
        {"in": [{"n": "one", "at": "1970-01-01T00:00:00Z"}]},
        {BACK: [back({"n": "1", "at": 0}, "in"), back({"n": "two", "at": 0}, "in")]},
    ],
    {
        "out": [{"n": 1, "at": at(0)}],
        "failed": [
            letter({"n": "one", "at": "1970-01-01T00:00:00Z"}, "", "", "in", "p"),
            letter({"n": "two", "at": 0}, "", "", "in", "p"),
        ],
    },
    ignoring=(*LETTER_TIMES, "error", "error_type"),
)
def what_a_source_could_not_read_comes_back_through_its_schema(io: Ends) -> Pipeline[Any]:
    return (
        Pipeline("p")
        .source(io.source("in", "n int, at timestamp"), name="in", on_error=letters(io))
        .to(io.sink("out"))
    )


@dataclass
class Order:
    id: int
    at: datetime
    price: float


def ordered(record: Row) -> Order:
    return Order(record["id"], datetime.fromisoformat(record["at"]), record["price"])


def priced(order: Order) -> Row:
    return {"id": order.id, "year": order.at.year, "cents": int(100 / order.price)}


@BOOK.case(
    [
        {"in": [{"id": 1, "at": "2026-01-31T12:00:00+00:00", "price": 0.0}]},
        {BACK: [back({"id": 1, "at": "2026-01-31T12:00:00Z", "price": 2.5}, "priced")]},
    ],
    {
        "out": [{"id": 1, "year": 2026, "cents": 40}],
        "failed": [
            letter(
                Order(1, datetime(2026, 1, 31, 12, tzinfo=UTC), 0.0), "", "ZeroDivisionError", "priced", "p"
            )
        ],
    },
    ignoring=(*LETTER_TIMES, "error"),
)
def an_object_comes_back_as_one_of_its_class(io: Ends) -> Pipeline[Any]:
    return (
        Pipeline("p")
        .source(io.source("in"), name="in")
        .transform("ordered", ordered)
        .filter(lambda order: order.id > 0)
        .transform("priced", priced, on_error=letters(io))
        .to(io.sink("out"))
    )
