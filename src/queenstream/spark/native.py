"""Plans that need no Python: typed columns from the source to the sink, and Spark's windows in between.

A plan is native if its source has a schema, every step is an expression, and it has at most one aggregate,
over tumbling or sliding windows, with final rows and nobody who wants the late ones. Everything else runs
in stages (``compile``). The rows are the same; this is only quicker.

Up to the aggregate, or up to where branches part, the steps are in the query itself; what follows is done
with each batch that comes out of it.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC
from typing import Any

import pyarrow as pa
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as f

from queenstream import paths, windows
from queenstream.pipeline import nodes, values
from queenstream.pipeline.endpoints import Queue
from queenstream.pipeline.expressions import Expr
from queenstream.pipeline.nodes import WINDOW_END, WINDOW_START, Node
from queenstream.pipeline.planning import Plan
from queenstream.pipeline.records import EARLIEST, LATEST
from queenstream.schemas import Field, Schema, types
from queenstream.schemas.types import Type
from queenstream.spark import flow
from queenstream.spark.aggregating import SEQ, TIME, aggregate_column
from queenstream.spark.expressions import RECORD, Compiler, NotNative, Typed, spark_type
from queenstream.spark.keyed.base import FOREVER
from queenstream.spark.metrics import Observed
from queenstream.spark.sources import END, FAILURE, is_fed
from queenstream.windows import length_us

CLOCK, ENDED = "clock", "ended"
DATABASE = "QUEEN_PG"
"""The variable that says where the broker's PostgreSQL is."""


@dataclass(frozen=True)
class Frame:
    """Records at one place of a plan: the columns ``record``, ``time``, ``seq``, and one for each key."""

    rows: DataFrame
    schema: Schema
    keys: tuple[Field, ...] = ()
    ends: bool = False  # a last row says that the source has ended, in the column ``ended``

    @property
    def compiler(self) -> Compiler:
        """For expressions over these records."""
        return Compiler(self.schema)

    def where(self, condition: Column) -> Frame:
        """Only the records for which it is true."""
        kept = condition | f.col(ENDED) if self.ends else condition
        return replace(self, rows=self.rows.where(kept))

    def with_record(self, fields: Sequence[tuple[str, Typed]]) -> Frame:
        """Other records."""
        made = f.struct(*(each.column.alias(name) for name, each in fields))
        schema = Schema(tuple(Field(name, _known(each.type)) for name, each in fields))
        return replace(self, rows=self.rows.withColumn(RECORD, made), schema=schema)


def _known(kind: Type | None) -> Type:
    if kind is None:
        raise NotNative("a field that is always null")
    return kind


class Native:
    """A plan without Python: some of its steps in a query, and the rest with each batch of that."""

    def __init__(self, plan: Plan, source: DataFrame) -> None:
        self._plan = plan
        [read] = plan.sources
        schema = read.source.columns
        if schema is None:
            raise NotNative("records of no known schema")
        frame = _read(read, schema, source)
        node: Node = read
        self.aggregates = False
        while len(after := plan.consumers(node)) == 1 and not isinstance(after[0], nodes.Write):
            [node] = after
            frame = through(node, frame)
            if isinstance(node, nodes.Aggregation):
                self.aggregates = True
                break
        self._last, self._frame = node, frame

    @property
    def rows(self) -> DataFrame:
        """The query."""
        return self._frame.rows

    @property
    def observed(self) -> Observed:
        """What Spark counts."""
        [read] = self._plan.sources
        fed = is_fed(read.source)
        steps = [node for node in self._plan.nodes if isinstance(node, nodes.EventTime)]
        told = [("failed", step.name) for step in steps]
        told += [("taken", read.name), ("failed", read.name)] if fed else []
        late_at = next((node.name for node in self._plan.nodes if isinstance(node, nodes.Aggregation)), None)
        names = {_count_name(what, step): (step, what) for what, step in told}
        return Observed(names, late_at, None if fed else read.name)

    def outputs(self, batch: DataFrame) -> dict[str, tuple[DataFrame, Schema]]:
        """What each sink gets of a batch of the query's rows: records with their order, and their fields."""
        frame = replace(self._frame, rows=batch)
        if frame.ends:
            frame = replace(frame, rows=batch.where(~f.col(ENDED)), ends=False)
        found: dict[str, tuple[DataFrame, Schema]] = {}
        pending: list[tuple[Node, Frame]] = [(self._last, frame)]
        while pending:
            node, held = pending.pop()
            for each in self._plan.consumers(node):
                if isinstance(each, nodes.Write):
                    found[each.name] = (held.rows.select(RECORD, TIME, SEQ), held.schema)
                else:
                    pending.append((each, through(each, held)))
        return found


def native(plan: Plan, spark: SparkSession) -> bool:
    """Whether a plan needs no Python."""
    if len(plan.sources) != 1:
        return False
    [read] = plan.sources
    schema = read.source.columns
    if schema is None or not _is_plain(read, schema):
        return False
    if sum(isinstance(node, nodes.Aggregation) for node in plan.nodes) > 1:
        return False
    try:
        found = Native(plan, spark.createDataFrame([], source_columns(read, schema)))
        found.outputs(found.rows)
    except NotNative:
        return False
    return True


def source_columns(read: nodes.Read, schema: Schema) -> str:
    """The columns that a source's rows must have."""
    record = spark_type(types.Struct(schema.fields))
    if is_fed(read.source):
        return f"kind INT, seq LONG, time LONG, record {record}"
    return f"data {record}, id LONG, partition STRING, created_at TIMESTAMP"


def _is_plain(read: nodes.Read, schema: Schema) -> bool:
    """Whether a source can be read into typed columns, and nobody wants to know what does not fit."""
    source = read.source
    if read.policy.then != "skip" or (isinstance(source, Queue) and source.envelope):
        return False
    return (isinstance(source, Queue) or is_fed(source)) and all(
        _is_typed(each.type) for each in schema.fields
    )


def _is_typed(kind: Type) -> bool:
    if isinstance(kind, types.List):
        return _is_typed(kind.of)
    if isinstance(kind, types.Map):
        return _is_typed(kind.key) and _is_typed(kind.value)
    if isinstance(kind, types.Struct):
        return all(_is_typed(each.type) for each in kind.fields)
    return kind != types.VARIANT


# Steps


def _read(read: nodes.Read, schema: Schema, source: DataFrame) -> Frame:
    required = [each.name for each in schema.fields if not each.nullable]
    if is_fed(read.source):
        kind = f.col("kind")
        ended = kind == END
        counts = (f.count_if(~ended).alias("taken"), f.count_if(kind == FAILURE).alias("failed"))
        fed = source.observe(_count_name("taken", read.name), *counts[:1])
        fed = fed.observe(_count_name("failed", read.name), *counts[1:]).where(kind != FAILURE)
        time = f.timestamp_micros(f.col(TIME)).alias(TIME)
        return Frame(fed.select(RECORD, time, SEQ, ended.alias(ENDED)), schema, ends=True)
    rows = source.select(f.col("data").alias(RECORD), f.col("created_at").alias(TIME), f.col("id").alias(SEQ))
    frame = Frame(rows.where(f.col(RECORD).isNotNull()), schema)
    for name in required:
        frame = frame.where(f.col(RECORD).getField(name).isNotNull())
    return frame


def through(node: Node, frame: Frame) -> Frame:
    """What a step makes of records; ``NotNative`` if it needs Python."""
    if isinstance(node, nodes.Filter):
        return _filter(node, frame)
    if isinstance(node, nodes.Project):
        return _project(node, frame)
    if isinstance(node, nodes.EventTime):
        return _event_time(node, frame)
    if isinstance(node, nodes.KeyBy):
        return _key_by(node, frame)
    if isinstance(node, nodes.Aggregation):
        return _aggregate(node, frame)
    raise NotNative(f"{node.name} is Python")


def _filter(node: nodes.Filter, frame: Frame) -> Frame:
    found = frame.compiler.of(node.predicate)
    if found.type != types.BOOLEAN:
        return frame.where(f.lit(False))
    # By way of the time, so that Spark does not filter before it has seen how far time has come.
    return frame.where(f.when(f.col(TIME).isNull() | f.col(TIME).isNotNull(), found.column))


def _project(node: nodes.Project, frame: Frame) -> Frame:
    made = {name: frame.compiler.of(expr) for name, expr in node.columns}
    if node.keep:
        before = {each.name: frame.compiler.read(paths.quote(each.name)) for each in frame.schema.fields}
        made = before | made
    return frame.with_record(list(made.items()))


def _event_time(node: nodes.EventTime, frame: Frame) -> Frame:
    """A record without a time is an error of the step, which leaves it out."""
    value = frame.compiler.read(node.path)
    if node.policy.then != "skip":
        raise NotNative("somebody wants to know which records have no time")
    if value.type == types.TIMESTAMP:
        time = value.column
    elif value.type in types.INTEGERS:
        ms = value.column.cast("bigint")
        inside = ms.between(EARLIEST // 1_000, LATEST // 1_000)
        time = f.when(inside, f.timestamp_micros(ms * f.lit(1_000)))
    else:
        raise NotNative(f"{node.path} is read as a time in Python")
    missing = f.col(TIME).isNull() & ~f.col(ENDED) if frame.ends else f.col(TIME).isNull()
    rows = frame.rows.withColumn(TIME, time).observe(
        _count_name("failed", node.name), f.count_if(missing).alias("failed")
    )
    return replace(frame, rows=rows).where(f.col(TIME).isNotNull())


def _count_name(what: str, step: str) -> str:
    """What Spark calls a count."""
    return f"{what} at {step}"


def _key_by(node: nodes.KeyBy, frame: Frame) -> Frame:
    keys: list[Field] = []
    rows = frame.rows
    for number, part in enumerate(node.parts):
        if not isinstance(part.of, Expr):
            raise NotNative(f"{part.name} is a function's")
        found = frame.compiler.of(part.of)
        if found.kind not in values.ORDERED:
            raise NotNative(f"{part.name} may be no key")
        rows = rows.withColumn(f"key_{number}", found.column)
        keys.append(Field(part.name, _known(found.type)))
    return replace(frame, rows=rows, keys=tuple(keys))


def _aggregate(node: nodes.Aggregation, frame: Frame) -> Frame:
    window = node.window
    grace_us = length_us(node.grace)
    if node.emit != "final" or not isinstance(window, windows.Tumbling | windows.Sliding) or grace_us % 1_000:
        raise NotNative("windows that Spark has not")
    size, slide = window.size_us, window.slide_us
    if size % 1_000 or slide % 1_000:
        raise NotNative("windows of less than a millisecond")
    # Spark's watermark begins at 1970: windows are computed that much later, in whole slides.
    shift = -(-flow.SHIFT_US // slide) * slide
    rows = _clocked(frame, shift).withWatermark(CLOCK, f"{grace_us} microseconds")
    if frame.ends:
        rows = rows.where(f.col(CLOCK) < f.timestamp_micros(f.lit(flow.to_clock(FOREVER))))
    span = f.window(CLOCK, f"{size} microseconds", f"{slide} microseconds").alias("span")
    made = {name: aggregate_column(each, frame.compiler) for name, each in node.aggregates}
    numbers = range(len(frame.keys)) if node.keys else ()
    grouped = rows.groupBy(span, *(f"key_{number}" for number in numbers))
    result = grouped.agg(*(each.column.alias(f"value_{at}") for at, each in enumerate(made.values())))
    return _result(result, frame, made, shift, list(numbers))


def _clocked(frame: Frame, shift: int) -> DataFrame:
    clock = f.timestamp_micros(f.unix_micros(f.col(TIME)) + f.lit(shift))
    if frame.ends:
        clock = f.when(f.col(ENDED), f.timestamp_micros(f.lit(flow.to_clock(FOREVER)))).otherwise(clock)
    return frame.rows.withColumn(CLOCK, clock)


def _result(
    rows: DataFrame, frame: Frame, made: dict[str, Typed], shift: int, numbers: Sequence[int]
) -> Frame:
    """A record for each group, with the time and the keys that it has from here on."""

    def bound(name: str) -> Column:
        return f.timestamp_micros(f.unix_micros(f.col(f"span.{name}")) - f.lit(shift))

    fields: dict[str, Typed] = {
        WINDOW_START: Typed(bound("start"), types.TIMESTAMP),
        WINDOW_END: Typed(bound("end"), types.TIMESTAMP),
    }
    fields |= {frame.keys[at].name: Typed(f.col(f"key_{at}"), frame.keys[at].type) for at in numbers}
    fields |= {name: Typed(f.col(f"value_{at}"), each.type) for at, (name, each) in enumerate(made.items())}
    last = f.timestamp_micros(f.unix_micros(bound("end")) - f.lit(1)).alias(TIME)
    timed = rows.withColumn(TIME, last).withColumn(SEQ, f.lit(0).cast("bigint"))
    kept = Frame(timed, frame.schema, tuple(frame.keys[at] for at in numbers)).with_record(
        list(fields.items())
    )
    return replace(kept, rows=kept.rows.select(RECORD, TIME, SEQ, *(f"key_{at}" for at in numbers)))


# Rows as Python has them


def arrow_type(kind: Type) -> pa.DataType:
    """The Arrow type of a column."""
    if isinstance(kind, types.Decimal):
        return pa.decimal128(kind.precision, kind.scale)
    if isinstance(kind, types.List):
        return pa.list_(arrow_type(kind.of))
    if isinstance(kind, types.Map):
        return pa.map_(arrow_type(kind.key), arrow_type(kind.value))
    if isinstance(kind, types.Struct):
        return pa.struct([(each.name, arrow_type(each.type)) for each in kind.fields])
    return _ARROW[kind]


def records_of(rows: DataFrame, schema: Schema) -> list[dict[str, Any]]:
    """The records of a frame as dictionaries, in order."""
    table = rows.orderBy(TIME, SEQ).select(RECORD).toArrow()
    convert = _converter(types.Struct(schema.fields))
    return [convert(record) for record in table.column(RECORD).to_pylist()]


def writes_directly(write: nodes.Write, schema: Schema) -> bool:
    """Whether tasks can write a sink themselves: a queue of plain rows, on a database that we know."""
    sink = write.sink
    if not isinstance(sink, Queue) or sink.schema is not None or DATABASE not in os.environ:
        return False
    if sink.partition_by is not None and sink.partition_by not in schema.names:
        return False
    return not {"data", "partition", "transaction_id", "trace_id"} & set(schema.names)


def without_partition(rows: DataFrame, sink: Queue) -> DataFrame:
    """The rows that name no partition, though the queue goes by a field: errors of the step that writes."""
    if sink.partition_by is None:
        return rows.where(f.lit(False))
    return rows.where(f.col(RECORD).getField(sink.partition_by).isNull())


def write_directly(rows: DataFrame, sink: Queue, name: str, batch_id: int) -> None:
    """Let tasks push the rows, those of one partition in order; a batch that is there stays as it is."""
    if sink.partition_by is None:
        ordered = rows.orderBy(TIME, SEQ).coalesce(1)
    else:
        key = f.col(RECORD).getField(sink.partition_by)
        ordered = rows.where(key.isNotNull()).repartition(key).sortWithinPartitions(TIME, SEQ)
    writer = ordered.select(f"{RECORD}.*").write.format("queen").mode("append")
    writer = writer.options(pg=os.environ[DATABASE], queue=sink.name, sink=name, batchId=str(batch_id))
    if sink.partition is not None:
        writer = writer.option("partition", sink.partition)
    if sink.partition_by is not None:
        writer = writer.option("partitionBy", sink.partition_by)
    writer.save()


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
    return lambda value: value


_ARROW: dict[Type, pa.DataType] = {
    types.STRING: pa.string(),
    types.BOOLEAN: pa.bool_(),
    types.TINYINT: pa.int8(),
    types.SMALLINT: pa.int16(),
    types.INT: pa.int32(),
    types.BIGINT: pa.int64(),
    types.FLOAT: pa.float64(),
    types.DOUBLE: pa.float64(),
    types.TIMESTAMP: pa.timestamp("us", "UTC"),
    types.DATE: pa.date32(),
    types.BINARY: pa.binary(),
}
