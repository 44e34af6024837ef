"""Records on their way between stages: brought together by key, and in order again behind a shuffle."""

from __future__ import annotations

import random
from itertools import groupby
from operator import itemgetter
from typing import Any

from queenstream.pipeline.builder import Pipeline
from queenstream.pipeline.endpoints import Queue
from queenstream.spark import flow
from queenstream.spark.failures import Troubles
from queenstream.spark.graph import graph_of
from queenstream.spark.records import Item
from queenstream.spark.steps import Passage, Routed

PLAN = (
    Pipeline("p")
    .source(Queue("in"))
    .key_by("user")
    .stateful(lambda key, record, state: record, name="count")
    .to(Queue("out"), name="out")
    .plan()
)


def rows_of(*routed: Routed) -> list[tuple[Any, ...]]:
    return list(flow.values_of(Passage(list(routed)), Troubles("p"), graph_of(PLAN)))


def test_the_records_of_a_key_are_one_row() -> None:
    items = [Item({"n": n}, n, f"user {n % 2}", n) for n in range(6)]
    rows = rows_of(*(Routed("count", 0, item.key, item) for item in items))
    assert [row[2] for row in rows] == ["user 0", "user 1"]
    assert [item for _, item in flow.placed(rows[:1])] == items[::2]


def test_a_row_for_a_sink_is_a_record() -> None:
    assert len(rows_of(*(Routed("out", 0, "", Item({"n": n}, n, None, n)) for n in range(6)))) == 6


def test_however_many_they_are_they_come_in_order() -> None:
    """In rows of a size that Spark can take, which may come in any order, and those of time first."""
    late = [Item({"n": -n}, 100 - n, "a", n, due=True) for n in range(3)]
    items = [Item({"n": n}, n, "a", n) for n in range(5_000)]
    pieces = [rows_of(*(Routed("count", 0, "a", item) for item in each)) for each in (items, late)]
    rows = [row for piece in pieces for row in piece]
    assert len(rows) == 6
    random.Random(7).shuffle(rows)
    assert [item for _, item in flow.placed(rows)] == [*reversed(late), *items]


def test_inputs_stay_apart() -> None:
    items = [Item({"n": n}, n, "a", n) for n in range(6)]
    rows = rows_of(*(Routed("count", item.seq % 2, "a", item) for item in items))
    found = {
        port: [item.seq for _, item in each] for port, each in groupby(flow.placed(rows), key=itemgetter(0))
    }
    assert found == {0: [0, 2, 4], 1: [1, 3, 5]}
