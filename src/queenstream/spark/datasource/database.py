"""Connections to PostgreSQL by ADBC, which gives rows as Arrow batches.

A Python worker of Spark runs many tasks one after the other; it keeps a connection between them.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

import adbc_driver_manager as adbc
import adbc_driver_postgresql
import numpy as np
import pyarrow as pa
from adbc_driver_postgresql import StatementOptions

from queenstream.errors import ConfigError, DatabaseUnusable, NotFound, QueueFull
from queenstream.spark.datasource import arrays
from queenstream.spark.datasource.options import Place

SCHEMA = 4  # the migration that Spark needs
BATCH_BYTES = 4 << 20  # an Arrow batch, about: large enough to be cheap, small enough to be on its way soon

_SETTINGS = (
    "select set_config('application_name', 'queenstream-spark', false), set_config('jit', 'off', false), "
    "set_config('timezone', 'UTC', false), set_config('search_path', 'pg_catalog', false)"
)
Value = int | str
_idle: dict[str, Database] = {}


class Database:
    """One connection: rows for planning, Arrow batches for reading, a COPY for writing.

    On ADBC's low level: the DB-API one above it imports pandas, which takes longer than most of our batches.
    """

    def __init__(self, url: str) -> None:
        with contextlib.ExitStack() as opened:
            self._database = opened.enter_context(adbc_driver_postgresql.connect(url))
            self._connection = opened.enter_context(adbc.AdbcConnection(self._database))
            opened.pop_all()
        self.rows(_SETTINGS)

    def rows(self, query: str, *parameters: Value) -> list[tuple[Any, ...]]:
        """Run a statement with parameters ``$1`` …, and give all rows."""
        with _failures(), adbc.AdbcStatement(self._connection) as statement:
            statement.set_sql_query(query)
            if parameters:
                columns = [_column(value) for value in parameters]
                statement.bind(pa.record_batch(columns, [str(n) for n in range(len(columns))]))
            stream, _ = statement.execute_query()
            found = pa.RecordBatchReader.from_stream(stream).read_all()
            return list(zip(*(column.to_pylist() for column in found.columns), strict=True))

    def row(self, query: str, *parameters: Value) -> tuple[Any, ...]:
        """The first row of a statement that has one."""
        return self.rows(query, *parameters)[0]

    def batches(self, query: str) -> Iterator[pa.RecordBatch]:
        """Run a statement and give Arrow batches as they come; with parameters, ADBC would not stream."""
        with _failures(), adbc.AdbcStatement(self._connection) as statement:
            statement.set_options(**{StatementOptions.BATCH_SIZE_HINT_BYTES.value: str(BATCH_BYTES)})
            statement.set_sql_query(query)
            stream, _ = statement.execute_query()
            with pa.RecordBatchReader.from_stream(stream) as reader:
                yield from reader

    def copy(self, table: str, batch: pa.RecordBatch) -> None:
        """Append a batch to a table of our schema."""
        with _failures(), adbc.AdbcStatement(self._connection) as statement:
            statement.set_options(
                **{
                    adbc.StatementOptions.INGEST_TARGET_TABLE.value: table,
                    adbc.StatementOptions.INGEST_TARGET_DB_SCHEMA.value: "queen",
                    adbc.StatementOptions.INGEST_MODE.value: adbc.INGEST_OPTION_MODE_APPEND,
                }
            )
            statement.bind(batch)
            statement.execute_update()

    def close(self) -> None:
        """Give the connection up, whatever state it is in."""
        with contextlib.suppress(adbc.Error, RuntimeError):
            self._connection.close()
            self._database.close()


@contextlib.contextmanager
def connected(url: str) -> Iterator[Database]:
    """A connection that is kept for the next task, unless something went wrong."""
    database = _take(url)
    try:
        yield database
    except BaseException:  # a reader may have stopped in the middle, too
        database.close()
        raise
    if _idle.setdefault(url, database) is not database:
        database.close()


def _take(url: str) -> Database:
    kept = _idle.pop(url, None)
    if kept is not None:
        try:
            kept.rows("select 1")
        except DatabaseUnusable:  # PostgreSQL was restarted meanwhile
            kept.close()
        else:
            return kept
    try:
        return Database(url)
    except adbc.Error as error:
        reason = str(error).strip().splitlines()[-1].rpartition("failed: ")[2]
        raise DatabaseUnusable(
            f"Spark cannot reach PostgreSQL at {_where(url)}: {reason}; "
            "the driver and every executor need to: check host, port and user"
        ) from None


def _column(value: Value) -> pa.Array:
    if isinstance(value, str):
        return arrays.texts([value.encode()], pa.string())
    return arrays.integers(np.array([value], np.int64))


def database_url(place: Place) -> str:
    """The database's URL: the one given, or what the broker says of its embedded server."""
    if place.pg is not None:
        return place.pg
    from queenstream.client._sync.client import Queen  # only here: the others do without

    with Queen(place.url, token=place.token) as queen:
        try:
            return queen.admin.database_url()
        except NotFound as error:
            raise ConfigError(f"the broker at {place.url}: {error}") from None


def check_schema(database: Database) -> None:
    """The tables and functions that Spark needs are there."""
    there = database.row("select to_regclass('queen.migrations') is not null")[0]
    number = database.row("select coalesce(max(number), 0) from queen.migrations")[0] if there else 0
    if number < SCHEMA:
        raise DatabaseUnusable(
            f"the database's schema is {number}, Spark needs {SCHEMA}; start a broker of this version on it"
        )


def _where(url: str) -> str:
    """Where a URL points, without the password."""
    parts = urlsplit(url)
    return f"{parts.hostname or 'the local socket'}{parts.path}"


@contextlib.contextmanager
def _failures() -> Iterator[None]:
    """What ADBC raises becomes ours. What breaks in the middle of a result comes out of Arrow."""
    try:
        yield
    except adbc.Error as error:
        raise _explained(str(error), error.sqlstate) from None
    except (pa.ArrowInvalid, OSError) as error:
        raise _explained(str(error), None) from None


def _explained(text: str, state: str | None) -> Exception:
    """Ours for what our functions refuse; others lose the text of the query."""
    reason = text.partition("\nQuery was:")[0].rpartition("ERROR:")[2].strip().partition("\n")[0]
    match state:
        case "QS010":
            return DatabaseUnusable(f"{reason} (did PostgreSQL crash?); the batch must run again")
        case "QS011":
            return ConfigError(
                f"{reason}; Spark writes to plain queues only: push through the broker, or name another"
            )
        case "QS012":
            return QueueFull(f"{reason}; nothing was stored. Consume, or raise maxSize.")
    return DatabaseUnusable(f"PostgreSQL refused: {reason} ({state or 'the connection broke'}); see its log")
