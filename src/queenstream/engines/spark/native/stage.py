"""The task that stages the rows of a plan without Python: typed columns, and failures beside them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from queenstream.core.records import short
from queenstream.core.schemas import Schema, types
from queenstream.core.schemas.types import Type
from queenstream.core.windows import from_us
from queenstream.engines.spark.native.aggregates import SEQ, TIME
from queenstream.engines.spark.native.expressions import RECORD, Wide
from queenstream.engines.spark.native.failures import FAILURE, FailureReader
from queenstream.engines.spark.sinks.stage import RecordStages, StageFunction, StageOptions, TaskOutput
from queenstream.engines.spark.sinks.two_phase import ColumnStage, RecordStage
from queenstream.engines.spark.types import SIMPLE
from queenstream.pipeline.policies import DeadLetters
from queenstream.runtime.encoding import encode_row
from queenstream.runtime.failures import give_up
from queenstream.runtime.failures import told as told_of
from queenstream.runtime.samples import MOST_ROWS as MOST_SAMPLES


class StageColumns(StageFunction):
    """Stages the rows of one sink. ``failures``: what reads the rows that steps failed on.

    ``columns``: what stages them in the sink's own storage as columns, ``records``: as records. Without one
    of them, rows go to a file of the checkpoint.
    """

    def __init__(
        self,
        options: StageOptions,
        sink: str,
        schema: Schema,
        failures: FailureReader | None = None,
        columns: ColumnStage | None = None,
        batch: int = 0,
        records: RecordStage | None = None,
    ) -> None:
        super().__init__(options)
        self._sink = sink
        self._schema = schema
        self._failures = failures
        self._column_stage = columns
        self._batch = batch
        self._records = {} if records is None or columns is not None else {sink: records}

    @property
    def sink(self) -> str:
        return self._sink

    def _put(self, batches: Iterator[pa.RecordBatch], stage: TaskOutput) -> None:
        rows = (self._without_failures(batch, stage) for batch in batches)
        records = RecordStages(self._records, stage)
        columns = self._column_stage
        if columns is not None:
            taken = self._taken(rows, columns, stage, records)
            staged = columns.stage(taken, batch=self._batch, task=stage.task)
            if staged is not None:
                stage.receipt.parts[self._sink] = staged
            return
        with records.open():
            for batch in rows:
                self._add(batch, stage, records)
                records.pass_on()

    def _taken(
        self,
        batches: Iterator[pa.RecordBatch],
        columns: ColumnStage,
        stage: TaskOutput,
        records: RecordStages,
    ) -> Iterator[pa.RecordBatch]:
        """The columns of the records that the sink's own storage takes. The others go to the file."""
        for batch in batches:
            rows = batch
            untaken = columns.untaken(rows.column(RECORD))
            if untaken is not None:
                self._add(rows.filter(untaken), stage, records)
                rows = rows.filter(pc.invert(untaken))
            yield self._columns(rows, stage)

    def _columns(self, batch: pa.RecordBatch, stage: TaskOutput) -> pa.RecordBatch:
        """The fields of the records as columns."""
        names = [each.name for each in self._schema.fields]
        columns = pa.RecordBatch.from_arrays(batch.column(RECORD).flatten(), names)
        if stage.keeps_samples:
            for record in columns.slice(max(0, columns.num_rows - MOST_SAMPLES)).to_pylist():
                stage.sample(self._sink, record)
        return columns

    def _add(self, batch: pa.RecordBatch, stage: TaskOutput, staged: RecordStages) -> None:
        records = values_of(batch.column(RECORD), types.Struct(self._schema.fields))
        if stage.keeps_samples and self._sink in staged:
            for record in records[-MOST_SAMPLES:]:
                stage.sample(self._sink, record)
        left = staged.add_all(self._sink, records)
        if not left:
            return
        times, places = batch.column(TIME).cast(pa.int64()).to_pylist(), batch.column(SEQ).to_pylist()
        for index in left:
            record, time = records[index], times[index]
            place = (time is None, time or 0, places[index] or 0, 0)
            stage.add(self._sink, place, encode_row(record), record)

    # What steps failed on

    def _without_failures(self, batch: pa.RecordBatch, stage: TaskOutput) -> pa.RecordBatch:
        if FAILURE not in batch.schema.names:
            return batch
        failure = batch.column(FAILURE)
        if failure.null_count == len(failure):
            return batch
        if self._failures is not None:
            failed = batch.filter(failure.is_valid())
            pairs = zip(failed.column(SEQ).to_pylist(), failed.column(FAILURE).to_pylist(), strict=True)
            for seq, told in sorted(pairs, key=lambda pair: pair[0]):
                self._tell(seq, tuple(told.values()), self._failures, stage)
        return batch.filter(failure.is_null())

    def _tell(self, seq: int, failure: Any, failures: FailureReader, stage: TaskOutput) -> None:
        """What is to be done about a failure. Dead letters are rows for a sink like all others."""
        came_back = failures.row_for_sink(*failure[:2])
        if came_back is not None:
            sink, row = came_back
            stage.add(sink, (True, 0, seq, 0), encode_row(row))
            return
        failed = failures.failed(*failure)
        name = failed.node.name
        stage.fail(name, f"{short(failed.record)}: {told_of(failed.error)}")
        if isinstance(give_up(failed.node, failed.record, failed.error), DeadLetters):
            letter = failed.letter(self._options.pipeline, datetime.now(UTC))
            stage.letter(name, encode_row(letter))
            stage.count({name: {"dead_letters": 1}}, {})


def values_of(array: pa.Array, kind: Type) -> list[Any]:
    """Our values of an array. By the column: to take times out of it one by one takes ten times as long."""
    if isinstance(kind, types.Struct):
        names = [each.name for each in kind.fields]
        columns = [
            values_of(part, each.type) for part, each in zip(array.flatten(), kind.fields, strict=True)
        ]
        rows = zip(*columns, strict=True) if columns else iter([()] * len(array))
        records = [dict(zip(names, row, strict=True)) for row in rows]
        if not array.null_count:
            return records
        there = array.is_valid().to_pylist()
        return [record if valid else None for record, valid in zip(records, there, strict=True)]
    if kind == types.TIMESTAMP:
        return [None if us is None else from_us(us) for us in array.cast(pa.int64()).to_pylist()]
    return array.to_pylist() if kind in SIMPLE else [*map(_converter(kind), array.to_pylist())]


def _converter(kind: Type) -> Callable[[Any], Any]:
    """What makes of Arrow's value ours: maps are dictionaries, times have a zone."""
    if isinstance(kind, types.Struct):
        parts = [(each.name, _converter(each.type)) for each in kind.fields]
        return lambda value: None if value is None else {name: make(value[name]) for name, make in parts}
    if isinstance(kind, types.List):
        item = _converter(kind.of)
        return lambda value: None if value is None else [item(each) for each in value]
    if isinstance(kind, types.Map):
        key, held = _converter(kind.key), _converter(kind.value)
        return lambda value: None if value is None else {key(one): held(two) for one, two in value}
    if kind == types.TIMESTAMP:
        return lambda value: None if value is None else value.astimezone(UTC)
    if isinstance(kind, Wide):
        return lambda value: None if value is None else int(value)
    return lambda value: value
