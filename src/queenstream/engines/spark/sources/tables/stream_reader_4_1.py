"""The reader of micro-batches for Spark 4.1, which asks a source how far it can read and says nothing else.

So the reader remembers where the query is, as that of queues does (``datasource/stream_reader_4_1.py``). A
query that starts from a checkpoint first shows the last offset in it, by ``partitions`` with nothing between.
"""

from __future__ import annotations

from typing import Any

from pyspark.sql.datasource import InputPartition

from queenstream.engines.spark.sources.tables.readers import TableReading, TableStreamReading


class CappedTableReader(TableStreamReading):
    """Micro-batches whose size the options limit. ``final``: what comes later is not read."""

    def __init__(self, reading: TableReading, *, final: bool) -> None:
        super().__init__(reading)
        self._final = final
        self._at: dict[str, Any] | None = None  # the end of the last batch that is known

    def latestOffset(self) -> dict[str, Any]:  # type: ignore[override]  # noqa: N802  # as Spark 4.1 calls it
        """How far the next batch goes; where the query is, if there is nothing new."""
        if self._final:
            self._reading.finalize()
            self._final = False
        start = self.initialOffset() if self._at is None else self._at
        end = self._end_of_batch(start)
        # Spark has no other place for what is behind. An offset that does not move stays as it is.
        self._at = start if end is None else {**end, "behind": self._reading.behind}
        return self._at

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        """One for each task of a batch."""
        self._at = end
        return super().partitions(start, end)
