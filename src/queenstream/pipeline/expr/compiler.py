"""Expressions as Python functions: each node becomes one closure over those of its operands."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

from queenstream.pipeline.expr import functions

Compiled: TypeAlias = Callable[[Any], Any]
"""A function of a record."""


def constant(value: object) -> Compiled:
    """The same for every record."""

    def run(record: Any) -> Any:  # noqa: ARG001
        return value

    return run


def call(function: Callable[..., Any], operands: Sequence[Compiled]) -> Compiled:
    """``function`` of what the operands give."""
    if len(operands) == 1:
        [only] = operands
        return lambda record: function(only(record))
    if len(operands) == 2:
        left, right = operands
        return lambda record: function(left(record), right(record))
    return lambda record: function(*[operand(record) for operand in operands])


def compare(test: Callable[[Any, Any], Any], left: Compiled, right: Compiled) -> Compiled:
    """Any two values; ints and texts, the most of them, without a detour."""

    def run(record: Any) -> bool | None:
        one, two = left(record), right(record)
        kind = type(one)
        if kind is type(two) and (kind is int or kind is str):
            return test(one, two)  # type: ignore[no-any-return]
        return functions.compare(test, one, two)

    return run


def compare_with(test: Callable[[Any, Any], Any], left: Compiled, right: object) -> Compiled:
    """A value and a constant: what is decided by the constant's kind is decided once."""
    if type(right) is str:

        def run(record: Any) -> bool | None:
            value = left(record)
            return test(value, right) if type(value) is str else functions.compare(test, value, right)

    elif type(right) in (int, float):

        def run(record: Any) -> bool | None:
            value = left(record)
            kind = type(value)
            # NaN is not equal to itself, and has a rule of its own.
            if kind is int or (kind is float and value == value):
                return test(value, right)  # type: ignore[no-any-return]
            return functions.compare(test, value, right)

    else:

        def run(record: Any) -> bool | None:
            return functions.compare(test, left(record), right)

    return run


def all_of(operands: Sequence[Compiled]) -> Compiled:
    """``and``: false as soon as one is, true if all are, else null."""

    def run(record: Any) -> bool | None:
        outcome: bool | None = True
        for operand in operands:
            value = operand(record)
            if value is False:
                return False
            if value is not True:
                outcome = None
        return outcome

    return run


def any_of(operands: Sequence[Compiled]) -> Compiled:
    """``or``: true as soon as one is, false if all are, else null."""

    def run(record: Any) -> bool | None:
        outcome: bool | None = False
        for operand in operands:
            value = operand(record)
            if value is True:
                return True
            if value is not False:
                outcome = None
        return outcome

    return run


_DIRECT: dict[str | None, tuple[type, ...]] = {functions.TEXT: (str,), functions.NUMBER: (int, float)}


def one_of(operand: Compiled, options: Sequence[Any]) -> Compiled:
    """``in``: a look into a set where all options are texts or all are numbers."""
    kinds = {functions.kind_of(option) for option in options if option is not None}
    direct = _DIRECT.get(kinds.pop(), ()) if len(kinds) == 1 else ()
    chosen = frozenset(options)
    missing = None if None in chosen else False

    def run(record: Any) -> bool | None:
        value = operand(record)
        if type(value) in direct:
            return True if value in chosen else missing
        return _among(value, options)

    return run


def _among(value: Any, options: Sequence[Any]) -> bool | None:
    found = [functions.compare(operator.eq, value, option) for option in options]
    return True if True in found else None if None in found else False


def first_true(branches: Sequence[tuple[Compiled, Compiled]], default: Compiled) -> Compiled:
    """``case``: only what is chosen is computed."""

    def run(record: Any) -> Any:
        for condition, value in branches:
            if condition(record) is True:
                return value(record)
        return default(record)

    return run


def _not(value: Any) -> bool | None:
    return not value if isinstance(value, bool) else None


def _is_null(value: Any) -> bool:
    return value is None


def _is_not_null(value: Any) -> bool:
    return value is not None


UNARY: dict[str, Callable[[Any], Any]] = {
    "-": functions.negative,
    "not": _not,
    "is null": _is_null,
    "is not null": _is_not_null,
}
