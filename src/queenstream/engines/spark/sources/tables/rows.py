"""The rows of a table as a query takes them: in typed columns, or each as the bytes of a record."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np
import pyarrow as pa
from pyspark.sql.types import BinaryType, StructType

from queenstream.core.schemas import Schema
from queenstream.core.schemas.coercion import Misfit
from queenstream.engines.spark.datasource import arrays
from queenstream.engines.spark.sources.sources import END, FAILURE, RECORD
from queenstream.engines.spark.sources.tables.columns import TableColumn
from queenstream.engines.spark.tasks.records import encode_failure
from queenstream.engines.spark.versions import to_arrow_schema
from queenstream.errors import DatabaseUnusable, PayloadInvalid
from queenstream.runtime.encoding import encode_row

Row = dict[str, Any]
Decoders = dict[str, Callable[[Any], Any]]


class Rows:
    """Makes the rows of a source that ends (``sources.FED``) of records. ``columns`` are Spark's.

    With typed columns ``record`` has some of the schema's fields, and ``misfit`` says of a record that does
    not fit what is wrong with it.
    """

    def __init__(self, columns: StructType, schema: Schema | None) -> None:
        self._arrow = to_arrow_schema(columns)
        self._schema = schema
        self._typed = not isinstance(columns["record"].dataType, BinaryType)

    @property
    def typed_fields(self) -> tuple[pa.Field, ...] | None:
        """The fields of a record in typed columns; None: records are bytes."""
        return tuple(self._arrow.field("record").type) if self._typed else None

    def of_columns(self, columns: Sequence[pa.Array], number: int, first: int) -> pa.RecordBatch:
        """Rows whose fields are there as columns, and all fit; ``first``: the place of the first one."""
        kind = self._arrow.field("record").type
        fields = [column.cast(field.type) for column, field in zip(columns, kind, strict=True)]
        record = pa.StructArray.from_arrays(fields, fields=list(kind))
        places = arrays.integers(np.arange(first, first + number, dtype=np.int64))
        return self._batch(np.full(number, RECORD, np.int32), places, record, None)

    def of_rows(self, rows: Sequence[Row], places: Sequence[int], decoders: Decoders) -> pa.RecordBatch:
        """Rows as records of the schema. A value that its decoder refuses does not fit, either."""
        kinds, records, misfits = [], [], []
        for row in rows:
            fitting, misfit = self._fitted(row, decoders)
            kinds.append(RECORD if misfit is None else FAILURE)
            records.append(fitting)
            misfits.append(misfit)
        if self._typed and FAILURE in kinds and "misfit" not in self._arrow.names:
            raise DatabaseUnusable("the types of the table have changed: start the run again")
        kind_array = np.array(kinds, np.int32)
        place_array = arrays.integers(np.array(places, np.int64))
        if self._typed:
            record = pa.array(records, self._arrow.field("record").type)
            return self._batch(kind_array, place_array, record, pa.array(misfits, pa.binary()))
        texts = [
            encode_row(record) if misfit is None else misfit
            for record, misfit in zip(records, misfits, strict=True)
        ]
        return self._batch(kind_array, place_array, arrays.texts(texts, pa.binary()), None)

    def _fitted(self, row: Row, decoders: Decoders) -> tuple[Any, bytes | None]:
        """A record, or why there is none."""
        try:
            for name, decode in decoders.items():
                if row[name] is not None:
                    row[name] = decode(row[name])
        except Misfit as misfit:
            return None, encode_failure(
                {name: str(value) for name, value in row.items()}, PayloadInvalid(str(misfit))
            )
        if self._schema is None:
            return row, None
        try:
            return self._schema.coerce(row), None
        except PayloadInvalid as error:
            return None, encode_failure(row, error)

    def end(self, place: int) -> pa.RecordBatch:
        """The row that says that there is no more."""
        record = self._arrow.field("record").type
        empty = pa.nulls(1, record) if self._typed else arrays.texts([b""], pa.binary())
        return self._batch(np.full(1, END, np.int32), arrays.integers(np.array([place])), empty, None)

    def _batch(
        self, kinds: arrays.Numbers, places: pa.Array, record: pa.Array, misfits: pa.Array | None
    ) -> pa.RecordBatch:
        columns = {"kind": arrays.integers(kinds), "seq": places, "record": record, "misfit": misfits}
        made = []
        for field in self._arrow:
            column = columns.get(field.name)
            made.append(pa.nulls(len(places), field.type) if column is None else column)
        return pa.RecordBatch.from_arrays(made, schema=self._arrow)


class ColumnReader(Protocol):
    """Makes rows of a batch that PostgreSQL gave."""

    def __call__(self, batch: pa.RecordBatch, first: int) -> pa.RecordBatch:
        """``first``: the place of the first row."""
        ...


def column_reader(rows: Rows, schema: Schema | None, columns: Sequence[TableColumn]) -> ColumnReader:
    """What makes rows of the columns of a table.

    A batch stays in columns if the types of all allow it, and every value fits; otherwise Python looks at
    each record.
    """
    decoders = {each.name: decode for each in columns if (decode := each.decode) is not None}
    names = [each.name for each in columns]
    fields = {} if schema is None else {each.name: each for each in schema.fields}
    wanted = rows.typed_fields

    def at_once(batch: pa.RecordBatch) -> dict[str, pa.Array] | None:
        found: dict[str, pa.Array] = {}
        for column, values in zip(columns, batch.columns, strict=True):
            typed = column.typed(values, fields[column.name])
            if typed is None:
                return None
            found[column.name] = typed
        return found

    def read(batch: pa.RecordBatch, first: int) -> pa.RecordBatch:
        typed = None if wanted is None else at_once(batch)
        if typed is not None:
            assert wanted is not None, "they are typed"
            return rows.of_columns([typed[field.name] for field in wanted], batch.num_rows, first)
        lists = [column.to_pylist() for column in batch.columns]
        made = [dict(zip(names, values, strict=True)) for values in zip(*lists, strict=True)]
        return rows.of_rows(made, range(first, first + batch.num_rows), decoders)

    return read
