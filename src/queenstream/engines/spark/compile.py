"""From a plan to one streaming query: an entry for each source, then a stage for each depth of state.

read ─► entry ─┐
read ─► entry ─┴─► union ─► stage 1 ─► stage 2 … ─► the driver, which writes
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import reduce

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from queenstream.engines.spark.sinks.delivery import Outputs, SinkBatch, is_ordered
from queenstream.engines.spark.sinks.stage import StageFlow, StageOptions
from queenstream.engines.spark.sinks.two_phase import RecordStage
from queenstream.engines.spark.sources.sources import Decoder
from queenstream.engines.spark.tasks import rows as flow
from queenstream.engines.spark.tasks.graph import Graph, clocks_of, counted, graph_of
from queenstream.engines.spark.tasks.stages import Entry, ReplayEntry, Stage, StageEntry
from queenstream.engines.spark.watermarks.idle import counted as counted_rows
from queenstream.engines.spark.watermarks.idle import observed, raised
from queenstream.pipeline.engine_api import RunOptions
from queenstream.pipeline.errors import PipelineError, Problem
from queenstream.pipeline.plan.nodes import Node, Read, Replay
from queenstream.pipeline.plan.planner import Plan
from queenstream.runtime.replay import Doors

_GROUPS_IN_PARTITION = 16  # which groups are in a partition, their hashes decide


def check(plan: Plan) -> None:
    """Say by node and line what Spark cannot do; ``PipelineError`` has all of it."""
    problems: list[Problem] = []

    def report(node: Node, wrong: str, instead: str) -> None:
        problems.append(Problem(str(node.where), node.name, wrong, instead))

    graph = graph_of(plan)
    for clock in clocks_of(plan):
        if graph[clock.name].depth > 0:
            report(
                clock,
                "sets the event time after a step with state, and on Spark only sources have a watermark",
                "put .event_time(…) before that step, or run with engine='local'",
            )
    for group in _groups(plan):
        at_sources = sorted(
            (each for each in group.clocks if not graph[each.name].depth), key=plan.nodes.index
        )
        for clock in at_sources[1:]:
            report(
                clock,
                "is a second event time of one source, and on Spark a source has one watermark",
                "take the same field, make two pipelines, or run with engine='local'",
            )
    for node in plan.nodes:
        _check_node(node, report)
    if problems:
        raise PipelineError(plan.name, tuple(problems))


def _check_node(node: Node, report: Callable[[Node, str, str], None]) -> None:
    if isinstance(node, Read) and node.backpressure.strategy != "block":
        report(
            node,
            f"drops records ({node.backpressure.strategy}), and Spark slows its sources instead",
            "leave backpressure out, or run with engine='local'",
        )


class _Group:
    """Sources whose event times move one clock together."""

    def __init__(self) -> None:
        self.reads: set[Read] = set()
        self.clocks: set[Node] = set()


def _groups(plan: Plan) -> list[_Group]:
    """The sources of a plan, those together that share a clock."""
    groups: list[_Group] = []
    for clock, reads in clocks_of(plan).items():
        group = _Group()
        group.reads, group.clocks = set(reads), {clock}
        for other in [each for each in groups if each.reads & group.reads]:
            groups.remove(other)
            group.reads |= other.reads
            group.clocks |= other.clocks
        groups.append(group)
    return groups


def clock_groups(plan: Plan) -> list[list[Read]]:
    """The sources whose event times count, those together that move one clock; the least one counts."""
    return [[read for read in plan.sources if read in group.reads] for group in _groups(plan)]


def query_order(plan: Plan) -> list[Read]:
    """The sources of a plan in Python as they stand in its query."""
    timed = [read for group in clock_groups(plan) for read in group]
    return [*timed, *(read for read in plan.sources if read not in timed)]


class Compiler:
    """A plan with Python in it: makes the query's rows (``flow.ROW``) of the rows of the sources."""

    def __init__(self, plan: Plan, decoders: Mapping[str, Decoder], told: RunOptions | None = None) -> None:
        self._plan = plan
        self._decoders = decoders
        self._graph: Graph = graph_of(plan, told)
        self.counted = counted(self._graph)
        self._alone: Entry | None = None  # of a query that needs no more than that
        if len(plan.sources) == 1 and not self.has_state:
            [read] = plan.sources
            self._alone = entry_for(plan, self._graph, read, decoders[read.name])

    @property
    def has_state(self) -> bool:
        """Whether the query remembers something between batches."""
        return any(step.has_state for step in self._graph.values())

    @contextmanager
    def outputs(
        self,
        rows: DataFrame,
        options: StageOptions,
        batch: SinkBatch,
    ) -> Iterator[Outputs]:
        """The rows of a batch, with what stages them: for one source, the steps and the stage are one."""
        if self._alone is not None:
            yield [(rows, StageEntry(self._alone, options, self._record_stages(batch)))]
            return
        yield [(rows, StageFlow(options, self._record_stages(batch, in_order=False)))]

    def _record_stages(self, batch: SinkBatch, *, in_order: bool = True) -> dict[str, RecordStage]:
        """How tasks stage records in the storage of sinks; without ``in_order``, of unordered ones only."""
        writes = [write for write in self._plan.sinks if in_order or not is_ordered(write.sink)]
        stages = {write.name: batch.record_stage(write.name) for write in writes}
        return {name: stage for name, stage in stages.items() if stage is not None}

    def compile(self, sources: Mapping[str, DataFrame], watermarks: DataFrame | None = None) -> DataFrame:
        """The whole plan; ``sources`` by the names of the steps that read them.

        ``watermarks``: what raises the watermarks of idle sources, if there may be some.
        """
        if self._alone is not None:
            [rows] = sources.values()
            return rows
        groups_of_passing = _groups_of_passing(next(iter(sources.values())).sparkSession)
        groups = clock_groups(self._plan)
        timed = {read for group in groups for read in group}
        if watermarks is not None:
            sources = {**sources, **{each.name: counted_rows(sources[each.name], each) for each in timed}}
        entries = {
            read.name: self._entry(read, sources[read.name], groups_of_passing) for read in self._plan.sources
        }
        clocked = [_together([entries[read.name] for read in group]) for group in groups]
        if watermarks is not None:
            clocked = [
                _together([observed(rows, number), _only_clock(raised(watermarks, number))])
                for number, rows in enumerate(clocked)
            ]
        parts = [_watched(rows) for rows in clocked]
        untimed = [entries[read.name] for read in self._plan.sources if read not in timed]
        parts += [_without_clock(entry) for entry in untimed]
        rows = _together(parts)
        mode = "eventTime" if groups else "none"
        deepest = max(step.depth for step in self._graph.values())
        for depth in range(1, 1 + deepest):
            last = depth == deepest
            stage = Stage(self._graph, self._plan.name, depth, groups_of_passing, last=last)
            rows = rows.groupBy("node", "grp").transformWithState(
                stage, flow.LAST_ROW if last else flow.ROW, "append", mode
            )
        return rows

    def _entry(self, read: Read, source: DataFrame, groups: int) -> DataFrame:
        entry = entry_for(self._plan, self._graph, read, self._decoders[read.name], groups)
        return source.mapInArrow(entry, flow.CLOCKED)


def entry_for(plan: Plan, graph: Graph, read: Read, decoder: Decoder, groups: int = 1) -> Entry:
    """Where the records of a source begin. ``groups``: of rows that pass stages by."""
    if isinstance(read, Replay):
        return ReplayEntry(graph, plan.name, read.name, decoder, Doors.of(plan, read), groups=groups)
    return Entry(graph, plan.name, read.name, decoder, groups)


def _groups_of_passing(spark: SparkSession) -> int:
    """How many groups rows that pass stages by are spread over: enough to fill all partitions evenly."""
    return _GROUPS_IN_PARTITION * int(spark.conf.get("spark.sql.shuffle.partitions") or 1)


def _watched(rows: DataFrame) -> DataFrame:
    """With Spark's watermark on the clock. The rows that only show the time end here."""
    clocked = rows.withColumn("clock", f.timestamp_micros("clock")).withWatermark("clock", "0 seconds")
    return _without_clock(clocked)


def _only_clock(clocks: DataFrame) -> DataFrame:
    """Rows that only show the time."""
    nothing = (f.lit("").alias("node"), f.lit("").alias("grp"), f.lit(b"").alias("data"))
    return clocks.select(*nothing, "clock")


def _without_clock(rows: DataFrame) -> DataFrame:
    return rows.where("clock is null").drop("clock")


def _together(parts: list[DataFrame]) -> DataFrame:
    return reduce(lambda left, right: left.unionByName(right), parts)
