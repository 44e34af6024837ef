"""What Spark's own pages call the jobs of a batch."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from pyspark import SparkContext

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
