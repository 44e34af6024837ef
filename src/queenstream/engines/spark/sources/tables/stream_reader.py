"""The reader of micro-batches. Spark tells it where the query is: admission control, which came with 4.2."""

from __future__ import annotations

from typing import Any

from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, SupportsTriggerAvailableNow

from queenstream.engines.spark.sources.tables.readers import TableReading, TableStreamReading


class TableStreamReader(TableStreamReading, SupportsTriggerAvailableNow):
    """Micro-batches whose size the options limit."""

    def __init__(self, reading: TableReading) -> None:
        super().__init__(reading)
        self._latest: dict[str, Any] | None = None

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """The options say how much a batch may have."""
        return ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """What is there now is read, nothing that comes later."""
        self._reading.finalize()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802, ARG002
        """How far the next batch goes; where it is, if there is nothing new."""
        end = self._end_of_batch(start)
        found = start if end is None else {**end}
        self._latest = {**found, "behind": self._reading.behind}
        return found

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802
        """Where the last batch ends, and how many rows there are after it."""
        return self._latest
