"""The source of watermarks: a Python data source whose rows raise the watermarks of idle sources.

An offset of it holds the marks of all groups (``marks.py``), and a batch has a row for each group. So the
rows follow from the offset, which is in Spark's log: a batch that runs again raises the same watermarks. The
driver of the run puts new marks into a file, where Spark's planning process finds them.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.types import StructType

from queenstream.engines.spark.session.active import activated
from queenstream.engines.spark.versions import ADMISSION_CONTROL
from queenstream.engines.spark.watermarks.marks import Marks, beginning

if TYPE_CHECKING:
    from pyspark.sql.streaming.datasource import ReadLimit

GROUP, CLOCK = "number", "clock"


@dataclass
class MarksPartition(InputPartition):
    """The rows of a batch: the number of a group, and what its watermark is raised to."""

    rows: list[tuple[int, int]]


class WatermarkReader(DataSourceStreamReader):
    """Gives the marks in a file, as soon as they are others."""

    def __init__(self, file: Path, groups: int) -> None:
        self._file = file
        self._groups = groups

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802
        """No group has had a record."""
        return beginning(self._groups).offset()

    def latestOffset(  # noqa: N802  # Spark 4.1 gives no arguments
        self,
        start: dict[str, Any] | None = None,
        limit: ReadLimit | None = None,  # noqa: ARG002
    ) -> dict[str, Any]:
        """The marks now. Their file is there before the query starts, and gone when it has ended."""
        try:
            found: dict[str, Any] = json.loads(self._file.read_bytes())
        except FileNotFoundError:
            return self.initialOffset() if start is None else start
        return found

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        """One task has all rows."""
        if start == end:
            return []
        clocks = Marks.of(end).clocks()
        return [MarksPartition([(at, clock) for at, clock in enumerate(clocks) if clock is not None])]

    def read(self, partition: InputPartition) -> Iterator[tuple[int, int]]:
        """The rows."""
        if isinstance(partition, MarksPartition):  # else it is Spark's own, when there is nothing to read
            yield from partition.rows

    def commit(self, end: dict[str, Any]) -> None:
        """Nothing is kept for a batch."""


class WatermarkSource(DataSource):
    """``format("queenstream_watermarks")``. Options: the file of the marks, and how many groups there are."""

    @classmethod
    def name(cls) -> str:
        """Its format."""
        return "queenstream_watermarks"

    def schema(self) -> str:
        """The columns."""
        return f"{GROUP} INT, {CLOCK} LONG"

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: ARG002, N802
        """For ``spark.readStream``."""
        about = (Path(self.options["file"]), int(self.options["groups"]))
        if not ADMISSION_CONTROL.is_available():
            return WatermarkReader(*about)
        from queenstream.engines.spark.watermarks.stream_reader import WatermarkStreamReader

        return WatermarkStreamReader(*about)


def read_watermarks(spark: SparkSession, file: Path, groups: int) -> DataFrame:
    """The rows of the source: the number of a group, and its clock."""
    with activated(spark):
        spark.dataSource.register(WatermarkSource)
        reader = spark.readStream.format(WatermarkSource.name())
        return reader.options(file=str(file), groups=str(groups)).load()
