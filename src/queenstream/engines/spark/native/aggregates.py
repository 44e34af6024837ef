"""Aggregates as Spark's own, where they mean the same: over typed columns, in the windows of an append query.

Nulls are ignored as they are everywhere, and NaN by the numeric ones. ``first``, ``last`` and the
collections go by event time, then arrival. A float's last digits depend on the order in which tasks add:
that is the price of adding in many places at once.
"""

from __future__ import annotations

from collections.abc import Callable

from pyspark.sql import Column
from pyspark.sql import functions as f

from queenstream.core.aggregates import Aggregate
from queenstream.core.schemas import types
from queenstream.core.schemas.types import Type
from queenstream.engines.spark.native.expressions import Compiler, NotNative, Typed, Wide
from queenstream.pipeline.expr import functions

TIME, SEQ = "time", "seq"
"""The columns by which records are in order."""

_HALF_BITS = 32
_WIDE = Wide()


def aggregate_column(aggregate: Aggregate, compiler: Compiler) -> Typed:
    """The column that computes an aggregate of a group."""
    if aggregate.kind == "count" and aggregate.field is None:
        return _times(aggregate, f.count(f.lit(1)))
    if aggregate.field is None:
        raise NotNative("an aggregate of whole records")
    value = compiler.read(aggregate.field)
    if value.type is None:
        raise NotNative("a field that nobody has")
    make = _MAKERS.get(aggregate.kind)
    if make is None:
        raise NotNative(f"{aggregate.kind} is the user's own")
    return make(value, aggregate)


def _times(aggregate: Aggregate, counted: Column) -> Typed:
    """A sum of the same number for every record is written as a count of so many times that."""
    times = dict(aggregate.parameters).get("times")
    if times is None:
        return Typed(counted, types.BIGINT)
    if not isinstance(times, int):
        return Typed(counted * f.lit(times), types.DOUBLE)
    if abs(times) >= 1 << _HALF_BITS - 1:
        raise NotNative("so much for each record that a count of them may leave 64 bits")
    return Typed(counted * f.lit(times), types.BIGINT)


def _numbers(value: Typed) -> Typed | None:
    """Without NaN, as bigint or double; None: there are no numbers in it."""
    if value.kind != functions.NUMBER:
        return None
    if value.type in types.INTEGERS:
        return Typed(value.column.cast("bigint"), types.BIGINT)
    number = value.column.cast("double")
    return Typed(f.when(~f.isnan(number), number), types.DOUBLE)


def _count(value: Typed, aggregate: Aggregate) -> Typed:  # noqa: ARG001 - one form for all
    return Typed(f.count(value.column), types.BIGINT)


def _sum(value: Typed, aggregate: Aggregate) -> Typed:  # noqa: ARG001
    numbers = _numbers(value)
    if numbers is None:
        return Typed(f.first(f.lit(0).cast("bigint")), types.BIGINT)
    if value.type == types.BIGINT:
        return _wide_sum(numbers.column)
    zero = f.lit(0).cast(str(numbers.type))
    return Typed(f.coalesce(f.sum(numbers.column), zero), numbers.type)


def _wide_sum(number: Column) -> Typed:
    """The sum of whole numbers of 64 bits, exactly: the upper and the lower halves have room to add up.

    As decimals they would have it too, and cost many times as much.
    """
    upper = f.sum(f.shiftright(number, _HALF_BITS)).cast("decimal(20,0)")
    lower = f.sum(number.bitwiseAND(f.lit((1 << _HALF_BITS) - 1))).cast("decimal(20,0)")
    whole = upper * f.lit(1 << _HALF_BITS).cast("decimal(11,0)") + lower
    return Typed(f.coalesce(whole, f.lit(0)).cast(str(_WIDE)), _WIDE)


def _of_numbers(make: Callable[[Column], Column]) -> Callable[[Typed, Aggregate], Typed]:
    def run(value: Typed, aggregate: Aggregate) -> Typed:  # noqa: ARG001
        numbers = _numbers(value)
        if numbers is None:
            raise NotNative("an aggregate of no numbers")
        return Typed(make(numbers.column.cast("double")), types.DOUBLE)

    return run


def _percentile(value: Typed, aggregate: Aggregate) -> Typed:
    numbers = _numbers(value)
    if numbers is None:
        raise NotNative("an aggregate of no numbers")
    p = dict(aggregate.parameters)["p"]
    return Typed(f.percentile(numbers.column.cast("double"), p), types.DOUBLE)


def _extreme(make: Callable[[Column], Column]) -> Callable[[Typed, Aggregate], Typed]:
    def run(value: Typed, aggregate: Aggregate) -> Typed:  # noqa: ARG001
        if value.kind not in functions.ORDERED:
            raise NotNative("values that are in no order")
        if value.type in types.FRACTIONS:
            number = value.column.cast("double")
            return Typed(make(f.when(~f.isnan(number), number)), types.DOUBLE)
        return Typed(make(value.column), value.type)

    return run


def _end(make: Callable[[Column, Column], Column]) -> Callable[[Typed, Aggregate], Typed]:
    def run(value: Typed, aggregate: Aggregate) -> Typed:  # noqa: ARG001
        return Typed(make(value.column, f.struct(TIME, SEQ)), value.type)

    return run


def _collected(value: Typed) -> Column:
    """The values that are not null, by event time, then arrival."""
    entry = f.when(value.column.isNotNull(), f.struct(TIME, SEQ, value.column.alias("value")))
    return f.transform(f.array_sort(f.collect_list(entry)), lambda each: each.getField("value"))


def _list(value: Typed, aggregate: Aggregate) -> Typed:  # noqa: ARG001
    _refuse_maps(value.type)
    return Typed(_collected(value), types.List(_known(value)))


def _set(value: Typed, aggregate: Aggregate) -> Typed:  # noqa: ARG001
    _refuse_maps(value.type)
    return Typed(f.array_distinct(_collected(value)), types.List(_known(value)))


def _distinct(value: Typed, aggregate: Aggregate) -> Typed:  # noqa: ARG001
    _refuse_maps(value.type)
    return Typed(f.size(f.collect_set(value.column)).cast("bigint"), types.BIGINT)


def _known(value: Typed) -> Type:
    assert value.type is not None, "a field has a type"
    return value.type


def _refuse_maps(kind: Type | None) -> None:
    if isinstance(kind, types.Map):
        raise NotNative("Spark cannot compare maps")
    if isinstance(kind, types.List):
        _refuse_maps(kind.of)
    if isinstance(kind, types.Struct):
        for each in kind.fields:
            _refuse_maps(each.type)


_MAKERS: dict[str, Callable[[Typed, Aggregate], Typed]] = {
    "count": _count,
    "sum": _sum,
    "avg": _of_numbers(f.avg),
    "stddev": _of_numbers(f.stddev_pop),
    "percentile": _percentile,
    "min": _extreme(f.min),
    "max": _extreme(f.max),
    "first": _end(f.min_by),
    "last": _end(f.max_by),
    "collect_list": _list,
    "collect_set": _set,
    "count_distinct": _distinct,
}
