"""Files of lines, NDJSON, CSV and text: read from a byte on; NDJSON and CSV are written, too.

A position is ``[byte, line]``: where the next record begins, and how many lines lie before it.

CSV files have a first line with the names of the fields. Their values are text (a schema makes them what
they should be), an empty one is null; a value may hold line ends, in quotes.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date, datetime, time
from pathlib import Path
from typing import Any, BinaryIO

import msgspec

from queenstream.client._base.payloads import encode
from queenstream.connectors.base import Refusal
from queenstream.core.schemas import Schema
from queenstream.errors import ConfigError, PayloadInvalid

MOST_BYTES = 16 << 20  # of a file in one batch
BOM = b"\xef\xbb\xbf"
_DECODER: msgspec.json.Decoder[Any] = msgspec.json.Decoder()


@dataclass(slots=True)
class Part:
    """What was taken from a file. ``more``: there may be something left."""

    records: list[Any] = field(default_factory=list)
    failures: list[tuple[Any, Exception]] = field(default_factory=list)
    more: bool = False

    @property
    def size(self) -> int:
        return len(self.records) + len(self.failures)


class _LinesFile:
    """A file with a record on each line, of which ``make`` gives it, or None for a line without one."""

    make: Callable[[bytes], dict[str, Any] | None]

    def __init__(self, path: Path, position: Sequence[int], follow: bool) -> None:
        self._path = path
        self._file, self._byte, self._line = _opened(path, position)
        self._follow = follow

    @property
    def position(self) -> list[int]:
        return [self._byte, self._line]

    def take(self, most: int) -> Part:
        """Up to ``most`` records, bad lines included."""
        part = Part()
        self._file.seek(self._byte)
        ends = self._byte + MOST_BYTES
        for line in _whole_lines(self._file, self._follow):
            self._byte += len(line)
            self._line += 1
            text = line.removeprefix(BOM) if self._line == 1 else line
            try:
                record = type(self).make(text)
                if record is None:
                    continue
                part.records.append(record)
            except ValueError as error:  # msgspec's and Unicode's are ValueErrors
                part.failures.append(failed_line(f"{self._path} line {self._line}", text, error))
            if part.size >= most or self._byte >= ends:
                part.more = True
                break
        return part

    def close(self) -> None:
        self._file.close()


def json_record(line: bytes) -> dict[str, Any] | None:
    """The object on a line of NDJSON; None: the line is empty. ``ValueError`` if it is no object.

    >>> json_record(b'{"n": 1}'), json_record(b" ")
    ({'n': 1}, None)
    """
    if not line or line.isspace():
        return None
    record = _DECODER.decode(line)
    if type(record) is not dict:
        raise ValueError(f"a record is an object, not {type(record).__name__}")
    return record


def text_record(line: bytes) -> dict[str, Any]:
    """The record of a line of text: what stands before its end.

    >>> text_record(b"a b\\r\\n")
    {'value': 'a b'}
    """
    return {"value": line.removesuffix(b"\n").removesuffix(b"\r").decode()}


class NdjsonFile(_LinesFile):
    """A file with a JSON object on each line."""

    make = staticmethod(json_record)


class TextFile(_LinesFile):
    """A file with a text on each line."""

    make = staticmethod(text_record)


class CsvFile:
    """A file with the fields' names on its first line."""

    def __init__(self, path: Path, position: Sequence[int], follow: bool) -> None:
        self._path = path
        self._file, self._byte, self._line = _opened(path, position)
        self._follow = follow
        self._names: list[str] | None = None
        self._taken: list[bytes] = []  # the lines of the record under way

    @property
    def position(self) -> list[int]:
        return [self._byte, self._line]

    def take(self, most: int) -> Part:
        """Up to ``most`` records, bad ones included."""
        part = Part()
        if self._names is None and not self._read_names():
            return part
        self._file.seek(self._byte)
        ends = self._byte + MOST_BYTES
        rows = csv.reader(self._lines(), strict=True)
        while True:
            try:
                values = next(rows, None)
                if values is None:
                    break
                if self._unfinished():
                    break
                if values:
                    part.records.append(self._record(values))
            except (csv.Error, ValueError) as error:
                if self._unfinished():
                    break
                text = b"".join(self._taken)
                part.failures.append(failed_line(f"{self._path} line {self._line + 1}", text, error))
            self._step()
            if part.size >= most or self._byte >= ends:
                part.more = True
                break
        self._taken.clear()
        return part

    def _lines(self) -> Iterator[str]:
        for line in _whole_lines(self._file, self._follow):
            self._taken.append(line)
            yield line.decode()

    def _unfinished(self) -> bool:
        """The file ends inside of quotes, and may yet go on."""
        return self._follow and b"".join(self._taken).count(b'"') % 2 == 1

    def _step(self) -> None:
        """A record is done: the next one begins after its lines."""
        self._byte += sum(map(len, self._taken))
        self._line += len(self._taken)
        self._taken.clear()

    def _record(self, values: list[str]) -> dict[str, str | None]:
        assert self._names is not None
        if len(values) != len(self._names):
            raise ValueError(f"{len(values)} values for {len(self._names)} fields")
        return {name: value or None for name, value in zip(self._names, values, strict=True)}

    def _read_names(self) -> bool:
        """The names; False: they are not written yet."""
        self._file.seek(0)
        first = next(_whole_lines(self._file, self._follow), b"")
        if not first:
            return False
        try:
            self._names = next(csv.reader([first.removeprefix(BOM).decode()], strict=True), [])
        except (csv.Error, ValueError) as error:
            raise ConfigError(f"the first line of {self._path} does not name fields: {error}") from None
        if self._byte == 0:
            self._byte, self._line = len(first), 1
        return True

    def close(self) -> None:
        self._file.close()


def _opened(path: Path, position: Sequence[int]) -> tuple[BinaryIO, int, int]:
    byte, line = position or (0, 0)
    file = path.open("rb")
    size = file.seek(0, io.SEEK_END)
    if size < byte:
        file.close()
        raise ConfigError(
            f"{path} has {size} bytes and {byte} were read already: it was changed; put it back, or start "
            "afresh with another checkpoint"
        )
    return file, byte, line


def _whole_lines(file: BinaryIO, follow: bool) -> Iterator[bytes]:
    """Lines; the last one, if nothing ends it, only of a file that does not grow."""
    for line in file:
        if follow and not line.endswith(b"\n"):
            return
        yield line


def failed_line(place: str, text: bytes, error: Exception) -> tuple[str, PayloadInvalid]:
    """A line that is no record, and why."""
    return text.decode("utf-8", "replace").rstrip("\r\n"), PayloadInvalid(f"{place}: {error}")


# Writing


def ndjson_bytes(rows: Sequence[Any], schema: Schema | None) -> tuple[bytes, list[Refusal]]:
    """The rows as NDJSON, and those that cannot be.

    >>> ndjson_bytes([{"n": 1}], None)
    (b'{"n":1}\\n', [])
    """
    lines: list[bytes] = []
    refused: list[Refusal] = []
    for index, row in enumerate(rows):
        try:
            lines.append(encode(row if schema is None else schema.coerce(row)))
        except PayloadInvalid as error:
            refused.append((index, error))
    return b"".join(line + b"\n" for line in lines), refused


def csv_bytes(rows: Sequence[Any], schema: Schema | None) -> tuple[bytes, list[Refusal]]:
    """The rows as CSV, with the schema's fields, or else all that a row has; and those that cannot be.

    >>> csv_bytes([{"n": 1, "tags": ["a"]}, {"n": 2, "x": None}], None)[0]
    b'n,tags,x\\r\\n1,"[""a""]",\\r\\n2,,\\r\\n'
    """
    records: list[Mapping[str, Any]] = []
    refused: list[Refusal] = []
    for index, row in enumerate(rows):
        try:
            records.append(csv_cells(row, schema))
        except PayloadInvalid as error:
            refused.append((index, error))
    if not records:
        return b"", refused
    names = list(schema.names) if schema else list(dict.fromkeys(name for each in records for name in each))
    text = io.StringIO(newline="")
    writer = csv.writer(text)
    writer.writerow(names)
    writer.writerows([record.get(name) for name in names] for record in records)
    return text.getvalue().encode(), refused


def csv_cells(row: Any, schema: Schema | None) -> dict[str, Any]:
    """What the cells of a row hold, by the names of their columns.

    >>> csv_cells({"n": 1, "tags": ["a"]}, None)
    {'n': 1, 'tags': '["a"]'}
    """
    return {name: _cell(value) for name, value in as_record(row, schema).items()}


def as_record(row: Any, schema: Schema | None) -> Mapping[str, Any]:
    """A row with named fields, for formats that have columns."""
    if schema is not None:
        return schema.coerce(row)
    if isinstance(row, Mapping):
        return row
    for fields in ("__struct_fields__", "__dataclass_fields__", "model_fields"):  # pydantic's are the last
        if hasattr(type(row), fields):
            return {name: getattr(row, name) for name in getattr(type(row), fields)}
    raise PayloadInvalid(f"a row must have named fields, and {type(row).__name__} has none; make it a dict")


def _cell(value: Any) -> Any:
    if value is None or (isinstance(value, str | int | float) and not isinstance(value, bool)):
        return value
    if isinstance(value, datetime | date | time):
        return value.isoformat()
    text = encode(value).decode()
    return msgspec.json.decode(text) if text.startswith('"') else text
