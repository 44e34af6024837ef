"""The readers of tables that Spark asks, whatever kind of table it is.

Spark makes them on the driver, and sends a copy to each task.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition

from queenstream.spark.tables.options import Limits, Offset


class TableReading(Protocol):
    """How a table of some kind is planned and read."""

    @property
    def title(self) -> str:
        """The table, for people."""
        ...

    @property
    def behind(self) -> int:
        """About how many rows there are after the last batch; 0: nobody knows."""
        ...

    def finalize(self) -> None:
        """What is there now is read, nothing that comes later."""
        ...

    @property
    def limits(self) -> Limits:
        """How much the first batch may have."""
        ...

    def advance(self, start: Offset, limits: Limits) -> Offset:
        """How far the next batch goes; where it is, if there is nothing new."""
        ...

    def parts(self, start: Offset, end: Offset, *, again: bool = False) -> list[InputPartition]:
        """One for each task of a batch. ``again``: it is only looked at once more, as it is now."""
        ...

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """A task's rows, as Arrow batches."""
        ...

    def close(self) -> None:
        """Nothing more is planned."""
        ...


class TableReader(DataSourceReader):
    """The rows between two offsets, as they are now."""

    def __init__(self, reading: TableReading, start: Offset, end: Offset) -> None:
        self._reading = reading
        self._span = (start, end)

    def partitions(self) -> list[InputPartition]:
        """One for each task."""
        try:
            return self._reading.parts(*self._span, again=True)
        finally:
            self._reading.close()

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """A task's rows, as Arrow batches."""
        return self._reading.read(partition)
