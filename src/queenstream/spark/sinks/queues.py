"""Queues that tasks write straight into their database: staged by COPY, stored by one transaction."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql.types import StructType

from queenstream.errors import ConfigError, DatabaseUnusable, QueenstreamError
from queenstream.pipeline.endpoints import Queue
from queenstream.pipeline.running import RunOptions
from queenstream.spark.datasource.database import AGAIN, database_url
from queenstream.spark.datasource.options import DEFAULT_URL, Place, SinkOptions
from queenstream.spark.datasource.writers import Staged, Writing, store
from queenstream.spark.sinks.stage import StagedMessages


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
            partition=self.queue.partition,
            partition_by=self.queue.partition_by,
            sink=self.sink,
            batch_id=None,
        )
        try:
            return QueueStage(self.sink, Writing(options, rows, overwrite=False))
        except ConfigError:  # messages that only the broker can encrypt
            return None

    def commit(self, messages: Sequence[StagedMessages], batch: int) -> int:
        """On the driver: store what the tasks have staged, in their order; how many messages that are."""
        staged = [Staged(self.sink, each.task, each.attempt, each.messages) for each in messages]
        try:
            store(self.url, self.queue.name, staged, batch, once=True)
        except DatabaseUnusable as error:
            if AGAIN in str(error):
                raise StagingLost(str(error)) from error
            raise
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
