"""Parquet files that tasks write as columns, without making a record of each row.

A task writes its rows to a file in a hidden folder of the sink's folder. When the batch is prepared, the
driver moves the files to their places. A file that is in its place already was moved before a crash.
"""

from __future__ import annotations

import contextlib
import os
import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql.types import StructType

from queenstream.pipeline.endpoints import Files
from queenstream.schemas import Schema, types
from queenstream.schemas.types import Type
from queenstream.spark.expressions import Wide
from queenstream.spark.sinks.two_phase import ColumnStage, StagedPart, TwoPhaseSink

_GROUP_BYTES = 64 << 20  # of a row group, about


@dataclass(frozen=True)
class ParquetStage(ColumnStage):
    """Writes the rows of a task to a file in a hidden folder."""

    hidden: Path

    def stage(self, rows: Iterator[pa.RecordBatch], batch: int, task: int) -> StagedPart | None:
        path = self.hidden / f"{batch:010}-{task:05}-{uuid.uuid4().hex}.parquet"
        written = 0
        writer: pq.ParquetWriter | None = None
        with contextlib.ExitStack() as failed:
            failed.callback(path.unlink, missing_ok=True)
            for each in _together(rows):
                if writer is None:
                    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
                    writer = failed.enter_context(pq.ParquetWriter(path, each.schema))
                writer.write_table(each)
                written += each.num_rows
            if writer is None:
                return None
            writer.close()
            _sync(path)
            failed.pop_all()
        return StagedPart(task, path.name, written, path.stat().st_size)


class ParquetFolder(TwoPhaseSink):
    """The folder of a sink. ``step`` is the step that writes, ``run`` the generation of the run."""

    def __init__(self, sink: Files, step: str, run: str) -> None:
        self._sink = sink
        self._step = step
        self._run = run
        self._folder = Path(sink.path).absolute()
        self._hidden = self._folder / f"_staged-{run}-{quote(step, safe='')}"

    def column_stage(self, schema: Schema, columns: Callable[[], StructType]) -> ColumnStage | None:  # noqa: ARG002
        plain = bool(schema.fields) and all(_is_plain(each.type) for each in schema.fields)
        if self._sink.format != "parquet" or self._sink.schema is not None or not plain:
            return None
        return ParquetStage(self._hidden)

    def commit(self, parts: Sequence[StagedPart], batch: int) -> int:
        """Move the files of a batch to their places."""
        for each in parts:
            name = f"part-{self._run}-{batch:010}-task-{each.task:05}-{quote(self._step, safe='')}.parquet"
            final = self._folder / name
            if not final.exists():
                (self._hidden / each.name).rename(final)
        _sync(self._folder)
        with contextlib.suppress(OSError):
            self._hidden.rmdir()
        return sum(each.rows for each in parts)

    def clean(self, batch: int) -> None:  # noqa: ARG002
        for left in self._hidden.glob("*.parquet"):
            left.unlink(missing_ok=True)
        with contextlib.suppress(OSError):
            self._hidden.rmdir()


def _is_plain(kind: Type) -> bool:
    """Whether a column of this type is in a file what it is in a query."""
    return not isinstance(kind, Wide) and kind != types.VARIANT


def _together(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.Table]:
    """Row groups of a good size."""
    waiting: list[pa.RecordBatch] = []
    size = 0
    for batch in batches:
        if batch.num_rows:
            waiting.append(batch)
            size += batch.nbytes
        if size >= _GROUP_BYTES:
            yield pa.Table.from_batches(waiting)
            waiting, size = [], 0
    if waiting:
        yield pa.Table.from_batches(waiting)


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
