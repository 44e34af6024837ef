"""The reader of micro-batches. Spark tells it where the query is: admission control, which came with 4.2."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, SupportsTriggerAvailableNow

from queenstream.spark.datasource.batch_size import BatchSize
from queenstream.spark.tables.options import BEGINNING, Offset, offset_of
from queenstream.spark.tables.readers import TableReading


class TableStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Micro-batches, in the order of the key, whose size the options limit."""

    def __init__(self, reading: TableReading) -> None:
        self._reading = reading
        self._latest: dict[str, Any] | None = None
        self._size = BatchSize() if reading.limits.adapts else None

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802
        """Before the first row."""
        return {**BEGINNING}

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """The options say how much a batch may have."""
        return ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """What is there now is read, nothing that comes later."""
        self._reading.finalize()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802, ARG002
        """How far the next batch goes; where it is, if there is nothing new."""
        begin = self._offset(start)
        times = 1 if self._size is None else self._size.next_times()
        end = self._reading.advance(begin, self._reading.limits.times(times))
        if self._size is not None:  # the last batch of a table is rarely full
            self._size.planned(full=end != begin and not end["done"])
        self._latest = {**end, "behind": self._reading.behind}
        return start if end == begin else {**end}

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802
        """Where the last batch ends, and how many rows there are after it."""
        return self._latest

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        """One for each task of a batch."""
        return self._reading.parts(self._offset(start), self._offset(end))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """A task's rows, as Arrow batches."""
        return self._reading.read(partition)

    def _offset(self, found: dict[str, Any]) -> Offset:
        return offset_of(found, self._reading.title)

    def commit(self, end: dict[str, Any]) -> None:
        """There is nobody to tell."""

    def stop(self) -> None:
        """Nothing more is planned."""
        self._reading.close()
