"""The readers of tables that Spark asks, whatever kind of table it is.

Spark makes them on the driver, and sends a copy to each task.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Protocol

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader, InputPartition

from queenstream.engines.spark.datasource.batch_size import BatchSize
from queenstream.engines.spark.sources.tables.options import BEGINNING, Limits, Offset, offset_of
from queenstream.engines.spark.versions import ADMISSION_CONTROL


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


class TableStreamReading(DataSourceStreamReader):
    """What the readers of micro-batches have in common. Batches are in the order of the key."""

    def __init__(self, reading: TableReading) -> None:
        self._reading = reading
        self._size = BatchSize() if reading.limits.adapts else None

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802
        """Before the first row."""
        return {**BEGINNING}

    def _end_of_batch(self, start: dict[str, Any]) -> Offset | None:
        """How far the next batch goes; None: there is nothing new."""
        begin = offset_of(start, self._reading.title)
        times = 1 if self._size is None else self._size.next_times()
        end = self._reading.advance(begin, self._reading.limits.times(times))
        if self._size is not None:  # the last batch of a table is rarely full
            self._size.planned(full=end != begin and not end["done"])
        return None if end == begin else end

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        """One for each task of a batch."""
        begin, upto = (offset_of(each, self._reading.title) for each in (start, end))
        return [] if begin == upto else self._reading.parts(begin, upto)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """A task's rows, as Arrow batches."""
        return self._reading.read(partition)

    def commit(self, end: dict[str, Any]) -> None:
        """There is nobody to tell."""

    def stop(self) -> None:
        """Nothing more is planned."""
        self._reading.close()


def stream_reader(reading: TableReading, *, final: bool) -> DataSourceStreamReader:
    """The reader of micro-batches for the running version of Spark.

    ``final``: only what is there at the start is read, which Spark 4.1 does not tell a source.
    """
    if ADMISSION_CONTROL.is_available():
        from queenstream.engines.spark.sources.tables.stream_reader import TableStreamReader

        return TableStreamReader(reading)
    from queenstream.engines.spark.sources.tables.stream_reader_4_1 import CappedTableReader

    return CappedTableReader(reading, final=final)
