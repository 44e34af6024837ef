"""Files, folders of them and patterns: NDJSON, CSV, Parquet, text and ORC.

Reading, the files come in the order of their names (those that begin with ``.`` or ``_`` are not read), and a
position says for each how far it was read. With ``follow``, files may be added, and lines to
files of lines; a line counts once it has its end. What was read must not change.

Writing, the path is a **folder**, also if it looks like a file: each epoch becomes a file of its own,
``part-<epoch>-<step>.ndjson``, which appears whole, under its final name, or not at all. A repeat of an
epoch finds its file there. To read the result, read the folder.
"""

from __future__ import annotations

import asyncio
import contextlib
import glob
import os
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import quote

import msgspec

from queenstream.connectors.base import Context, Positions, Refusal
from queenstream.connectors.files.lines import (
    CsvFile,
    NdjsonFile,
    Part,
    TextFile,
    csv_bytes,
    ndjson_bytes,
)
from queenstream.connectors.files.orc import OrcFile
from queenstream.connectors.files.parquet import ParquetFile, parquet_bytes
from queenstream.connectors.provenance import Provenance
from queenstream.connectors.validation import fit, schema_of
from queenstream.core.batches import Batch
from queenstream.core.schemas import Schema
from queenstream.errors import CheckpointError, ConfigError, PayloadInvalid
from queenstream.pipeline.endpoints import FileFormat, Files

LOOK_SECONDS = 0.2  # how often a folder that is followed is looked at


class OpenFile(Protocol):
    """An open file of some format."""

    @property
    def position(self) -> list[int]: ...
    def take(self, most: int) -> Part: ...
    def close(self) -> None: ...


_OPEN: Mapping[FileFormat, Callable[[Path, Sequence[int], bool], OpenFile]] = {
    "ndjson": NdjsonFile,
    "csv": CsvFile,
    "parquet": ParquetFile,
    "text": TextFile,
    "orc": OrcFile,
}
_ENCODE: Mapping[FileFormat, Callable[[Sequence[Any], Schema | None], tuple[bytes, list[Refusal]]]] = {
    "ndjson": ndjson_bytes,
    "csv": csv_bytes,
    "parquet": parquet_bytes,
}


def open_file(
    form: FileFormat, path: Path, position: Sequence[int] = (), *, follow: bool = False
) -> OpenFile:
    """Open a file of a format at a position; ``PayloadInvalid`` if it is no such file."""
    return _OPEN[form](path, position, follow)


def files_at(place: str) -> list[Path] | None:
    """The files at a path or that a pattern finds, in the order of their names; None: there is nothing.

    A path that exists is one, whatever characters it has.
    """
    path = Path(place)
    if path.is_dir():
        return sorted(each for each in path.iterdir() if _is_read(each))
    if path.exists():
        return [path]
    if not glob.has_magic(place):
        return None
    found = map(Path, glob.glob(place))  # noqa: PTH207 - a path may be absolute or not
    return sorted(each for each in found if _is_read(each)) or None


def _is_read(path: Path) -> bool:
    return path.name[0] not in "._" and path.is_file()


class FilesReader:
    """Reads one file after the other, in a thread."""

    def __init__(self, source: Files, context: Context) -> None:  # noqa: ARG002 - as all readers
        assert source.format is not None
        if source.remote:  # as in a writer
            raise ConfigError(f"{source.label} is not on this machine; Spark reads it: engine='spark'")
        self._place = source.place
        self._is_pattern = glob.has_magic(source.place)
        self._follow = source.follow
        self._schema = schema_of(source.schema)
        self._format: FileFormat = source.format
        self._positions: dict[str, list[int]] = {}
        self._moved: set[str] = set()
        self._sizes: dict[str, int] = {}  # of files that were read to their end: as large as they were then
        self._waiting: list[Path] = []
        self._file: OpenFile | None = None
        self._name = ""
        self._looked = 0.0

    async def open(self, positions: Positions) -> None:
        self._positions = {name: list(position) for name, position in positions.items()}
        await asyncio.to_thread(self._look)

    def _look(self) -> None:
        """Which files there are to read."""
        self._looked = time.monotonic()
        files = files_at(self._place)
        if files is None and not self._follow:
            raise ConfigError(f"there is no file or folder {self._place}; check the path")
        found: dict[Path, int] = {}
        for path in files or ():
            with contextlib.suppress(FileNotFoundError):  # it went away meanwhile
                found[path] = path.stat().st_size
        self._waiting = [path for path, size in found.items() if size != self._sizes.get(self._name_of(path))]

    def _name_of(self, path: Path) -> str:
        """What a position calls a file: those of a pattern may lie in several folders."""
        return str(path) if self._is_pattern else path.name

    async def read(self, most: int, wait_seconds: float) -> Batch | None:
        ends = time.monotonic() + wait_seconds
        while True:
            batch = await asyncio.to_thread(self._read, most)
            if batch is not None:
                return batch
            if not self._follow:
                return None
            left = ends - time.monotonic()
            due = self._looked + LOOK_SECONDS - time.monotonic()
            if due > left:
                await asyncio.sleep(max(0, left))
                return Batch([])
            await asyncio.sleep(max(0, due))
            await asyncio.to_thread(self._look)

    def _read(self, most: int) -> Batch | None:
        """What the next file with something in it gives; None: nothing is left."""
        while self._file is not None or self._waiting:
            part = self._take(most)
            if part.size:
                batch = fit(self._schema, part.records)
                batch.failures = part.failures + batch.failures
                return batch
        return None

    def _take(self, most: int) -> Part:
        if self._file is None:
            path = self._waiting.pop(0)
            self._name = name = self._name_of(path)
            size = path.stat().st_size
            try:
                position = self._positions.get(name, ())
                self._file = open_file(self._format, path, position, follow=self._follow)
            except PayloadInvalid as error:  # it is not a file of its format at all
                self._sizes[name] = size
                return Part(failures=[(str(path), error)])
            self._sizes[name] = size
        part = self._file.take(most)
        if self._positions.get(self._name) != self._file.position:
            self._positions[self._name] = self._file.position
            self._moved.add(self._name)
        if not part.more:
            self._file.close()
            self._file = None
        return part

    def changes(self) -> dict[str, Any]:
        changed = {name: self._positions[name] for name in self._moved}
        self._moved.clear()
        return changed

    async def commit(self) -> None:
        """There is nobody to tell."""

    def drained(self) -> bool:
        return True

    def lag(self) -> float | None:
        return None

    async def close(self) -> None:
        if self._file is not None:
            self._file.close()


def provenance_file(step: str) -> str:
    """The file that says which checkpoint a step has written the folder from; readers ignore it."""
    return f"_checkpoint-{step}.json"


def decode_provenance(path: object, data: bytes) -> Provenance:
    """What is in such a file."""
    try:
        return msgspec.json.decode(data, type=Provenance)
    except msgspec.MsgspecError as error:
        raise CheckpointError(
            f"{path} is damaged ({error}), and says which checkpoint has written this folder; if it was that "
            "of this run, delete the file"
        ) from None


class FilesWriter:
    """Writes a file for each epoch."""

    def __init__(self, sink: Files, context: Context) -> None:
        assert sink.format is not None
        if sink.remote:  # a plan says so by line; a path would become a folder called "s3a:"
            raise ConfigError(f"{sink.label} is not on this machine; Spark writes Parquet there")
        if sink.format not in _ENCODE:
            raise ConfigError(f"{sink.format} files can only be read; write 'ndjson', 'csv' or 'parquet'")
        self._folder = Path(sink.place)
        self._suffix = sink.format
        self._schema = schema_of(sink.schema)
        self._encode = _ENCODE[sink.format]
        self._step = quote(context.node, safe="")
        self._exclusive = context.exclusive

    async def open(self) -> None:
        await asyncio.to_thread(self._prepare)

    def _prepare(self) -> None:
        if self._folder.is_file():
            raise ConfigError(
                f"{self._folder} is a file, and each batch is written as a file of its own; name a folder"
            )
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ConfigError(f"the folder {self._folder} cannot be made: {error.strerror}") from error
        if self._exclusive:  # what a killed run left unfinished
            for left in self._folder.glob(f".part-*-{self._step}.{self._suffix}.*"):
                left.unlink(missing_ok=True)

    async def write(self, epoch: str, rows: Sequence[Any]) -> list[Refusal]:
        return await asyncio.to_thread(self._write, epoch, rows)

    def _write(self, epoch: str, rows: Sequence[Any]) -> list[Refusal]:
        data, refused = self._encode(rows, self._schema)
        final = self._folder / f"part-{epoch}-{self._step}.{self._suffix}"
        if data and not final.exists():
            self._place(final, data)
        return refused

    def _place(self, final: Path, data: bytes) -> None:
        """Write a file, whole or not at all."""
        unfinished = self._folder / f".{final.name}.{os.getpid()}"
        with contextlib.ExitStack() as failed:
            failed.callback(unfinished.unlink, missing_ok=True)
            with unfinished.open("wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            unfinished.rename(final)
            failed.pop_all()
        self._sync_folder()

    async def provenance(self) -> Provenance | None:
        return await asyncio.to_thread(self._provenance)

    def _provenance(self) -> Provenance | None:
        try:
            return decode_provenance(self._own_file, self._own_file.read_bytes())
        except FileNotFoundError:
            return None

    async def store_provenance(self, provenance: Provenance) -> None:
        await asyncio.to_thread(self._place, self._own_file, msgspec.json.encode(provenance))

    @property
    def _own_file(self) -> Path:
        return self._folder / provenance_file(self._step)

    def _sync_folder(self) -> None:
        descriptor = os.open(self._folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    async def close(self) -> None:
        """Nothing is open between two epochs."""
