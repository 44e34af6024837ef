"""Records in the columns of a query, and the clock that moves Spark's watermark beside them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as f

from queenstream.core.schemas import Field, Schema, types
from queenstream.core.schemas.types import Type
from queenstream.engines.spark.keyed.base import FOREVER
from queenstream.engines.spark.native.aggregates import SEQ, TIME
from queenstream.engines.spark.native.expressions import RECORD, Compiler, NotNative, Typed
from queenstream.engines.spark.native.failures import FAILURE, FAILURE_TYPE, Failures
from queenstream.engines.spark.tasks import rows as flow
from queenstream.engines.spark.types import spark_type
from queenstream.engines.spark.watermarks.idle import observed, raised
from queenstream.pipeline.plan.nodes import Node

CLOCK, ENDED, DUE = "clock", "ended", "due"
_MILLISECOND_US = 1_000


@dataclass(frozen=True)
class Clock:
    """Event time as Spark's watermark needs it: later by ``shift_us``, since Spark's begins at 1970.

    ``delay_us``: how far the watermark stays behind the latest. ``scale`` over 1: whole milliseconds, so
    many times as far from 1970, where a step needs instants between two of them.
    """

    shift_us: int
    delay_us: int
    scale: int = 1

    @property
    def delay(self) -> str:
        """How far the watermark stays behind, as Spark writes it."""
        return f"{self.delay_us} microseconds"

    def watch(self, rows: DataFrame) -> DataFrame:
        """Rows with a watermark by the clock that is in them."""
        return rows.withWatermark(CLOCK, self.delay)

    def of(self, time: Column) -> Column:
        """The clock of an event time."""
        us = f.unix_micros(time) + f.lit(self.shift_us)
        if self.scale > 1:
            us = (us - us % f.lit(_MILLISECOND_US)) * f.lit(self.scale)
        return f.timestamp_micros(us)

    def time_of(self, watermark_us: int) -> int:
        """The event time, in µs, that Spark's watermark stands for: the latest that was seen."""
        return (watermark_us + self.delay_us) // self.scale - self.shift_us


@dataclass(frozen=True)
class IdleClock(Clock):
    """The clock of a group of sources that waits for others, or that others wait for, unless it is idle.

    ``group``: its number; ``watermarks``: what raises the watermarks of idle groups.
    """

    group: int = 0
    watermarks: DataFrame | None = None

    def watch(self, rows: DataFrame) -> DataFrame:
        """The rows that raise the watermark have no ``seq``, and end here."""
        assert self.watermarks is not None, "there is a source of watermarks"
        shown = {CLOCK: f.timestamp_micros(CLOCK), ENDED: f.lit(False)}
        empty = (
            shown.get(each.name, f.lit(None).cast(each.dataType)).alias(each.name) for each in rows.schema
        )
        clocks = raised(self.watermarks, self.group).select(*empty)
        rows = super().watch(observed(rows, self.group).union(clocks))
        # By way of the clock, as in ``Frame.behind``; a record that a step failed on may have none.
        raises = (f.col(CLOCK) > f.timestamp_micros(f.lit(0))) & f.col(SEQ).isNull()
        return rows.where(~f.coalesce(raises, f.lit(False)))


@dataclass(frozen=True)
class Frame:
    """Records at one place of a plan: the columns ``record``, ``time``, ``seq``, and one for each key.

    ``fails``: rows that a step failed on are among them, and the column ``failure`` says which.
    ``ends``: a last row says that the source has ended, in the column ``ended``. ``watched``: the column
    ``clock`` has a watermark. ``due``: which rows came with the watermark, and so before those of a batch.
    """

    rows: DataFrame
    schema: Schema
    failures: Failures
    fails: bool = False
    keys: tuple[Field, ...] = ()
    ends: bool = False
    watched: bool = False
    due: Column | bool = False

    @property
    def compiler(self) -> Compiler:
        """For expressions over these records."""
        return Compiler(self.schema)

    def where(self, condition: Column) -> Frame:
        """Only the records for which it is true."""
        kept = self.behind(condition)
        kept = kept | f.col(ENDED) if self.ends else kept
        kept = kept | f.col(FAILURE).isNotNull() if self.fails else kept
        return replace(self, rows=self.rows.where(kept))

    def behind(self, column: Column) -> Column:
        """By way of the clock, so that Spark does not filter by it before it saw how far time has come."""
        return f.when(f.col(CLOCK) > f.timestamp_micros(f.lit(0)), column) if self.watched else column

    def with_record(self, fields: Mapping[str, Typed]) -> Frame:
        """Other records."""
        made, schema = record_of(fields)
        return replace(self, rows=self.rows.withColumn(RECORD, made), schema=schema)

    def watch(self, clock: Clock) -> Frame:
        """With a watermark by the event times of these records; the row that says it is over, ends here."""
        return self.clocked(clock, f.col(TIME)).watermarked(clock)

    def clocked(self, clock: Clock, time: Column) -> Frame:
        """With the clock of an event time. The clock of the row that says it is over is at its end."""
        shown = clock.of(time)
        shown = f.when(f.col(ENDED), _forever()).otherwise(shown) if self.ends else shown
        return replace(self, rows=self.rows.withColumn(CLOCK, shown))

    def watermarked(self, clock: Clock) -> Frame:
        """With a watermark by the clock that is there; the row that says it is over, ends here."""
        rows = clock.watch(self.rows)
        if self.ends:
            rows = rows.where(f.col(CLOCK) < _forever()).drop(ENDED)
        return replace(self, rows=rows, ends=False, watched=True)

    def placed(self) -> DataFrame:
        """The records, with the order in which sinks get them: ``time`` of what was due, then ``seq``."""
        if self.due is True and not self.keys and not self.fails:
            return self.rows  # every step of a query is planned anew in each batch: this one says nothing
        rows = self.rows.where(~f.col(ENDED)) if self.ends else self.rows
        due = f.lit(self.due) if isinstance(self.due, bool) else self.due
        failure = [FAILURE] if self.fails else []
        return rows.select(RECORD, f.when(due, f.col(TIME)).alias(TIME), SEQ, *failure)

    def guarded(self, node: Node, bad: Column, failure: Column) -> Frame:
        """With the records that a step fails on treated as its policy says."""
        failures = self.failures
        taken = ~f.col(ENDED) if self.ends else f.lit(True)
        taken = taken & f.col(FAILURE).isNull() if self.fails else taken
        rows = failures.count(failures.end(self.rows, node, bad, failure), node, bad, failure, taken)
        if not failures.keeps(node):
            kept = replace(self, rows=rows)
            return kept if failures.ends(node) else kept.where(~bad)
        before = f.col(FAILURE) if self.fails else f.lit(None).cast(FAILURE_TYPE)
        told = f.when(bad, failure.cast(FAILURE_TYPE)).otherwise(before)
        return replace(self, rows=rows.withColumn(FAILURE, told), fails=True)

    def together(self, others: Sequence[Frame], clock: Clock | None = None) -> Frame:
        """With the records of others, which have no part in the watermark; ``clock``: what it is of, if any.

        These rows come first: Spark takes from the first what it knows of a column, also its watermark.
        """
        if not others:
            return self
        fails = any(each.fails for each in (self, *others))
        first, *rest = (each._columns(self, clock, fails=fails) for each in (self, *others))
        return replace(self, rows=reduce(DataFrame.union, rest, first), fails=fails)

    def _columns(self, like: Frame, clock: Clock | None, *, fails: bool) -> DataFrame:
        columns = [f.col(name) for name in (RECORD, TIME, SEQ)]
        for number, key in enumerate(like.keys):
            name = f"key_{number}"
            columns.append(f.col(name) if self.keys else _nothing(spark_type(key.type), name))
        if like.watched:
            assert clock is not None, "they have a watermark"
            columns.append(f.col(CLOCK) if self.watched else clock.of(f.col(TIME)).alias(CLOCK))
        if like.ends:
            columns.append(f.col(ENDED) if self.ends else f.lit(False).alias(ENDED))
        if fails:
            columns.append(f.col(FAILURE) if self.fails else _nothing(FAILURE_TYPE, FAILURE))
        return self.rows.select(*columns)

    def beside(self, others: Sequence[Frame]) -> Frame:
        """With what these others have of failures. They share their sources with what this comes from."""
        found = [each for each in others if each.fails]
        if not found:
            return self
        record = f.lit(None).cast(spark_type(types.Struct(self.schema.fields)))
        rows = self.placed().withColumn(FAILURE, f.lit(None).cast(FAILURE_TYPE))
        for each in found:
            aside = each.rows.where(f.col(FAILURE).isNotNull())
            time = f.lit(None).cast("timestamp").alias(TIME)
            rows = rows.union(aside.select(record.alias(RECORD), time, SEQ, FAILURE))
        return replace(self, rows=rows, fails=True, keys=(), due=False)


def _forever() -> Column:
    return f.timestamp_micros(f.lit(flow.to_clock(FOREVER)))


def _nothing(kind: str, name: str) -> Column:
    return f.lit(None).cast(kind).alias(name)


def record_of(fields: Mapping[str, Typed]) -> tuple[Column, Schema]:
    """A record of some fields."""
    made = f.struct(*(each.column.alias(name) for name, each in fields.items()))
    return made, Schema(tuple(Field(name, known(each.type)) for name, each in fields.items()))


def known(kind: Type | None) -> Type:
    """The type of a field that has one."""
    if kind is None:
        raise NotNative("a field that is always null")
    return kind
