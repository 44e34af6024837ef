"""The rows between the stages of a query: one shape for all records, wherever in the plan they are going.

PySpark takes a row apart value by value, and makes an Arrow batch for each key. That costs more than most
steps do, so rows are few, and have few columns. ``data`` is one of these:

- For a step with state (``node``): records of one key (``grp``) that came out of a piece of work.
- For steps with state behind the next stage: rows for such steps. ``node`` tells the depth of their stage.
- For the sinks and the driver: outputs of one piece of work, under no ``node``.

Rows of the last two kinds pass through the stages that they are not for. All output of a stage is input of
the next one, because a branch of a streaming query would compute everything before it once more, and tasks
cannot stage rows before the driver has begun the batch. So these rows are spread over groups by number,
several for each shuffle partition, and a stage passes them on without looking into them.

Spark's watermark is that of the column ``clock``: event time, moved by some two thousand years, because
Spark's begins at 1970 and never runs backwards. Only rows that show how far time has come have one.
"""

from __future__ import annotations

import pickle
import zlib
from collections.abc import Iterable, Iterator
from operator import itemgetter
from typing import Any, TypeAlias

import pyarrow as pa

from queenstream.core.records import EARLIEST
from queenstream.engines.spark.keyed.base import FOREVER
from queenstream.engines.spark.tasks.failures import Troubles
from queenstream.engines.spark.tasks.graph import Graph
from queenstream.engines.spark.tasks.records import Item, Placed, bundled, packed, unbundled
from queenstream.engines.spark.tasks.steps import Passage
from queenstream.runtime.encoding import encode_row

ROW = "node STRING, grp STRING, data BINARY"
NAMES = ("node", "grp", "data")
CLOCKED = f"{ROW}, clock LONG"
LAST_ROW = "data BINARY"
"""Of the last stage: all of its rows are outputs, and each column costs, for each key."""

_DATA = NAMES.index("data")

OUTPUTS = ""
"""The ``node`` of rows for the sinks and the driver."""

RECORD, LETTER, COUNTS, FAILED = range(4)
"""What an output is: a record for a sink, a dead letter of a step, counts, or the error that ends the run."""

_ARROW = pa.schema(
    [("node", pa.string()), ("grp", pa.string()), ("data", pa.binary()), ("clock", pa.int64())]
)
Place: TypeAlias = tuple[bool, int, int, int]
Values: TypeAlias = tuple[str, str, bytes]
Output: TypeAlias = tuple[str, int, Place, bytes]
"""The sink or the step, what it is, its place in the batch, and its bytes: of records and letters as
``encode_row`` makes them, of the others packed."""

SHIFT_US = -EARLIEST + 86_400_000_000 * 365  # the first year is 1971 to Spark
_FOREVER_US = 1 << 62
_MOST = 1_000  # records in a row
_NOWHERE: Place = (True, 0, 0, 0)


class Packer:
    """Makes rows of what comes of work at a depth of the plan. ``groups``: of rows that pass stages by."""

    def __init__(self, graph: Graph, depth: int, groups: int) -> None:
        self._graph = graph
        self._depth = depth
        self._groups = groups

    def pack(self, passage: Passage, troubles: Troubles, start: int) -> Iterator[Values]:
        """The rows of a piece of work, without a clock; what went wrong is told, and forgotten.

        ``start``: the number of the first group. A repeated task must find the same.
        """
        outputs: list[Output] = []
        bundles: dict[tuple[str, int, str], list[Placed]] = {}
        for sub, (to, port, group, item) in enumerate(passage.routed):
            if self._graph[to].has_state:
                bundles.setdefault((to, port, group), []).append((item, sub))
            else:
                place = (not item.due, (item.time or 0) if item.due else 0, item.seq, sub)
                outputs.append((to, RECORD, place, encode_row(item.record)))
        later: dict[int, list[Values]] = {}
        for (to, port, group), items in bundles.items():
            depth = self._graph[to].depth
            for first in range(0, len(items), _MOST):
                row = (to, group, bundled(port, items[first : first + _MOST]))
                if depth == self._depth + 1:
                    yield row
                else:
                    later.setdefault(depth, []).append(row)
        for depth, rows in later.items():
            yield from self._passing(_behind(depth), rows, start)
        outputs += [
            (step, LETTER, (True, 0, 0, sub), encode_row(letter))
            for sub, (step, letter) in enumerate(troubles.letters)
        ]
        if troubles.counts:
            outputs.append(("", COUNTS, _NOWHERE, packed(troubles.counts, troubles.examples)))
        troubles.letters, troubles.counts, troubles.examples = [], {}, {}
        yield from self._passing(OUTPUTS, outputs, start)

    def _passing(self, node: str, parts: list[Any], start: int) -> Iterator[Values]:
        for number, first in enumerate(range(0, len(parts), _MOST)):
            data = pickle.dumps(parts[first : first + _MOST], pickle.HIGHEST_PROTOCOL)
            yield (node, str((start + number) % self._groups), data)


def _behind(depth: int) -> str:
    """The ``node`` of rows for the steps of a stage that is not the next one; no step has such a name."""
    return f"\n{depth}"


def group_number(text: str) -> int:
    """A number for a key, the same in every process."""
    return zlib.crc32(text.encode())


def failure(message: str) -> Values:
    """The row that ends the pipeline."""
    return (OUTPUTS, "0", pickle.dumps([("", FAILED, _NOWHERE, packed(message, None))]))


def outputs_of(data: bytes) -> list[Output]:
    """The outputs in a row."""
    found: list[Output] = pickle.loads(data)  # noqa: S301 - of this query's own making
    return found


def rows_for(depth: int, node: str, rows: Iterable[Any]) -> Iterator[Any]:
    """What a stage gives of rows that pass it by: opened, if they are for the stage behind it."""
    for row in rows:
        if node == _behind(depth + 1):
            yield from pickle.loads(row[_DATA])  # noqa: S301 - of this query's own making
        else:
            yield tuple(row)


def with_clock(rows: list[Values], highest: int | None) -> pa.RecordBatch:
    """Rows as Arrow, and one more that shows how far time has come."""
    columns: list[list[Any]] = [list(column) for column in zip(*rows, strict=True)] or [[] for _ in NAMES]
    columns.append([None] * len(rows))
    if highest is not None:
        for column, value in zip(columns, ("", "", b"", to_clock(highest)), strict=True):
            column.append(value)
    return pa.RecordBatch.from_arrays(
        [pa.array(column, field.type) for column, field in zip(columns, _ARROW, strict=True)], schema=_ARROW
    )


def placed(rows: Iterable[Any]) -> list[tuple[int, Item]]:
    """The items of a key's rows, each with the input that it is for: in order, what time brought first."""
    found: list[tuple[tuple[int, bool, int, int, int], Item]] = []
    for row in rows:
        port, items = unbundled(row[_DATA])  # by position: a row's names are slow to look up
        for item, sub in items:
            found.append(((port, not item.due, item.time or 0 if item.due else 0, item.seq, sub), item))
    if len(found) > 1:
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
