"""Staged files where tasks reach no common folder: Spark carries them, as rows with pieces of the files.

A task that stages writes its file into a folder of its own and gives it away in pieces, which Spark stores
under the checkpoint. A task that commits gets the pieces, and puts the file together again.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from queenstream.spark.sinks.commit import CommitPart, Part
from queenstream.spark.sinks.stage import RECEIPT, Stage, StageFunction
from queenstream.spark.sinks.storage import Folder

PIECES = f"{RECEIPT}, path STRING, at LONG, data BINARY"
_PIECE_BYTES = 4 << 20
_FETCHED_BYTES = 16 << 20  # that the driver gets at once, about
_SCHEMA = pa.schema(
    [("receipt", pa.binary()), ("path", pa.string()), ("at", pa.int64()), ("data", pa.binary())]
)


@dataclass(frozen=True)
class StagePieces:
    """A function for ``mapInArrow``: stages the rows of a task, and gives its receipt and its file."""

    stage: StageFunction

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        with tempfile.TemporaryDirectory() as root:
            stage = self.stage.into(Folder(root))
            for receipt in stage(batches):
                rows = [
                    receipt.column(0),
                    *(pa.nulls(receipt.num_rows, each.type) for each in list(_SCHEMA)[1:]),
                ]
                yield pa.RecordBatch.from_arrays(rows, schema=_SCHEMA)
            for path in Path(root).rglob("*.rows"):
                yield from _pieces(path, str(path.relative_to(root)))


def _pieces(path: Path, name: str) -> Iterator[pa.RecordBatch]:
    with path.open("rb") as file:
        at = 0
        while data := file.read(_PIECE_BYTES):
            yield pa.RecordBatch.from_arrays(
                [pa.nulls(1, pa.binary()), pa.array([name]), pa.array([at]), pa.array([data], pa.binary())],
                schema=_SCHEMA,
            )
            at += len(data)


def write_pieces(rows: DataFrame, stage: Stage, url: str) -> list[Any]:
    """Let tasks stage rows; gives their receipts, as rows."""
    assert isinstance(stage, StageFunction), "all stages are"
    rows.mapInArrow(StagePieces(stage), PIECES).write.mode("overwrite").parquet(url)
    return read_pieces(rows.sparkSession, [url]).where("receipt is not null").select("receipt").collect()


def read_pieces(spark: SparkSession, urls: Sequence[str]) -> DataFrame:
    """What tasks have staged."""
    return spark.read.schema(PIECES).parquet(*urls)


@dataclass(frozen=True)
class CommitPieces:
    """A function for ``mapInArrow``: puts files together, and writes the parts whose files are here."""

    commit: CommitPart
    parts: tuple[Part, ...]

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        with tempfile.TemporaryDirectory() as root:
            there = collect_files(
                (row for batch in batches for row in batch.select(["path", "at", "data"]).to_pylist()), root
            )
            commit = replace(self.commit, storage=Folder(root))
            for part in self.parts:
                if any(each.path in there for each in part.files):
                    yield pa.RecordBatch.from_pydict({"result": [commit(part)]})


def collect_files(rows: Iterator[Any], root: str) -> set[str]:
    """Put files together from their pieces; gives their names."""
    there: set[str] = set()
    for row in rows:
        path = Path(root, row["path"])
        if row["path"] not in there:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.touch()
            there.add(row["path"])
        with path.open("r+b") as file:
            file.seek(row["at"])
            file.write(row["data"])
    return there


def commit_pieces(pieces: DataFrame, parts: Sequence[Part], commit: CommitPart) -> list[bytes]:
    """Let tasks write parts; gives their results."""
    wanted = _of_parts(pieces, parts)
    together = wanted.repartition(len(parts), "path") if len(parts) > 1 else wanted.repartition(1)
    rows = together.mapInArrow(CommitPieces(commit, tuple(parts)), "result BINARY").collect()
    return [row[0] for row in rows]


def with_files(pieces: DataFrame, part: Part, work: Callable[[Folder], None]) -> None:
    """Do something with the files of a part on the driver, which copies them to a temporary folder.

    Spark gives the driver a partition at a time, so each has a few pieces.
    """
    size = sum(sum(each.bytes.values()) for each in part.files)
    few = _of_parts(pieces, [part]).repartition(1 + size // _FETCHED_BYTES, "path", "at")
    with tempfile.TemporaryDirectory() as root:
        collect_files(few.toLocalIterator(), root)
        work(Folder(root))


def _of_parts(pieces: DataFrame, parts: Sequence[Part]) -> DataFrame:
    paths = [each.path for part in parts for each in part.files]
    return pieces.where(f.col("path").isin(paths)).select("path", "at", "data")
