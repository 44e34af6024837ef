"""Stages the records of a task as files: the same text, and the same columns, as on the local engine."""

from __future__ import annotations

import contextlib
import csv
import io
import sys
import uuid
from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any, BinaryIO

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark import TaskContext

from queenstream.client._base.payloads import encode, encode_all
from queenstream.connectors.files.lines import as_record, csv_cells
from queenstream.connectors.files.parquet import make_table
from queenstream.core.schemas import Schema
from queenstream.engines.spark.sinks.storage import sync
from queenstream.engines.spark.sinks.two_phase import OpenRecordStage, StagedPart
from queenstream.errors import PayloadInvalid
from queenstream.pipeline.endpoints import FileFormat
from queenstream.runtime.encoding import encode_row

_TOGETHER = 500  # records that are encoded at once
_BUFFER_BYTES = 1 << 20  # of text, until it is written
_GROUP_ROWS, _GROUP_BYTES = 50_000, 32 << 20  # of a row group, about
_MEASURED = 32  # one record of so many is measured


@dataclass(frozen=True)
class FileRecords:
    """Writes the records of a task to a file; to several, if no single one can hold them.

    It is in ``folder``, which is below ``staging``.
    """

    staging: Path
    folder: str
    format: FileFormat
    schema: Schema | None

    @contextlib.contextmanager
    def open(self) -> Iterator[OpenRecordStage]:
        """For the records of one task. Its file is created when the first of them comes."""
        files = _Files(self.staging, self.folder, self.format)
        opened = _OPEN[self.format](files, self.schema)
        try:
            yield opened
        except BaseException:
            files.discard()
            raise


def file_names(part: StagedPart) -> list[str]:
    """The names of the files of a part.

    >>> file_names(StagedPart(1, "00001-ab.parquet", 5, files=2))
    ['00001-ab.parquet', '00001-ab.1.parquet']
    """
    path = PurePosixPath(part.name)
    more = (path.with_name(f"{path.stem}.{number}{path.suffix}") for number in range(1, part.files))
    return [part.name, *map(str, more)]


class _Files:
    """The files of one task."""

    def __init__(self, staging: Path, folder: str, suffix: str) -> None:
        context = TaskContext.get()
        self._task = 0 if context is None else context.partitionId()
        self._staging = staging
        self._name = f"{folder}/{self._task:05}-{uuid.uuid4().hex}.{suffix}"
        self._number = 0

    @property
    def _paths(self) -> list[Path]:
        part = StagedPart(self._task, self._name, 0, files=self._number)
        return [self._staging / name for name in file_names(part)[: self._number]]

    def add(self) -> Path:
        """The path of one more file."""
        self._number += 1
        path = self._paths[-1]
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        return path

    def finish(self, rows: int) -> StagedPart | None:
        """Make them durable; None: there are none."""
        if not self._number:
            return None
        for path in self._paths:
            sync(path)
        sync(self._paths[0].parent)
        size = sum(path.stat().st_size for path in self._paths)
        return StagedPart(self._task, self._name, rows, size, self._number)

    def discard(self) -> None:
        """Leave nothing behind."""
        for path in self._paths:
            path.unlink(missing_ok=True)


class _OpenFormat(OpenRecordStage):
    """The records of a task on their way into files of one format."""

    def __init__(self, files: _Files, schema: Schema | None) -> None:
        self._files = files
        self._schema = schema
        self._rows = 0

    @abstractmethod
    def _close(self) -> None:
        """Write what is left."""

    def finish(self) -> StagedPart | None:
        self._close()
        return self._files.finish(self._rows)


class _Ndjson(_OpenFormat):
    """Lines of JSON."""

    def __init__(self, files: _Files, schema: Schema | None) -> None:
        super().__init__(files, schema)
        self._waiting = bytearray()
        self._file: BinaryIO | None = None

    def add(self, record: Any) -> bool:
        try:
            line = encode(record if self._schema is None else self._schema.coerce(record))
        except PayloadInvalid:
            return False
        self._take([line])
        return True

    def add_all(self, records: Sequence[Any]) -> list[int]:
        if self._schema is not None:
            return super().add_all(records)
        refused: list[int] = []
        for first in range(0, len(records), _TOGETHER):
            some = records[first : first + _TOGETHER]
            try:
                lines = encode_all(some)
            except Exception:  # noqa: BLE001 - one by one shows which it is
                refused += [first + index for index in super().add_all(some)]
            else:
                self._take(lines)
        return refused

    def _take(self, lines: list[bytes]) -> None:
        self._rows += len(lines)
        self._waiting += b"\n".join(lines)
        self._waiting += b"\n"
        if len(self._waiting) >= _BUFFER_BYTES:
            self._write()

    def _write(self) -> None:
        if self._file is None:
            self._file = self._files.add().open("wb")
        self._file.write(self._waiting)
        self._waiting.clear()

    def _close(self) -> None:
        if self._waiting:
            self._write()
        if self._file is not None:
            self._file.close()


class _Csv(_OpenFormat):
    """CSV with the names of the fields on its first line.

    Where no schema says them, these are the fields of all records. Those of the first record are written
    first; if a later one has more, the file is written anew in the end.
    """

    def __init__(self, files: _Files, schema: Schema | None) -> None:
        super().__init__(files, schema)
        self._names: dict[str, None] = {} if schema is None else dict.fromkeys(schema.names)
        self._text = io.StringIO(newline="")
        self._writer = csv.writer(self._text)
        self._path: Path | None = None
        self._file: BinaryIO | None = None
        self._has_more = False  # names than the first line

    def add(self, record: Any) -> bool:
        try:
            cells = csv_cells(record, self._schema)
        except PayloadInvalid:
            return False
        if not self._rows:
            if self._schema is None:
                self._names = dict.fromkeys(cells)
            self._writer.writerow(self._names)
        elif self._schema is None and not cells.keys() <= self._names.keys():
            self._names |= dict.fromkeys(cells)
            self._has_more = True
        self._rows += 1
        self._writer.writerow([cells.get(name) for name in self._names])
        if self._text.tell() >= _BUFFER_BYTES:
            self._write()
        return True

    def _write(self) -> None:
        if self._file is None:
            self._path = self._files.add()
            self._file = self._path.open("wb")
        self._file.write(self._text.getvalue().encode())
        self._text.seek(0)
        self._text.truncate()

    def _close(self) -> None:
        if self._text.tell():
            self._write()
        if self._file is not None:
            self._file.close()
        if self._has_more:
            self._write_anew()

    def _write_anew(self) -> None:
        assert self._path is not None, "it has rows"
        whole = self._path.with_name(f".{self._path.name}")
        try:
            with (
                self._path.open(encoding="utf-8", newline="") as old,
                whole.open("w", encoding="utf-8", newline="") as new,
                _large_cells(),
            ):
                rows, writer = csv.reader(old), csv.writer(new)
                next(rows)
                writer.writerow(self._names)
                writer.writerows([*row, *[None] * (len(self._names) - len(row))] for row in rows)
            whole.rename(self._path)
        finally:
            whole.unlink(missing_ok=True)


@contextlib.contextmanager
def _large_cells() -> Iterator[None]:
    """Read cells of any size meanwhile."""
    before = csv.field_size_limit(sys.maxsize)
    try:
        yield
    finally:
        csv.field_size_limit(before)


class _Parquet(_OpenFormat):
    """Row groups. Records whose columns have other types than those before them begin another file."""

    def __init__(self, files: _Files, schema: Schema | None) -> None:
        super().__init__(files, schema)
        self._waiting: list[Any] = []
        self._records: list[Mapping[str, Any]] = []
        self._waiting_bytes = 0
        self._refused: list[Any] = []
        self._writer: pq.ParquetWriter | None = None
        self._columns: pa.Schema | None = None

    def add(self, record: Any) -> bool:
        try:
            self._records.append(as_record(record, self._schema))
        except PayloadInvalid:
            return False
        if len(self._waiting) % _MEASURED == 0:
            self._waiting_bytes += _MEASURED * len(encode_row(record))
        self._waiting.append(record)
        if len(self._waiting) >= _GROUP_ROWS or self._waiting_bytes >= _GROUP_BYTES:
            self._write()
        return True

    def take_refused(self) -> list[Any]:
        refused, self._refused = self._refused, []
        return refused

    def _write(self) -> None:
        waiting, self._waiting = self._waiting, []
        records, self._records = self._records, []
        self._waiting_bytes = 0
        try:
            table = make_table(records, self._schema)
        except PayloadInvalid:
            self._refused += waiting
            return
        if self._writer is None or self._columns != table.schema:
            if self._writer is not None:
                self._writer.close()
            self._writer, self._columns = pq.ParquetWriter(self._files.add(), table.schema), table.schema
        self._writer.write_table(table)
        self._rows += len(records)

    def _close(self) -> None:
        if self._waiting:
            self._write()
        if self._writer is not None:
            self._writer.close()


_OPEN: Mapping[FileFormat, Callable[[_Files, Schema | None], _OpenFormat]] = {
    "ndjson": _Ndjson,
    "csv": _Csv,
    "parquet": _Parquet,
}
