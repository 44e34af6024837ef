"""Records on their way between stages: brought together by key, and in order again behind a shuffle."""

from __future__ import annotations

import dataclasses
import random
from itertools import groupby
from operator import itemgetter
from typing import Any

from queenstream.engines.spark.tasks import rows as flow
from queenstream.engines.spark.tasks.failures import Troubles
from queenstream.engines.spark.tasks.graph import graph_of
from queenstream.engines.spark.tasks.records import Item
from queenstream.engines.spark.tasks.steps import Passage, Routed
from queenstream.pipeline.builder import Pipeline
from queenstream.pipeline.endpoints import Queue

PLAN = (
    Pipeline("p")
    .source(Queue("in"))
    .key_by("user")
    .stateful(lambda key, record, state: record, name="count")
    .to(Queue("out"), name="out")
    .plan()
)


GROUPS = 32
PACKER = flow.Packer(graph_of(PLAN), 0, GROUPS)


def rows_of(*routed: Routed) -> list[tuple[Any, ...]]:
    return list(PACKER.pack(Passage(list(routed)), Troubles("p"), 0))


def test_the_records_of_a_key_are_one_row() -> None:
    items = [Item({"n": n}, n, f"user {n % 2}", n) for n in range(6)]
    rows = rows_of(*(Routed("count", 0, item.key, item) for item in items))
    assert [row[1] for row in rows] == ["user 0", "user 1"]
    assert [item for _, item in flow.placed(rows[:1])] == items[::2]


def test_records_for_sinks_share_rows_that_are_spread_over_groups() -> None:
    rows = rows_of(*(Routed("out", 0, "", Item({"n": n}, n, None, n)) for n in range(5_000)))
    assert [row[0] for row in rows] == [flow.OUTPUTS] * 5
    assert len({row[1] for row in rows}) == 5
    outputs = [output for row in rows for output in flow.outputs_of(row[2])]
    assert [(name, kind, place[2]) for name, kind, place, _ in outputs] == [
        ("out", flow.RECORD, n) for n in range(5_000)
    ]


def test_rows_for_later_stages_pass_the_one_between() -> None:
    """As bundles that are not opened, but for the stage right behind it."""
    items = [Item({"n": n}, n, f"user {n}", n) for n in range(10)]
    graph = graph_of(PLAN)
    later = {name: dataclasses.replace(step, depth=3 * step.has_state) for name, step in graph.items()}
    routed = [Routed("count", 0, item.key, item) for item in items]
    [row] = flow.Packer(later, 0, GROUPS).pack(Passage(routed), Troubles("p"), 0)
    assert list(flow.rows_for(1, row[0], [row])) == [row]
    opened = list(flow.rows_for(2, row[0], [row]))
    assert opened == rows_of(*routed)


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
