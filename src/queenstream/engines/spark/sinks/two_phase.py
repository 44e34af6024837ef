"""Sinks in two phases: tasks stage rows in the sink's own storage, and the driver commits them.

A ``TwoPhaseSink`` stays on the driver. It gives the tasks a ``ColumnStage`` for rows that are columns, or a
``RecordStage`` for records; a ``FrameStage`` lets a writer of Spark's stage the rows of a query. What a task
has staged is a ``StagedPart`` of its receipt. Rows that a stage does not take go to a file of the checkpoint,
and then to the sink by its writer.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol

import msgspec
import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql.types import StructType

from queenstream.core.schemas import Schema
from queenstream.engines.spark.sinks.owner import Owner
from queenstream.errors import DatabaseUnusable


class StagedPart(msgspec.Struct, frozen=True):
    """The rows that one task has staged in a sink's storage, under a name that only this attempt has.

    ``files``: in how many files, if the storage has files.
    """

    task: int
    name: str
    rows: int
    bytes: int = 0
    files: int = 1


class StagingLost(DatabaseUnusable):
    """What tasks had staged is gone, and nothing of it was stored: the batch must be staged again."""


class RowsRefused(DatabaseUnusable):
    """The sink does not take one of the staged rows, and nothing of the batch was stored."""


class ColumnStage(ABC):
    """Stages rows of a task whose columns are the fields of the records. It travels to the tasks."""

    @property
    def order(self) -> tuple[str, ...] | None:
        """The fields by which rows must keep their order; empty: all rows must; None: no rows need to."""
        return None

    def untaken(self, rows: pa.StructArray) -> pa.BooleanArray | None:
        """Which of these records this stage does not take; None: it takes all."""
        del rows
        return None

    @abstractmethod
    def stage(self, rows: Iterator[pa.RecordBatch], batch: int, task: int) -> StagedPart | None:
        """Stage the rows of a task; None: there were none."""


class OpenRecordStage(Protocol):
    """The records of a task on their way into a sink's storage."""

    def add(self, record: Any) -> bool:
        """Take a record; False: this stage does not take it."""
        ...

    def add_all(self, records: Sequence[Any]) -> list[int]:
        """Take several records; gives the indexes of those that this stage does not take."""
        return [index for index, record in enumerate(records) if not self.add(record)]

    def take_refused(self) -> list[Any]:
        """Records that were added and turned out not to fit. Each of them is given once."""
        return []

    def finish(self) -> StagedPart | None:
        """Stage what is left; None: there were no records."""
        ...


class RecordStage(Protocol):
    """Stages records of a task. It travels to the tasks."""

    def open(self) -> AbstractContextManager[OpenRecordStage]:
        """Begin with the records of one task."""
        ...


class FrameStage(ABC):
    """Stages the rows of a query with a writer of Spark's. It stays on the driver."""

    @abstractmethod
    def stage(self, rows: DataFrame) -> list[StagedPart]:
        """Stage rows whose columns are the fields of the records; gives what there is of each task."""

    @abstractmethod
    def sample(self, rows: DataFrame, part: StagedPart, most: int) -> pa.Table:
        """Up to ``most`` of these rows, which are staged in this part."""


class TwoPhaseSink(ABC):
    """The driver's side of a sink in whose own storage tasks stage rows."""

    def frame_stage(self, schema: Schema, batch: int) -> FrameStage | None:
        """How Spark itself stages the rows of a batch with these fields; None: it cannot."""
        del schema, batch
        return None

    def column_stage(self, schema: Schema, columns: Callable[[], StructType]) -> ColumnStage | None:
        """How tasks stage rows with these fields, which are these columns in Spark; None: they cannot."""
        del schema, columns
        return None

    def record_stage(self, batch: int) -> RecordStage | None:
        """How tasks stage records of a batch; None: they cannot."""
        del batch
        return None

    def claim(self, owner: Owner, *, temporary: bool) -> None:
        """Take the sink over from earlier runs: from here on it refuses what they commit.

        ``temporary``: the run has no checkpoint, so no other one will go on with this sink.
        """
        del owner, temporary

    def aside(self, note: str) -> TwoPhaseSink | None:
        """The same storage for rows that are committed apart from the others of a batch; None: there is none.

        ``note`` tells these rows from others that are committed apart.
        """
        del note
        return None

    def begin(self, batch: int) -> None:
        """Say that a batch is about to be committed, in whatever way; raises if a later one was."""
        del batch

    def clean(self, batch: int) -> None:
        """Delete what attempts to stage this batch or earlier ones have left."""
        del batch

    @abstractmethod
    def commit(self, parts: Sequence[StagedPart], batch: int) -> int:
        """Make what the tasks have staged visible, once; gives the number of rows."""

    def close(self) -> None:  # noqa: B027 - most sinks hold nothing
        """Let go of what is open: the run has ended."""
