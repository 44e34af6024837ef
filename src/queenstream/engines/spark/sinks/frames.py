"""The rows of a sink that a writer of Spark's stages, on the driver's side."""

from __future__ import annotations

from dataclasses import dataclass

from pyspark.sql import DataFrame

from queenstream.engines.spark.sinks.stage import Receipt
from queenstream.engines.spark.sinks.two_phase import FrameStage
from queenstream.runtime.samples import MOST_ROWS, as_text


@dataclass(frozen=True)
class FrameOutput:
    """Stages the rows of one sink. ``samples``: show some of them."""

    sink: str
    frame: FrameStage
    samples: bool = False

    def stage(self, rows: DataFrame) -> list[Receipt]:
        """Let Spark stage these rows; gives a receipt for each part."""
        parts = self.frame.stage(rows)
        receipts = [Receipt(task=part.task, parts={self.sink: part}) for part in parts]
        if self.samples and parts:
            shown = self.frame.sample(rows, parts[0], MOST_ROWS)
            receipts[0].samples[self.sink] = [as_text(row) for row in shown.to_pylist()]
        return receipts
