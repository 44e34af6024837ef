"""The stages of the Spark engine without Spark: what its tasks do, in the order in which they do it there.

For random logs by the hundred, which a query each would be too slow for. Spark brings rows together by key,
keeps state and timers, and moves the watermark between batches; here that is done by dictionaries.
"""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any
from unittest import mock

import pyarrow as pa
from pyspark.sql import Row as SparkRow
from pyspark.sql.streaming.stateful_processor import ExpiredTimerInfo, TimerValues

from queenstream.connectors.validation import fit, schema_of
from queenstream.engines.spark.compile import check, clock_groups, entry_for
from queenstream.engines.spark.keyed import pages
from queenstream.engines.spark.sinks.names import letters_of
from queenstream.engines.spark.sinks.stage import StageFlow, StageOptions, receipts_of
from queenstream.engines.spark.sinks.staged import chunks_of
from queenstream.engines.spark.sinks.storage import Folder
from queenstream.engines.spark.sources.sources import Decoded
from queenstream.engines.spark.tasks import rows as flow
from queenstream.engines.spark.tasks.graph import graph_of
from queenstream.engines.spark.tasks.records import Item
from queenstream.engines.spark.tasks.stages import Stage
from queenstream.engines.spark.watermarks.marks import beginning, latest
from queenstream.errors import StepFailed
from queenstream.pipeline.plan.nodes import Read
from queenstream.pipeline.plan.planner import Plan
from tests.conformance.pipelines.engines import Batches, Build, Idle, Outcome
from tests.conformance.pipelines.spark_engine import Collected

_Row = SparkRow(*flow.NAMES)
Key = tuple[str, str]


class Handle:
    """State and timers by key, as Spark keeps them for a task."""

    def __init__(self) -> None:
        self.asked: Counter[str] = Counter()
        self.key: Key = ("", "")
        self.watermark = 0
        self.values: dict[Key, tuple[Any, ...]] = {}
        self.timers: dict[Key, set[int]] = {}
        self.pages: dict[Key, dict[tuple[Any, ...], tuple[Any, ...]]] = {}
        self.bytes_written = 0

    def getValueState(self, name: str, schema: Any) -> Handle:
        return self

    def getMapState(self, name: str, key_schema: Any, schema: Any) -> Handle:
        return self

    def getValue(self, key: tuple[Any, ...]) -> tuple[Any, ...] | None:
        self.asked["getValue"] += 1
        return self.pages.get(self.key, {}).get(key)

    def updateValue(self, key: tuple[Any, ...], value: tuple[Any, ...]) -> None:
        self.asked["updateValue"] += 1
        self.bytes_written += len(value[0])
        self.pages.setdefault(self.key, {})[key] = value

    def removeKey(self, key: tuple[Any, ...]) -> None:
        self.asked["removeKey"] += 1
        del self.pages[self.key][key]

    def get(self) -> tuple[Any, ...] | None:
        self.asked["get"] += 1
        return self.values.get(self.key)

    def update(self, value: tuple[Any, ...]) -> None:
        self.asked["update"] += 1
        self.bytes_written += len(value[0])
        self.values[self.key] = value

    def clear(self) -> None:
        self.values.pop(self.key, None)

    def registerTimer(self, at: int) -> None:
        self.asked["registerTimer"] += 1
        assert at > self.watermark, "Spark refuses a timer in the past"
        self.timers.setdefault(self.key, set()).add(at)

    def deleteTimer(self, at: int) -> None:
        self.asked["deleteTimer"] += 1
        self.timers[self.key].remove(at)


class Prepared:
    """A decoder of what is decoded already."""

    def decode(self, batch: Any) -> Decoded:
        assert isinstance(batch, Decoded)
        return batch


class Query:
    """One plan at work."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._graph = graph_of(plan)
        self._entries = {read.name: entry_for(plan, self._graph, read, Prepared()) for read in plan.sources}
        self._groups = [{read.name for read in group} for group in clock_groups(plan)]
        self._marks = beginning(len(self._groups))
        self._highest: dict[int, int] = {}
        self._seen: dict[int, int] = {}  # in the batch
        depths = range(1, 1 + max(step.depth for step in self._graph.values()))
        self._stages = [(Stage(self._graph, plan.name, depth), Handle()) for depth in depths]
        for stage, handle in self._stages:
            stage.init(handle)  # type: ignore[arg-type]
        self.watermark = 0

    def restart(self) -> None:
        """As a task of another process goes on: with what is stored."""
        self._stages = [
            (Stage(self._graph, self._plan.name, depth), handle)
            for depth, (_, handle) in enumerate(self._stages, 1)
        ]
        for stage, handle in self._stages:
            stage.init(handle)  # type: ignore[arg-type]

    @property
    def handles(self) -> list[Handle]:
        """What the stages keep, and how often each has asked for it."""
        return [handle for _, handle in self._stages]

    def batch(self, decoded: dict[str, Decoded]) -> dict[str, list[Any]]:
        """What the sinks get of a batch."""
        rows = [row for name, each in decoded.items() for row in self._enter(name, each)]
        for stage, handle in self._stages:
            rows = list(self._stage(stage, handle, rows))
        found = self._staged(rows)
        self._raise()
        if len(self._highest) == len(self._groups) > 0:
            self.watermark = max(self.watermark, min(self._highest.values()) // 1_000)
        return found

    def idle(self, source: str) -> dict[str, list[Any]]:
        """A source holds nobody back until its next record; what the sinks get of the batch that says so."""
        now = [idle or source in group for idle, group in zip(self._marks.idle, self._groups, strict=True)]
        self._marks = replace(self._marks, idle=tuple(now))
        return self.batch({})

    def _raise(self) -> None:
        """The rows of the source of watermarks, which has the marks of the batch before."""
        if any(self._marks.idle):
            for number, clock in enumerate(self._marks.clocks()):
                if clock is not None:
                    self._highest[number] = max(clock, self._highest.get(number, clock))
        highest = [self._seen.pop(number, None) for number in range(len(self._groups))]
        idle = [one and seen is None for one, seen in zip(self._marks.idle, highest, strict=True)]
        self._marks = replace(self._marks, highest=latest(self._marks.highest, highest), idle=tuple(idle))

    def _staged(self, rows: list[Any]) -> dict[str, list[Any]]:
        """By sink what a task stages of these rows."""
        with tempfile.TemporaryDirectory() as folder:
            storage = Folder(folder)
            stage = StageFlow(StageOptions(self._plan.name, storage, "batch", letters_of(self._plan)))
            columns = [pa.array([row[at] for row in rows]) for at in range(len(flow.NAMES))]
            [told] = stage(iter([pa.RecordBatch.from_arrays(columns, names=list(flow.NAMES))]))
            [receipt] = receipts_of([(told.column(0)[0].as_py(),)])
            if receipt.failed is not None:
                raise StepFailed(receipt.failed)
            files = [] if receipt.file is None else [receipt.file]
            return {
                sink: [row for chunk in chunks_of(storage, files, sink) for row in chunk]
                for file in files
                for sink in file.rows
            }

    def _enter(self, name: str, decoded: Decoded) -> Iterator[Any]:
        for made in self._entries[name](iter([decoded])):
            for row in made.to_pylist():
                clock = row.pop("clock")
                if clock is None:
                    yield _Row(*row.values())
                for number, group in enumerate(self._groups):
                    if clock is not None and name in group:
                        self._highest[number] = max(clock, self._highest.get(number, clock))
                        self._seen[number] = max(clock, self._seen.get(number, clock))

    def _stage(self, stage: Stage, handle: Handle, rows: list[Any]) -> Iterator[Any]:
        handle.watermark = self.watermark
        at = TimerValues(-1, self.watermark)
        groups: dict[Key, list[Any]] = {}
        for row in rows:
            groups.setdefault((row.node, row.grp), []).append(row)
        for key in sorted(groups):
            handle.key = key
            yield from stage.handleInputRows(key, iter(groups[key]), at)
        for key, timers in [*handle.timers.items()]:
            handle.key = key
            for due in sorted(each for each in timers if each <= self.watermark):
                yield from stage.handleExpiredTimer(key, at, ExpiredTimerInfo(due))
                timers.remove(due)


class StagedEngine:
    """Runs cases and logs through the stages. ``page_bytes``: how large a page of state gets."""

    name = "spark's stages"

    def __init__(self, page_bytes: int = pages.PAGE_BYTES) -> None:
        self._page_bytes = page_bytes

    def __repr__(self) -> str:
        return f"StagedEngine({self._page_bytes})"

    def run(self, build: Build, batches: Batches, *, end: bool) -> Outcome:
        """As ``SparkEngine``."""
        with mock.patch.object(pages, "PAGE_BYTES", self._page_bytes):
            return self._run(build, batches, end=end)

    def _run(self, build: Build, batches: Batches, *, end: bool) -> Outcome:
        ends = Collected()
        plan = build(ends).plan()
        check(plan)
        query = Query(plan)
        writes = {write.name: write.sink for write in plan.sinks}
        for decoded in _decoded(plan.sources, batches, end=end):
            found = query.idle(decoded.source) if isinstance(decoded, Idle) else query.batch(decoded)
            for name, rows in found.items():
                sink = writes.get(name) or next(each for each in plan.dead_letters if each.label in name)
                ends.outcome.sinks[sink.label].extend(rows)
        return ends.outcome


def _decoded(reads: Sequence[Read], batches: Batches, *, end: bool) -> Iterator[dict[str, Decoded] | Idle]:
    """The batches as the entries get them; a last one without data, as Spark has when time has moved."""
    seq = 0
    for batch in batches:
        if isinstance(batch, Idle):
            yield batch
            continue
        decoded: dict[str, Decoded] = {}
        for number, read in enumerate(reads):
            fitted = fit(schema_of(read.source.columns), list(batch.get(read.name, ())))
            base = number << 48
            items = [Item(record, None, None, base + seq + at) for at, record in enumerate(fitted.records)]
            decoded[read.name] = Decoded(items, fitted.failures)
            seq += len(items)
        yield decoded
    if end:
        yield {read.name: Decoded(ended=True) for read in reads}
    yield {}
