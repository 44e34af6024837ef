"""What the operators and functions of expressions mean for plain values: SQL's rules, none of which raises.

A value is null (None) or of one kind: bool, number (int, float, Decimal), text, time (datetime, date), list
or map. Null, or a kind that an operator does not know, gives null: ``1 < 'a'``, ``lower(5)`` and ``true + 1``
are null. That is a rule of ours: Spark would cast or refuse, so an engine on Spark decides it by the types.
The rest follows Spark's ``try_add``, ``try_divide``, ``try_mod``, ``try_cast`` and so on:

- Comparisons are between values of one kind; but a text beside a time is read as a time. NaN equals NaN and
  is greater than every number. Lists and maps are equal or not, and otherwise not comparable.
- Whole numbers are those of 64 bits; a result beyond is null. ``/`` always gives a float. Division by zero
  and the remainder of it are null; a remainder has the sign of the dividend. A Decimal counts as a float.
- A time without a zone is UTC, a date is its midnight, and a text that stands for a time is ISO 8601.
- What a cast cannot read is null. Spark reads a little more: ``2025`` and ``2025-1-3`` as times, ``1d`` as a
  number.
- ``round`` rounds halves away from zero, as one sees the number written; ``floor`` and ``ceil`` give whole
  numbers, and null of what is not finite.
- ``substring`` counts from 1, from the end if below zero; ``trim`` takes spaces; ``length`` counts
  characters.
"""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from decimal import ROUND_HALF_UP, Context, Decimal
from typing import Any, TypeAlias

from queenstream.core import durations
from queenstream.errors import ConfigError

Value: TypeAlias = Any
"""A plain Python value of a record; None is null."""

Number: TypeAlias = int | float

BOOL, NUMBER, TEXT, TIME, LIST, MAP = "bool", "number", "text", "time", "list", "map"
ORDERED = {BOOL, NUMBER, TEXT, TIME}
LEAST, GREATEST = -(2**63), 2**63 - 1

_KINDS: dict[type, str] = {
    bool: BOOL,
    int: NUMBER,
    float: NUMBER,
    Decimal: NUMBER,
    str: TEXT,
    datetime: TIME,
    date: TIME,
    list: LIST,
    tuple: LIST,
    dict: MAP,
}
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)
_ISO = re.compile(
    r"[0-9]{4}-[0-9]{2}-[0-9]{2}"
    r"(?:[T ][0-9]{2}:[0-9]{2}(?::[0-9]{2}(?:\.[0-9]{1,9})?)?(?:Z|[+-][0-9]{2}:?[0-9]{2})?)?"
)
_WHOLE = re.compile(r"[+-]?[0-9]{1,19}")
_REAL = re.compile(
    r"[+-]?(?:(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?|inf(?:inity)?)|nan", re.IGNORECASE
)
_TRUE = {"t", "true", "y", "yes", "1"}
_FALSE = {"f", "false", "n", "no", "0"}
_UNITS = {"s": 1, "ms": 1_000, "us": 1_000_000}


def kind_of(value: Value) -> str | None:
    """The kind of a value; None for null and for what is none of ours.

    >>> kind_of(1.5), kind_of(True), kind_of(None)
    ('number', 'bool', None)
    """
    found = _KINDS.get(type(value))
    if found is None:
        # A subclass: an IntEnum, a Timestamp of pandas.
        found = next((kind for base, kind in _KINDS.items() if isinstance(value, base)), None)
    return found


# Comparisons

COMPARISONS: dict[str, Callable[[Any, Any], Any]] = {
    "=": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}


def compare(test: Callable[[Any, Any], Any], left: Value, right: Value) -> bool | None:
    """One of ``COMPARISONS`` between any two values.

    >>> compare(operator.lt, 1, 2.5), compare(operator.lt, 1, "a"), compare(operator.eq, None, None)
    (True, None, None)
    """
    kinds = kind_of(left), kind_of(right)
    if kinds in ((TIME, TEXT), (TEXT, TIME), (TIME, TIME)):
        left, right = instant(left), instant(right)
        return None if left is None or right is None else bool(test(left, right))
    if None in kinds or kinds[0] != kinds[1]:
        return None
    if kinds[0] == NUMBER:
        left, right = _real(left), _real(right)
        if left != left or right != right:
            # Whether it is NaN, then: false is less than true.
            left, right = left != left, right != right
    if kinds[0] not in ORDERED and test not in (operator.eq, operator.ne):
        return None
    return bool(test(left, right))


# Arithmetic


def _real(value: Value) -> Number | None:
    """The number that a value is, as an int or a float; a Decimal becomes a float."""
    if isinstance(value, bool):
        return None
    if isinstance(value, (int, float)):
        return value
    if not isinstance(value, Decimal):
        return None
    return math.nan if value.is_nan() else float(value)


def _is_finite(number: Number) -> bool:
    return isinstance(number, int) or math.isfinite(number)


def _within(result: Number | None) -> Number | None:
    """Null for a whole number that 64 bits cannot hold."""
    return None if isinstance(result, int) and not LEAST <= result <= GREATEST else result


def _arithmetic(
    compute: Callable[[Number, Number], Number | None],
) -> Callable[[Value, Value], Number | None]:
    def run(left: Value, right: Value) -> Number | None:
        if type(left) is float and type(right) is float:
            return compute(left, right)
        a, b = _real(left), _real(right)
        if a is None or b is None:
            return None
        try:
            return _within(compute(a, b))
        except OverflowError:  # a whole number that no float can hold
            return None

    return run


def _divide(a: Number, b: Number) -> Number | None:
    return None if b == 0 else a / b


def _remainder(a: Number, b: Number) -> Number | None:
    if b == 0:
        return None
    if isinstance(a, int) and isinstance(b, int):
        rest = abs(a) % abs(b)
        return -rest if a < 0 else rest
    return math.nan if math.isinf(a) else math.fmod(a, b)


ARITHMETIC: dict[str, Callable[[Value, Value], Number | None]] = {
    "+": _arithmetic(operator.add),
    "-": _arithmetic(operator.sub),
    "*": _arithmetic(operator.mul),
    "/": _arithmetic(_divide),
    "%": _arithmetic(_remainder),
}


def negative(value: Value) -> Number | None:
    """Unary minus."""
    number = _real(value)
    return None if number is None else _within(-number)


def _abs(value: Value) -> Number | None:
    number = _real(value)
    return None if number is None else _within(abs(number))


def _whole(rounded: Callable[[Number], int]) -> Callable[[Value], Number | None]:
    def run(value: Value) -> Number | None:
        number = _real(value)
        return None if number is None or not _is_finite(number) else _within(rounded(number))

    return run


def _round(digits: Value = 0) -> Callable[[Value], Number | None]:
    if type(digits) is not int or not -30 <= digits <= 30:
        raise ConfigError(f"round to {digits!r} digits is not possible; write a whole number from -30 to 30")
    # Any float has its place: 309 digits before the point, 30 behind it.
    context, unit = Context(prec=400, rounding=ROUND_HALF_UP), Decimal(1).scaleb(-digits)

    def run(value: Value) -> Number | None:
        number = _real(value)
        if number is None or not _is_finite(number) or _within(number) is None:
            return _within(number)
        if isinstance(number, int):
            return number if digits >= 0 else _within(int(Decimal(number).quantize(unit, context=context)))
        # By way of the text: 2.675 is to become 2.68, though the float is a hair below.
        return float(Decimal(repr(float(number))).quantize(unit, context=context))

    return run


# Text


def _texts(compute: Callable[..., Value]) -> Callable[..., Value]:
    """A function of texts: null as soon as one argument is none."""

    def run(*arguments: Value) -> Value:
        return compute(*arguments) if all(isinstance(argument, str) for argument in arguments) else None

    return run


def _concat(*parts: str) -> str:
    return "".join(parts)


def _trim(text: str) -> str:
    return text.strip(" ")


def _contains(text: str, part: str) -> bool:
    return part in text


def _substring(text: Value, start: Value, length: Value = GREATEST) -> str | None:
    if not isinstance(text, str) or type(start) is not int or type(length) is not int:
        return None
    begin = start - 1 if start > 0 else len(text) + start if start < 0 else 0
    return text[max(begin, 0) : max(begin + length, 0)]


def _like(pattern: Value) -> Callable[[Value], bool | None]:
    if not isinstance(pattern, str):
        raise ConfigError(f"like {pattern!r}: the pattern must be a text, such as 'a%'")
    matches = _pattern(pattern).fullmatch

    def run(value: Value) -> bool | None:
        return matches(value) is not None if isinstance(value, str) else None

    return run


def _pattern(pattern: str) -> re.Pattern[str]:
    """``%`` is any text, ``_`` any character, and a backslash takes that meaning from them."""
    pieces, at = [""], 0
    while at < len(pattern):
        char = pattern[at]
        if char == "%":
            pieces.append("")
        elif char == "\\":
            at += 1
            char = pattern[at : at + 1]
            if char not in ("%", "_", "\\"):
                raise ConfigError(
                    f"like {pattern!r}: a backslash stands before %, _ or another one; double it"
                )
            pieces[-1] += re.escape(char)
        else:
            pieces[-1] += "." if char == "_" else re.escape(char)
        at += 1
    if len(pieces) == 1:
        return re.compile(pieces[0], re.DOTALL)
    first, *middle, last = pieces
    # The first place where a piece fits is as good as any: no going back, or a long text would take for ever.
    found = "".join(f"(?>.*?{piece})" for piece in middle if piece)
    return re.compile(f"{first}{found}.*{last}", re.DOTALL)


# Time


def instant(value: Value) -> datetime | None:
    """The time that a value says, in UTC; text is read as ISO 8601.

    >>> instant("2025-11-03T10:00:00+01:00")
    datetime.datetime(2025, 11, 3, 9, 0, tzinfo=datetime.timezone.utc)
    >>> instant("soon") is None
    True
    """
    try:
        if isinstance(value, datetime):
            zoned = value if value.utcoffset() is not None else value.replace(tzinfo=UTC)
            return zoned.astimezone(UTC)
        if isinstance(value, date):
            return datetime(value.year, value.month, value.day, tzinfo=UTC)
        if isinstance(value, str) and _ISO.fullmatch(text := value.strip()):
            return instant(datetime.fromisoformat(text))
    except (ValueError, OverflowError):  # the 30th of February; a zone that leads out of the years 1 to 9999
        return None
    return None


def _at(number: Number, per_second: int) -> datetime | None:
    try:
        micros = number * 1_000_000 // per_second if isinstance(number, int) else number * 1e6 / per_second
        return _EPOCH + timedelta(microseconds=math.floor(micros))
    except (ValueError, OverflowError):  # NaN, infinite, or out of the years 1 to 9999
        return None


def _to_timestamp(unit: Value = "s") -> Callable[[Value], datetime | None]:
    per_second = _UNITS.get(unit) if isinstance(unit, str) else None
    if per_second is None:
        raise ConfigError(f"to_timestamp in {unit!r}: no such unit; write one of {', '.join(_UNITS)}")

    def run(value: Value) -> datetime | None:
        number = _real(value)
        return instant(value) if number is None else _at(number, per_second)

    return run


def _part(name: str) -> Callable[[Value], int | None]:
    read = operator.attrgetter(name)

    def run(value: Value) -> int | None:
        found = instant(value)
        return None if found is None else read(found)

    return run


def _weekday(value: Value) -> int | None:
    found = instant(value)
    return None if found is None else found.weekday()


def _shifted(sign: int) -> Callable[[Value], Callable[[Value], datetime | None]]:
    def prepare(duration: Value) -> Callable[[Value], datetime | None]:
        by = durations.parse(duration) * sign

        def run(value: Value) -> datetime | None:
            found = instant(value)
            try:
                return None if found is None else found + by
            except OverflowError:
                return None

        return run

    return prepare


# Casts


def _to_int(value: Value) -> int | None:
    kind = kind_of(value)
    if kind == TEXT:
        text = value.strip()
        found = int(text) if _WHOLE.fullmatch(text) else None
    elif kind == TIME:
        moment = instant(value)
        found = None if moment is None else (moment - _EPOCH) // timedelta(seconds=1)
    elif kind in (NUMBER, BOOL):
        number = int(value) if kind == BOOL else _real(value)
        found = int(number) if number is not None and _is_finite(number) else None
    else:
        found = None
    return None if found is None or not LEAST <= found <= GREATEST else found


def _to_double(value: Value) -> float | None:
    kind = kind_of(value)
    if kind == TEXT:
        text = value.strip()
        return float(text) if _REAL.fullmatch(text) else None
    if kind == TIME:
        moment = instant(value)
        return None if moment is None else (moment - _EPOCH) / timedelta(seconds=1)
    number = int(value) if kind == BOOL else _real(value)
    try:
        return None if number is None else float(number)
    except OverflowError:
        return None


def _to_text(value: Value) -> str | None:
    kind = kind_of(value)
    if kind == TEXT:
        return str(value)
    if kind == BOOL:
        return "true" if value else "false"
    if kind == TIME:
        return _time_text(value)
    number = _real(value)
    if isinstance(number, float):
        return _float_text(number)
    return None if number is None or _within(number) is None else str(int(number))


def _time_text(value: date) -> str | None:
    if not isinstance(value, datetime):
        return value.isoformat()
    found = instant(value)
    if found is None:
        return None
    whole, _, fraction = found.replace(tzinfo=None).isoformat(" ").partition(".")
    return f"{whole}.{fraction.rstrip('0')}" if fraction else whole


def _float_text(number: float) -> str:
    """As the JVM writes it: 1.0, 1.0E7, 1.0E-4, NaN, Infinity."""
    if not math.isfinite(number):
        return "NaN" if math.isnan(number) else "Infinity" if number > 0 else "-Infinity"
    if number == 0 or 1e-3 <= abs(number) < 1e7:
        return repr(number)
    sign, digits, _ = Decimal(repr(number)).normalize(Context(prec=20)).as_tuple()
    exponent = Decimal(repr(number)).adjusted()
    rest = "".join(map(str, digits[1:])) or "0"
    return f"{'-' if sign else ''}{digits[0]}.{rest}E{exponent}"


def _to_bool(value: Value) -> bool | None:
    kind = kind_of(value)
    if kind == TEXT:
        text = value.strip().lower()
        return True if text in _TRUE else False if text in _FALSE else None
    number = _real(value)
    if number is None:
        return value if kind == BOOL else None
    return number != 0


def _to_time(value: Value) -> datetime | None:
    number = _real(value)
    return instant(value) if number is None else _at(number, 1)


CASTS: dict[str, Callable[[Value], Value]] = {
    "int": _to_int,
    "double": _to_double,
    "text": _to_text,
    "bool": _to_bool,
    "timestamp": _to_time,
}
CAST_SYNONYMS: Mapping[str, str] = {
    "integer": "int",
    "long": "int",
    "bigint": "int",
    "float": "double",
    "string": "text",
    "boolean": "bool",
}


# Functions by name


@dataclass(frozen=True, slots=True)
class Function:
    """A function of ``least`` to ``most`` arguments (None: any number).

    ``prepared``: all arguments but the first are constants; ``call`` makes from them a function of the first.
    """

    call: Callable[..., Any]
    least: int
    most: int | None
    prepared: bool = False

    @property
    def takes(self) -> str:
        """How many arguments, for people."""
        if self.most is None:
            return f"{self.least} or more arguments"
        count = str(self.least) if self.least == self.most else f"{self.least} to {self.most}"
        return f"{count} argument{'' if count == '1' else 's'}"


def _coalesce(*values: Value) -> Value:
    return next((value for value in values if value is not None), None)


FUNCTIONS: Mapping[str, Function] = {
    "abs": Function(_abs, 1, 1),
    "ceil": Function(_whole(math.ceil), 1, 1),
    "coalesce": Function(_coalesce, 1, None),
    "concat": Function(_texts(_concat), 1, None),
    "contains": Function(_texts(_contains), 2, 2),
    "day": Function(_part("day"), 1, 1),
    "ends_with": Function(_texts(str.endswith), 2, 2),
    "floor": Function(_whole(math.floor), 1, 1),
    "hour": Function(_part("hour"), 1, 1),
    "length": Function(_texts(len), 1, 1),
    "like": Function(_like, 2, 2, prepared=True),
    "lower": Function(_texts(str.lower), 1, 1),
    "minus": Function(_shifted(-1), 2, 2, prepared=True),
    "minute": Function(_part("minute"), 1, 1),
    "month": Function(_part("month"), 1, 1),
    "plus": Function(_shifted(1), 2, 2, prepared=True),
    "round": Function(_round, 1, 2, prepared=True),
    "starts_with": Function(_texts(str.startswith), 2, 2),
    "substring": Function(_substring, 2, 3),
    "to_timestamp": Function(_to_timestamp, 1, 2, prepared=True),
    "trim": Function(_texts(_trim), 1, 1),
    "upper": Function(_texts(str.upper), 1, 1),
    "weekday": Function(_weekday, 1, 1),
    "year": Function(_part("year"), 1, 1),
}
