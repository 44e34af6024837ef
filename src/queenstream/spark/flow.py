"""The rows between the stages of a query: one shape for all records, wherever in the plan they are going.

A row goes to a step (``node``, and which of its inputs: ``port``), under its key there (``grp``). ``port``
below zero is for the driver: a dead letter, a count, or the end. A row for a sink is a record; ``seq`` and
``sub`` are its place in the batch. A row for a step with state is a bundle: the records of one key that came
out of a piece of work, each with its own place. For Spark takes a row apart value by value, in Python, and
that costs more than most steps do.

Spark's watermark is that of the column ``clock``: event time, moved by some two thousand years, because
Spark's begins at 1970 and never runs backwards. Only rows that show how far time has come have one.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from operator import itemgetter
from typing import Any, TypeAlias

import pyarrow as pa

from queenstream.pipeline.records import EARLIEST
from queenstream.spark.failures import Troubles
from queenstream.spark.graph import Graph
from queenstream.spark.keyed.base import FOREVER
from queenstream.spark.records import Item, Placed, bundled, packed, packed_by_task, unbundled
from queenstream.spark.steps import Passage

ROW = "node STRING, port INT, grp STRING, seq LONG, sub INT, time LONG, due BOOLEAN, record BINARY"
NAMES = ("node", "port", "grp", "seq", "sub", "time", "due", "record")
_PORT, _RECORD = NAMES.index("port"), NAMES.index("record")
CLOCKED = f"{ROW}, clock LONG"

PLACE = ("not due", "if(due, coalesce(time, 0), 0)", "seq", "sub")
"""By which the rows for the sinks are in order."""

LETTER, COUNTS, FAILED, CLOCK = -1, -2, -3, -4

_ARROW = pa.schema(
    [
        ("node", pa.string()),
        ("port", pa.int32()),
        ("grp", pa.string()),
        ("seq", pa.int64()),
        ("sub", pa.int32()),
        ("time", pa.int64()),
        ("due", pa.bool_()),
        ("record", pa.binary()),
        ("clock", pa.int64()),
    ]
)
Place: TypeAlias = tuple[int, bool, int, int, int]
SHIFT_US = -EARLIEST + 86_400_000_000 * 365  # the first year is 1971 to Spark
_FOREVER_US = 1 << 62
_BUCKETS = 8  # how many groups the rows for one sink are spread over
_MOST = 1_000  # records in a bundle


def values_of(passage: Passage, troubles: Troubles, graph: Graph) -> Iterator[tuple[Any, ...]]:
    """The rows of a piece of work, without a clock; what went wrong is told, and forgotten."""
    bundles: dict[tuple[str, int, str], list[Placed]] = {}
    for sub, (to, port, group, item) in enumerate(passage.routed):
        if graph[to].has_state:
            bundles.setdefault((to, port, group), []).append((item, sub))
        else:
            record = packed_by_task(item.record, item.key)
            yield (to, port, str(item.seq % _BUCKETS), item.seq, sub, item.time, item.due, record)
    for (to, port, group), items in bundles.items():
        for first in range(0, len(items), _MOST):
            yield (to, port, group, 0, 0, None, False, bundled(items[first : first + _MOST]))
    for sub, (step, letter) in enumerate(troubles.letters):
        yield (step, LETTER, "", 0, sub, None, False, packed(letter, None))
    if troubles.counts:
        yield ("", COUNTS, "", 0, 0, None, False, packed(troubles.counts, troubles.examples))
    troubles.letters, troubles.counts, troubles.examples = [], {}, {}


def failure(message: str) -> tuple[Any, ...]:
    """The row that ends the pipeline."""
    return ("", FAILED, "", 0, 0, None, False, packed(message, None))


def with_clock(rows: list[tuple[Any, ...]], highest: int | None) -> pa.RecordBatch:
    """Rows as Arrow, and one more that shows how far time has come."""
    columns: list[list[Any]] = [list(column) for column in zip(*rows, strict=True)] or [[] for _ in NAMES]
    columns.append([None] * len(rows))
    if highest is not None:
        last = ("", CLOCK, "", 0, 0, None, False, b"", to_clock(highest))
        for column, value in zip(columns, last, strict=True):
            column.append(value)
    return pa.RecordBatch.from_arrays(
        [pa.array(column, field.type) for column, field in zip(columns, _ARROW, strict=True)], schema=_ARROW
    )


def placed(rows: Iterable[Any]) -> list[tuple[int, Item]]:
    """The items of a key's rows, each with the input that it is for: in order, what time brought first."""
    found: list[tuple[Place, Item]] = []
    for row in rows:
        port, data = row[_PORT], row[_RECORD]  # by position: a row's names are slow to look up
        for item, sub in unbundled(data):
            place = (port, not item.due, item.time or 0 if item.due else 0, item.seq, sub)
            found.append((place, item))
    found.sort(key=itemgetter(0))
    return [(place[0], item) for place, item in found]


def to_clock(time: int) -> int:
    """Event time as Spark's watermark has it, in µs."""
    return _FOREVER_US if time == FOREVER else time + SHIFT_US


def from_watermark(ms: int) -> int | None:
    """Spark's watermark as event time in µs; None: there is none yet."""
    if ms <= 0:
        return None
    return FOREVER if ms >= _FOREVER_US // 1_000 else ms * 1_000 - SHIFT_US


def to_timer(time: int) -> int:
    """The first watermark, in ms, that is at a time or past it."""
    return -(-(time + SHIFT_US) // 1_000)
