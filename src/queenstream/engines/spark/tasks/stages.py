"""The work of tasks: the entry, where the records of a source begin; stages, where they meet by key."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from itertools import groupby
from operator import itemgetter
from typing import Any, TypeAlias

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import Row
from pyspark.sql.streaming.stateful_processor import (
    ExpiredTimerInfo,
    StatefulProcessor,
    StatefulProcessorHandle,
    TimerValues,
)

from queenstream.engines.spark.keyed.base import FOREVER, Held, Keyed, Turn
from queenstream.engines.spark.keyed.deduplicate import Deduplicating
from queenstream.engines.spark.keyed.join import Joining
from queenstream.engines.spark.keyed.stateful import StatefulStep
from queenstream.engines.spark.keyed.store import KeyState, StateStore
from queenstream.engines.spark.keyed.windows import windowed
from queenstream.engines.spark.sinks.stage import RecordStages, StageFunction, StageOptions, TaskOutput
from queenstream.engines.spark.sinks.two_phase import RecordStage
from queenstream.engines.spark.sources.sources import Decoder
from queenstream.engines.spark.tasks import rows as flow
from queenstream.engines.spark.tasks.failures import Guard, Troubles
from queenstream.engines.spark.tasks.graph import Graph, Step, Way, grouping
from queenstream.engines.spark.tasks.records import Item
from queenstream.engines.spark.tasks.rows import Packer, group_number
from queenstream.engines.spark.tasks.steps import Passage, Router
from queenstream.errors import StepFailed
from queenstream.pipeline.plan import nodes
from queenstream.runtime.encoding import encode_row
from queenstream.runtime.failures import Along
from queenstream.runtime.replay import Doors

_SHOWN = 20  # rows of a piece of work, for whoever looks at samples
_TOGETHER = 30_000  # records that an entry brings together by key before it gives them on
_TO = itemgetter(0)  # where a routed item goes
_Out, _LastOut = Row(*flow.NAMES), Row(flow.NAMES[-1])

Maker: TypeAlias = Callable[[Any, Step, Guard, Troubles], Keyed[Any]]


class Entry:
    """From the rows of a source to rows for the stages and the sinks: a function for ``mapInArrow``."""

    def __init__(self, graph: Graph, pipeline: str, read: str, decoder: Decoder, groups: int = 1) -> None:
        self._graph = graph
        self._pipeline = pipeline
        self._read = read
        self._decoder = decoder
        self._packer = Packer(graph, 0, groups)

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        troubles = Troubles(self._pipeline)
        context = TaskContext.get()
        group = 0 if context is None else context.partitionId()
        try:
            for passage in self.passages(batches, troubles):
                rows = list(self._packer.pack(passage, troubles, group))
                group += len(rows)
                yield flow.with_clock(rows, passage.highest)
        except StepFailed as ended:
            yield flow.with_clock([flow.failure(str(ended))], None)

    def passages(
        self, batches: Iterator[pa.RecordBatch], troubles: Troubles, together: int = _TOGETHER
    ) -> Iterator[Passage]:
        """What comes of the rows, in pieces of so many records; what went wrong is told beside it."""
        router = Router(self._graph, troubles)
        passage = Passage()
        pieces = getattr(self._decoder, "pieces", None)  # of what comes in rows as large as files
        for batch in batches if pieces is None else pieces(batches):
            self._through(batch, router, troubles, passage)
            if len(passage.routed) >= together:
                yield passage
                passage = Passage()
        yield passage

    def _through(self, batch: pa.RecordBatch, router: Router, troubles: Troubles, passage: Passage) -> None:
        decoded = self._decoder.decode(batch)
        troubles.count(self._read, "taken", len(decoded.items))
        for record, error in decoded.failures:
            router.guard(self._read).give_up(record, error, Along())
        if self._graph[self._read].is_clock:
            passage.saw([item.time for item in decoded.items if item.time is not None])
        router.after(self._read, decoded.items, passage)
        if decoded.ended:
            passage.highest = FOREVER


class StageEntry(StageFunction):
    """An entry and the stage of a batch in one, for a query of one source that keeps no state."""

    def __init__(
        self, entry: Entry, options: StageOptions, records: Mapping[str, RecordStage] | None = None
    ) -> None:
        super().__init__(options)
        self._entry = entry
        self._records = dict(records or {})

    def _put(self, batches: Iterator[pa.RecordBatch], stage: TaskOutput) -> None:
        records = RecordStages(self._records, stage)
        passages = self._entry.passages(batches, stage.troubles, together=1)
        with records.open():
            for passage in stage.clock.computing(passages):
                first = 0
                for sink, routed in groupby(passage.routed, _TO):
                    items = [each.item for each in routed]
                    self._stage(sink, items, first, records, stage)
                    first += len(items)
                if stage.keeps_samples:
                    for sink, _, _, item in passage.routed[-_SHOWN:]:
                        stage.sample(sink, item.record)
                stage.add_troubles()
                records.pass_on()

    def _stage(
        self, sink: str, items: list[Item], first: int, records: RecordStages, stage: TaskOutput
    ) -> None:
        """Stage rows of one sink; ``first``: the number of the first of them in its piece of work."""
        for index in records.add_all(sink, [each.record for each in items]):
            item = items[index]
            place = (not item.due, (item.time or 0) if item.due else 0, item.seq, first + index)
            stage.add(sink, place, encode_row(item.record), item.record)


class ReplayEntry(Entry):
    """The same for dead letters that come back: each record goes on where it had failed."""

    def __init__(
        self, graph: Graph, pipeline: str, read: str, decoder: Decoder, doors: Doors, groups: int = 1
    ) -> None:
        super().__init__(graph, pipeline, read, decoder, groups)
        self._doors = doors

    def _through(self, batch: pa.RecordBatch, router: Router, troubles: Troubles, passage: Passage) -> None:
        decoded = self._decoder.decode(batch)
        troubles.count(self._read, "taken", len(decoded.items))
        for record, error in decoded.failures:
            router.guard(self._read).give_up(record, error, Along())
        entrants: dict[Way, list[Item]] = {}
        for item in decoded.items:
            try:
                entrant = self._doors.open(item.record)
            except Exception as error:  # noqa: BLE001 - whatever somebody has put there
                router.guard(self._read).give_up(item.record, error, Along())
                continue
            if entrant is None:
                continue
            went = entrant.along
            if entrant.error is not None:
                router.guard(entrant.step).give_up(entrant.record, entrant.error, went)
            else:
                entering = Item(entrant.record, went.time, went.key, item.seq)
                entrants.setdefault(Way(entrant.step, went.port), []).append(entering)
        router.enter(entrants, passage)


class Stage(StatefulProcessor):
    """The steps with state that stand ``depth`` deep. What is for others passes by.

    ``last``: no stage follows, so its rows need no key (``flow.LAST_ROW``).
    """

    def __init__(
        self, graph: Graph, pipeline: str, depth: int, groups: int = 1, *, last: bool = False
    ) -> None:
        self._graph = graph
        self._pipeline = pipeline
        self._depth = depth
        self._packer = Packer(graph, depth, groups)
        self._last = last

    def init(self, handle: StatefulProcessorHandle) -> None:
        """A task begins."""
        self._store = StateStore(handle)
        self._troubles = Troubles(self._pipeline)
        self._router = Router(self._graph, self._troubles)
        self._at_work: dict[str, Keyed[Any]] = {}

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: TimerValues) -> Iterator[Row]:  # noqa: N802, N803
        """The records of one key."""
        step = self._graph.get(key[0])
        if step is None:
            for values in flow.rows_for(self._depth, key[0], rows):
                yield self._row(values)
            return
        yield from self._give(step, key[1], flow.placed(rows), timerValues, fired=False)

    def handleExpiredTimer(  # noqa: N802
        self,
        key: Any,
        timerValues: TimerValues,  # noqa: N803
        expiredTimerInfo: ExpiredTimerInfo,  # noqa: ARG002, N803
    ) -> Iterator[Row]:
        """Time has come for one key."""
        yield from self._give(self._graph[key[0]], key[1], [], timerValues, fired=True)

    def close(self) -> None:
        """A task ends."""
        self._store.flush()

    def _give(
        self, step: Step, group: str, items: list[tuple[int, Item]], at: TimerValues, *, fired: bool
    ) -> Iterator[Row]:
        passage = Passage()
        try:
            state = self._read(step, items)
            if state is not None:
                # A timer that fired is Spark's to delete.
                before = None if fired else state.timer
                reached_ms = at.getCurrentWatermarkInMs()
                watermark = flow.from_watermark(reached_ms)
                self._work(step, state, items, watermark, passage)
                self._save(step, state, before, reached_ms, ended=watermark == FOREVER)
        except StepFailed as ended:
            yield self._row(flow.failure(str(ended)))
            return
        for values in self._packer.pack(passage, self._troubles, group_number(group)):
            yield self._row(values)

    def _row(self, values: flow.Values) -> Row:
        return _LastOut(values[2]) if self._last else _Out(*values)

    def _read(self, step: Step, items: list[tuple[int, Item]]) -> KeyState | None:
        """What is kept of the key; None: nothing, and nothing came."""
        state = self._store.read()
        if state is not None or not items:
            return state
        port, first = items[0]
        return KeyState(grouping(step, port)(first), self._keyed(step).begin())

    def _work(
        self,
        step: Step,
        state: KeyState,
        items: list[tuple[int, Item]],
        watermark: int | None,
        passage: Passage,
    ) -> None:
        keyed, held, turn = self._keyed(step), state.held, Turn(state.key)
        self._take(keyed, held, [each for each in items if each[1].due], turn)
        if watermark is not None:
            turn.watermark = watermark if watermark == FOREVER else watermark - step.delay_us
            keyed.close(held, turn.watermark, turn)
        flowing = [each for each in items if not each[1].due]
        self._take(keyed, held, flowing, turn)
        if flowing and turn.watermark is not None:
            keyed.close(held, turn.watermark, turn)  # what they have set to a time that is past
        self._router.after(step.name, turn.items, passage)
        self._router.late(step, turn.late, passage)

    def _take(self, keyed: Keyed[Any], held: Held, items: list[tuple[int, Item]], turn: Turn) -> None:
        """Input by input, as the local engine does."""
        guard = self._router.guard(keyed.node.name)
        for port in sorted({port for port, _ in items}):
            turn.port = port
            taken = [item for at, item in items if at == port]
            guard.serves = (taken, port)
            if not keyed.take_together(held, taken, turn):
                for item in taken:
                    guard.serves = ([item], port)
                    keyed.take(held, [item], turn)
        guard.serves = ((), 0)

    def _save(self, step: Step, state: KeyState, before: int | None, reached_ms: int, *, ended: bool) -> None:
        """Keep what there is to keep, and be called when some of it is due; ``before``: the timer so far."""
        keyed = self._keyed(step)
        empty = keyed.is_empty(state.held)
        due = None if empty or ended else keyed.due(state.held)
        timer = None if due is None else flow.to_timer(due + step.delay_us)
        if timer is not None and before is not None and reached_ms < before <= timer:
            timer = before  # to be called too early once costs less than to move it with each batch
        state.timer = timer
        if timer != before:
            self._store.move_timer(before, timer)
        if empty:
            self._store.clear(state)
        else:
            self._store.write(state)

    def _keyed(self, step: Step) -> Keyed[Any]:
        keyed = self._at_work.get(step.name)
        if keyed is None:
            node = step.node
            make: Maker = windowed(node) if isinstance(node, nodes.Aggregation) else _KEYED[type(node)]
            keyed = self._at_work[step.name] = make(node, step, self._router.guard(step.name), self._troubles)
        return keyed


_KEYED: dict[type[nodes.Node], Maker] = {
    nodes.Join: Joining,
    nodes.Deduplicate: Deduplicating,
    nodes.Stateful: StatefulStep,
}
