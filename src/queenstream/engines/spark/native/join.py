"""Joins of two streams by Spark's own, bound in time on both sides.

Spark drops a record at its watermark, and ours only past it; and it keeps a record a millisecond longer than
any partner can come, since it does not know that clocks have whole milliseconds. With a clock of half
milliseconds, one of which the watermark lags behind, both come to what ours does.

One figure is not the same: a late record that could have no partner and would not come alone (its key is
null) is gone before Spark looks at its time, and not counted.
"""

from __future__ import annotations

from functools import reduce

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as f

from queenstream.core.schemas import types
from queenstream.core.windows import length_us
from queenstream.engines.spark.native.aggregates import SEQ, TIME
from queenstream.engines.spark.native.expressions import RECORD, NotNative, Typed
from queenstream.engines.spark.native.frames import CLOCK, DUE, Clock, Frame
from queenstream.engines.spark.tasks import rows as flow
from queenstream.pipeline.plan import nodes
from queenstream.runtime.join_rows import LEFT, RIGHT, Rows

# Kinds of which equal values are equal everywhere; a double may be NaN.
_JOINED = frozenset({types.STRING, types.BOOLEAN, types.TIMESTAMP, types.DATE, *types.INTEGERS})
_HALVES = 2
_HALF_US = 1_000
_HOW = {"inner": "inner", "left": "left_outer", "right": "right_outer", "full": "full_outer"}
_SIDES = ("left", "right")
_AT = "at"


def clock(node: nodes.Join) -> Clock:
    """A clock of half milliseconds."""
    grace_us = length_us(node.grace)
    if grace_us % 1_000 or _within_us(node) % 1_000:
        raise NotNative("bounds of less than a millisecond")
    return Clock(flow.SHIFT_US, grace_us * _HALVES + _HALF_US, _HALVES)


def _within_us(node: nodes.Join) -> int:
    assert node.within is not None, "a plan has a bound for it"
    return length_us(node.within)


def join(node: nodes.Join, left: Frame, right: Frame) -> Frame:
    """The pairs of records, and those that stay alone."""
    for ours, theirs in node.on:
        kinds = {left.compiler.read(ours).type, right.compiler.read(theirs).type}
        if len(kinds) > 1 or not kinds <= _JOINED:
            raise NotNative(f"{ours} and {theirs} are compared in Python")
    sides = [
        _side(name, frame, [pair[side] for pair in node.on])
        for side, (name, frame) in enumerate(zip(_SIDES, (left, right), strict=True))
    ]
    rows = sides[LEFT].join(sides[RIGHT], _condition(node), _HOW[node.how])
    alone = f.col("left_seq").isNull() | f.col("right_seq").isNull()
    rows = rows.select(
        *(f"{side}_{RECORD}" for side in _SIDES),
        f.greatest("left_time", "right_time").alias(TIME),
        f.greatest("left_seq", "right_seq").alias(SEQ),
        alone.alias(DUE),
    )
    return Frame(rows, left.schema, left.failures, due=f.col(DUE)).with_record(_fields(node, left, right))


def _side(name: str, frame: Frame, on: list[str]) -> DataFrame:
    """What a join needs of a side: its keys, and in ``at`` when the record may meet others.

    With a null among its keys it meets none; but Spark's full join pairs null with null, so ``at`` is null.
    """
    columns = {each: f.col(each) for each in (RECORD, TIME, SEQ, CLOCK)}
    keys = [frame.behind(frame.compiler.read(path).column) for path in on]
    whole = reduce(Column.__and__, [key.isNotNull() for key in keys])
    columns |= {f"key_{number}": key for number, key in enumerate(keys)}
    columns[_AT] = f.when(whole, f.unix_micros(f.col(TIME)))
    return frame.rows.select(*(column.alias(f"{name}_{each}") for each, column in columns.items()))


def _condition(node: nodes.Join) -> Column:
    """Equal keys, at most so far apart: by the clocks, for Spark to know it, and by the exact times."""
    within_us = _within_us(node)
    bound = f.expr(f"interval {within_us * _HALVES} microseconds")
    left, right = f.col(f"left_{CLOCK}"), f.col(f"right_{CLOCK}")
    apart = f.abs(f.col(f"left_{_AT}") - f.col(f"right_{_AT}"))
    condition = (left >= right - bound) & (right >= left - bound) & (apart <= within_us)
    for number in range(len(node.on)):
        ours, theirs = f.col(f"left_key_{number}"), f.col(f"right_key_{number}")
        condition = condition & (ours == theirs)
    return condition


def _fields(node: nodes.Join, left: Frame, right: Frame) -> dict[str, Typed]:
    """What ``Rows`` makes of the columns of both sides; of a side that is not there they are null."""
    columns = [_columns(name, frame) for name, frame in zip(_SIDES, (left, right), strict=True)]
    made = Rows(node, (left.schema.names, right.schema.names))
    paired: dict[str, Typed] = made.pair(*columns)
    fields = dict(paired)
    for side in (side for side in (LEFT, RIGHT) if node.how in ("full", _SIDES[side])):
        for name, value in made.alone(side, columns[side]).items():
            if value is not None and value is not paired[name]:  # it is joined on: the other side's is equal
                fields[name] = Typed(f.coalesce(fields[name].column, value.column), value.type)
    return fields


def _columns(name: str, frame: Frame) -> dict[str, Typed]:
    record = f.col(f"{name}_{RECORD}")
    return {each.name: Typed(record.getField(each.name), each.type) for each in frame.schema.fields}
