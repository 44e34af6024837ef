"""Writing into queues, exactly once.

Tasks stage their rows in ``queen.staged``. When all are done, the driver stores what the winning attempts
staged, in one transaction with the number of the batch (``queen.commit_batch``). A batch that Spark runs
again, because it does not know that it was stored, changes nothing.
"""

from __future__ import annotations

import contextlib
import json
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from queenstream.engines.spark.datasource import encoding
from queenstream.engines.spark.datasource.database import (
    Database,
    asked,
    check_schema,
    connected,
    database_url,
)
from queenstream.engines.spark.datasource.options import SinkOptions
from queenstream.errors import ConfigError


@dataclass(frozen=True)
class Staged(WriterCommitMessage):
    """What one task has staged."""

    sink: str
    task: int
    attempt: str
    messages: int


class Writing:
    """What both writers have in common; Spark sends a copy to each task."""

    def __init__(self, options: SinkOptions, schema: StructType, overwrite: bool) -> None:
        if overwrite:
            raise ConfigError('messages are only added to a queue; write with mode("append")')
        self._options = options
        self._layout = encoding.layout(schema, options)
        self._url = database_url(options.place)
        with connected(self._url) as database:
            check_schema(database)
            self._check_queue(database)

    def _check_queue(self, database: Database) -> None:
        """Said before anything runs; the commit looks again."""
        found = database.rows(
            "select encryption_enabled, stream_id is not null from queen.queues where name = $1",
            self._options.queue,
        )
        if found and True in found[0]:
            why = "is encrypted, and Spark has no key" if found[0][0] else "holds the windows of a stream"
            raise ConfigError(f"queue {self._options.queue} {why}; name another")

    def stage(self, batches: Iterator[pa.RecordBatch], sink: str, batch_id: int) -> Staged:
        """In a task: put rows into ``queen.staged``."""
        with self.stager(sink, batch_id) as stager:
            for batch in batches:
                stager.add(batch)
            return stager.finish()

    @contextlib.contextmanager
    def stager(self, sink: str, batch_id: int, *, encoded: bool = False) -> Iterator[Stager]:
        """The same piece by piece. ``encoded``: the column ``data`` is JSON that was made here."""
        layout = replace(self._layout, encoded=encoded)
        with connected(self._url, patient=True) as database:
            yield Stager(database, layout, sink, batch_id)

    def _store(self, messages: Sequence[WriterCommitMessage | None], batch_id: int, *, once: bool) -> None:
        staged = [each for each in messages if isinstance(each, Staged)]
        store(self._url, self._options.queue, staged, batch_id, once=once)

    def _abort(self, sinks: set[str], batch_id: int) -> None:
        """Tasks failed: what was staged goes. What escapes goes with the sink's next batch, or by upkeep."""
        with connected(self._url) as database:
            for sink in sinks:
                database.rows("delete from queen.staged where sink = $1 and batch_id = $2", sink, batch_id)


class Stager:
    """Puts the rows of one task into ``queen.staged``."""

    def __init__(self, database: Database, layout: encoding.Layout, sink: str, batch_id: int) -> None:
        self._database = database
        self._layout = layout
        self._sink = sink
        self._batch_id = batch_id
        self._attempt = uuid.uuid4().hex
        self._chunks = self._messages = 0

    def add(self, batch: pa.RecordBatch) -> None:
        """Some more rows."""
        for chunk in encoding.chunks(batch, self._layout):
            row = chunk.row(self._sink, self._batch_id, self._attempt, self._chunks)
            self._database.copy("staged", row)
            self._chunks += 1
            self._messages += len(chunk)

    def finish(self) -> Staged:
        """What the driver has to know of them."""
        context = TaskContext.get()
        task = context.partitionId() if context is not None else 0
        return Staged(self._sink, task, self._attempt, self._messages)


class QueenWriter(Writing, DataSourceArrowWriter):
    """One write of a data frame: all of it or nothing; with ``sink`` and ``batchId``, once."""

    def __init__(self, options: SinkOptions, schema: StructType, overwrite: bool) -> None:
        super().__init__(options, schema, overwrite)
        self._sink = options.sink or uuid.uuid4().hex
        self._batch_id = options.batch_id or 0

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Staged:
        """On an executor: stage the rows."""
        return self.stage(iterator, self._sink, self._batch_id)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """On the driver, when all tasks are done."""
        self._store(messages, self._batch_id, once=self._options.batch_id is not None)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:  # noqa: ARG002
        """On the driver, when a task failed for good."""
        self._abort({self._sink}, self._batch_id)


class QueenStreamWriter(Writing, DataSourceStreamArrowWriter):
    """Each micro-batch once, by the option ``sink`` or by the query's id, which its checkpoint keeps."""

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Staged:
        """On an executor: stage the rows of a task."""
        context = TaskContext.get()
        assert context is not None
        batch_id = context.getLocalProperty("streaming.sql.batchId")
        assert batch_id is not None
        query = (
            self._options.sink or f"{context.getLocalProperty('sql.streaming.queryId')}/{self._options.queue}"
        )
        return self.stage(iterator, query, int(batch_id))

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """On the driver, when all tasks of a batch are done."""
        self._store(messages, batchId, once=True)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """On the driver, when a batch failed."""
        self._abort({each.sink for each in messages if isinstance(each, Staged)}, batchId)


def claim(url: str, sink: str, epoch: int, token: str, name: str, *, temporary: bool) -> None:
    """Take a sink over from the runs before; ``OwnershipLost`` if a newer run has it.

    ``token`` is what commits show, ``name`` says who it is. ``temporary``: nothing comes back to the sink.
    """
    statement = "select queen.claim_sink($1, $2, $3, $4, $5 = 1)"
    asked(url, lambda database: database.rows(statement, sink, epoch, token, name, int(temporary)))


def store(
    url: str, queue: str, staged: Sequence[Staged], batch_id: int, *, once: bool, token: str = ""
) -> None:
    """Store what the tasks of a batch have staged for a queue, in their order; then say so to the brokers.

    ``once``: the batch is noted, and if it was noted before, nothing is stored. ``token``: of the run that
    has claimed the sink; empty if none has.
    """
    staged = sorted((each for each in staged if each.messages), key=lambda each: each.task)
    if not staged:
        return
    attempts = "{" + ",".join(each.attempt for each in staged) + "}"
    counts = "{" + ",".join(str(each.messages) for each in staged) + "}"

    def work(database: Database) -> None:
        database.rows("select queen.prepare_staged($1, $2::text[])", queue, attempts)
        database.rows(
            "select stored from queen.commit_batch($1, $2, $3, $4, $5::text[], $6::bigint[], $7 = 1)",
            staged[0].sink, token, batch_id, queue, attempts, counts, int(once),
        )  # fmt: skip
        # As one broker tells the others (storage/notifications.py): who sends, and which queues have news.
        database.rows("select pg_notify('queenstream', $1)", json.dumps(["spark", [queue]]))

    if once:
        asked(url, work)
    else:  # a connection that breaks leaves open whether it was stored: not to be done twice
        with connected(url) as database:
            work(database)
