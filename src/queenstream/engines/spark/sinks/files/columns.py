"""Stages columns as a Parquet file, without making a record of each row."""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from queenstream.engines.spark.sinks.files.location import batch_folder
from queenstream.engines.spark.sinks.storage import sync
from queenstream.engines.spark.sinks.two_phase import ColumnStage, StagedPart

_GROUP_BYTES = 64 << 20  # of a row group, about


@dataclass(frozen=True)
class ParquetColumns(ColumnStage):
    """Writes the columns of a task to a file below ``staging``. ``epoch`` is the owner epoch of the run."""

    staging: Path
    epoch: int

    def stage(self, rows: Iterator[pa.RecordBatch], batch: int, task: int) -> StagedPart | None:
        name = f"{batch_folder(self.epoch, batch)}/{task:05}-{uuid.uuid4().hex}.parquet"
        path = self.staging / name
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
            sync(path)
            failed.pop_all()
        return StagedPart(task, name, written, path.stat().st_size)


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
