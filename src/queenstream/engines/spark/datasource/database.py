"""Connections to PostgreSQL by ADBC, which gives rows as Arrow batches.

A Python worker of Spark runs many tasks one after the other; it keeps a connection between them.

A server that is away for a while (a restart, a fail-over) does not end a query that has once reached it:
planning waits and asks again, tasks wait for a connection. A task that had begun fails, and Spark runs it
again.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import adbc_driver_manager as adbc
import adbc_driver_postgresql
import numpy as np
import pyarrow as pa
from adbc_driver_postgresql import StatementOptions

from queenstream.engines.spark.datasource import arrays
from queenstream.engines.spark.datasource.options import Place
from queenstream.errors import (
    CheckpointError,
    ConfigError,
    DatabaseUnusable,
    NotFound,
    OwnershipLost,
    QueueFull,
    Unavailable,
)
from queenstream.postgres import place_of

SCHEMA = 10  # the migration that Spark needs
PATIENCE_SECONDS = 30.0  # with a server that is away
BATCH_BYTES = 4 << 20  # an Arrow batch, about: large enough to be cheap, small enough to be on its way soon

AGAIN = "the batch must run again"
"""What an error says that another try can mend."""

_SETTINGS = (
    "select set_config('application_name', 'queenstream-spark', false), set_config('jit', 'off', false), "
    "set_config('timezone', 'UTC', false), set_config('search_path', 'pg_catalog', false)"
)
_PAUSE_SECONDS, _LONGEST_PAUSE_SECONDS = 0.1, 2.0
# A server says FATAL for what is wrong for good, and for these, which pass.
_PASSING = ("starting up", "shutting down", "recovery", "too many clients", "connection slots", "terminating")
_LOST = ("08", "57P01", "57P02", "57P03")  # how the states begin that say so, too

Value = int | str
T = TypeVar("T")
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

    def copy(self, table: str, rows: pa.RecordBatch | pa.RecordBatchReader, schema: str = "queen") -> None:
        """Append rows to a table, by one COPY."""
        with _failures(), adbc.AdbcStatement(self._connection) as statement:
            statement.set_options(
                **{
                    adbc.StatementOptions.INGEST_TARGET_TABLE.value: table,
                    adbc.StatementOptions.INGEST_TARGET_DB_SCHEMA.value: schema,
                    adbc.StatementOptions.INGEST_MODE.value: adbc.INGEST_OPTION_MODE_APPEND,
                }
            )
            if isinstance(rows, pa.RecordBatch):
                statement.bind(rows)
            else:
                statement.bind_stream(rows)
            statement.execute_update()

    def close(self) -> None:
        """Give the connection up, whatever state it is in."""
        with contextlib.suppress(adbc.Error, RuntimeError):
            self._connection.close()
            self._database.close()


@contextlib.contextmanager
def connected(url: str, *, patient: bool = False) -> Iterator[Database]:
    """A connection that is kept for the next task, unless something went wrong.

    ``patient``: a server that is away is waited for. What finds out whether an address is right is not.
    """
    database = _patiently(lambda: _take(url)) if patient else _take(url)
    try:
        yield database
    except BaseException:  # a reader may have stopped in the middle, too
        database.close()
        raise
    if _idle.setdefault(url, database) is not database:
        database.close()


def open_database(url: str) -> Database:
    """A connection that is nobody else's, to be closed; a server that is away is waited for."""
    return _patiently(lambda: _open(url))


def asked(url: str, work: Callable[[Database], T]) -> T:
    """What ``work`` gives; while the server is away, wait for it and begin again: it may be done twice.

    >>> asked(url, lambda database: database.row("select 1"))  # doctest: +SKIP
    (1,)
    """

    def once() -> T:
        with connected(url) as database:
            return work(database)

    return _patiently(once)


def _patiently(work: Callable[[], T]) -> T:
    deadline = time.monotonic() + PATIENCE_SECONDS
    pause = _PAUSE_SECONDS
    while True:
        try:
            return work()
        except Unavailable:
            if time.monotonic() + pause > deadline:
                raise
        time.sleep(pause)
        pause = min(2 * pause, _LONGEST_PAUSE_SECONDS)


def _take(url: str) -> Database:
    kept = _idle.pop(url, None)
    if kept is not None:
        try:
            kept.rows("select 1")
        except (DatabaseUnusable, Unavailable):  # PostgreSQL was restarted meanwhile
            kept.close()
        else:
            return kept
    return _open(url)


def _open(url: str) -> Database:
    try:
        return Database(url)
    except adbc.Error as error:
        text = str(error)
        reason = text.strip().partition("\n")[0].rpartition("failed: ")[2]
        kind = Unavailable if "FATAL" not in text or _passes(text) else DatabaseUnusable
        raise kind(
            f"Spark cannot reach PostgreSQL at {place_of(url)}: {reason}; "
            "the driver and every executor need to: check host, port and user"
        ) from None


def _passes(text: str) -> bool:
    return any(each in text for each in _PASSING)


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


@contextlib.contextmanager
def _failures() -> Iterator[None]:
    """What ADBC raises becomes ours. What breaks in the middle of a result comes out of Arrow."""
    try:
        yield
    except adbc.Error as error:
        away = error.sqlstate is None and error.status_code == adbc.AdbcStatusCode.IO
        raise _explained(str(error), error.sqlstate, away=away) from None
    except (pa.ArrowInvalid, OSError) as error:
        raise _explained(str(error), None, away=True) from None


def _explained(text: str, state: str | None, *, away: bool) -> Exception:
    """Ours for what our functions refuse; others lose the text of the query."""
    told = text.partition("\nQuery was:")[0]
    reason = told.rpartition("ERROR:")[2].rpartition("FATAL:")[2].strip().partition("\n")[0]
    match state:
        case "QS010":
            return DatabaseUnusable(f"{reason} (did PostgreSQL crash?); {AGAIN}")
        case "QS011":
            return ConfigError(
                f"{reason}; Spark writes to plain queues only: push through the broker, or name another"
            )
        case "QS012":
            return QueueFull(f"{reason}; nothing was stored. Consume, or raise maxSize.")
        case "QS013":
            return OwnershipLost(
                f"{reason or 'another run'} has taken over the sink, so this run ends without writing more; "
                "keep one of the two runs, and give the other a checkpoint folder or sink name of its own"
            )
        case "QS014":
            return CheckpointError(
                f"{reason}: the checkpoint is older than the sink. Continue from the newest checkpoint, or "
                "start over under another sink name; then the sink takes all batches as new"
            )
    if away or (state is not None and state.startswith(_LOST)):
        return Unavailable(f"the connection to PostgreSQL broke: {reason}; {AGAIN} when it is back")
    return DatabaseUnusable(f"PostgreSQL refused: {reason} ({state}); see its log")
