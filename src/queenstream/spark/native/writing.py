"""What a batch gives: as Python's records for the driver, or written by the tasks themselves."""

from __future__ import annotations

import os
from collections.abc import Callable
from datetime import UTC
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, Observation
from pyspark.sql import functions as f

from queenstream.pipeline import nodes
from queenstream.pipeline.endpoints import Queue
from queenstream.schemas import Schema, types
from queenstream.schemas.types import Type
from queenstream.spark.aggregating import SEQ, TIME
from queenstream.spark.expressions import RECORD, Wide
from queenstream.spark.kinds import SIMPLE
from queenstream.spark.native.failures import FAILURE
from queenstream.windows import from_us

DATABASE = "QUEEN_PG"
"""The variable that says where the broker's PostgreSQL is."""

_PLACE = (1 << 33) - 1  # the bits of Spark's running number of a row that say its place in the partition


def records_of(rows: DataFrame, schema: Schema) -> list[dict[str, Any]]:
    """The records of a frame as dictionaries, in order: sorted here, which saves Spark a shuffle."""
    return _records(_collected(rows), schema)


def records_and_failures(
    rows: DataFrame, schema: Schema
) -> tuple[list[dict[str, Any]], list[tuple[Any, ...]]]:
    """The records of a frame, and what its steps failed on, in one pass."""
    batches = _collected(rows)
    there = [batch.filter(batch.column(FAILURE).is_null()) for batch in batches]
    failed = [batch.filter(batch.column(FAILURE).is_valid()) for batch in batches]
    return _records(there, schema), _failures(failed)


def failures_of(rows: DataFrame) -> list[tuple[Any, ...]]:
    """What steps failed on, in the order of the source: the step, the misfit, the input."""
    return _failures(_collected(rows.where(f.col(FAILURE).isNotNull()).select(SEQ, FAILURE)))


def _failures(batches: list[pa.RecordBatch]) -> list[tuple[Any, ...]]:
    rows = [row for batch in batches for row in batch.select([SEQ, FAILURE]).to_pylist()]
    return [tuple(row[FAILURE].values()) for row in sorted(rows, key=lambda row: row[SEQ])]


def few_of(rows: DataFrame, schema: Schema, most: int, *, surely: bool) -> list[dict[str, Any]] | None:
    """The same if there are at most so many, otherwise None; ``surely``: there are, as far as one can tell.

    Otherwise no partition gives more than that many. Not by ``limit``, which needs a shuffle.
    """
    bounded = rows if surely else rows.where(f.monotonically_increasing_id().bitwiseAND(_PLACE) <= most)
    batches = _collected(bounded)
    return None if sum(batch.num_rows for batch in batches) > most else _records(batches, schema)


def _collected(rows: DataFrame) -> list[pa.RecordBatch]:
    """What ``toArrow`` collects, without all that it asks of the session first: we know the types."""
    found: list[pa.RecordBatch] = rows._collect_as_arrow()  # type: ignore[operator]
    return found


def _records(batches: list[pa.RecordBatch], schema: Schema) -> list[dict[str, Any]]:
    if not batches:
        return []
    table = pa.Table.from_batches(batches)
    if table.num_rows > 1:
        table = table.sort_by([(TIME, "ascending"), (SEQ, "ascending")])
    records: list[dict[str, Any]] = _values(
        table.column(RECORD).combine_chunks(), types.Struct(schema.fields)
    )
    return records


def _values(array: pa.Array, kind: Type) -> list[Any]:
    """Our values of an array. By the column: to take times out of it one by one takes ten times as long."""
    if isinstance(kind, types.Struct):
        names = [each.name for each in kind.fields]
        columns = [_values(part, each.type) for part, each in zip(array.flatten(), kind.fields, strict=True)]
        rows = zip(*columns, strict=True) if columns else iter([()] * len(array))
        records = [dict(zip(names, row, strict=True)) for row in rows]
        if not array.null_count:
            return records
        there = array.is_valid().to_pylist()
        return [record if valid else None for record, valid in zip(records, there, strict=True)]
    if kind == types.TIMESTAMP:
        return [None if us is None else from_us(us) for us in array.cast(pa.int64()).to_pylist()]
    return array.to_pylist() if kind in SIMPLE else [*map(_converter(kind), array.to_pylist())]


def writes_directly(write: nodes.Write, schema: Schema) -> bool:
    """Whether tasks can write a sink themselves: a queue of plain rows, on a database that we know."""
    sink = write.sink
    if not isinstance(sink, Queue) or sink.schema is not None or DATABASE not in os.environ or sink.envelope:
        return False
    if sink.partition_by is not None and sink.partition_by not in schema.names:
        return False
    return not {"data", "partition", "transaction_id", "trace_id"} & set(schema.names)


def without_partition(rows: DataFrame, partition_by: str) -> DataFrame:
    """The rows that name no partition, though the queue goes by a field: errors of the step that writes."""
    return rows.where(f.col(RECORD).getField(partition_by).isNull())


def write_directly(rows: DataFrame, sink: Queue, name: str, batch_id: int) -> int:
    """Let tasks push the rows, those of one partition in order; a batch that is there stays as it is.

    Gives how many rows it has; they are counted on their way.
    """
    if sink.partition_by is None:
        together = rows.coalesce(1)
    else:
        key = f.col(RECORD).getField(sink.partition_by)
        together = rows.where(key.isNotNull()).repartition(key)
    counted = Observation()
    ordered = together.sortWithinPartitions(f.col(TIME).asc_nulls_last(), SEQ)
    ordered = ordered.observe(counted, f.count(f.lit(1)).alias("rows"))
    writer = ordered.select(f"{RECORD}.*").write.format("queen").mode("append")
    writer = writer.options(pg=os.environ[DATABASE], queue=sink.name, sink=name, batchId=str(batch_id))
    if sink.partition is not None:
        writer = writer.option("partition", sink.partition)
    if sink.partition_by is not None:
        writer = writer.option("partitionBy", sink.partition_by)
    writer.save()
    return int(counted.get["rows"])


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
