"""What all readers have in common, and the one for batches of history.

Spark makes them in a process of the driver and sends a copy to each task, so they hold no connection. There
are two readers for streams: ``stream_reader.py``, and ``stream_reader_4_1.py`` for Spark without admission
control.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, Filter, InputPartition
from pyspark.sql.types import StructType

from queenstream.engines.spark.datasource import filters, payloads, planner, task_reader
from queenstream.engines.spark.datasource.batch_size import BatchSize
from queenstream.engines.spark.datasource.database import (
    Database,
    asked,
    check_schema,
    connected,
    database_url,
)
from queenstream.engines.spark.datasource.options import SourceOptions
from queenstream.engines.spark.datasource.planner import Part, Span, Where

Offset = dict[str, int]


class Reading:
    """What both have in common: where, what, and how a task reads."""

    def __init__(self, options: SourceOptions, schema: StructType, cores: int) -> None:
        kind = task_reader.payload_kind(schema)
        if kind is not None:
            payloads.check(kind)
        self._options = options
        self._schema = schema
        self._cores = cores
        self._url = database_url(options.place)
        with connected(self._url) as database:
            check_schema(database)
            self._lane = planner.find(database, options)

    def _parts(
        self,
        database: Database,
        found: Sequence[Span],
        where: Where,
        expired_us: int | None,
        *,
        ordered: bool,
    ) -> list[Part]:
        """The tasks of a read. What was created at ``expired_us`` or before is left out."""
        if not found:
            return []
        if expired_us is not None:
            where = replace(where, first_us=max(expired_us + 1, where.first_us or 0))
        wanted = planner.tasks_for(found, self._options.num_partitions, self._cores)
        return planner.parts(database, found, where, wanted, ordered=ordered)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """A task's rows, as Arrow batches."""
        if not isinstance(partition, Part):  # Spark's own, when there is nothing to read
            return iter(())
        about = (self._url, self._lane, partition, self._schema)
        if self._options.stream is not None:
            return task_reader.windows(*about)
        return task_reader.messages(*about, self._options.coerce)


class QueenReader(Reading, DataSourceReader):
    """Everything there is now, once, in no order."""

    def __init__(self, options: SourceOptions, schema: StructType, cores: int) -> None:
        super().__init__(options, schema, cores)
        self._pushed = filters.Pushed()

    def pushFilters(self, filters_: list[Filter]) -> Iterable[Filter]:  # noqa: N802
        """Keep those that PostgreSQL can answer; a stream's windows are filtered by Spark."""
        if self._options.stream is not None:
            return filters_
        self._pushed, left = filters.split(filters_)
        return left

    def partitions(self) -> list[InputPartition]:
        """One for each task."""
        pushed = self._pushed
        with connected(self._url) as database:
            after, first_us = planner.start_at(database, self._lane, self._options)
            upto = planner.committed_surely(database, self._lane)
            if pushed.first_id is not None:
                after = max(after, pushed.first_id - 1)
            if pushed.last_id is not None:
                upto = min(upto, pushed.last_id)
            bounds = [bound for bound in (first_us, pushed.first_us) if bound is not None]
            where = Where(max(bounds, default=None), pushed.last_us)
            found = planner.spans(database, self._lane, after, upto)
            found = planner.only(database, self._lane, found, pushed.partitions)
            # Bounds that are the same for all make one condition, which PostgreSQL may answer by reading the
            # whole table: for much of it, a few times as fast as by the index, and in no order.
            found = [replace(span, upto=upto) for span in found]
            ordered = self._options.stream is not None
            expired_us = self._options.expired_us
            if expired_us is None:
                expired_us = planner.horizon_us(database, self._lane)
            return [*self._parts(database, found, where, expired_us, ordered=ordered)]


class StreamReading(Reading):
    """What the readers of micro-batches have in common, each partition in its order.

    An offset is ``{"id": n}``, with ``"from_us"`` if the query began at a time. If the queue has a ttl or a
    retention, the end of a batch has ``"expired_us"``: what was created until then is left out. So a batch
    that is read again has the same messages, as long as they are stored. On Spark 4.1, which does not ask how
    far a source could read, an offset has ``"behind"``, too: how many messages were left after the batch.
    """

    def __init__(self, options: SourceOptions, schema: StructType, cores: int) -> None:
        super().__init__(options, schema, cores)
        self._last: int | None = None  # a query that comes to an end, ends here
        self._latest: Offset | None = None
        self._planned: tuple[int, int, list[Span]] | None = None  # what the last look saw, for partitions
        self._size = BatchSize() if options.adapts else None

    def initialOffset(self) -> Offset:  # noqa: N802
        """Where a query without a checkpoint begins."""
        number, first_us = asked(
            self._url, lambda database: planner.start_at(database, self._lane, self._options)
        )
        return {"id": number} if first_us is None else {"id": number, "from_us": first_us}

    def partitions(self, start: Offset, end: Offset) -> list[InputPartition]:
        """One for each task of a batch."""
        after, upto = start["id"], end["id"]
        if upto <= after:
            return []

        def plan(database: Database) -> list[InputPartition]:
            if self._planned is not None and self._planned[:2] == (after, upto):
                found = self._planned[2]
            else:
                found = planner.spans(database, self._lane, after, upto)
            where, expired_us = Where(start.get("from_us")), end.get("expired_us")
            return [*self._parts(database, found, where, expired_us, ordered=True)]

        return asked(self._url, plan)

    def commit(self, end: Offset) -> None:
        """A batch is done: the group's cursors say so, if there is a group."""
        group = self._options.group
        if group is not None:
            note = "select queen.note_progress($1::integer, $2, $3)"
            asked(self._url, lambda database: database.rows(note, self._lane.id, group, end["id"]))

    def stop(self) -> None:
        """Nothing is held."""

    def _end_at_what_is_there(self) -> None:
        """Nothing that is pushed from now on is read."""
        self._last = asked(self._url, lambda database: planner.committed_surely(database, self._lane))

    def _end_of_batch(self, start: Offset, rows: int | None) -> Offset:
        """How far the next batch goes; ``start``, if there is nothing new or a push stays open."""
        if self._last is None and self._options.end_at_latest:
            self._end_at_what_is_there()
        return asked(self._url, lambda database: self._ahead(database, start, rows))

    def _ahead(self, database: Database, start: Offset, rows: int | None) -> Offset:
        after = start["id"]
        upto = self._last if self._last is not None else planner.committed(database, self._lane)
        if upto is None or upto <= after:
            return start
        found = planner.spans(database, self._lane, after, upto)
        if not found:
            return start
        end = last = max(span.upto for span in found)
        behind = 0
        times = 1 if self._size is None else self._size.next_times()
        most = self._most_rows(database, found, rows, times)
        if most is not None:
            end = planner.limited(database, found, after, last, most)
            behind = max(0, sum(span.messages for span in found) - most)
        if self._size is not None:
            self._size.planned(full=end != last)
        place = {name: value for name, value in start.items() if name == "from_us"}
        self._latest = {**place, "id": last, "behind": behind}
        if end == last:
            self._planned = (after, end, found)
        expired_us = planner.horizon_us(database, self._lane)
        return {**place, "id": end, **({} if expired_us is None else {"expired_us": expired_us})}

    def _most_rows(
        self, database: Database, found: Sequence[Span], rows: int | None, times: int
    ) -> int | None:
        """How many messages the next batch may have, by rows and by bytes; None: all of them."""
        most = None if rows is None else rows * times
        most_bytes = self._options.max_bytes_per_batch
        if most_bytes is None:
            return most
        fitting = max(1, most_bytes * times // planner.message_bytes(database, found))
        return fitting if most is None else min(most, fitting)
