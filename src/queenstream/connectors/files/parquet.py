"""Parquet files, with pyarrow, which is imported when one is opened.

A position is ``[row group, row]``: of the next row. Files do not grow: one is placed whole, or not there.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from queenstream.client._base.payloads import encode
from queenstream.connectors.base import Refusal
from queenstream.connectors.files.lines import Part, as_record
from queenstream.core.schemas import Schema, types
from queenstream.errors import ConfigError, PayloadInvalid

ROWS = 10_000  # read at once


def import_arrow(name: str) -> Any:
    """A module of pyarrow; says what to install, if it is not there."""
    try:
        return importlib.import_module(name)
    except ImportError:
        raise ConfigError(
            "Parquet and ORC need pyarrow; install it with pip install 'queenstream[spark]', or use NDJSON"
        ) from None


class ParquetFile:
    """A file of row groups."""

    def __init__(self, path: Path, position: Sequence[int], follow: bool) -> None:  # noqa: ARG002 - as all formats
        self._path = path
        self._group, self._row = position or (0, 0)
        self._waiting: list[Any] = []
        parquet = import_arrow("pyarrow.parquet")
        try:
            self._file: Any = parquet.ParquetFile(path)
        except import_arrow("pyarrow").ArrowInvalid as error:
            raise PayloadInvalid(f"{path} is no Parquet file: {error}") from None
        self._pages = self._read()

    @property
    def position(self) -> list[int]:
        return [self._group, self._row]

    def _read(self) -> Iterator[list[Any]]:
        """The rows from the position on; moves to the next row group at the end of each."""
        while self._group < self._file.num_row_groups:
            skip = self._row
            for rows in self._file.iter_batches(batch_size=ROWS, row_groups=[self._group]):
                if skip >= rows.num_rows:
                    skip -= rows.num_rows
                    continue
                yield rows.slice(skip).to_pylist()
                skip = 0
            self._group, self._row = self._group + 1, 0

    def take(self, most: int) -> Part:
        """Up to ``most`` rows, of one row group."""
        part = Part(more=True)
        if not self._waiting:
            page = next(self._pages, None)
            if page is None:
                part.more = False
                return part
            self._waiting = page
        part.records, self._waiting = self._waiting[:most], self._waiting[most:]
        self._row += len(part.records)
        return part

    def close(self) -> None:
        self._file.close()


def parquet_bytes(rows: Sequence[Any], schema: Schema | None) -> tuple[bytes, list[Refusal]]:
    """The rows as a file; and those that cannot be: without a schema, they must be alike."""
    records: list[Any] = []
    refused: list[Refusal] = []
    for index, row in enumerate(rows):
        try:
            records.append(as_record(row, schema))
        except PayloadInvalid as error:
            refused.append((index, error))
    if not records:
        return b"", refused
    try:
        table = make_table(records, schema)
    except PayloadInvalid as error:
        return b"", [(index, error) for index in range(len(rows))]
    out = import_arrow("pyarrow").BufferOutputStream()
    import_arrow("pyarrow.parquet").write_table(table, out)
    return out.getvalue().to_pybytes(), refused


def make_table(records: Sequence[Any], schema: Schema | None) -> Any:
    """Records as a table; ``PayloadInvalid`` if they are not alike."""
    pyarrow = import_arrow("pyarrow")
    try:
        return _table(pyarrow, records, schema)
    except (pyarrow.ArrowException, OverflowError, TypeError) as error:
        raise PayloadInvalid(f"the rows do not make one table: {error}; give the sink a schema=…") from None


def _table(pyarrow: Any, records: Sequence[Any], schema: Schema | None) -> Any:
    if schema is None:
        names = dict.fromkeys(name for record in records for name in record)
        return pyarrow.table({name: [record.get(name) for record in records] for name in names})
    columns = {
        field.name: pyarrow.array(
            [_stored(record[field.name], field.type) for record in records], _arrow_type(pyarrow, field.type)
        )
        for field in schema.fields
    }
    return pyarrow.table(columns)


def _stored(value: Any, kind: types.Type) -> Any:
    """What has no type of its own is kept as JSON."""
    if kind == types.VARIANT and value is not None:
        return encode(value).decode()
    if isinstance(kind, types.Map) and value is not None:
        return list(value.items())
    return value


def _arrow_type(pyarrow: Any, kind: types.Type) -> Any:
    if kind in types.INTEGERS:
        return getattr(pyarrow, f"int{types.INTEGERS[kind]}")()
    if isinstance(kind, types.Decimal):
        return pyarrow.decimal128(kind.precision, kind.scale)
    if isinstance(kind, types.List):
        return pyarrow.list_(_arrow_type(pyarrow, kind.of))
    if isinstance(kind, types.Map):
        return pyarrow.map_(_arrow_type(pyarrow, kind.key), _arrow_type(pyarrow, kind.value))
    if isinstance(kind, types.Struct):
        return pyarrow.struct([(field.name, _arrow_type(pyarrow, field.type)) for field in kind.fields])
    scalars = {
        types.STRING: pyarrow.string(),
        types.BOOLEAN: pyarrow.bool_(),
        types.FLOAT: pyarrow.float32(),
        types.DOUBLE: pyarrow.float64(),
        types.TIMESTAMP: pyarrow.timestamp("us", "UTC"),
        types.DATE: pyarrow.date32(),
        types.BINARY: pyarrow.binary(),
        types.VARIANT: pyarrow.string(),
    }
    return scalars[kind]
