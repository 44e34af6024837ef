"""The suite on Spark: each batch of a case is a micro-batch of one available-now query."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pyspark.sql import DataFrame

from queenstream.connectors.validation import fit, schema_of
from queenstream.core.schemas import Definition
from queenstream.engines.spark.compile import check
from queenstream.engines.spark.run import SparkRun
from queenstream.pipeline.endpoints import Function, Memory, Sink, Source
from queenstream.pipeline.engine_api import RunOptions
from queenstream.pipeline.plan.nodes import Read
from tests.conformance.pipelines.engines import Batches, Build, Idle, Outcome, Row
from tests.sparks import local_session


class Collected:
    """Ends whose sinks are lists."""

    def __init__(self) -> None:
        self.outcome = Outcome()

    def source(self, name: str, schema: Definition | None = None) -> Source[Any]:
        return Memory((), schema=schema)

    def sink(self, name: str) -> Sink:
        rows: list[Row] = self.outcome.sinks.setdefault(name, [])
        return Function(rows.append, name=name)


class SparkEngine:
    """Structured Streaming in this process."""

    name = "spark"

    def run(self, build: Build, batches: Batches, *, end: bool) -> Outcome:
        """Run a case."""
        return finished(build, batches, end=end)[1]


def finished(build: Build, batches: Batches, *, end: bool) -> tuple[SparkRun, Outcome]:
    """A run that is over, to be asked about it, and what its sinks hold."""
    local_session()
    ends = Collected()
    plan = build(ends).plan()
    check(plan)
    given = {read.name: [_batch(read, batch) for batch in batches] for read in plan.sources}
    run = ScriptedRun(plan, RunOptions(master="local[2]"), given, end=end)
    run.idle = {number - 1: batch.source for number, batch in enumerate(batches) if isinstance(batch, Idle)}
    run.start()
    run.wait()
    return run, ends.outcome


class ScriptedRun(SparkRun):
    """A run in which a source is idle when a case says so, and not by the clock.

    ``idle``: by number the batch that ends with it. The next one has no records, only the new watermark.
    """

    idle: Mapping[int, str]

    def _batch(self, rows: DataFrame, batch_id: int) -> None:
        super()._batch(rows, batch_id)
        if batch_id in self.idle:
            assert self._idle is not None, "a source of the plan may be idle"
            self._idle.declare(self.idle[batch_id])


def _batch(read: Read, batch: Any) -> Any:
    if isinstance(batch, Idle):
        return fit(schema_of(read.source.columns), [])
    return fit(schema_of(read.source.columns), list(batch.get(read.name, ())))
