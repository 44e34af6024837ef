"""What Spark's own pages call the jobs of a batch."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager

from pyspark import SparkContext

from queenstream.pipeline.plan import nodes
from queenstream.pipeline.plan.lineage import in_order
from queenstream.pipeline.plan.planner import Plan

_MOST_NAMES = 5  # of steps or sinks in a description

_DESCRIPTION = "spark.job.description"


@contextmanager
def described(context: SparkContext, text: str) -> Iterator[None]:
    """Describe the jobs that this thread starts meanwhile. Their group stays: Spark cancels a query by it."""
    before = context.getLocalProperty(_DESCRIPTION)
    context.setJobDescription(text)
    try:
        yield
    finally:
        context.setJobDescription(before)  # type: ignore[arg-type]  # None takes it away


def batch_job(pipeline: str, batch: int, work: str) -> str:
    """The description of a job.

    >>> batch_job("orders", 7, "write queue:totals")
    'orders: batch 7: write queue:totals'
    """
    return f"{pipeline}: batch {batch}: {work}"


def staging(plan: Plan, sinks: Collection[str]) -> str:
    """What a job does that stages the rows of these sinks: the sinks, and the steps before them."""
    writes = [write for write in plan.sinks if write.name in sinks]
    before = in_order([node for write in writes for node in write.inputs])
    steps = [node.name for node in before if not isinstance(node, nodes.Read)]
    computed = f" ({shortened(steps)})" if steps else ""
    return f"compute and stage {shortened([write.name for write in writes])}{computed}"


def shortened(names: Sequence[str]) -> str:
    """Names one after the other; of many, the first and the last ones.

    >>> shortened(["parse", "sum"]), shortened(["a", "b", "c", "d", "e", "f"])
    ('parse, sum', 'a, b, …, e, f')
    """
    if len(names) > _MOST_NAMES:
        names = [*names[:2], "…", *names[-2:]]
    return ", ".join(names)
