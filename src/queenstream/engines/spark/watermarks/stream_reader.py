"""The reader of watermarks for Spark 4.2 and newer.

Spark runs available-now in several batches if all sources know of it.
"""

from __future__ import annotations

from typing import Any

from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, SupportsTriggerAvailableNow

from queenstream.engines.spark.watermarks.source import WatermarkReader


class WatermarkStreamReader(WatermarkReader, SupportsTriggerAvailableNow):
    """Gives new marks in each batch of an available-now query, too: its batches make some."""

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """A batch has all there is."""
        return ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """There is no end to know of: marks follow from what the other sources show."""

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802
        """Nothing is behind."""
        return None
