"""The reader of micro-batches for Spark with admission control: 4.2 and newer.

Spark tells a source where the query is and how much to read.
"""

from __future__ import annotations

from pyspark.sql.datasource import DataSourceStreamReader
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

from queenstream.engines.spark.datasource.readers import Offset, StreamReading


class QueenStreamReader(StreamReading, DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Micro-batches whose size Spark and the options limit; available-now takes as many as it needs."""

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """``maxRowsPerBatch``, if it was given."""
        rows = self._options.max_rows_per_batch
        return ReadAllAvailable() if rows is None else ReadMaxRows(rows)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """What is there now is read, nothing that comes later."""
        self._end_at_what_is_there()

    def latestOffset(self, start: Offset, limit: ReadLimit) -> Offset:  # noqa: N802
        """How far the next batch goes; where it is, if there is nothing new or a push stays open."""
        return self._end_of_batch(start, limit.max_rows if isinstance(limit, ReadMaxRows) else None)

    def reportLatestOffset(self) -> Offset | None:  # noqa: N802
        """The last message there was when the last batch was planned, and how many the batch has left."""
        return self._latest
