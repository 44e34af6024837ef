"""Staged rows: the file in which a task leaves the rows of a batch for the sinks.

A file has chunks of rows, each for one bucket of one sink, and at its end an index that says where they are.
The chunks of a bucket make up runs, in each of which rows are in the order of their places: a task sorts as
many rows as it holds, and who reads the file merges the runs. A row is a record as
``queenstream.runtime.encoding`` encodes it.

Rows of one key are in one bucket (``buckets.py``), so several tasks can write a sink, each its own buckets.

    chunk …     MessagePack: a list of [place, record]
    index       JSON: {sink: {bucket: [run, …]}}, a run is a list of [offset, length, CRC-32] of its chunks
    trailer     the CRC-32 of the index (4 bytes) and its length (8 bytes), big-endian

To read a file runs no code of it. Whoever can write the checkpoint folder can still change what the sinks
get: it must belong to the pipeline's user alone, and folders are created with mode 0700.
"""

from __future__ import annotations

import heapq
import struct
import zlib
from collections.abc import Collection, Iterable, Iterator, Sequence
from itertools import groupby
from operator import itemgetter
from typing import Any, BinaryIO, TypeAlias

import msgspec

from queenstream.engines.spark.sinks.storage import Folder
from queenstream.errors import CheckpointError
from queenstream.runtime.encoding import decode

Place: TypeAlias = tuple[bool, int, int, int]
"""Where a row is in its batch: not due, by time if it is due, then its number and the number in its work."""

SORTED_ROWS, SORTED_BYTES = 20_000, 16 << 20  # that a task holds for a sink
MOST_ROWS, MOST_BYTES = 10_000, 16 << 20  # that a sink gets at once
_CHUNK_ROWS, _CHUNK_BYTES = 1_000, 256 << 10  # that a reader holds of each run

_Row: TypeAlias = tuple[Place, bytes]
_Run: TypeAlias = list[tuple[int, int, int]]  # where its chunks are, how long, and their checksums
_Index: TypeAlias = dict[str, dict[int, list[_Run]]]  # by sink and bucket
_TRAILER = struct.Struct(">IQ")  # the checksum of the index, and how long it is
_ENCODER, _DECODER = msgspec.msgpack.Encoder(), msgspec.msgpack.Decoder(list[_Row])


class StagedFile(msgspec.Struct, frozen=True):
    """A file of staged rows: which task wrote it, and how many rows and bytes it has for each sink.

    ``buckets``: by sink the number of buckets, if there are several.
    """

    task: int
    path: str
    rows: dict[str, int]
    bytes: dict[str, int] = {}
    buckets: dict[str, int] = {}


class StagedRowsWriter:
    """Writes the rows of one task, which come in any order."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._at = 0
        self._waiting: dict[str, list[tuple[int, Place, bytes]]] = {}
        self._waiting_bytes: dict[str, int] = {}
        self._index: _Index = {}
        self._last: dict[tuple[str, int], Place] = {}
        self.rows: dict[str, int] = {}
        self.bytes: dict[str, int] = {}

    def add(self, sink: str, place: Place, data: bytes, bucket: int = 0) -> None:
        """One more row for a sink."""
        waiting = self._waiting.setdefault(sink, [])
        waiting.append((bucket, place, data))
        size = self._waiting_bytes[sink] = self._waiting_bytes.get(sink, 0) + len(data)
        if len(waiting) >= SORTED_ROWS or size >= SORTED_BYTES:
            self._write(sink)

    def _write(self, sink: str) -> None:
        rows = self._waiting.pop(sink)
        rows.sort(key=itemgetter(0, 1))
        for bucket, found in groupby(rows, itemgetter(0)):
            self._write_run(sink, bucket, [(place, data) for _, place, data in found])
        self.bytes[sink] = self.bytes.get(sink, 0) + self._waiting_bytes.pop(sink)
        self.rows[sink] = self.rows.get(sink, 0) + len(rows)

    def _write_run(self, sink: str, bucket: int, rows: list[_Row]) -> None:
        """Rows in order, which continue the last run of their bucket if they may."""
        runs = self._index.setdefault(sink, {}).setdefault(bucket, [])
        if not runs or rows[0][0] < self._last[sink, bucket]:
            runs.append([])
        for chunk in _chunks(rows):
            data = _ENCODER.encode(chunk)
            self._file.write(data)
            runs[-1].append((self._at, len(data), zlib.crc32(data)))
            self._at += len(data)
        self._last[sink, bucket] = rows[-1][0]

    def finish(self) -> None:
        """Write what is left, and the index."""
        for sink in [*self._waiting]:
            self._write(sink)
        index = msgspec.json.encode(self._index)
        self._file.write(index + _TRAILER.pack(zlib.crc32(index), len(index)))


def _chunks(rows: list[_Row]) -> Iterator[list[_Row]]:
    first = size = 0
    for at, (_, data) in enumerate(rows):
        if at > first and (at - first >= _CHUNK_ROWS or size + len(data) > _CHUNK_BYTES):
            yield rows[first:at]
            first, size = at, 0
        size += len(data)
    yield rows[first:]


def read_rows(
    storage: Folder, path: str, sink: str, buckets: Collection[int] | None = None
) -> Iterator[_Row]:
    """The rows of a file for one sink, in order; one chunk of each run is in memory at a time.

    ``buckets``: only the rows of these.
    """
    try:
        with storage.open(path) as file:
            found = _index(file).get(sink, {})
            wanted = found if buckets is None else [each for each in found if each in buckets]
            runs = [run for bucket in wanted for run in found[bucket]]
            yield from heapq.merge(*(_read_run(file, run) for run in runs), key=itemgetter(0))
    except (OSError, ValueError, EOFError, struct.error, msgspec.DecodeError) as error:
        raise CheckpointError(
            f"{storage.root}/{path} is damaged or gone ({error}), and a batch that is to be delivered is in "
            "it; put a copy back, or take another checkpoint folder to begin anew"
        ) from error


def places_of(file: BinaryIO) -> Iterator[tuple[str | None, int, int, int]]:
    """What a file is made of: chunks, as sink, bucket, offset and length; and its index, of no sink."""
    index = _index(file)
    chunks = [
        (offset, length, sink, bucket)
        for sink, buckets in index.items()
        for bucket, runs in buckets.items()
        for run in runs
        for offset, length, _ in run
    ]
    end = 0
    for offset, length, sink, bucket in sorted(chunks):
        yield sink, bucket, offset, length
        end = offset + length
    yield None, 0, end, file.seek(0, 2) - end


def _read_run(file: BinaryIO, run: _Run) -> Iterator[_Row]:
    for offset, length, checksum in run:
        file.seek(offset)
        data = file.read(length)
        if zlib.crc32(data) != checksum:
            raise ValueError(f"what is at byte {offset} has changed")
        yield from _DECODER.decode(data)


def _index(file: BinaryIO) -> _Index:
    end = file.seek(0, 2)
    file.seek(end - _TRAILER.size)
    checksum, length = _TRAILER.unpack(file.read(_TRAILER.size))
    file.seek(end - _TRAILER.size - length)
    data = file.read(length)
    if zlib.crc32(data) != checksum:
        raise ValueError("its index has changed")
    return msgspec.json.decode(data, type=_Index)


def chunks_of(
    storage: Folder,
    files: Sequence[StagedFile],
    sink: str,
    most: tuple[int, int] | None = None,
    buckets: Collection[int] | None = None,
) -> Iterator[list[Any]]:
    """The records of a sink from several files, put in order, in chunks that fit into memory.

    ``most``: the rows and bytes of a chunk. ``buckets``: only the rows of these.
    """
    most_rows, most_bytes = most or (MOST_ROWS, MOST_BYTES)
    parts = [read_rows(storage, each.path, sink, buckets) for each in files if each.rows.get(sink)]
    rows: Iterable[_Row] = parts[0] if len(parts) == 1 else heapq.merge(*parts, key=itemgetter(0))
    chunk: list[Any] = []
    size = 0
    for _, data in rows:
        if chunk and (len(chunk) >= most_rows or size + len(data) > most_bytes):
            yield chunk
            chunk, size = [], 0
        chunk.append(decode(data))
        size += len(data)
    if chunk:
        yield chunk
