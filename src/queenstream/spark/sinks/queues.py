"""Queues that tasks write straight into their database: staged by COPY, stored by one transaction."""

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
from queenstream.connectors.queues import message_maker
from queenstream.errors import ConfigError, DatabaseUnusable, PayloadInvalid, QueenstreamError, QueueFull
from queenstream.pipeline.endpoints import Queue
from queenstream.pipeline.running import RunOptions
from queenstream.spark.datasource.database import AGAIN, database_url
from queenstream.spark.datasource.options import DEFAULT_URL, Place, SinkOptions
from queenstream.spark.datasource.writers import Staged, Stager, Writing, store
from queenstream.spark.sinks.stage import StagedMessages

PAYLOADS = StructType(
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
_NAME_BYTES = 255
_MOST_MESSAGE_BYTES = 8 << 20  # the broker decides about larger ones


class StagingLost(DatabaseUnusable):
    """What tasks had staged is gone, and nothing of it was stored: the batch must be staged again."""


@dataclass(frozen=True)
class QueueDatabase:
    """A queue that tasks may write straight into its database. ``sink``: the name that notes its batches."""

    url: str
    queue: Queue
    sink: str

    def stage(self, rows: StructType) -> QueueStage | None:
        """How tasks stage rows of these columns; None: they cannot, only the broker can."""
        options = SinkOptions(
            place=Place(self.url, DEFAULT_URL, None),
            queue=self.queue.name,
            partition=None if rows is PAYLOADS else self.queue.partition,
            partition_by=None if rows is PAYLOADS else self.queue.partition_by,
            sink=self.sink,
            batch_id=None,
        )
        try:
            return QueueStage(self.sink, Writing(options, rows, overwrite=False))
        except ConfigError:  # messages that only the broker can encrypt
            return None

    def commit(self, messages: Sequence[StagedMessages], batch: int, stopping: Callable[[], bool]) -> int:
        """On the driver: store what the tasks have staged, in their order; how many messages that are.

        A queue that is full is waited for, until the run is told to stop.
        """
        staged = [Staged(self.sink, each.task, each.attempt, each.messages) for each in messages]
        failures = 0
        while True:
            try:
                store(self.url, self.queue.name, staged, batch, once=True)
            except QueueFull as error:
                if stopping():
                    raise
                failures += 1
                log.warning("%s waits for room: %s", self.queue.title, error)
                time.sleep(min(backoff(failures), _LONGEST_WAIT_SECONDS))
            except DatabaseUnusable as error:
                if AGAIN in str(error):
                    raise StagingLost(str(error)) from error
                raise
            else:
                return sum(each.messages for each in messages)


@dataclass(frozen=True)
class QueueStage:
    """Puts rows into the staging table of a queue's database. It travels to the tasks."""

    sink: str
    writing: Writing

    def stage(self, rows: Iterator[pa.RecordBatch], batch: int) -> StagedMessages:
        """In a task: stage its rows of a batch."""
        staged = self.writing.stage(rows, self.sink, batch)
        return StagedMessages(staged.task, staged.attempt, staged.messages)


class QueueRows:
    """Stages records in the queue's database, in a task."""

    def __init__(self, stage: QueueStage, sink: Queue, batch: int) -> None:
        self._stage = stage
        self._sink = sink
        self._batch = batch

    @contextlib.contextmanager
    def open(self) -> Iterator[OpenQueueRows]:
        """For the rows of one task. The connection is made when the first of them comes."""
        with contextlib.ExitStack() as opened:
            stager = self._stage.writing.stager(self._stage.sink, self._batch, encoded=True)
            yield OpenQueueRows(self._sink, lambda: opened.enter_context(stager))


class OpenQueueRows:
    """The rows of a task on their way into the staging table."""

    def __init__(self, sink: Queue, connect: Callable[[], Stager]) -> None:
        self._message_of = message_maker(sink)
        self._connect = connect
        self._stager: Stager | None = None
        self._waiting: list[tuple[bytes, str, str | None]] = []
        self._bytes = 0

    def add(self, record: Any) -> bool:
        """Take a record; False: the queue refuses it, which is an error of the step that writes."""
        try:
            body, partition, id = self._message_of(record)
        except PayloadInvalid:
            return False
        if not 0 < len(partition.encode()) <= _NAME_BYTES or len(body) > _MOST_MESSAGE_BYTES:
            return False
        self._waiting.append((body, partition, id))
        self._bytes += len(body)
        if len(self._waiting) >= _ROWS or self._bytes >= _BYTES:
            self._send()
        return True

    def _send(self) -> None:
        if self._stager is None:
            self._stager = self._connect()
        bodies, partitions, ids = zip(*self._waiting, strict=True)
        columns = [pa.array(bodies, pa.binary()), pa.array(partitions), pa.array(ids, pa.string())]
        self._stager.add(pa.RecordBatch.from_arrays(columns, names=PAYLOADS.names))
        self._waiting, self._bytes = [], 0

    def finish(self) -> StagedMessages:
        """What the driver has to know of them."""
        if self._waiting:
            self._send()
        if self._stager is None:
            return StagedMessages(0, "", 0)
        staged = self._stager.finish()
        return StagedMessages(staged.task, staged.attempt, staged.messages)


def database_of(sink: Queue, told: RunOptions) -> str | None:
    """The database of a queue's broker; None: the broker does not tell it, and rows go through the broker."""
    place = sink.url or os.environ.get("QUEEN_PG") or told.url or os.environ.get("QUEEN_URL") or DEFAULT_URL
    if place.startswith(("postgres://", "postgresql://")):
        return place
    token = (told.token if sink.url is None else None) or os.environ.get("QUEEN_TOKEN")
    try:
        return database_url(Place(None, place, token))
    except QueenstreamError:
        return None
