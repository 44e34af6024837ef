"""Queues whose messages tasks stage in the queue's database: staged by COPY, stored by one transaction."""

from __future__ import annotations

import contextlib
import logging
import os
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyspark.sql.types import BinaryType, StringType, StructField, StructType

from queenstream.client._base.brokers import backoff
from queenstream.connectors.broker.queues import message_maker, messages_maker
from queenstream.core.schemas import Schema
from queenstream.engines.spark.datasource.database import AGAIN, connected, database_url
from queenstream.engines.spark.datasource.options import DEFAULT_URL, Place, SinkOptions
from queenstream.engines.spark.datasource.writers import Staged, Stager, Writing, claim, store
from queenstream.engines.spark.sinks.owner import Owner
from queenstream.engines.spark.sinks.two_phase import (
    ColumnStage,
    OpenRecordStage,
    RecordStage,
    StagedPart,
    StagingLost,
    TwoPhaseSink,
)
from queenstream.errors import ConfigError, DatabaseUnusable, PayloadInvalid, QueenstreamError, QueueFull
from queenstream.pipeline.endpoints import Queue
from queenstream.pipeline.engine_api import RunOptions

_PAYLOADS = StructType(
    [
        StructField("data", BinaryType()),
        StructField("partition", StringType()),
        StructField("transaction_id", StringType()),
    ]
)
"""The columns of records that are messages already."""

log = logging.getLogger("queenstream.spark")

_LONGEST_WAIT_SECONDS = 5.0  # between two looks at a queue that is full
_ROWS, _BYTES = 5_000, 4 << 20  # that a task sends at once
_TOGETHER = 1_000  # records that are encoded at once
_NAME_BYTES = 255
_MOST_MESSAGE_BYTES = 8 << 20  # the broker decides about larger ones
_OWN_COLUMNS = {"data", "partition", "transaction_id", "trace_id"}


class QueueTable(TwoPhaseSink):
    """A queue whose database is known. ``sink``: the name that notes its batches."""

    def __init__(self, url: str, queue: Queue, sink: str, stopping: Callable[[], bool]) -> None:
        self._url = url
        self._queue = queue
        self._sink = sink
        self._stopping = stopping
        self._writings: dict[bool, Writing | None] = {}
        self._token = ""

    def claim(self, owner: Owner, *, temporary: bool) -> None:
        self._token = owner.token
        claim(self._url, self._sink, owner.epoch, owner.token, owner.name, temporary=temporary)

    def column_stage(self, schema: Schema, columns: Callable[[], StructType]) -> ColumnStage | None:
        if not self._is_plain(schema):
            return None
        writing = self._writing(columns)
        return None if writing is None else QueueColumns(self._sink, writing, self._queue.partition_by)

    def record_stage(self, batch: int) -> RecordStage | None:
        writing = self._writing(None)
        return None if writing is None else QueueRecords(self._sink, writing, self._queue, batch)

    def aside(self, note: str) -> TwoPhaseSink:
        return QueueTable(self._url, self._queue, f"{self._sink} {note}", self._stopping)

    def _is_plain(self, schema: Schema) -> bool:
        """Whether rows of these fields are payloads of the queue as they are."""
        queue = self._queue
        if queue.schema is not None or queue.envelope:
            return False
        if queue.partition_by is not None and queue.partition_by not in schema.names:
            return False
        return not _OWN_COLUMNS & set(schema.names)

    def _writing(self, columns: Callable[[], StructType] | None) -> Writing | None:
        """What writes rows of these columns, or payloads; None: only the broker can encrypt them."""
        payloads = columns is None
        if payloads not in self._writings:
            options = SinkOptions(
                place=Place(self._url, DEFAULT_URL, None),
                queue=self._queue.name,
                partition=None if payloads else self._queue.partition,
                partition_by=None if payloads else self._queue.partition_by,
                sink=self._sink,
                batch_id=None,
            )
            rows = _PAYLOADS if columns is None else columns()
            try:
                self._writings[payloads] = Writing(options, rows, overwrite=False)
            except ConfigError:
                self._writings[payloads] = None
        return self._writings[payloads]

    def commit(self, parts: Sequence[StagedPart], batch: int) -> int:
        """Store what the tasks have staged, in their order.

        A queue that is full is waited for, until the run is told to stop.
        """
        staged = [Staged(self._sink, each.task, each.name, each.rows) for each in parts]
        failures = 0
        while True:
            try:
                store(self._url, self._queue.name, staged, batch, once=True, token=self._token)
            except QueueFull as error:
                if self._stopping():
                    raise
                failures += 1
                log.warning("%s waits for room: %s", self._queue.title, error)
                time.sleep(min(backoff(failures), _LONGEST_WAIT_SECONDS))
            except DatabaseUnusable as error:
                if AGAIN in str(error):
                    raise StagingLost(str(error)) from error
                raise
            else:
                return sum(each.rows for each in parts)


@dataclass(frozen=True)
class QueueColumns(ColumnStage):
    """Puts columns into the staging table of a queue's database."""

    sink: str
    writing: Writing
    partition_by: str | None

    @property
    def order(self) -> tuple[str, ...]:
        return () if self.partition_by is None else (self.partition_by,)

    def untaken(self, rows: pa.StructArray) -> pa.BooleanArray | None:
        if self.partition_by is None:
            return None
        partitions = rows.field(self.partition_by)
        return partitions.is_null() if partitions.null_count else None

    def stage(self, rows: Iterator[pa.RecordBatch], batch: int, task: int) -> StagedPart | None:
        size = 0

        def measured() -> Iterator[pa.RecordBatch]:
            nonlocal size
            for each in rows:
                size += each.nbytes
                yield each

        staged = self.writing.stage(measured(), self.sink, batch)
        return StagedPart(task, staged.attempt, staged.messages, size) if staged.messages else None


@dataclass(frozen=True)
class QueueRecords:
    """Puts records into the staging table of a queue's database."""

    sink: str
    writing: Writing
    queue: Queue
    batch: int

    @contextlib.contextmanager
    def open(self) -> Iterator[OpenRecordStage]:
        """For the records of one task. The connection is made when the first of them comes."""
        with contextlib.ExitStack() as opened:
            stager = self.writing.stager(self.sink, self.batch, encoded=True)
            yield OpenQueueRecords(self.queue, lambda: opened.enter_context(stager))


class OpenQueueRecords(OpenRecordStage):
    """The records of a task on their way into the staging table."""

    def __init__(self, sink: Queue, connect: Callable[[], Stager]) -> None:
        self._message_of = message_maker(sink)
        self._messages_of = messages_maker(sink)
        self._connect = connect
        self._stager: Stager | None = None
        self._bodies: list[bytes] = []  # that wait to be sent, each with its partition and transaction id
        self._partitions: list[str] = []
        self._ids: list[str | None] = []
        self._waiting_bytes = 0
        self._bytes = 0

    def add(self, record: Any) -> bool:
        """Take a record; False: the queue refuses it, which is an error of the step that writes."""
        try:
            body, partition, id = self._message_of(record)
        except PayloadInvalid:
            return False
        if not _is_name(partition) or len(body) > _MOST_MESSAGE_BYTES:
            return False
        self._bodies.append(body)
        self._partitions.append(partition)
        self._ids.append(id)
        self._waiting_bytes += len(body)
        self._send_if_many()
        return True

    def add_all(self, records: Sequence[Any]) -> list[int]:
        """Take several records, in the order in which they are; gives the indexes of those refused."""
        refused: list[int] = []
        for first in range(0, len(records), _TOGETHER):
            some = records[first : first + _TOGETHER]
            if not self._add_together(some):
                refused += [first + index for index in super().add_all(some)]
        return refused

    def _add_together(self, records: Sequence[Any]) -> bool:
        """Take all records; False: there is one that has to be looked at by itself, and none is taken."""
        made = self._messages_of(records)
        if made is None:
            return False
        bodies, partitions = made
        sizes = list(map(len, bodies))
        if max(sizes) > _MOST_MESSAGE_BYTES or not all(map(_is_name, set(partitions))):
            return False
        self._bodies += bodies
        self._partitions += partitions
        self._ids += [None] * len(bodies)
        self._waiting_bytes += sum(sizes)
        self._send_if_many()
        return True

    def _send_if_many(self) -> None:
        if len(self._bodies) >= _ROWS or self._waiting_bytes >= _BYTES:
            self._send()

    def _send(self) -> None:
        if self._stager is None:
            self._stager = self._connect()
        columns = [
            pa.array(self._bodies, pa.binary()),
            pa.array(self._partitions, pa.string()),
            pa.array(self._ids, pa.string()),
        ]
        self._stager.add(pa.RecordBatch.from_arrays(columns, names=_PAYLOADS.names))
        self._bytes += self._waiting_bytes
        self._bodies, self._partitions, self._ids, self._waiting_bytes = [], [], [], 0

    def finish(self) -> StagedPart | None:
        """Send what is left."""
        if self._bodies:
            self._send()
        if self._stager is None:
            return None
        staged = self._stager.finish()
        return StagedPart(staged.task, staged.attempt, staged.messages, self._bytes)


def _is_name(partition: str) -> bool:
    """Whether a partition may be called so."""
    return 0 < len(partition.encode()) <= _NAME_BYTES


def database_of(sink: Queue, told: RunOptions) -> str | None:
    """The database of a queue's broker; None: it is not known or not reachable from here."""
    place = sink.url or os.environ.get("QUEEN_PG") or told.url or os.environ.get("QUEEN_URL") or DEFAULT_URL
    if place.startswith(("postgres://", "postgresql://")):
        return place
    token = (told.token if sink.url is None else None) or os.environ.get("QUEEN_TOKEN")
    try:
        url = database_url(Place(None, place, token))
    except QueenstreamError:
        return None
    try:
        with connected(url):
            return url
    except QueenstreamError as error:
        log.warning("%s is written through its broker, which is slower: %s", sink.title, error)
        return None
