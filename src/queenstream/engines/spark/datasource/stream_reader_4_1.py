"""The reader of micro-batches for Spark 4.1, which asks a source how far it can read and says nothing else.

So the reader remembers where the query is. Every offset that it gives becomes the end of a batch, and a query
that starts from a checkpoint first shows the last offset in it (``partitions`` with nothing in between).
"""

from __future__ import annotations

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition

from queenstream.engines.spark.datasource.readers import Offset, StreamReading


class CappedStreamReader(StreamReading, DataSourceStreamReader):
    """Micro-batches whose size the options limit."""

    _first: Offset | None = None
    _at: Offset | None = None  # the end of the last batch that is known

    def initialOffset(self) -> Offset:  # noqa: N802
        """Where a query without a checkpoint begins. Spark asks again after the first ``latestOffset``."""
        if self._first is None:
            self._first = super().initialOffset()
        return self._first

    def latestOffset(self) -> Offset:  # type: ignore[override]  # noqa: N802  # as Spark 4.1 calls it
        """How far the next batch goes; where the query is, if there is nothing new or a push stays open."""
        start = self.initialOffset() if self._at is None else self._at
        end = self._end_of_batch(start, self._options.max_rows_per_batch)
        if end != start and self._latest is not None:
            # Spark has no other place for it. An offset that does not move stays as it is.
            end = {**end, "behind": self._latest["behind"]}
        self._at = end
        return end

    def partitions(self, start: Offset, end: Offset) -> list[InputPartition]:
        """One for each task of a batch."""
        self._at = end
        return super().partitions(start, end)
