"""Cases: joins, keyed state with timers and an end, deduplication."""

from __future__ import annotations

from typing import Any

from queenstream.pipeline.builder import Pipeline
from queenstream.pipeline.plan.nodes import How
from queenstream.pipeline.policies import DeadLetters
from queenstream.pipeline.state import State
from tests.conformance.pipelines.casebook import Casebook, batches_of, one
from tests.conformance.pipelines.cases_records import letter
from tests.conformance.pipelines.engines import Batches, Ends, Row, at

BOOK = Casebook()


def late(record: Row, lateness_ms: int, step: str) -> Row:
    return {
        "record": record,
        "event_time": at(record["at"]),
        "lateness_ms": lateness_ms,
        "step": step,
        "window_start": None,
        "window_end": None,
    }


# Joins: orders and payments of one order, at most 5 s apart

ORDERS, PAYMENTS = "order_id string, at bigint, note string", "id string, at bigint, amount int, note string"


def order(order_id: str | None, time: int) -> Row:
    return {"order_id": order_id, "at": time, "note": f"o{time}"}


def payment(order_id: str | None, time: int, amount: int) -> Row:
    return {"id": order_id, "at": time, "amount": amount, "note": f"p{time}"}


def joined(left: Row | None, right: Row | None) -> Row:
    key = left["order_id"] if left is not None else right["id"] if right is not None else None
    return {
        "order_id": key,
        "at": None if left is None else left["at"],
        "note": None if left is None else left["note"],
        "id": key,
        "paid_at": None if right is None else right["at"],
        "amount": None if right is None else right["amount"],
        "paid_note": None if right is None else right["note"],
    }


ON_TIME: Batches = [
    {"orders": [order("a", 1_000), order("b", 2_000), order(None, 3_000)], "payments": []},
    {
        "payments": [
            payment("a", 6_000, 1),
            payment("a", 6_001, 2),
            payment("c", 4_000, 3),
            payment(None, 3_000, 4),
        ]
    },
    # Both sides reach 20,000: what found nobody comes alone.
    {"orders": [order("z", 20_000)], "payments": [payment("y", 20_000, 9)]},
]
PAIR = joined(order("a", 1_000), payment("a", 6_000, 1))
LEFT_ALONE = [joined(order("b", 2_000), None), joined(order(None, 3_000), None)]
RIGHT_ALONE = [
    joined(None, payment("a", 6_001, 2)),
    joined(None, payment("c", 4_000, 3)),
    joined(None, payment(None, 3_000, 4)),
]


def joining(io: Ends, how: How, grace: str = "0s") -> Pipeline[Any]:
    payments = Pipeline("payments").source(io.source("payments", PAYMENTS), name="payments").event_time("at")
    orders = Pipeline("p").source(io.source("orders", ORDERS), name="orders").event_time("at")
    return orders.join(
        payments, on=("order_id", "id"), within="5s", how=how, grace=grace, prefix="paid_", name="pay"
    )


@BOOK.case(ON_TIME, {"out": [PAIR]})
def an_inner_join_has_the_pairs(io: Ends) -> Pipeline[Any]:
    return joining(io, "inner").to(io.sink("out"))


@BOOK.case(ON_TIME, {"out": [PAIR, *LEFT_ALONE]})
def a_left_join_has_what_found_nobody_on_the_left(io: Ends) -> Pipeline[Any]:
    return joining(io, "left").to(io.sink("out"))


@BOOK.case(ON_TIME, {"out": [PAIR, *RIGHT_ALONE]})
def a_right_join_has_what_found_nobody_on_the_right(io: Ends) -> Pipeline[Any]:
    return joining(io, "right").to(io.sink("out"))


@BOOK.case(
    ON_TIME,
    {
        "out": [
            PAIR,
            *LEFT_ALONE,
            *RIGHT_ALONE,
            joined(order("z", 20_000), None),
            joined(None, payment("y", 20_000, 9)),
        ]
    },
    end=True,
)
def a_full_join_has_all_and_at_the_end_those_that_still_wait(io: Ends) -> Pipeline[Any]:
    return joining(io, "full").to(io.sink("out"))


@BOOK.case(
    [
        {"orders": [order("a", 10_000)], "payments": [payment("b", 12_000, 1)]},  # the watermark: 10,000
        {"orders": [order("b", 8_000)]},  # in time, by the grace
        {"payments": [payment("a", 7_999, 2)]},
    ],
    {
        "out": [joined(order("b", 8_000), payment("b", 12_000, 1))],
        "late": [late(payment("a", 7_999, 2), 2_001, "pay")],
    },
)
def what_is_later_than_the_grace_is_late_for_a_join(io: Ends) -> Pipeline[Any]:
    return joining(io, "inner", grace="2s").late(io.sink("late")).to(io.sink("out"))


@BOOK.case(
    [{"l": [{"a": 1, "b": 1, "at": 0}, {"a": 1, "b": 2, "at": 0}], "r": [{"a": 1, "b": 2, "at": 0}]}],
    {"out": [{"a": 1, "b": 2, "at": 0, "right_at": 0}]},
)
def a_join_on_several_fields(io: Ends) -> Pipeline[Any]:
    right = Pipeline("right").source(io.source("r"), name="r").event_time("at")
    left = Pipeline("p").source(io.source("l"), name="l").event_time("at")
    return left.join(right, on=["a", "b"], within="1s").to(io.sink("out"))


# Stateful


def visit(user: str, time: int, kind: str = "view") -> Row:
    return {"user": user, "at": time, "kind": kind}


def running(io: Ends) -> Pipeline[Any]:
    return Pipeline("p").source(io.source("in"), name="in").event_time("at").key_by("user")


def numbered(user: str, record: Row, state: State) -> Row | None:
    if record["kind"] == "reset":
        state.delete("n")
        return None
    state.set("n", state.get("n", 0) + 1)
    if record["kind"] == "twice":
        state.emit({"user": user, "n": 0})
    return {"user": user, "n": state.get("n")}


@BOOK.case(
    batches_of(
        [visit("ann", 0), visit("bob", 0), visit("ann", 1, "twice")],
        [visit("ann", 2, "reset"), visit("ann", 3)],
    ),
    {
        "out": [
            {"user": "ann", "n": 1},
            {"user": "bob", "n": 1},
            {"user": "ann", "n": 0},
            {"user": "ann", "n": 2},
            {"user": "ann", "n": 1},
        ]
    },
)
def a_step_remembers_by_key(io: Ends) -> Pipeline[Any]:
    return running(io).stateful(numbered).to(io.sink("out"))


@BOOK.case(
    batches_of(
        [visit("ann", 0)],
        [visit("ann", 9_999), visit("bob", 9_999)],
        [visit("ann", 19_999)],  # 10 s without a visit: forgotten
        [visit("bob", 40_000)],
    ),
    {
        "out": [
            {"user": "ann", "n": 1},
            {"user": "ann", "n": 2},
            {"user": "bob", "n": 1},
            {"user": "ann", "n": 1},
            {"user": "bob", "n": 1},
        ]
    },
)
def a_state_that_nobody_touches_is_forgotten(io: Ends) -> Pipeline[Any]:
    return running(io).stateful(numbered, ttl="10s").to(io.sink("out"))


def watched(user: str, record: Row, state: State) -> None:
    if record["kind"] == "bye":
        state.cancel_timer("gone")
    else:
        state.set("since", state.time)
        state.set_timer("gone", after="5s")


def gone(user: str, timer: str, state: State) -> Row:
    row = {"user": user, "timer": timer, "since": state.get("since"), "at": state.time}
    state.clear()
    return row


@BOOK.case(
    batches_of(
        [visit("ann", 0), visit("bob", 0), visit("cid", 0)],
        [visit("ann", 3_000), visit("bob", 1_000, "bye")],  # ann's timer moves to 8,000
        [visit("dan", 5_000)],  # cid's time has come
        [visit("dan", 8_000)],  # ann's too
    ),
    {
        "out": [
            {"user": "cid", "timer": "gone", "since": at(0), "at": at(5_000)},
            {"user": "ann", "timer": "gone", "since": at(3_000), "at": at(8_000)},
        ]
    },
)
def a_timer_fires_when_time_reaches_it(io: Ends) -> Pipeline[Any]:
    return running(io).stateful(watched, on_timer=gone).to(io.sink("out"))


@BOOK.case(
    one(visit("ann", 0)),
    {"out": [{"user": "ann", "timer": "gone", "since": at(0), "at": at(5_000)}]},
    end=True,
)
def at_the_end_all_timers_fire(io: Ends) -> Pipeline[Any]:
    return running(io).stateful(watched, on_timer=gone).to(io.sink("out"))


@BOOK.case(
    batches_of([visit("ann", 0)], [visit("bob", 1_000)], [visit("cid", 30_000)]),
    {
        "out": [
            {"user": "ann", "timer": "gone", "since": at(0), "at": at(5_000)},
            {"user": "bob", "timer": "gone", "since": at(1_000), "at": at(6_000)},
        ]
    },
)
def a_timer_at_the_end_of_a_key_s_life_still_fires(io: Ends) -> Pipeline[Any]:
    return running(io).stateful(watched, on_timer=gone, ttl="5s").to(io.sink("out"))


@BOOK.case(
    batches_of([visit("ann", 0)], [visit("bob", 30_000)]),
    {"out": []},
    end=True,
)
def a_timer_past_it_never_does_not_even_at_the_end_of_all_input(io: Ends) -> Pipeline[Any]:
    return running(io).stateful(watched, on_timer=gone, ttl="4999ms").to(io.sink("out"))


def half_done(user: str, record: Row, state: State) -> Row:
    state.set("n", state.get("n", 0) + 1)
    state.emit({"never": "seen"})
    if record["kind"] == "bad":
        raise RuntimeError("no")
    return {"user": user, "n": state.get("n")}


@BOOK.case(
    batches_of([visit("ann", 0), visit("ann", 1, "bad")], [visit("ann", 2)]),
    {
        "out": [{"never": "seen"}, {"user": "ann", "n": 1}, {"never": "seen"}, {"user": "ann", "n": 2}],
        "failed": [letter(visit("ann", 1, "bad"), "no", "RuntimeError", "half", "p", time=at(1), key="ann")],
    },
    ignoring=("failed_at",),
)
def a_call_that_fails_leaves_no_trace(io: Ends) -> Pipeline[Any]:
    return (
        running(io)
        .stateful(half_done, name="half", on_error=DeadLetters(io.sink("failed")))
        .to(io.sink("out"))
    )


# Deduplicate


def message(number: int, time: int, value: str) -> Row:
    return {"id": number, "at": time, "value": value}


@BOOK.case(
    batches_of(
        [message(1, 0, "a"), message(1, 0, "b"), message(2, 0, "c")],
        [message(1, 10_000, "d"), message(2, 10_001, "e")],  # 1 is 10 s after the first, 2 more
    ),
    {"out": [message(1, 0, "a"), message(2, 0, "c"), message(2, 10_001, "e")]},
)
def only_the_first_of_equal_records_passes(io: Ends) -> Pipeline[Any]:
    return (
        Pipeline("p")
        .source(io.source("in"), name="in")
        .event_time("at")
        .deduplicate("id", within="10s")
        .to(io.sink("out"))
    )


@BOOK.case(
    batches_of(
        [message(1, 10_000, "a")],
        [message(1, 8_000, "b"), message(2, 8_000, "c"), message(3, 7_999, "d")],
    ),
    {
        "out": [message(1, 10_000, "a"), message(2, 8_000, "c")],
        "late": [late(message(3, 7_999, "d"), 2_001, "once")],
    },
)
def what_is_later_than_the_grace_cannot_be_told_apart(io: Ends) -> Pipeline[Any]:
    return (
        Pipeline("p")
        .source(io.source("in"), name="in")
        .event_time("at")
        .deduplicate("id", within="5s", grace="2s", name="once")
        .late(io.sink("late"))
        .to(io.sink("out"))
    )


@BOOK.case(
    one({"a": 1, "b": 1, "at": 0}, {"a": 1, "b": 2, "at": 0}, {"a": 1, "b": 2, "at": 0}),
    {"out": [{"a": 1, "b": 1, "at": 0}, {"a": 1, "b": 2, "at": 0}]},
)
def records_are_equal_in_all_of_the_fields(io: Ends) -> Pipeline[Any]:
    return (
        Pipeline("p")
        .source(io.source("in"), name="in")
        .event_time("at")
        .deduplicate("a", "b", within="5s")
        .to(io.sink("out"))
    )
