"""Whole plans without Python: all of a plan with one sink is a query; with several, the steps that follow the
one with state are done by batch, for each sink.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, replace
from typing import Any

from pyspark.errors import utils
from pyspark.sql import DataFrame
from pyspark.sql import functions as f

from queenstream.core.records import short
from queenstream.core.schemas import Schema
from queenstream.engines.spark.compile import clock_groups
from queenstream.engines.spark.native import join, windows
from queenstream.engines.spark.native.aggregates import SEQ, TIME
from queenstream.engines.spark.native.expressions import RECORD, NotNative
from queenstream.engines.spark.native.failures import MISFIT, FailureReader, Failures, count_name, kept_by
from queenstream.engines.spark.native.frames import Clock, Frame, IdleClock
from queenstream.engines.spark.native.pruning import needed
from queenstream.engines.spark.native.replays import Replays
from queenstream.engines.spark.native.stage import StageColumns
from queenstream.engines.spark.native.steps import (
    Load,
    always_fits,
    check_readable,
    event_time,
    is_in_pieces,
    read,
    through,
)
from queenstream.engines.spark.progress.metrics import Observed
from queenstream.engines.spark.sinks.delivery import Outputs, SinkBatch, is_ordered
from queenstream.engines.spark.sinks.frames import FrameOutput
from queenstream.engines.spark.sinks.stage import StageOptions
from queenstream.engines.spark.sources.sources import marks_end
from queenstream.engines.spark.tasks.graph import clocks_of
from queenstream.engines.spark.watermarks.idle import counted
from queenstream.errors import StepFailed
from queenstream.pipeline.plan import nodes
from queenstream.pipeline.plan.nodes import Node
from queenstream.pipeline.plan.planner import Plan
from queenstream.runtime.failures import told as told_of

_SWITCH = "_enable_debugging_cache"


class Native:
    """A plan without Python. ``load`` gives the rows of a source, in the columns of ``source_columns``.

    ``watermarks``: what raises the watermarks of idle sources, if there may be some. ``NotNative``, if the
    plan needs Python.
    """

    def __init__(self, plan: Plan, load: Load, watermarks: DataFrame | None = None) -> None:
        self._plan = plan
        self._load = load
        self._watermarks = watermarks
        self._loaded: dict[nodes.Read, DataFrame] = {}
        self._failures = Failures(plan)
        self._replays = Replays(plan, self._letters_of)
        self._with_state = _with_state(plan)
        self._last, self._frame = self._straight() if self._with_state is None else self._kept()
        outputs = self._branches(self._frame.rows)
        self._schemas = {name: schema for name, (_, schema) in outputs.items()}
        self._alone = self._plan.sinks[0].name if len(self._plan.sinks) == 1 else None
        # To make a step's columns takes longer than to run them on a few rows: done here, it is done once.
        self._rows = self._frame.rows if self._alone is None else outputs[self._alone][0]

    @property
    def rows(self) -> DataFrame:
        """The query."""
        return self._rows

    @property
    def columns(self) -> dict[str, Schema]:
        """By sink, the fields of its rows, where these are all that Spark computes for it."""
        return {} if self._frame.fails else self._schemas

    @property
    def with_state(self) -> Node | None:
        """The step that has state; None: no step has."""
        return self._with_state

    @property
    def output_mode(self) -> str:
        """Whether a row of the query takes the place of one before it."""
        node = self._with_state
        return "update" if isinstance(node, nodes.Aggregation) and node.emit == "update" else "append"

    @property
    def observed(self) -> Observed:
        """What Spark counts."""
        reads = self._plan.sources
        names: dict[str, tuple[str, tuple[str, ...]]] = {
            count_name("failed", node.name): (node.name, ("failed", "taken"))
            for node in self._plan.nodes
            if isinstance(node, nodes.EventTime)
        }
        names |= {
            count_name("failed", each.name): (
                each.name,
                ("failed", "taken") if self._is_counted_with_failures(each) else ("failed",),
            )
            for each in reads
        }
        names |= {
            count_name("failed", node.name, again=True): (node.name, ("failed", "taken"))
            for node in self._plan.nodes
            if len(reads) > len(self._plan.inputs) and isinstance(node, nodes.EventTime)
        }
        names |= {
            count_name("taken", each.name): (each.name, ("taken",))
            for each in reads
            if each in self._plan.inputs
            and self._is_observed(each)
            and not self._is_counted_with_failures(each)
        }
        late_at = None if self._with_state is None else self._with_state.name
        all_of = None if self._is_observed(reads[0]) else reads[0].name
        return Observed(names, late_at, all_of, self.clock, self._first, self._replays.counted)

    @property
    def _fallible(self) -> list[Node]:
        """The steps that a record can fail at: all others give null where Python would raise."""
        return [each for each in self._plan.nodes if isinstance(each, nodes.Read | nodes.EventTime)]

    def _first(self, row: Any) -> str | None:
        """What was wrong with the first record that a step of the batch has skipped."""
        found = row.asDict().get("first")
        if found is None:
            return None
        misfit = found[MISFIT]  # in the progress of a query, bytes are base64
        data = base64.b64decode(misfit) if isinstance(misfit, str) else misfit
        failed = self._failures.reader.failed(found["step"], data, found["input"])
        return f"{short(failed.record)}: {told_of(failed.error)}"

    def failure(self, messages: Iterable[str]) -> StepFailed | None:
        """The failure of a step by which a batch ended, if it was that."""
        return self._failures.ended(messages)

    @property
    def order(self) -> list[nodes.Read]:
        """The sources as they stand in the query, and so in Spark's progress."""
        return [*self._loaded]

    @property
    def clock(self) -> Clock | None:
        """What Spark's watermark is of; None: it has none."""
        return clock_of(self._plan)

    @property
    def _is_counted(self) -> bool:
        """Whether each source is counted by itself: Spark tells of all that was read, also what was twice."""
        return len(self._plan.sources) > 1 or (self._with_state is not None and self._keeps)

    def _is_observed(self, read: nodes.Read) -> bool:
        """Whether a query counts the records of a source: its rows are not all records, or not once."""
        rows = self._loaded.get(read)
        if marks_end(read.source) and rows is not None and always_fits(rows):
            return self._is_counted
        return self._is_counted or marks_end(read.source) or is_in_pieces(read, rows)

    def _is_counted_with_failures(self, read: nodes.Read) -> bool:
        """Whether one count of a query has the records of a source, and those that did not fit."""
        rows = self._loaded.get(read)
        fits = rows is not None and always_fits(rows)
        return read in self._plan.inputs and marks_end(read.source) and not fits

    @property
    def _keeps(self) -> bool:
        return any(kept_by(each) for each in self._fallible)

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

    @property
    def has_state(self) -> bool:
        """Whether Spark remembers something between batches."""
        return self._with_state is not None

    @contextmanager
    def outputs(self, rows: DataFrame, options: StageOptions, batch: SinkBatch) -> Iterator[Outputs]:
        """The rows of a batch for each sink, with what stages them."""
        failures = self._failures.reader if self._frame.fails else None
        if self._alone is not None:
            yield [self._output(self._plan.sinks[0], rows, options, batch, failures)]
            return
        kept = rows.persist()  # each sink reads them
        try:
            found, branches = [], self._branches(kept)
            for write in self._plan.sinks:
                branch, _ = branches[write.name]
                found.append(self._output(write, branch, options, batch, failures))
                failures = None  # all branches have them: once is enough
            yield found
        finally:
            kept.unpersist()

    def _output(
        self,
        write: nodes.Write,
        rows: DataFrame,
        options: StageOptions,
        batch: SinkBatch,
        failures: FailureReader | None,
    ) -> tuple[DataFrame, StageColumns | FrameOutput]:
        schema = self._schemas[write.name]
        frame = None if self._frame.fails else batch.frame_stage(write.name, schema)
        if frame is not None:
            return rows.select(f"{RECORD}.*"), FrameOutput(write.name, frame, samples=options.samples)
        columns = batch.column_stage(write.name, schema, lambda: rows.select(f"{RECORD}.*").schema)
        records = None if columns is not None or is_ordered(write.sink) else batch.record_stage(write.name)
        if self._with_state is not None:  # whose rows come in any order
            in_order = (f.col(TIME).asc_nulls_last(), f.col(SEQ))
            order = () if columns is None else columns.order
            if order == ():
                columns = None  # one task is to write all rows
                if is_ordered(write.sink):
                    rows = rows.sortWithinPartitions(*in_order)
            elif order is not None:
                keys = [f.col(RECORD).getField(name) for name in order]
                rows = rows.repartition(*keys).sortWithinPartitions(*in_order)
        return rows, StageColumns(options, write.name, schema, failures, columns, batch.number, records)

    def _straight(self) -> tuple[Node, Frame]:
        """Without state: from the source to where branches part, or to the sink."""
        if len(self._plan.inputs) > 1:
            raise NotNative("several sources")
        [node] = self._plan.inputs
        last: Node = node
        frame = read(node, self._failures, self._rows_of(node), counted=self._is_counted)
        while len(after := self._plan.consumers(last)) == 1 and not isinstance(after[0], nodes.Write):
            [last] = after
            self._replays.see(last, frame.schema, frame.keys)
            frame = through(last, frame)
        again = self._failures.of_replays()
        came_back = self._replays.after(last, again)
        others = [] if came_back is None else [came_back]
        return last, frame.together([*others, *self._replays.others(frame.schema, again)])

    def _kept(self) -> tuple[Node, Frame]:
        """With state: all that leads to that step, and the step."""
        node = self._with_state
        assert node is not None
        clock_of, make = _STATE[type(node)]
        clock, clocks, taken = clock_of(node), clocks_of(self._plan), set[Node]()

        def before(step: Node, failures: Failures) -> Frame:
            if len(self._plan.consumers(step)) > 1:
                raise NotNative("another branch needs what comes before it")
            if isinstance(step, nodes.Read):
                taken.add(step)
                is_main = failures.part == "main"
                own = self._own_clock(step, clock) if step in clocks and is_main else None
                counted = self._is_counted and is_main
                return read(step, failures, self._rows_of(step), counted=counted, clock=own)
            if len(step.inputs) > 1:
                raise NotNative("branches that come together")
            coming = before(step.inputs[0], failures)
            self._replays.see(step, coming.schema, coming.keys)
            if step not in clocks or failures.part != "main":
                return through(step, coming)
            if isinstance(step, nodes.EventTime):
                return event_time(step, coming, self._own_clock(step, clock))
            return through(step, coming).watch(self._own_clock(step, clock))

        def came_back(step: Node, failures: Failures) -> list[Frame]:
            found = self._replays.after(step, failures.of_replays())
            return [] if found is None else [found]

        main, aside = self._failures.of_part("main"), self._failures.of_part("aside")
        frames = [before(each, main) for each in node.inputs]
        if taken != set(self._plan.inputs) or not all(frame.watched for frame in frames):
            raise NotNative("a part that has nothing to do with it, or no time")
        frames = [
            frame.together(came_back(each, main), clock)
            for each, frame in zip(node.inputs, frames, strict=True)
        ]
        made = make(node, *frames)
        if self._keeps:
            others = [before(each, aside) for each in node.inputs]
            others += [frame for each in node.inputs for frame in came_back(each, aside)]
            made = made.beside([*others, *self._replays.others(made.schema, self._failures.of_replays())])
        return node, made

    def _own_clock(self, step: Node, clock: Clock) -> Clock:
        """The clock of a step that sets the time, which others may not wait for."""
        if self._watermarks is None:
            return clock
        reads = clocks_of(self._plan)[step]
        [group] = [at for at, group in enumerate(clock_groups(self._plan)) if reads & set(group)]
        return IdleClock(**asdict(clock), group=group, watermarks=self._watermarks)

    def _letters_of(self, node: nodes.Replay) -> DataFrame:
        """The rows of the letters that come back."""
        if node not in self._loaded:
            self._loaded[node] = self._load(node, None)
        return self._loaded[node]

    def _rows_of(self, node: nodes.Read) -> DataFrame:
        """The rows of a source. The same ones for all who ask: to Spark it is one source then."""
        if node not in self._loaded:
            check_readable(node)
            rows = self._load(node, needed(self._plan, node))
            self._loaded[node] = rows if self._watermarks is None else counted(rows, node)
        return self._loaded[node]


def native(plan: Plan, load: Load, watermarks: DataFrame | None = None) -> Native | None:
    """The plan without Python; None if it needs some."""
    found = native_or_reason(plan, load, watermarks)
    return found if isinstance(found, Native) else None


def native_or_reason(plan: Plan, load: Load, watermarks: DataFrame | None = None) -> Native | str:
    """The plan without Python, or what of it needs Python, with the line if that is a step."""
    try:
        with unwatched():
            return Native(plan, load, watermarks)
    except NotNative as error:
        why = str(error)
        steps = [node for node in plan.nodes if why.startswith(f"{node.name} ")]
        return f"{steps[0].name} ({steps[0].where})" if steps else why


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
    nodes.Aggregation: (windows.clock, windows.aggregate),
    nodes.Join: (join.clock, join.join),
}
