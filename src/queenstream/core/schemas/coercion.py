"""Values made to fit a type: lossless and obvious conversions, and a clear refusal of the rest.

- whole numbers: an int, a float without a fraction, or text of one (``"42"``), in the range of the type
- fractions: any number, or text of one; decimals are rounded to their scale
- boolean: a bool, ``"true"`` or ``"false"``
- string: text, a number or a UUID; an Enum gives its value
- timestamp: a datetime, ISO 8601 text, or milliseconds since 1970; without a zone it is UTC
- date: a date, ISO 8601 text; binary: bytes, or text in UTF-8
- arrays, maps and structs: each part; variant: anything

``None`` is left to the caller, who knows whether the field may be null.
"""

from __future__ import annotations

import copy
import decimal
import enum
import math
import uuid
from collections.abc import Callable, Mapping
from datetime import UTC, date, datetime, timedelta
from typing import Any, TypeAlias

from queenstream.core.schemas import types
from queenstream.core.schemas.types import Decimal, Field, List, Map, Struct, Type

Coercer: TypeAlias = Callable[[Any], Any]

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class Misfit(Exception):
    """A value that does not fit; ``path`` is where in the record it stands."""

    def __init__(self, expected: str, value: object, path: str = "") -> None:
        super().__init__(expected)
        self.expected = expected
        self.value = value
        self.path = path

    def under(self, step: str) -> Misfit:
        """The same, seen from one level further out."""
        return Misfit(self.expected, self.value, f"{step}.{self.path}" if self.path else step)

    def __str__(self) -> str:
        shown = repr(self.value)
        shown = shown if len(shown) <= 60 else f"{shown[:57]}..."
        return f"{self.path} must be {self.expected}, not {shown}"


def coercer(kind: Type) -> Coercer:
    """A function that makes a value fit ``kind``, or raises ``Misfit``."""
    if kind in types.INTEGERS:
        return _integer(str(kind), types.INTEGERS[kind])
    if isinstance(kind, Decimal):
        return _decimal(kind)
    if isinstance(kind, List):
        return _list(coercer(kind.of))
    if isinstance(kind, Map):
        return _map(coercer(kind.key), coercer(kind.value))
    if isinstance(kind, Struct):
        return struct(kind.fields)
    return _SCALARS[kind]


def struct(fields: tuple[Field, ...]) -> Coercer:
    """A function for a record with these fields; all that does not fit is found, not only the first.

    One misfit is raised as it is, several in an ``ExceptionGroup``.
    """
    steps = [(field.name, coercer(field.type), field) for field in fields]

    def convert(record: Any) -> dict[str, Any]:
        get = _getter(record)
        row: dict[str, Any] = {}
        misfits: list[Misfit] = []
        for name, fit, field in steps:
            value = get(name, None)
            try:
                row[name] = _filled(field) if value is None else fit(value)
            except Misfit as misfit:
                misfits.append(misfit.under(name))
            except ExceptionGroup as group:
                misfits += [inner.under(name) for inner in misfits_of(group)]
        if misfits:
            raise misfits[0] if len(misfits) == 1 else ExceptionGroup("misfits", misfits)
        return row

    return convert


def misfits_of(error: Misfit | ExceptionGroup[Any]) -> list[Misfit]:
    """All that did not fit."""
    if isinstance(error, Misfit):
        return [error]
    return [misfit for misfit in error.exceptions if isinstance(misfit, Misfit)]


def _getter(record: Any) -> Callable[[str, Any], Any]:
    if isinstance(record, Mapping):
        return record.get
    # Objects of a class (dataclass, Struct, model) are records too; plain values are not.
    if isinstance(record, str | bytes | int | float | list | tuple | set) or record is None:
        raise Misfit("a record with named fields", record)
    return lambda name, default: getattr(record, name, default)


def _filled(field: Field) -> object:
    if field.required:
        raise Misfit(f"{field.type} and is required", None)
    return copy.deepcopy(field.default)


def _integer(name: str, bits: int) -> Coercer:
    least, most = -(1 << bits - 1), (1 << bits - 1) - 1

    def convert(value: Any) -> int:
        whole = value if type(value) is int else _whole(value)
        if whole is None:
            raise Misfit(f"a whole number ({name})", value)
        if not least <= whole <= most:
            raise Misfit(f"a {name}, from {least} to {most}", value)
        return whole

    return convert


def _whole(value: Any) -> int | None:
    value = value.value if isinstance(value, enum.Enum) else value
    if isinstance(value, bool):
        return None
    if isinstance(value, int):
        return int(value)
    if isinstance(value, float | decimal.Decimal):
        return int(value) if math.isfinite(value) and value == int(value) else None
    if isinstance(value, str) and len(value) <= 40:
        try:
            return int(value)
        except ValueError:
            return None
    return None


def _fraction(value: Any) -> float:
    if type(value) is float:
        return value
    value = value.value if isinstance(value, enum.Enum) else value
    if isinstance(value, int | float | decimal.Decimal | str) and not isinstance(value, bool):
        try:
            return float(value)
        except (ValueError, OverflowError):
            pass
    raise Misfit("a number", value)


def _decimal(kind: Decimal) -> Coercer:
    step = decimal.Decimal(1).scaleb(-kind.scale)
    context = decimal.Context(prec=max(kind.precision, 38) + 2)

    def convert(value: Any) -> decimal.Decimal:
        if isinstance(value, int | float | decimal.Decimal | str) and not isinstance(value, bool):
            try:
                exact = decimal.Decimal(str(value)) if isinstance(value, float) else decimal.Decimal(value)
                rounded = exact.quantize(step, context=context)
            except decimal.InvalidOperation:
                raise Misfit(str(kind), value) from None
            if rounded.is_finite() and len(rounded.as_tuple().digits) <= kind.precision:
                return rounded
        raise Misfit(str(kind), value)

    return convert


def _string(value: Any) -> str:
    if type(value) is str:
        return value
    value = value.value if isinstance(value, enum.Enum) else value
    if isinstance(value, str | int | float | decimal.Decimal | uuid.UUID) and not isinstance(value, bool):
        return str(value)
    raise Misfit("text", value)


def _boolean(value: Any) -> bool:
    if isinstance(value, bool):
        return value
    if isinstance(value, str) and value.lower() in ("true", "false"):
        return value.lower() == "true"
    raise Misfit("true or false", value)


def _timestamp(value: Any) -> datetime:
    try:
        if isinstance(value, datetime):
            found = value
        elif isinstance(value, str):
            found = datetime.fromisoformat(value)
        elif isinstance(value, int | float) and not isinstance(value, bool):
            return _EPOCH + timedelta(milliseconds=value)
        else:
            raise ValueError
        return found if found.tzinfo else found.replace(tzinfo=UTC)
    except (ValueError, OverflowError):
        raise Misfit("a time (ISO 8601, or milliseconds since 1970)", value) from None


def _date(value: Any) -> date:
    try:
        # A datetime is a date to Python; its time would be lost.
        if isinstance(value, date) and not isinstance(value, datetime):
            return value
        if isinstance(value, str):
            return date.fromisoformat(value)
    except ValueError:
        pass
    raise Misfit("a date (ISO 8601)", value)


def _binary(value: Any) -> bytes:
    if isinstance(value, bytes | bytearray | memoryview):
        return bytes(value)
    if isinstance(value, str):
        return value.encode()
    raise Misfit("bytes", value)


def _variant(value: Any) -> Any:
    return value


def _list(fit: Coercer) -> Coercer:
    def convert(value: Any) -> list[Any]:
        if not isinstance(value, list | tuple | set | frozenset):
            raise Misfit("a list", value)
        return [_part(fit, str(at), item) for at, item in enumerate(value)]

    return convert


def _map(fit_key: Coercer, fit_value: Coercer) -> Coercer:
    def convert(value: Any) -> dict[Any, Any]:
        if not isinstance(value, Mapping):
            raise Misfit("a map", value)
        return {
            _part(fit_key, str(key), key): _part(fit_value, str(key), item) for key, item in value.items()
        }

    return convert


def _part(fit: Coercer, step: str, value: Any) -> Any:
    if value is None:
        return None
    try:
        return fit(value)
    except Misfit as misfit:
        raise misfit.under(step) from None
    except ExceptionGroup as group:
        raise ExceptionGroup("misfits", [inner.under(step) for inner in misfits_of(group)]) from None


_SCALARS: dict[Type, Coercer] = {
    types.STRING: _string,
    types.BOOLEAN: _boolean,
    types.FLOAT: _fraction,
    types.DOUBLE: _fraction,
    types.TIMESTAMP: _timestamp,
    types.DATE: _date,
    types.BINARY: _binary,
    types.VARIANT: _variant,
}
