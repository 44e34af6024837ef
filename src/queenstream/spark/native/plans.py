"""Whole plans without Python: all of a plan with one sink is a query; with several, the steps that follow the
one with state are done by batch, for each sink.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from pyspark.errors import utils
from pyspark.sql import DataFrame
from pyspark.sql import functions as f

from queenstream.errors import StepFailed
from queenstream.pipeline import nodes
from queenstream.pipeline.endpoints import Queue
from queenstream.pipeline.failing import give_up
from queenstream.pipeline.failing import told as told_of
from queenstream.pipeline.nodes import Node
from queenstream.pipeline.planning import Plan
from queenstream.pipeline.policies import DeadLetters
from queenstream.pipeline.records import short
from queenstream.schemas import Schema
from queenstream.spark.expressions import NotNative
from queenstream.spark.graph import clocks_of
from queenstream.spark.metrics import Observed
from queenstream.spark.native import joining, windowed
from queenstream.spark.native.failures import FAILURE, MISFIT, Failures, count_name, kept_by
from queenstream.spark.native.frames import Clock, Frame
from queenstream.spark.native.needed import needed
from queenstream.spark.native.replays import Replays
from queenstream.spark.native.steps import Load, check_readable, is_in_pieces, read, through
from queenstream.spark.native.writing import (
    failures_of,
    few_of,
    records_and_failures,
    records_of,
    without_partition,
    write_directly,
    writes_directly,
)
from queenstream.spark.sinks import Told, letters_name
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
        names |= {count_name("failed", each.name): (each.name, ("failed",)) for each in reads}
        names |= {
            count_name("failed", node.name, again=True): (node.name, ("failed", "taken"))
            for node in self._plan.nodes
            if len(reads) > len(self._plan.inputs) and isinstance(node, nodes.EventTime)
        }
        names |= {
            count_name("taken", each.name): (each.name, ("taken",))
            for each in reads
            if each in self._plan.inputs and self._is_observed(each)
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
        failed = self._failures.failed(found["step"], data, found["input"])
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
        return self._is_counted or is_fed(read.source) or is_in_pieces(read, self._loaded.get(read))

    @property
    def _keeps(self) -> bool:
        return any(kept_by(each) for each in self._fallible)

    def _outputs_of(self, batch: DataFrame) -> dict[str, DataFrame]:
        return {name: rows for name, (rows, _) in self._branches(batch).items()}

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
        fails = self._frame.fails
        # A window that closes was in the state; one that changes may be new.
        few = state_rows is not None and state_rows <= _FEW and self.output_mode == "append"
        direct = {each.name for each in self._plan.sinks if writes_directly(each, self._schemas[each.name])}
        if self._alone is not None and not (fails and direct):
            return self._told_at_once(batch, batch_id, generation, few, direct)
        told = Told()
        rows = batch.persist()  # they are read several times
        try:
            if fails:  # before tasks write anything: a policy may end the run
                self._tell(told, failures_of(rows))
            outputs = {self._alone: rows} if self._alone is not None else self._outputs_of(rows)
            for write in self._plan.sinks:
                schema, found = self._schemas[write.name], outputs[write.name]
                records = found.where(f.col(FAILURE).isNull()).drop(FAILURE) if fails else found
                written = 0
                if write.name in direct:
                    name = f"{generation} {write.name}"
                    left, written = self._pushed(write, records, schema, name, batch_id, few)
                else:
                    left = records_of(records, schema)
                _put(told, write, left, written)
        finally:
            rows.unpersist()
        return told

    def _told_at_once(
        self, rows: DataFrame, batch_id: int, generation: str, few: bool, direct: Collection[str]
    ) -> Told:
        """The same of a batch that is read once: for one sink, to which failures are no obstacle."""
        told = Told()
        [write] = self._plan.sinks
        schema, written = self._schemas[write.name], 0
        if write.name in direct:
            name = f"{generation} {write.name}"
            left, written = self._pushed(write, rows, schema, name, batch_id, few)
        elif self._frame.fails:
            left, failures = records_and_failures(rows, schema)
            self._tell(told, failures)
        else:
            left = records_of(rows, schema)
        _put(told, write, left, written)
        return told

    def _tell(self, told: Told, failures: list[tuple[Any, ...]]) -> None:
        """What is to be done about failures. Dead letters are rows for a sink like all others."""
        now = datetime.now(UTC)
        for failure in failures:
            came_back = self._failures.row_for_sink(*failure[:2])
            if came_back is not None:
                sink, row = came_back
                told.outbox.setdefault(sink, []).append(row)
                continue
            failed = self._failures.failed(*failure)
            name = failed.node.name
            number, first = told.examples.get(name, (0, f"{short(failed.record)}: {told_of(failed.error)}"))
            told.examples[name] = (number + 1, first)
            outcome = give_up(failed.node, failed.record, failed.error)
            if isinstance(outcome, DeadLetters):
                letters = told.outbox.setdefault(letters_name(outcome.sink), [])
                letters.append(failed.letter(self._plan.name, now))
                counts = told.counts.setdefault(name, {"dead_letters": 0})
                counts["dead_letters"] += 1

    def _pushed(
        self, write: nodes.Write, rows: DataFrame, schema: Schema, name: str, batch_id: int, surely_few: bool
    ) -> tuple[list[Any], int]:
        """Let tasks push rows into a queue; how many, after those that are left to the driver.

        These are a few rows, or what tasks cannot push.
        """
        assert isinstance(write.sink, Queue)
        if isinstance(self._with_state, nodes.Aggregation):
            few = few_of(rows, schema, _FEW, surely=surely_few)
            if few is not None:
                return few, 0
        by = write.sink.partition_by
        if by is None:
            return [], write_directly(rows, write.sink, name, batch_id)
        kept = rows.persist()  # rows without a partition are looked for afterwards: not in a second pass
        try:
            written = write_directly(kept, write.sink, name, batch_id)
            return records_of(without_partition(kept, by), schema), written
        finally:
            kept.unpersist()

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
                own = clock if step in clocks and is_main else None
                counted = self._is_counted and is_main
                return read(step, failures, self._rows_of(step), counted=counted, clock=own)
            if len(step.inputs) > 1:
                raise NotNative("branches that come together")
            coming = before(step.inputs[0], failures)
            self._replays.see(step, coming.schema, coming.keys)
            frame = through(step, coming)
            return frame.watch(clock) if step in clocks and failures.part == "main" else frame

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

    def _letters_of(self, node: nodes.Replay) -> DataFrame:
        """The rows of the letters that come back."""
        if node not in self._loaded:
            self._loaded[node] = self._load(node, None)
        return self._loaded[node]

    def _rows_of(self, node: nodes.Read) -> DataFrame:
        """The rows of a source. The same ones for all who ask: to Spark it is one source then."""
        if node not in self._loaded:
            check_readable(node)
            self._loaded[node] = self._load(node, needed(self._plan, node))
        return self._loaded[node]


def _put(told: Told, write: nodes.Write, left: list[Any], written: int) -> None:
    """What a sink gets of a batch: rows that are left to the driver, and how many tasks have written.

    Rows that came back to the sink are in the outbox already.
    """
    rows = [*left, *came_back] if (came_back := told.outbox.get(write.name)) else left
    told.outbox[write.name] = rows
    told.counts.setdefault(write.name, {}).update(taken=written + len(rows), written=written)


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
