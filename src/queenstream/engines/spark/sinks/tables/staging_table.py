"""Stages columns in a PostgreSQL table: each task sends its rows in one COPY. Tasks load this module."""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from queenstream.core.schemas import types
from queenstream.core.schemas.types import Decimal, Type
from queenstream.engines.spark.datasource import arrays
from queenstream.engines.spark.datasource.database import Database, connected
from queenstream.engines.spark.native.expressions import Wide
from queenstream.engines.spark.sinks.two_phase import ColumnStage, StagedPart

ATTEMPT, PLACE = "queen_attempt", "queen_place"
"""The columns of a staging table beside those of the rows: which attempt staged a row, and its place."""

TASK_BITS = 40  # of a place, below the number of the task
WIDE = "numeric(38,0)"
"""The staged type of whole numbers that may have more than 64 bits."""

_ATTEMPT_BITS = 62

_STAGED: dict[Type, str] = {
    types.STRING: "text",
    types.BOOLEAN: "boolean",
    types.TINYINT: "smallint",
    types.SMALLINT: "smallint",
    types.INT: "integer",
    types.BIGINT: "bigint",
    types.FLOAT: "double precision",
    types.DOUBLE: "double precision",
    types.TIMESTAMP: "timestamp with time zone",
    types.DATE: "date",
    types.BINARY: "bytea",
}
_INTEGERS = frozenset(("smallint", "integer", "bigint"))
_TAKEN: dict[Type, frozenset[str]] = {
    types.STRING: frozenset(("text", "character varying", "character")),
    types.BOOLEAN: frozenset(("boolean",)),
    **dict.fromkeys(types.INTEGERS, _INTEGERS | {"numeric", "double precision"}),
    **dict.fromkeys(types.FRACTIONS, frozenset(("double precision", "real"))),
    types.TIMESTAMP: frozenset(("timestamp with time zone", "timestamp without time zone")),
    types.DATE: frozenset(("date",)),
    types.BINARY: frozenset(("bytea",)),
}
"""By our type, the types of columns to which PostgreSQL's assignment gives what the writer gives."""


def staged_type(kind: Type, column: str) -> str | None:
    """The type of a staging column for values on their way into a column of a type; None: there is none.

    >>> staged_type(types.BIGINT, "integer"), staged_type(types.DOUBLE, "integer")
    ('bigint', None)
    """
    if isinstance(kind, Wide):
        return WIDE if column in _INTEGERS | {"numeric", "double precision"} else None
    if isinstance(kind, Decimal):
        return f"numeric({kind.precision},{kind.scale})" if column == "numeric" else None
    return _STAGED[kind] if column in _TAKEN.get(kind, ()) else None


@dataclass(frozen=True)
class TableColumns(ColumnStage):
    """Sends columns into a staging table.

    ``schema`` and ``table`` name it; ``types`` has the staged type of each column. ``key``: rows of one key
    keep their order. ``required``: columns that may not be null.
    """

    url: str
    schema: str
    table: str
    types: Mapping[str, str]
    key: tuple[str, ...]
    required: tuple[str, ...]

    @property
    def order(self) -> tuple[str, ...] | None:
        return self.key or None

    def untaken(self, rows: pa.StructArray) -> pa.BooleanArray | None:
        """Rows without their key, and texts that PostgreSQL cannot hold."""
        found: list[pa.BooleanArray] = []
        for name in self.required:
            values = rows.field(name)
            if values.null_count:
                found.append(values.is_null())
        for name, kind in self.types.items():
            if kind == "text":
                zeros = pc.match_substring(rows.field(name), "\0").fill_null(False)
                if zeros.true_count:
                    found.append(zeros)
        if not found:
            return None
        untaken = found[0]
        for each in found[1:]:
            untaken = pc.or_(untaken, each)
        return untaken

    def stage(self, rows: Iterator[pa.RecordBatch], batch: int, task: int) -> StagedPart | None:  # noqa: ARG002
        first = next((each for each in rows if each.num_rows), None)
        if first is None:
            return None
        stream = _Stream(first, rows, tuple(self.types), task)
        with connected(self.url, patient=True) as database:
            stream.copy(database, self.schema, self.table)
        return StagedPart(task, str(stream.attempt), stream.rows, stream.bytes)


class _Stream:
    """The rows of a task on their way, with the attempt and a place for each."""

    def __init__(
        self, first: pa.RecordBatch, rest: Iterator[pa.RecordBatch], names: tuple[str, ...], task: int
    ) -> None:
        self.attempt = secrets.randbits(_ATTEMPT_BITS)
        self.rows = self.bytes = 0
        self._first = first
        self._rest = rest
        self._names = names
        self._place = task << TASK_BITS
        self._error: BaseException | None = None

    def copy(self, database: Database, schema: str, table: str) -> None:
        """Send all of them, in one statement."""
        begun = self._placed(self._first)
        reader = pa.RecordBatchReader.from_batches(begun.schema, self._batches(begun))
        with contextlib.closing(reader):
            try:
                database.copy(table, reader, schema)
            except Exception:
                if self._error is not None:  # not what became of it on the way through C
                    raise self._error from None
                raise

    def _batches(self, begun: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        try:
            yield begun
            for batch in self._rest:
                if batch.num_rows:
                    yield self._placed(batch)
        except BaseException as error:
            self._error = error
            raise

    def _placed(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        number = batch.num_rows
        first = self._place + self.rows
        self.rows += number
        self.bytes += batch.nbytes
        columns = [
            arrays.integers(np.full(number, self.attempt, np.int64)),
            arrays.integers(np.arange(first, first + number, dtype=np.int64)),
            *(batch.column(name) for name in self._names),
        ]
        return pa.RecordBatch.from_arrays(columns, [ATTEMPT, PLACE, *self._names])
