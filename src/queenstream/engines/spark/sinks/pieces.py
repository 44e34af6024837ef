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

from queenstream.engines.spark.sinks.commit import CommitPart, Part
from queenstream.engines.spark.sinks.stage import RECEIPT, Stage, StageFunction
from queenstream.engines.spark.sinks.staged import places_of
from queenstream.engines.spark.sinks.storage import Folder

PIECES = f"{RECEIPT}, path STRING, sink STRING, bucket INT, at LONG, data BINARY"
_PIECE_BYTES = 4 << 20
_FETCHED_BYTES = 16 << 20  # that the driver gets at once, about
_SCHEMA = pa.schema(
    [
        ("receipt", pa.binary()),
        ("path", pa.string()),
        ("sink", pa.string()),
        ("bucket", pa.int32()),
        ("at", pa.int64()),
        ("data", pa.binary()),
    ]
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
    """A file, with what each piece is for: rows of a bucket of a sink, or the index, which has no sink."""
    rows: list[tuple[str | None, int, int, bytes]] = []
    size = 0
    with path.open("rb") as file:
        for sink, bucket, offset, length in places_of(file):
            for at in range(offset, offset + length, _PIECE_BYTES):
                file.seek(at)
                rows.append((sink, bucket, at, file.read(min(_PIECE_BYTES, offset + length - at))))
                size += len(rows[-1][-1])
                if size >= _PIECE_BYTES:
                    yield _batch(name, rows)
                    rows, size = [], 0
    yield _batch(name, rows)


def _batch(name: str, rows: list[tuple[str | None, int, int, bytes]]) -> pa.RecordBatch:
    columns = [
        pa.nulls(len(rows), pa.binary()),
        pa.array([name] * len(rows), pa.string()),
        *(pa.array([row[at] for row in rows], _SCHEMA.types[2 + at]) for at in range(4)),
    ]
    return pa.RecordBatch.from_arrays(columns, schema=_SCHEMA)


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
    """A function for ``mapInArrow``: puts files together, and writes the parts whose pieces are here."""

    commit: CommitPart
    parts: tuple[Part, ...]

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        with tempfile.TemporaryDirectory() as root:
            here = collect_files((row for batch in batches for row in batch.to_pylist()), root)
            commit = replace(self.commit, storage=Folder(root))
            for number in sorted(here):
                yield pa.RecordBatch.from_pydict({"result": [commit(self.parts[number])]})


def collect_files(rows: Iterator[Any], root: str) -> set[int]:
    """Put files together from their pieces; gives the numbers of the parts that these are for."""
    parts: set[int] = set()
    for row in rows:
        path = Path(root, row["path"])
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("r+b" if path.exists() else "w+b") as file:
            file.seek(row["at"])
            file.write(row["data"])
        parts.add(row["part"])
    return parts


def commit_pieces(pieces: DataFrame, parts: Sequence[Part], commit: CommitPart) -> list[bytes]:
    """Let tasks write parts; gives their results."""
    together = _of_parts(pieces, parts, commit.target.name).repartitionById(len(parts), "part")
    rows = together.mapInArrow(CommitPieces(commit, tuple(parts)), "result BINARY").collect()
    return [row[0] for row in rows]


def with_files(pieces: DataFrame, part: Part, sink: str, work: Callable[[Folder], None]) -> None:
    """Do something with the files of a part on the driver, which copies them to a temporary folder.

    Spark gives the driver a partition at a time, so each has a few pieces.
    """
    size = sum(sum(each.bytes.values()) for each in part.files)
    few = _of_parts(pieces, [part], sink).repartition(1 + size // _FETCHED_BYTES, "path", "at")
    with tempfile.TemporaryDirectory() as root:
        collect_files(few.toLocalIterator(), root)
        work(Folder(root))


def _of_parts(pieces: DataFrame, parts: Sequence[Part], sink: str) -> DataFrame:
    """The pieces of a sink with the number of their part; those with an index are for all parts of a file."""
    numbers: dict[str, list[int]] = {}
    for number, part in enumerate(parts):
        for each in part.files:
            numbers.setdefault(each.path, []).append(number)
    of_path = f.create_map(*(f.lit(each) for pair in numbers.items() for each in pair))[f.col("path")]
    if len(parts) > 1 and parts[0].buckets is not None:
        of_bucket = f.array(f.col("bucket") % f.lit(len(parts)))
        of_path = f.when(f.col("sink").isNull(), of_path).otherwise(of_bucket)
    wanted = pieces.where(f.col("path").isin([*numbers]) & (f.col("sink").isNull() | (f.col("sink") == sink)))
    return wanted.select("path", "at", "data", f.explode(of_path).alias("part"))
