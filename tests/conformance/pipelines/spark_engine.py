"""The suite on Spark: each batch of a case is a micro-batch of one available-now query."""

from __future__ import annotations

from typing import Any

from queenstream.connectors.fitting import fit, schema_of
from queenstream.pipeline.endpoints import Function, Memory, Sink, Source
from queenstream.pipeline.nodes import Read
from queenstream.pipeline.running import RunOptions
from queenstream.schemas import Definition
from queenstream.spark.compile import check
from queenstream.spark.run import SparkRun
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
    run = SparkRun(plan, RunOptions(master="local[2]"), given, end=end)
    run.start()
    run.wait()
    return run, ends.outcome


def _batch(read: Read, batch: Any) -> Any:
    assert not isinstance(batch, Idle), "Spark waits for every source"
    return fit(schema_of(read.source.columns), list(batch.get(read.name, ())))
