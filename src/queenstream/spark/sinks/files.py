"""Parquet files that tasks write as columns, without making a record of each row.

A task writes its rows to a file in a hidden folder of the sink's folder. When the batch is prepared, the
driver moves the files to their places. A file that is in its place already was moved before a crash.
"""

from __future__ import annotations

import contextlib
import os
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

import pyarrow as pa
import pyarrow.parquet as pq

from queenstream.pipeline.endpoints import Files
from queenstream.schemas import Schema, types
from queenstream.schemas.types import Type
from queenstream.spark.expressions import Wide
from queenstream.spark.sinks.stage import StagedParquet

_GROUP_BYTES = 64 << 20  # of a row group, about


@dataclass(frozen=True)
class ParquetStage:
    """The folder of a sink. ``step`` is the step that writes, ``run`` the generation of the run."""

    folder: str
    step: str
    run: str

    @property
    def _hidden(self) -> Path:
        return Path(self.folder, f"_staged-{self.run}-{quote(self.step, safe='')}")

    def stage(self, batches: Iterator[pa.RecordBatch], batch: int, task: int) -> StagedParquet | None:
        """In a task: write a file; None: there are no rows."""
        path = self._hidden / f"{batch:010}-{task:05}-{uuid.uuid4().hex}.parquet"
        rows = 0
        writer: pq.ParquetWriter | None = None
        with contextlib.ExitStack() as failed:
            failed.callback(path.unlink, missing_ok=True)
            for each in _together(batches):
                if writer is None:
                    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
                    writer = failed.enter_context(pq.ParquetWriter(path, each.schema))
                writer.write_table(each)
                rows += each.num_rows
            if writer is None:
                return None
            writer.close()
            _sync(path)
            failed.pop_all()
        return StagedParquet(task, path.name, rows)

    def commit(self, staged: Sequence[StagedParquet], epoch: str) -> int:
        """On the driver: move the files of a batch to their places; how many rows they have."""
        for each in staged:
            name = f"part-{epoch}-task-{each.task:05}-{quote(self.step, safe='')}.parquet"
            final = Path(self.folder, name)
            if not final.exists():
                (self._hidden / each.name).rename(final)
        _sync(Path(self.folder))
        with contextlib.suppress(OSError):
            self._hidden.rmdir()
        return sum(each.rows for each in staged)

    def clean(self) -> None:
        """On the driver: delete what tasks have left that is in no batch."""
        for left in self._hidden.glob("*.parquet"):
            left.unlink(missing_ok=True)
        with contextlib.suppress(OSError):
            self._hidden.rmdir()


def parquet_stage(sink: Files, step: str, run: str, schema: Schema) -> ParquetStage | None:
    """How tasks write rows of these fields as columns; None: they are written record by record."""
    local = "://" not in str(sink.path)
    plain = bool(schema.fields) and all(_is_plain(each.type) for each in schema.fields)
    if sink.format != "parquet" or sink.schema is not None or not plain or not local:
        return None
    return ParquetStage(str(Path(sink.path).absolute()), step, run)


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
