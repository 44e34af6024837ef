"""Whole plans without Python: all of a plan with one sink is a query; with several, the steps that follow the
one with state are done by batch, for each sink.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from pyspark.errors import utils
from pyspark.sql import DataFrame

from queenstream.pipeline import nodes
from queenstream.pipeline.endpoints import Queue
from queenstream.pipeline.nodes import Node
from queenstream.pipeline.planning import Plan
from queenstream.schemas import Schema
from queenstream.spark.expressions import NotNative
from queenstream.spark.graph import clocks_of
from queenstream.spark.metrics import Observed
from queenstream.spark.native import joining, windowed
from queenstream.spark.native.frames import Clock, Frame, count_name
from queenstream.spark.native.steps import Load, read, through
from queenstream.spark.native.writing import (
    few_of,
    records_of,
    without_partition,
    write_directly,
    writes_directly,
)
from queenstream.spark.sinks import Told
from queenstream.spark.sources import is_fed

# Rows of closed windows that the driver writes: to start the tasks of a write takes longer than they do. The
# same batch has as many rows when it runs again, so it goes the same way.
_FEW = 10_000
_SWITCH = "_enable_debugging_cache"


class Native:
    """A plan without Python. ``load`` gives the rows of a source, in the columns of ``source_columns``.

    ``NotNative``, if it needs Python.
    """

    def __init__(self, plan: Plan, load: Load) -> None:
        self._plan = plan
        self._load = load
        self._with_state = _with_state(plan)
        self._last, self._frame = self._straight() if self._with_state is None else self._kept()
        self._outputs = self._branches(self._frame.rows)
        self._alone = self._plan.sinks[0].name if len(self._plan.sinks) == 1 else None

    @property
    def rows(self) -> DataFrame:
        """The query."""
        # To make a step's columns takes longer than to run them on a few rows: done here, it is done once.
        return self._frame.rows if self._alone is None else self._outputs[self._alone][0]

    @property
    def output_mode(self) -> str:
        """Whether a row of the query takes the place of one before it."""
        node = self._with_state
        return "update" if isinstance(node, nodes.Aggregation) and node.emit == "update" else "append"

    @property
    def observed(self) -> Observed:
        """What Spark counts."""
        reads = self._plan.sources
        told = [("failed", node.name) for node in self._plan.nodes if isinstance(node, nodes.EventTime)]
        told += [("failed", each.name) for each in reads]
        told += [("taken", each.name) for each in reads if is_fed(each.source) or self._is_counted]
        names = {count_name(what, step): (step, what) for what, step in told}
        late_at = None if self._with_state is None else self._with_state.name
        all_of = None if self._is_counted or is_fed(reads[0].source) else reads[0].name
        return Observed(names, late_at, all_of, self.clock)

    @property
    def clock(self) -> Clock | None:
        """What Spark's watermark is of; None: it has none."""
        return clock_of(self._plan)

    @property
    def _is_counted(self) -> bool:
        """Whether each source is counted by itself: Spark tells of all that came from any."""
        return len(self._plan.sources) > 1

    def _branches(self, batch: DataFrame) -> dict[str, tuple[DataFrame, Schema]]:
        """What each sink gets of rows of the frame: records with their order, and their fields."""
        found: dict[str, tuple[DataFrame, Schema]] = {}
        pending: list[tuple[Node, Frame]] = [(self._last, replace(self._frame, rows=batch))]
        while pending:
            node, frame = pending.pop()
            for each in self._plan.consumers(node):
                if isinstance(each, nodes.Write):
                    found[each.name] = (frame.placed(), frame.schema)
                elif each.keeps_state or isinstance(each, nodes.EventTime):
                    raise NotNative("another branch needs what comes before it")
                else:
                    pending.append((each, through(each, frame)))
        return found

    def told(self, batch: DataFrame, batch_id: int, generation: str, state_rows: int | None) -> Told:
        """Let tasks write what they can of a batch; the rest of it is for the driver to write.

        ``state_rows``: how many the state had before the batch, if that is known.
        """
        told = Told()
        # A window that closes was in the state; one that changes may be new.
        few = state_rows is not None and state_rows <= _FEW and self.output_mode == "append"
        if self._alone is None:
            outputs = self._branches(batch.persist())
        else:
            outputs = {self._alone: (batch, self._outputs[self._alone][1])}
        for write in self._plan.sinks:
            rows, schema = outputs[write.name]
            if writes_directly(write, schema):
                told.outbox[write.name] = self._pushed(
                    write, rows, schema, f"{generation} {write.name}", batch_id, few
                )
            else:
                told.outbox[write.name] = records_of(rows, schema)
        if self._alone is None:
            batch.unpersist()
        return told

    def _pushed(
        self, write: nodes.Write, rows: DataFrame, schema: Schema, name: str, batch_id: int, surely_few: bool
    ) -> list[Any]:
        """Let tasks push rows into a queue; left to the driver: a few rows, or what they cannot push."""
        assert isinstance(write.sink, Queue)
        if isinstance(self._with_state, nodes.Aggregation):
            few = few_of(rows, schema, _FEW, surely=surely_few)
            if few is not None:
                return few
        write_directly(rows, write.sink, name, batch_id)
        by = write.sink.partition_by
        return [] if by is None else records_of(without_partition(rows, by), schema)

    def _straight(self) -> tuple[Node, Frame]:
        """Without state: from the source to where branches part, or to the sink."""
        if len(self._plan.sources) > 1:
            raise NotNative("several sources")
        [node] = self._plan.sources
        last: Node = node
        frame = read(node, self._plan, self._load)
        while len(after := self._plan.consumers(last)) == 1 and not isinstance(after[0], nodes.Write):
            [last] = after
            frame = through(last, frame)
        return last, frame

    def _kept(self) -> tuple[Node, Frame]:
        """With state: all that leads to that step, and the step."""
        node = self._with_state
        assert node is not None
        clock_of, make = _STATE[type(node)]
        clock, clocks, taken = clock_of(node), clocks_of(self._plan), set[Node]()

        def before(step: Node) -> Frame:
            if len(self._plan.consumers(step)) > 1:
                raise NotNative("another branch needs what comes before it")
            if isinstance(step, nodes.Read):
                taken.add(step)
                own = clock if step in clocks else None
                return read(step, self._plan, self._load, counted=self._is_counted, clock=own)
            if len(step.inputs) > 1:
                raise NotNative("branches that come together")
            frame = through(step, before(step.inputs[0]))
            return frame.watch(clock) if step in clocks else frame

        frames = [before(each) for each in node.inputs]
        if taken != set(self._plan.sources) or not all(frame.watched for frame in frames):
            raise NotNative("a part that has nothing to do with it, or no time")
        return node, make(node, *frames)


def native(plan: Plan, load: Load) -> Native | None:
    """The plan without Python; None if it needs some."""
    try:
        with unwatched():
            return Native(plan, load)
    except NotNative:
        return None


@contextmanager
def unwatched() -> Iterator[None]:
    """Without a record of which line of Python made which column: that is most of what making one costs.

    Nobody loses by it, for these columns are not the user's. A PySpark without such a switch is only slower.
    """
    before = getattr(utils, _SWITCH, None)
    setattr(utils, _SWITCH, False)
    try:
        yield
    finally:
        setattr(utils, _SWITCH, before)


def clock_of(plan: Plan) -> Clock | None:
    """What Spark's watermark is of in a plan without Python; None: it has none."""
    node = _with_state(plan)
    return None if node is None else _STATE[type(node)][0](node)


def _with_state(plan: Plan) -> Node | None:
    """The one step that keeps state, if there is one and Spark has its like."""
    found = [node for node in plan.nodes if node.keeps_state]
    if len(found) > 1 or not all(type(node) in _STATE for node in found):
        raise NotNative("several steps with state, or one that Spark has not")
    return found[0] if found else None


_STATE: dict[type[Node], tuple[Callable[[Any], Clock], Callable[..., Frame]]] = {
    nodes.Aggregation: (windowed.clock, windowed.aggregate),
    nodes.Join: (joining.clock, joining.join),
}
