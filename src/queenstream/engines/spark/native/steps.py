"""Steps without state as Spark's own columns, from the source on."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import reduce
from typing import Any

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as f

from queenstream.core import paths
from queenstream.core.records import EARLIEST, LATEST
from queenstream.core.schemas import Field, Schema, types
from queenstream.core.schemas.types import Type
from queenstream.engines.spark.native.aggregates import SEQ, TIME
from queenstream.engines.spark.native.expressions import RECORD, NotNative
from queenstream.engines.spark.native.failures import FAILURE, MISFIT, Failures, count_name, number_of
from queenstream.engines.spark.native.frames import CLOCK, ENDED, Clock, Frame, known
from queenstream.engines.spark.native.pruning import needed
from queenstream.engines.spark.sources.files import has_end
from queenstream.engines.spark.sources.sources import END, marks_end
from queenstream.engines.spark.sources.sources import FAILURE as FAILED
from queenstream.engines.spark.types import is_bare, parts_of, spark_type
from queenstream.pipeline.endpoints import Files, Kafka, Queue
from queenstream.pipeline.expr import functions
from queenstream.pipeline.expr.expressions import Expr
from queenstream.pipeline.plan import nodes
from queenstream.pipeline.plan.nodes import Node

Load = Callable[[nodes.Read, Schema | None], DataFrame]
"""Gives the rows of a source, with records of some of its fields, in the columns of ``source_columns``.

Without a schema: as its decoder takes them.
"""


def source_columns(read: nodes.Read, schema: Schema) -> str:
    """The columns that a source's rows must have, with records of these fields."""
    record = spark_type(types.Struct(schema.fields))
    if marks_end(read.source):
        return f"kind INT, seq LONG, time LONG, record {record}, {MISFIT} BINARY"
    if isinstance(read.source, Files):
        return f"record {record}, seq LONG, {MISFIT} BINARY, {ENDED} BOOLEAN"
    return f"data {record}, id LONG, created_at TIMESTAMP, {MISFIT} BINARY"


def read(
    node: nodes.Read,
    failures: Failures,
    source: DataFrame,
    *,
    counted: bool = False,
    clock: Clock | None = None,
) -> Frame:
    """The records of a source, as far as a plan needs them.

    ``counted``: with a count of all that were taken. ``clock``: with a watermark by the source's own times. A
    message that does not fit the schema came without a record, and with the reason.
    """
    check_readable(node)
    schema = needed(failures.plan, node)
    if marks_end(node.source):
        fed = _read_fed(node, failures, source, schema, counted=counted)
        return fed if clock is None else fed.watch(clock)
    if isinstance(node.source, Files):
        return _read_files(node, failures, source, schema, counted=counted)
    bad, failure = f.col(MISFIT).isNotNull(), failures.misfit(node)
    columns = {RECORD: f.col("data"), TIME: f.col("created_at"), SEQ: f.col("id"), MISFIT: f.col(MISFIT)}
    if clock is not None:  # the time of what does not fit does not count
        columns[CLOCK] = f.when(~bad, clock.of(columns[TIME]))
    rows = source.select(*(column.alias(name) for name, column in columns.items()))
    rows = failures.count(failures.end(rows, node, bad, failure), node, bad, failure)
    if counted:
        rows = rows.observe(count_name("taken", node.name), number_of(~bad).alias("taken"))
    if clock is not None:  # right behind the counts: neither has generated code, and each gap in it costs
        rows = clock.watch(rows)
    return _kept(node, Frame(rows, schema, failures, watched=clock is not None), bad, failure)


def _kept(node: nodes.Read, frame: Frame, bad: Column, failure: Column) -> Frame:
    """Without what did not fit, or with it beside the records."""
    if not frame.failures.keeps(node):
        return frame if frame.failures.ends(node) else replace(frame, rows=frame.rows.where(~bad))
    return replace(frame, rows=frame.rows.withColumn(FAILURE, f.when(bad, failure)), fails=True)


def always_fits(rows: DataFrame) -> bool:
    """Whether all rows of a source that ends fit its schema, as the types of its columns say."""
    return MISFIT not in rows.columns


def _read_fed(
    node: nodes.Read, failures: Failures, source: DataFrame, schema: Schema, *, counted: bool
) -> Frame:
    kind = f.col("kind")
    ended, bad = kind == END, kind == FAILED
    time = f.timestamp_micros(f.col(TIME)).alias(TIME)
    if always_fits(source):
        columns: list[Column | str] = [RECORD, time, SEQ, ended.alias(ENDED)]
        if counted and failures.part != "aside":
            source = source.observe(count_name("taken", node.name), number_of(~ended).alias("taken"))
        return Frame(source.select(*columns), schema, failures, ends=True)
    failure = failures.misfit(node)
    # One count of both: for each, all rows leave Spark's generated code.
    fed = failures.count(failures.end(source, node, bad, failure), node, bad, failure, ~ended & ~bad)
    rows = fed.select(RECORD, time, SEQ, ended.alias(ENDED), MISFIT, "kind")
    return _kept(node, Frame(rows, schema, failures, ends=True), bad, failure)


def is_in_pieces(node: nodes.Read, rows: DataFrame | None) -> bool:
    """Whether the rows of a source of files, as Spark counts them, are lines or files and not records."""
    return isinstance(node.source, Files) and rows is not None and MISFIT in rows.columns


def _read_files(
    node: nodes.Read, failures: Failures, source: DataFrame, schema: Schema, *, counted: bool
) -> Frame:
    """What the JVM has read fits its columns: then only a field may be missing that must be there."""
    assert isinstance(node.source, Files)
    ends, ended = has_end(failures.plan, node.source), f.col(ENDED)
    rows = source.withColumn(TIME, f.lit(None).cast("timestamp"))
    bad: Column | None = None
    failure = f.lit(None)
    if is_in_pieces(node, source):
        bad, failure = f.col(MISFIT).isNotNull(), failures.misfit(node)
    elif required := [each.name for each in schema.fields if each.required]:
        missing = [f.col(RECORD).getField(name).isNull() for name in required]
        bad = reduce(Column.__or__, missing)
        bad = bad & ~ended if ends else bad
        failure = failures.input(node, schema, ())
    if bad is not None:
        rows = failures.count(failures.end(rows, node, bad, failure), node, bad, failure)
    if (counted or is_in_pieces(node, source)) and failures.part != "aside":
        taken = ~ended if bad is None else ~ended & ~bad
        rows = rows.observe(count_name("taken", node.name), number_of(taken).alias("taken"))
    columns = [RECORD, TIME, SEQ, *([ENDED] if ends else []), *([MISFIT] if MISFIT in rows.columns else [])]
    frame = Frame(rows.select(*columns), schema, failures, ends=ends)
    return frame if bad is None else _kept(node, frame, bad, failure)


def check_readable(node: nodes.Read) -> None:
    """Whether a source can be read into typed columns."""
    source, schema = node.source, node.source.columns
    if schema is None or not all(_is_typed(each.type) for each in schema.fields):
        raise NotNative("records of no known schema")
    if isinstance(source, Queue):
        if source.envelope or not is_bare(schema.fields):
            raise NotNative("messages with their envelope, or with fields that are filled in")
    elif isinstance(source, Kafka):
        if source.envelope or source.format != "json" or not is_bare(schema.fields):
            raise NotNative("messages that are not plain JSON, or with fields that are filled in")
    elif not marks_end(source) and not isinstance(source, Files):
        raise NotNative("windows of a stream")


def _is_typed(kind: Type) -> bool:
    return kind != types.VARIANT and all(map(_is_typed, parts_of(kind)))


def through(node: Node, frame: Frame) -> Frame:
    """What a step makes of records; ``NotNative`` if it needs Python."""
    make = _MAKERS.get(type(node))
    if make is None:
        raise NotNative(f"{node.name} is Python")
    return make(node, frame)


def _filter(node: nodes.Filter, frame: Frame) -> Frame:
    found = frame.compiler.of(node.predicate)
    return frame.where(found.column if found.type == types.BOOLEAN else f.lit(False))


def _project(node: nodes.Project, frame: Frame) -> Frame:
    compiler = frame.compiler
    made = {name: compiler.of(expr) for name, expr in node.columns}
    if node.keep:
        made = {name: compiler.read(paths.quote(name)) for name in frame.schema.names} | made
    return frame.with_record(made)


def event_time(node: nodes.EventTime, frame: Frame, clock: Clock | None = None) -> Frame:
    """A record without a time is an error of the step. ``clock``: with a watermark by these times."""
    value = frame.compiler.read(node.path)
    if value.type == types.TIMESTAMP:
        time = value.column
    elif value.type in types.INTEGERS:
        ms = value.column.cast("bigint")
        inside = ms.between(EARLIEST // 1_000, LATEST // 1_000)
        time = f.when(inside, f.timestamp_micros(ms * f.lit(1_000)))
    else:
        raise NotNative(f"{node.path} is read as a time in Python")
    failures = frame.failures
    if failures.keeps(node) and any(_has_bytes(each.type) for each in frame.schema.fields):
        raise NotNative("a dead letter with bytes")
    failure = failures.input(node, frame.schema, frame.keys)
    bad = time.isNull()
    bad = bad & ~f.col(ENDED) if frame.ends else bad
    bad = bad & f.col(FAILURE).isNull() if frame.fails else bad
    if clock is None:
        guarded = frame.guarded(node, bad, failure)
    else:  # the watermark right behind the count: neither has generated code, and each gap in it costs
        guarded = frame.clocked(clock, time).guarded(node, bad, failure).watermarked(clock)
    return replace(guarded, rows=guarded.rows.withColumn(TIME, time))


def _has_bytes(kind: Type) -> bool:
    return kind == types.BINARY or any(map(_has_bytes, parts_of(kind)))


def _key_by(node: nodes.KeyBy, frame: Frame) -> Frame:
    keys: list[Field] = []
    rows = frame.rows
    for number, part in enumerate(node.parts):
        if not isinstance(part.of, Expr):
            raise NotNative(f"{part.name} is a function's")
        found = frame.compiler.of(part.of)
        if found.kind not in functions.ORDERED:
            raise NotNative(f"{part.name} may be no key")
        rows = rows.withColumn(f"key_{number}", found.column)
        keys.append(Field(part.name, known(found.type)))
    return replace(frame, rows=rows, keys=tuple(keys))


_MAKERS: dict[type[Node], Callable[[Any, Frame], Frame]] = {
    nodes.Filter: _filter,
    nodes.Project: _project,
    nodes.EventTime: event_time,
    nodes.KeyBy: _key_by,
}
