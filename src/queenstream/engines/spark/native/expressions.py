"""Expressions as Spark's own columns, with our rules for null and for kinds.

The types are known here (a schema says them), so what ``values`` decides for each value is decided once: text
beside a number is a null column, whole numbers go through ``try_add`` and the like, a Decimal counts as a
double. What has no exact counterpart raises ``NotNative``, and the step runs in Python, as everything did
before.

>>> compiler = Compiler(Schema.of("amount double, user struct<country: string>"))
>>> compiler.of(parse("amount > 100 and user.country = 'DE'")).column  # doctest: +SKIP
Column<'and(>(record.amount, 100.0), =(record.user.country, DE))'>
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import date, datetime
from functools import reduce
from typing import Any, NamedTuple

from pyspark.sql import Column
from pyspark.sql import functions as f

from queenstream.core import durations, paths
from queenstream.core.records import EARLIEST, LATEST
from queenstream.core.schemas import Schema, types
from queenstream.core.schemas.types import Type
from queenstream.core.windows import length_us, to_us
from queenstream.engines.spark.types import spark_type
from queenstream.pipeline.expr import expressions, functions
from queenstream.pipeline.expr.expressions import Binary, Call, Case, Cast, Expr, IsIn, Unary
from queenstream.pipeline.expr.type_inference import common, kind_of

RECORD = "record"
"""The column that has the record, as a struct."""

_NUMBERS = (types.BIGINT, types.DOUBLE)
_LEAST, _GREATEST = -9.223372036854775e18, 9.223372036854775e18  # doubles that surely fit into 64 bits
_ISO = r"^\d{4}-\d{2}-\d{2}([T ]\d{2}:\d{2}(:\d{2}(\.\d{1,9})?)?(Z|[+-]\d{2}:?\d{2})?)?$"
_OFFSET = r"([+-]\d{2})(\d{2})$"
_WHOLE = r"^[+-]?[0-9]{1,19}$"
_REAL = r"^(?i)([+-]?((\d+\.?\d*|\.\d+)(e[+-]?\d+)?|inf(inity)?)|nan)$"
_PER_SECOND = {"s": 1, "ms": 1_000, "us": 1_000_000}
_SECOND_US = 1_000_000


class NotNative(Exception):
    """Spark has nothing that means exactly the same."""


@dataclass(frozen=True, slots=True)
class Wide(types.Decimal):
    """A whole number that may have more than 64 bits: a sum. Expressions compute with those that have not."""

    precision: int = 38
    scale: int = 0


_WIDE = Wide()


class Typed(NamedTuple):
    """A column and its type; a type of None is null's."""

    column: Column
    type: Type | None

    @property
    def kind(self) -> str | None:
        """What an expression sees of it: number, text, time …"""
        return kind_of(self.type)


class Compiler:
    """Compiles expressions over records of one schema."""

    def __init__(self, schema: Schema) -> None:
        self._schema = schema

    def of(self, expr: Expr) -> Typed:
        """The column of an expression."""
        if isinstance(expr, expressions.Column):
            return self.read(expr.path)
        if isinstance(expr, expressions.Literal):
            return _literal(expr.value)
        if isinstance(expr, Binary):
            return self._binary(expr)
        if isinstance(expr, Unary):
            return _UNARY[expr.op](self.of(expr.operand))
        if isinstance(expr, IsIn):
            operand = self.of(expr.operand)
            tests = [_compare("=", operand, _literal(option)).column for option in expr.options]
            return _bool(reduce(Column.__or__, tests) if tests else f.lit(False))
        if isinstance(expr, Call):
            return self._call(expr)
        if isinstance(expr, Case):
            return self._case(expr)
        if isinstance(expr, Cast):
            return _CASTS[expr.to](self.of(expr.operand))
        raise NotNative(f"{expr}")

    def read(self, path: str) -> Typed:
        """What stands at a path."""
        column, kind = f.col(RECORD), types.Struct(self._schema.fields)
        found: Type = kind
        for name in paths.segments(path):
            inside = types.step_into(found, name)
            if inside is None:
                return _null()
            if found == types.VARIANT or inside == types.VARIANT:
                raise NotNative(f"{path} is of no known type")
            if isinstance(found, types.List):
                column = f.get(column, f.lit(int(name)))
            elif isinstance(found, types.Map):
                if found.key != types.STRING:
                    return _null()
                column = f.try_element_at(column, f.lit(name))
            else:
                column = column.getField(name)
            found = inside
        return Typed(column, found)

    def _binary(self, expr: Binary) -> Typed:
        operands = [self.of(operand) for operand in expr.operands]
        if expr.op in ("and", "or"):
            join = Column.__and__ if expr.op == "and" else Column.__or__
            return _bool(reduce(join, [_truth(operand) for operand in operands]))
        left, right = operands
        if expr.op in functions.ARITHMETIC:
            return _arithmetic(expr.op, left, right)
        return _compare(expr.op, left, right)

    def _call(self, expr: Call) -> Typed:
        arguments = [self.of(argument) for argument in expr.arguments]
        if expr.name in _TEXTS:
            takes, gives, make = _TEXTS[expr.name]
            if any(argument.kind != takes for argument in arguments):
                return _null(gives)
            return Typed(make(*(argument.column for argument in arguments)), gives)
        if expr.name in _PARTS:
            time = _as_time(arguments[0])
            return _null(types.BIGINT) if time is None else _whole(_PARTS[expr.name](time))
        constants = [each.value for each in expr.arguments[1:] if isinstance(each, expressions.Literal)]
        return _CALLS[expr.name](arguments, constants)

    def _case(self, expr: Case) -> Typed:
        found = [_narrow(self.of(value)) for _, value in expr.branches]
        default = _narrow(self.of(expr.default))
        kind = _common([*found, default])
        column: Column | None = None
        for (condition, _), value in zip(expr.branches, found, strict=True):
            holds, then = _truth(self.of(condition)), _widened(value, kind).column
            column = f.when(holds, then) if column is None else column.when(holds, then)
        assert column is not None, "a case has a branch"
        return Typed(column.otherwise(_widened(default, kind).column), kind)


def _narrow(operand: Typed) -> Typed:
    """With 64 bits, or null."""
    return _whole(operand.column.try_cast("bigint")) if isinstance(operand.type, Wide) else operand


def _null(kind: Type | None = None) -> Typed:
    return Typed(f.lit(None) if kind is None else f.lit(None).cast(spark_type(kind)), kind)


def _bool(column: Column) -> Typed:
    return Typed(column, types.BOOLEAN)


def _whole(column: Column) -> Typed:
    return Typed(column.cast("bigint"), types.BIGINT)


def _literal(value: Any) -> Typed:
    if value is None:
        return _null()
    if isinstance(value, bool):
        return _bool(f.lit(value))
    if isinstance(value, int):
        if not functions.LEAST <= value <= functions.GREATEST:
            raise NotNative(f"{value} has more than 64 bits")
        return _whole(f.lit(value))
    if isinstance(value, float):
        return Typed(f.lit(value).cast("double"), types.DOUBLE)
    if isinstance(value, datetime):
        return Typed(f.timestamp_micros(f.lit(to_us(value))), types.TIMESTAMP)
    if isinstance(value, date):
        return Typed(f.lit(value), types.DATE)
    return Typed(f.lit(value), types.STRING)


# Numbers


def _number(operand: Typed) -> Typed | None:
    """As a bigint or a double; None: it is no number."""
    if operand.kind != functions.NUMBER:
        return None
    operand = _narrow(operand)
    if operand.type in types.INTEGERS:
        return _whole(operand.column)
    return Typed(operand.column.cast("double"), types.DOUBLE)


def _pair(left: Typed, right: Typed) -> tuple[Column, Column, Type] | None:
    """Two numbers of one type."""
    one, two = _number(left), _number(right)
    if one is None or two is None:
        return None
    if one.type == two.type == types.BIGINT:
        return one.column, two.column, types.BIGINT
    return one.column.cast("double"), two.column.cast("double"), types.DOUBLE


def _arithmetic(op: str, left: Typed, right: Typed) -> Typed:
    pair = _pair(left, right)
    if pair is None:
        return _null(types.DOUBLE)
    one, two, kind = pair
    if op == "/":
        return Typed(f.try_divide(one.cast("double"), two.cast("double")), types.DOUBLE)
    if op == "%":
        return Typed(f.when(two != 0, one % two), kind)
    return Typed(_ARITHMETIC[op](one, two), kind)


_ARITHMETIC: dict[str, Callable[[Column, Column], Column]] = {
    "+": f.try_add,
    "-": f.try_subtract,
    "*": f.try_multiply,
}


def _negative(operand: Typed) -> Typed:
    number = _number(operand)
    if number is None:
        return _null(types.DOUBLE)
    if number.type == types.DOUBLE:
        return Typed(-number.column, types.DOUBLE)
    return Typed(f.try_subtract(f.lit(0).cast("bigint"), number.column), types.BIGINT)


def _abs(arguments: Sequence[Typed], constants: Sequence[Any]) -> Typed:  # noqa: ARG001 - one form for all
    number = _number(arguments[0])
    if number is None:
        return _null(types.DOUBLE)
    if number.type == types.DOUBLE:
        return Typed(f.abs(number.column), types.DOUBLE)
    return Typed(f.when(number.column < 0, _negative(number).column).otherwise(number.column), types.BIGINT)


def _rounded(make: Callable[[Column], Column]) -> Callable[[Sequence[Typed], Sequence[Any]], Typed]:
    def run(arguments: Sequence[Typed], constants: Sequence[Any]) -> Typed:  # noqa: ARG001
        number = _number(arguments[0])
        if number is None:
            return _null(types.BIGINT)
        if number.type == types.BIGINT:
            return number
        return _whole(f.when(number.column.between(_LEAST, _GREATEST), make(number.column)))

    return run


def _round(arguments: Sequence[Typed], constants: Sequence[Any]) -> Typed:
    number = _number(arguments[0])
    digits = constants[0] if constants else 0
    if number is None:
        return _null(types.DOUBLE)
    if number.type == types.BIGINT:
        if digits < 0:
            raise NotNative("whole numbers rounded to tens may leave 64 bits")
        return number
    return Typed(f.round(number.column, digits), types.DOUBLE)


# Comparisons


def _compare(op: str, left: Typed, right: Typed) -> Typed:
    pair = _wide_pair(left, right) or _pair(left, right)
    if pair is not None:
        return _bool(_TESTS[op](pair[0], pair[1]))
    kinds = {left.kind, right.kind}
    if None in kinds:
        if left.type is not None and right.type is not None:
            raise NotNative("a value of no known kind")
        return _null(types.BOOLEAN)
    if kinds <= {functions.TIME, functions.TEXT} and functions.TIME in kinds:
        one, two = _as_time(left), _as_time(right)
        assert one is not None, "a time or a text"
        assert two is not None, "a time or a text"
        return _bool(_TESTS[op](one, two))
    if len(kinds) > 1:
        return _null(types.BOOLEAN)
    if kinds & {functions.LIST, functions.MAP}:
        raise NotNative("lists and maps are compared in Python")
    return _bool(_TESTS[op](left.column, right.column))


def _wide_pair(left: Typed, right: Typed) -> tuple[Column, Column, Type] | None:
    """Two numbers of which one may have more than 64 bits, to be compared."""
    kinds = {left.type, right.type}
    if _WIDE not in kinds or left.kind != right.kind:
        return None
    kind: Type = _WIDE if kinds <= {_WIDE, *types.INTEGERS} else types.DOUBLE
    return left.column.cast(str(kind)), right.column.cast(str(kind)), kind


_TESTS: dict[str, Callable[[Column, Column], Column]] = {
    "=": lambda one, two: one == two,
    "!=": lambda one, two: one != two,
    "<": lambda one, two: one < two,
    "<=": lambda one, two: one <= two,
    ">": lambda one, two: one > two,
    ">=": lambda one, two: one >= two,
}


def _truth(operand: Typed) -> Column:
    """A condition; what is neither true nor false is null."""
    return operand.column if operand.type == types.BOOLEAN else _null(types.BOOLEAN).column


def _not(operand: Typed) -> Typed:
    return _bool(~_truth(operand))


# Times


def _as_time(operand: Typed) -> Column | None:
    """As a timestamp; a text is read as ISO 8601. None: it is neither a time nor a text."""
    if operand.type == types.TIMESTAMP:
        return operand.column
    if operand.type == types.DATE:
        return operand.column.cast("timestamp")
    if operand.kind != functions.TEXT:
        return None
    text = f.trim(operand.column)
    zoned = f.regexp_replace(text, _OFFSET, "$1:$2")
    # Only behind a time of day: the day of a bare date is no offset.
    whole = f.when(f.length(text) > 10, zoned).otherwise(text)
    return f.when(text.rlike(_ISO), whole.try_cast("timestamp"))


def _at(us: Column) -> Column:
    """A time from µs since 1970; null outside of the years that a datetime has."""
    return f.when(us.between(EARLIEST, LATEST), f.timestamp_micros(us.cast("bigint")))


def _to_timestamp(arguments: Sequence[Typed], constants: Sequence[Any]) -> Typed:
    number = _number(arguments[0])
    if number is None:
        time = _as_time(arguments[0])
        return _null(types.TIMESTAMP) if time is None else Typed(time, types.TIMESTAMP)
    per = _PER_SECOND[str(constants[0])] if constants else 1
    if number.type == types.BIGINT:
        us = f.try_multiply(number.column, f.lit(_SECOND_US // per).cast("bigint"))
    else:
        us = f.when(number.column.between(_LEAST, _GREATEST), f.floor(number.column * 1e6 / per))
    return Typed(_at(us), types.TIMESTAMP)


def _shifted(sign: int) -> Callable[[Sequence[Typed], Sequence[Any]], Typed]:
    def run(arguments: Sequence[Typed], constants: Sequence[Any]) -> Typed:
        time = _as_time(arguments[0])
        if time is None:
            return _null(types.TIMESTAMP)
        by = sign * length_us(durations.parse(constants[0]))
        return Typed(_at(f.unix_micros(time) + f.lit(by)), types.TIMESTAMP)

    return run


# Several types in one


def _common(found: Sequence[Typed]) -> Type | None:
    """The one type of several values. Different kinds in one column are Python's."""
    known = [each.type for each in found if each.type is not None]
    if not known:
        return None
    kind = common([types.DOUBLE if isinstance(each, types.Decimal) else each for each in known])
    if kind is None or (kind == types.DOUBLE and types.BIGINT in known):
        raise NotNative("values of different types in one")
    return kind


def _widened(operand: Typed, kind: Type | None) -> Typed:
    if kind is None or operand.type == kind:
        return operand
    return Typed(operand.column.cast(spark_type(kind)), kind)


def _coalesce(arguments: Sequence[Typed], constants: Sequence[Any]) -> Typed:  # noqa: ARG001
    found = [*map(_narrow, arguments)]
    kind = _common(found)
    return Typed(f.coalesce(*(_widened(each, kind).column for each in found)), kind)


def _substring(arguments: Sequence[Typed], constants: Sequence[Any]) -> Typed:  # noqa: ARG001
    text, *numbers = arguments
    if text.kind != functions.TEXT or any(number.type not in types.INTEGERS for number in numbers):
        return _null(types.STRING)
    return Typed(f.substr(text.column, *(number.column.try_cast("int") for number in numbers)), types.STRING)


def _like(arguments: Sequence[Typed], constants: Sequence[Any]) -> Typed:
    if arguments[0].kind != functions.TEXT:
        return _null(types.BOOLEAN)
    return _bool(arguments[0].column.like(constants[0]))


# Casts


def _to_int(operand: Typed) -> Typed:
    number = _number(operand)
    if number is not None:
        if number.type == types.BIGINT:
            return number
        inside = number.column.between(_LEAST, _GREATEST)
        return _whole(f.when(inside, number.column.cast("bigint")))
    if operand.kind == functions.TEXT:
        text = f.trim(operand.column)
        return _whole(f.when(text.rlike(_WHOLE), text.try_cast("bigint")))
    if operand.kind == functions.BOOL:
        return _whole(operand.column)
    time = _as_time(operand)
    return _null(types.BIGINT) if time is None else _whole(f.unix_seconds(time))


def _to_double(operand: Typed) -> Typed:
    number = _number(operand)
    if number is not None:
        return Typed(number.column.cast("double"), types.DOUBLE)
    if operand.kind == functions.TEXT:
        text = f.trim(operand.column)
        return Typed(f.when(text.rlike(_REAL), text.try_cast("double")), types.DOUBLE)
    if operand.kind == functions.BOOL:
        return Typed(operand.column.cast("double"), types.DOUBLE)
    time = _as_time(operand)
    if time is None:
        return _null(types.DOUBLE)
    return Typed(f.unix_micros(time) / f.lit(1e6), types.DOUBLE)


def _to_text(operand: Typed) -> Typed:
    if operand.type == types.STRING:
        return operand
    number = _number(operand)
    if number is not None:
        return Typed(number.column.cast("string"), types.STRING)
    if operand.kind in (functions.BOOL, functions.TIME):
        return Typed(operand.column.cast("string"), types.STRING)
    return _null(types.STRING)


def _to_bool(operand: Typed) -> Typed:
    if operand.type == types.BOOLEAN:
        return operand
    number = _number(operand)
    if number is not None:
        return _bool(number.column != 0)
    if operand.kind != functions.TEXT:
        return _null(types.BOOLEAN)
    text = f.lower(f.trim(operand.column))
    true, false = text.isin("t", "true", "y", "yes", "1"), text.isin("f", "false", "n", "no", "0")
    return _bool(f.when(true, f.lit(True)).when(false, f.lit(False)))


def _to_time(operand: Typed) -> Typed:
    return _to_timestamp([operand], [])


_UNARY: dict[str, Callable[[Typed], Typed]] = {
    "-": _negative,
    "not": _not,
    "is null": lambda operand: _bool(operand.column.isNull()),
    "is not null": lambda operand: _bool(operand.column.isNotNull()),
}
_CASTS: dict[str, Callable[[Typed], Typed]] = {
    "int": _to_int,
    "double": _to_double,
    "text": _to_text,
    "bool": _to_bool,
    "timestamp": _to_time,
}
_TEXTS: dict[str, tuple[str, Type, Callable[..., Column]]] = {
    "concat": (functions.TEXT, types.STRING, f.concat),
    "contains": (functions.TEXT, types.BOOLEAN, lambda text, part: text.contains(part)),
    "ends_with": (functions.TEXT, types.BOOLEAN, lambda text, part: text.endswith(part)),
    "starts_with": (functions.TEXT, types.BOOLEAN, lambda text, part: text.startswith(part)),
    "length": (functions.TEXT, types.BIGINT, lambda text: f.length(text).cast("bigint")),
    "lower": (functions.TEXT, types.STRING, f.lower),
    "upper": (functions.TEXT, types.STRING, f.upper),
    "trim": (functions.TEXT, types.STRING, f.trim),
}
_PARTS: dict[str, Callable[[Column], Column]] = {
    "year": f.year,
    "month": f.month,
    "day": f.dayofmonth,
    "hour": f.hour,
    "minute": f.minute,
    "weekday": f.weekday,
}
_CALLS: dict[str, Callable[[Sequence[Typed], Sequence[Any]], Typed]] = {
    "abs": _abs,
    "ceil": _rounded(f.ceil),
    "floor": _rounded(f.floor),
    "round": _round,
    "coalesce": _coalesce,
    "substring": _substring,
    "like": _like,
    "plus": _shifted(1),
    "minus": _shifted(-1),
    "to_timestamp": _to_timestamp,
}
