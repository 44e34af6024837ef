"""The jobs of ``spark_scale.py``: each is done by a pipeline and by hand in PySpark, with the same result.

One module for each kind of source and sink. Its function ``jobs(setup)`` makes the data that its jobs read,
and returns them as a list of ``Job``.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from queenstream.testing.brokers import TemporaryBroker


@dataclass(frozen=True)
class Job:
    """A job done in two ways. Each takes the folder that it writes into; ``rows`` counts what it wrote."""

    name: str
    target: float
    ours: Callable[[Path], None]
    by_hand: Callable[[Path], None]
    rows: Callable[[Path, str], Any]


@dataclass(frozen=True)
class Setup:
    """What jobs work with. ``scale`` is 1 for the full size, 0.1 for the quick form.

    ``closing`` closes servers that jobs have started.
    """

    spark: SparkSession
    base: Path
    broker: TemporaryBroker
    scale: float
    closing: contextlib.ExitStack

    def size(self, full: int) -> int:
        """A number of rows at this scale."""
        return int(full * self.scale)


def stream_to_end(frame: DataFrame, folder: Path, output: Callable[[Any], Any]) -> None:
    """Run a streaming query of one's own over all that is there."""
    writer = frame.writeStream.option("checkpointLocation", str(folder / "checkpoint"))
    output(writer).trigger(availableNow=True).start().awaitTermination()
