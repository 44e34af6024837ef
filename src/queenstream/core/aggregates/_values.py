"""How values are compared and kept: the accumulators of min, max, first, last and the collections."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any

from queenstream.core.aggregates._numbers import Order

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

_DIRECT = {int, float, str}  # compared among themselves without a detour; NaN is neither less nor greater


def rank_of(value: object) -> tuple[int, Any] | None:
    """Where a value stands among values of all kinds; None: nowhere."""
    if isinstance(value, bool):
        return 0, value
    if isinstance(value, (int, float, Decimal)):
        # Not math.isnan, which cannot take every int, and not != on a Decimal, whose signalling NaN raises.
        nan = value.is_nan() if isinstance(value, Decimal) else value != value
        return None if nan else (1, value)
    if isinstance(value, str):
        return 2, value
    if isinstance(value, date):
        return 3, instant(value)
    return None


def instant(value: date) -> datetime:
    """A time with its zone."""
    if not isinstance(value, datetime):
        return datetime(value.year, value.month, value.day, tzinfo=UTC)
    return value if value.utcoffset() is not None else value.replace(tzinfo=UTC)


def better(held: list[Any], value: object, wins: Callable[[Any, Any], bool]) -> list[Any]:
    rank = rank_of(value)
    if rank is not None and (not held or wins(rank, rank_of(held[0]))):
        held[:] = (value,)
    return held


def min_add(held: list[Any], value: Any, order: Order) -> list[Any]:  # noqa: ARG001
    if held and type(value) is type(held[0]) and type(value) in _DIRECT:
        if value < held[0]:
            held[0] = value
        return held
    return better(held, value, operator.lt)


def max_add(held: list[Any], value: Any, order: Order) -> list[Any]:  # noqa: ARG001
    if held and type(value) is type(held[0]) and type(value) in _DIRECT:
        if value > held[0]:
            held[0] = value
        return held
    return better(held, value, operator.gt)


def min_merge(held: list[Any], other: list[Any]) -> list[Any]:
    return better(held, other[0], operator.lt) if other else held


def max_merge(held: list[Any], other: list[Any]) -> list[Any]:
    return better(held, other[0], operator.gt) if other else held


def only(held: list[Any]) -> Any:
    return held[0] if held else None


# By event time, then arrival: an entry is [time, arrival, value]

place = operator.itemgetter(0, 1)


def first_add(held: list[Any], value: Any, order: Order) -> list[Any]:
    if not held or order < (held[0], held[1]):
        held[:] = *order, value
    return held


def first_merge(held: list[Any], other: list[Any]) -> list[Any]:
    return other if not held or (other and place(other) < place(held)) else held


def last_add(held: list[Any], value: Any, order: Order) -> list[Any]:
    if not held or order >= (held[0], held[1]):
        held[:] = *order, value
    return held


def last_merge(held: list[Any], other: list[Any]) -> list[Any]:
    return other if not held or (other and place(other) >= place(held)) else held


def last_of(held: list[Any]) -> Any:
    return held[2] if held else None


def list_add(held: list[Any], value: Any, order: Order) -> list[Any]:
    if value is not None:
        held.append([*order, value])
    return held


def list_finish(held: list[Any]) -> list[Any]:
    return [value for _, _, value in sorted(held, key=place)]


def set_add(held: dict[str, Any], value: Any, order: Order) -> dict[str, Any]:
    if value is not None:
        keep_earliest(held, identity(value), [*order, value])
    return held


def set_merge(held: dict[str, Any], other: dict[str, Any]) -> dict[str, Any]:
    for identity, entry in other.items():
        keep_earliest(held, identity, entry)
    return held


def keep_earliest(held: dict[str, Any], identity: str, entry: list[Any]) -> None:
    known = held.setdefault(identity, entry)
    if place(entry) < place(known):
        held[identity] = entry


def set_finish(held: dict[str, Any]) -> list[Any]:
    return list_finish(list(held.values()))


def distinct_add(held: dict[str, Any], value: Any, order: Order) -> dict[str, Any]:  # noqa: ARG001
    if value is not None:
        held[identity(value)] = True
    return held


def identity(value: object) -> str:
    """The same text for the same value, and only for it: values may be unhashable, and JSON keys are text."""
    if isinstance(value, str):
        return f"s{value}"
    if value is None or isinstance(value, bool):
        return f"b{value}"
    if isinstance(value, int):
        return f"n{int(value):x}"  # to base 16, which has no limit on digits
    if isinstance(value, float):
        return f"n{int(value):x}" if value.is_integer() else f"f{float(value)!r}"
    if isinstance(value, Decimal):
        near = math.nan if value.is_nan() else float(value)
        return identity(near) if value.is_nan() or near == value else exact_decimal(value)
    if isinstance(value, date):
        return f"t{(instant(value) - _EPOCH) // timedelta(microseconds=1)}"
    if isinstance(value, Mapping):
        pairs = sorted((identity(key), identity(held)) for key, held in value.items())
        return f"m{sealed(part for pair in pairs for part in pair)}"
    if isinstance(value, (list, tuple)):
        return f"l{sealed(map(identity, value))}"
    return f"o{type(value).__qualname__}{value!r}"


def sealed(parts: Iterable[str]) -> str:
    # With their lengths, so that no text can pretend to be two.
    return "".join(f"{len(part)}:{part}" for part in parts)


def exact_decimal(value: Decimal) -> str:
    """All its digits, with no regard to how many zeros were written behind them."""
    sign, digits, exponent = value.as_tuple()
    written = "".join(map(str, digits))
    short = written.rstrip("0")
    return f"d{sign}{short}e{int(exponent) + len(written) - len(short)}"
