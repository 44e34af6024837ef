"""Tables of PostgreSQL as a Python data source: planned by ``plan.py``, read by the tasks through ADBC."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cached_property
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.types import StructType

from queenstream.core.schemas import Schema
from queenstream.engines.spark.datasource.database import AGAIN, Database, open_database
from queenstream.engines.spark.sources.tables.columns import Task
from queenstream.engines.spark.sources.tables.options import (
    Limits,
    Offset,
    is_final,
    span_of,
    typed_names,
    unpacked_value,
)
from queenstream.engines.spark.sources.tables.readers import TableReader, stream_reader
from queenstream.engines.spark.sources.tables.rows import Rows, column_reader
from queenstream.errors import DatabaseUnusable, Unavailable
from queenstream.pipeline.endpoints import Postgres

if TYPE_CHECKING:
    from queenstream.engines.spark.sources.tables.plan import TablePlan  # with asyncpg: not in every worker

_SETTINGS = (
    "select set_config('search_path', (select reset_val from pg_settings where name = 'search_path'), "
    "false), "
    "set_config('datestyle', 'ISO', false), set_config('intervalstyle', 'postgres', false), "
    "set_config('bytea_output', 'hex', false), set_config('extra_float_digits', '1', false), "
    "set_config('standard_conforming_strings', 'on', false), set_config('synchronize_seqscans', 'off', false)"
)
"""As the connector's own connection has it, and a table read from its beginning."""


class TablePart(InputPartition):
    """What one task reads; None: nothing. ``end``: the place of the row that says that there is no more."""

    def __init__(self, task: Task | None, end: int | None = None) -> None:
        super().__init__(None)
        self.task = task
        self.end = end


class PostgresSource(DataSource):
    """A table; ``queenstream.engines.spark.sources.tables.load`` gives the options."""

    @classmethod
    def name(cls) -> str:
        """As in ``format("queen-postgres")``."""
        return "queen-postgres"

    def reader(self, schema: StructType) -> DataSourceReader:
        """For ``spark.read``: the rows of a batch that was read before."""
        return TableReader(PostgresReading(self.options, schema), *span_of(self.options))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802
        """For ``spark.readStream``."""
        return stream_reader(PostgresReading(self.options, schema), final=is_final(self.options))


class PostgresReading:
    """How a table is planned and read; it holds nothing until it plans."""

    def __init__(self, options: Mapping[str, str], schema: StructType) -> None:
        self._options = {name.lower(): value for name, value in options.items()}
        self._columns = schema
        self.title = f"the table {self._options['table']}"

    @cached_property
    def _plan(self) -> TablePlan:
        return plan_of(self._options, self._columns)

    @property
    def behind(self) -> int:
        """About how many rows there are after the last batch."""
        return self._plan.behind

    def finalize(self) -> None:
        """What is there now is read, nothing that comes later."""
        self._plan.finalize()

    @property
    def limits(self) -> Limits:
        """How much the first batch may have."""
        return Limits.of(self._options)

    def advance(self, start: Offset, limits: Limits) -> Offset:
        """How far the next batch goes; where it is, if there is nothing new."""
        return self._plan.advance(start, limits)

    def parts(self, start: Offset, end: Offset, *, again: bool = False) -> list[InputPartition]:
        """One for each task of a batch."""
        parts = [TablePart(task) for task in self._plan.tasks(start, end, again=again)]
        if end["done"]:
            if not parts:
                parts.append(TablePart(None))
            parts[-1].end = end["seq"]
        return [*parts]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """A task's rows, as Arrow batches."""
        if isinstance(partition, TablePart):  # or Spark's own, when there is nothing to read
            yield from self._read(partition)

    def _read(self, part: TablePart) -> Iterator[pa.RecordBatch]:
        schema: Schema | None = unpacked_value(self._options["schema"])
        rows = Rows(self._columns, schema)
        place = 0
        if part.task is not None:
            place = part.task.first
            make = column_reader(rows, schema, part.task.columns)
            for batch in read_task(self._options["pg"], part.task):
                if batch.num_rows:
                    yield make(batch, place)
                    place += batch.num_rows
        if part.end is not None:
            yield rows.end(max(place, part.end))

    def close(self) -> None:
        """Let go of the connection, and of the snapshot; nothing is planned after that."""
        self._plan.end()


def plan_of(options: dict[str, str], columns: StructType) -> TablePlan:
    """What plans the reading of a table, by a data source's options with their names in small letters."""
    from queenstream.engines.spark.sources.tables.plan import (
        TablePlan,  # with asyncpg: only where it is planned
    )

    source = Postgres(
        options["table"], cursor=options.get("cursor"), schema=unpacked_value(options["schema"])
    )
    limits = Limits.of(options)
    return TablePlan(source, options["pg"], options["node"], typed_names(columns), limits)


def read_task(url: str, task: Task) -> Iterator[pa.RecordBatch]:
    """The rows of a task, in a connection of its own."""
    database = open_database(url)
    try:
        database.rows(_SETTINGS)
        if task.snapshot is not None:
            _join(database, task.snapshot)
        yield from database.batches(task.query)
    finally:
        database.close()


def _join(database: Database, snapshot: str) -> None:
    """See what the snapshot sees. It is gone, if the server was: then another one is taken."""
    database.rows("begin isolation level repeatable read read only")
    name = snapshot.replace("'", "''")
    try:
        database.rows(f"set transaction snapshot '{name}'")
    except DatabaseUnusable as error:
        raise Unavailable(f"the moment at which the table is read is gone: {error}; {AGAIN}") from None
