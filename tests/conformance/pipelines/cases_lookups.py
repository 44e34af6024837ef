"""Cases: look-ups, in tables that are at hand; tests/integration/tables has those of servers."""

from __future__ import annotations

from typing import Any

from queenstream.pipeline.builder import Pipeline
from queenstream.pipeline.endpoints import Memory
from queenstream.pipeline.policies import DeadLetters
from queenstream.pipeline.shorthand import count, tumbling
from tests.conformance.pipelines.casebook import Casebook, one
from tests.conformance.pipelines.cases_records import LETTER_TIMES, letter
from tests.conformance.pipelines.engines import Ends, at

BOOK = Casebook()
NO_RECORD: Any = 5

USERS = Memory(
    [{"id": 1, "name": "Ann", "n": 9}, {"id": 2, "name": "Bob", "n": None}, {"id": 2, "name": "Bo"}]
)


@BOOK.case(
    one({"n": 1, "user": 1}, {"n": 2, "user": 2}, {"n": 3, "user": 3}, {"n": 4}),
    {
        "out": [
            {"n": 1, "user": 1, "id": 1, "name": "Ann"},  # the record's own n stays
            {"n": 2, "user": 2, "id": 2, "name": "Bo"},  # the last one of a key
            {"n": 3, "user": 3},
            {"n": 4},
        ]
    },
    in_order=True,
)
def a_record_gets_all_that_is_there(io: Ends) -> Pipeline[Any]:
    return (
        Pipeline("p").source(io.source("in"), name="in").lookup(USERS, on=("user", "id")).to(io.sink("out"))
    )


@BOOK.case(
    one({"user": 1, "name": "?"}, {"user": 3, "name": "?"}),
    {"out": [{"user": 1, "name": "Ann", "who": 1}, {"user": 3, "name": None, "who": None}]},
)
def fields_are_taken_under_new_names(io: Ends) -> Pipeline[Any]:
    # Without a cache, for no time, and in no hurry: the rows are the same.
    said = {"name": "name", "who": "id"}
    return (
        Pipeline("p")
        .source(io.source("in"), name="in")
        .lookup(USERS, on=("user", "id"), fields=said, cache=0, max_age=0, timeout="1m")
        .to(io.sink("out"))
    )


@BOOK.case(one({"user": 1}, {"user": 3}, {}), {"out": [{"user": 1, "found": {"name": "Ann"}}]})
def what_is_not_there_leaves_the_record_out(io: Ends) -> Pipeline[Any]:
    return (
        Pipeline("p")
        .source(io.source("in"), name="in")
        .lookup(USERS, on=("user", "id"), fields=["name"], into="found", how="inner")
        .to(io.sink("out"))
    )


@BOOK.case(
    one({"at": 1_000, "user": 1}, {"at": 2_000, "user": 2}, {"at": 3_000, "user": 1}),
    {
        "out": [
            {"window_start": at(0), "window_end": at(10_000), "name": "Ann", "seen": 2, "id": 1},
            {"window_start": at(0), "window_end": at(10_000), "name": "Bo", "seen": 1, "id": 2},
        ]
    },
    end=True,
)
def times_and_keys_go_along(io: Ends) -> Pipeline[Any]:
    return (
        Pipeline("p")
        .source(io.source("in"), name="in")
        .event_time("at")
        .lookup(USERS, on=("user", "id"), fields=["name"], name="before")
        .key_by("name")
        .window(tumbling("10s"))
        .aggregate(seen=count())
        .lookup(USERS, on="name", fields=["id"], name="after")
        .to(io.sink("out"))
    )


@BOOK.case(
    [{"in": [{"user": 1}, NO_RECORD, {"user": 2}]}],
    {
        "out": [{"user": 1, "name": "Ann"}, {"user": 2, "name": "Bo"}],
        "dead": [
            letter(
                5,
                "5 has no named fields; give a dict, a dataclass, a Struct or a model",
                "TypeError",
                "who",
                "p",
            )
        ],
    },
    ignoring=LETTER_TIMES,
)
def what_is_no_record_is_an_error_of_its_own(io: Ends) -> Pipeline[Any]:
    return (
        Pipeline("p")
        .source(io.source("in"), name="in")
        .lookup(USERS, on=("user", "id"), fields=["name"], name="who", on_error=DeadLetters(io.sink("dead")))
        .to(io.sink("out"))
    )
