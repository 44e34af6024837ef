"""The type of an expression over records of a known schema, and what in it cannot be.

Expressions never raise while records flow: a comparison of text and number is null for every record. That
is seldom what was meant, so it is said here, before anything runs. What is not known (a variant, a field of
a map) is let pass.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TypeAlias

from queenstream.core.schemas import Schema, types
from queenstream.core.schemas.types import Type
from queenstream.pipeline.expr import expressions, functions
from queenstream.pipeline.expr.expressions import Binary, Call, Case, Cast, Column, Expr, IsIn, Unary

Report: TypeAlias = Callable[[str, str], None]
"""Takes what is wrong, and what to write instead."""

_SCALAR_KINDS: dict[Type, str] = {
    types.BOOLEAN: functions.BOOL,
    types.STRING: functions.TEXT,
    types.TIMESTAMP: functions.TIME,
    types.DATE: functions.TIME,
}
_LITERALS: dict[type, Type] = {bool: types.BOOLEAN, int: types.BIGINT, float: types.DOUBLE, str: types.STRING}
_CASTS: dict[str, Type] = {
    "int": types.BIGINT,
    "double": types.DOUBLE,
    "text": types.STRING,
    "bool": types.BOOLEAN,
    "timestamp": types.TIMESTAMP,
}
_SHOWN = {
    functions.BOOL: "a boolean",
    functions.NUMBER: "a number",
    functions.TEXT: "text",
    functions.TIME: "a time",
    functions.LIST: "a list",
    functions.MAP: "a map",
}


def _of(names: str, takes: str, gives: Type) -> dict[str, tuple[str, Type]]:
    return dict.fromkeys(names.split(), (takes, gives))


# What a function takes as its first argument, and gives.
_FUNCTIONS: dict[str, tuple[str, Type]] = {
    **_of("ceil floor", functions.NUMBER, types.BIGINT),
    **_of("contains ends_with starts_with like", functions.TEXT, types.BOOLEAN),
    **_of("concat lower upper trim substring", functions.TEXT, types.STRING),
    **_of("length", functions.TEXT, types.BIGINT),
    **_of("year month day hour minute weekday", functions.TIME, types.BIGINT),
    **_of("plus minus", functions.TIME, types.TIMESTAMP),
}


def kind_of(kind: Type | None) -> str | None:
    """What an expression sees of a type: number, text, time …; None: anything."""
    if kind is None or kind == types.VARIANT:
        return None
    if types.is_number(kind):
        return functions.NUMBER
    if isinstance(kind, types.List):
        return functions.LIST
    if isinstance(kind, types.Map | types.Struct):
        return functions.MAP
    return _SCALAR_KINDS.get(kind)


def column_type(path: str, schema: Schema | None, report: Report) -> Type | None:
    """The type at a path; a path that leads nowhere is reported with the nearest one that does not."""
    if schema is None:
        return None
    found = schema.find(path)
    if found is None:
        near = difflib.get_close_matches(path, schema.names, n=1)
        instead = f"write {near[0]!r}" if near else "use one of those, or add it to the schema"
        report(f"reads {path!r}, which is not there; there are {', '.join(schema.names)}", instead)
    return found


def type_of(expr: Expr, schema: Schema | None, report: Report) -> Type | None:
    """The type of an expression's value, or None where it is not known; what cannot be is reported."""
    return _Inference(schema, report).of(expr)


@dataclass(frozen=True)
class _Inference:
    schema: Schema | None
    report: Report

    def of(self, expr: Expr) -> Type | None:
        """By the node's class; an expression is at most ``expressions.DEEPEST`` levels deep."""
        if isinstance(expr, Column):
            return column_type(expr.path, self.schema, self.report)
        if isinstance(expr, expressions.Literal):
            return _LITERALS.get(type(expr.value), None if expr.value is None else types.TIMESTAMP)
        if isinstance(expr, Binary):
            return self._binary(expr)
        if isinstance(expr, Unary):
            return self._unary(expr)
        if isinstance(expr, IsIn):
            return self._is_in(expr)
        if isinstance(expr, Call):
            return self._call(expr)
        if isinstance(expr, Case):
            return self._case(expr)
        if isinstance(expr, Cast):
            self.of(expr.operand)
            return _CASTS[expr.to]
        return None

    def _binary(self, expr: Binary) -> Type | None:
        kinds = [self.of(operand) for operand in expr.operands]
        if expr.op in ("and", "or"):
            for operand, kind in zip(expr.operands, kinds, strict=True):
                self._expect(functions.BOOL, kind, operand, expr)
            return types.BOOLEAN
        left, right = kinds
        if expr.op in functions.ARITHMETIC:
            for operand, kind in zip(expr.operands, kinds, strict=True):
                self._expect(functions.NUMBER, kind, operand, expr)
            return types.DOUBLE if expr.op == "/" else _wider(left, right)
        self._comparable(kind_of(left), kind_of(right), expr)
        return types.BOOLEAN

    def _unary(self, expr: Unary) -> Type | None:
        kind = self.of(expr.operand)
        if expr.op == "-":
            self._expect(functions.NUMBER, kind, expr.operand, expr)
            return kind
        if expr.op == "not":
            self._expect(functions.BOOL, kind, expr.operand, expr)
        return types.BOOLEAN

    def _is_in(self, expr: IsIn) -> Type:
        kind = kind_of(self.of(expr.operand))
        for option in expr.options:
            self._comparable(kind, functions.kind_of(option), expr)
        return types.BOOLEAN

    def _call(self, expr: Call) -> Type | None:
        kinds = [self.of(argument) for argument in expr.arguments]
        if expr.name == "coalesce":
            return common(kinds)
        if expr.name == "to_timestamp":
            return types.TIMESTAMP
        if expr.name in ("abs", "round"):
            self._expect(functions.NUMBER, kinds[0], expr.arguments[0], expr)
            return kinds[0]
        takes, gives = _FUNCTIONS[expr.name]
        self._expect(takes, kinds[0], expr.arguments[0], expr)
        return gives

    def _case(self, expr: Case) -> Type | None:
        for condition, _ in expr.branches:
            self._expect(functions.BOOL, self.of(condition), condition, expr)
        return common([*(self.of(value) for _, value in expr.branches), self.of(expr.default)])

    def _expect(self, wanted: str, kind: Type | None, operand: Expr, expr: Expr) -> None:
        found = kind_of(kind)
        # A text may be a time: that is read when the records come.
        if found is None or found == wanted or (wanted == functions.TIME and found == functions.TEXT):
            return
        self.report(
            f"needs {_SHOWN[wanted]} in `{expr}`, and `{operand}` is {kind}",
            f"write cast({operand} as …), or another field",
        )

    def _comparable(self, left: str | None, right: str | None, expr: Expr) -> None:
        if (
            left is None
            or right is None
            or left == right
            or {left, right} == {functions.TEXT, functions.TIME}
        ):
            return
        self.report(
            f"compares {_SHOWN[left]} with {_SHOWN[right]} in `{expr}`, which is never true",
            "write cast(… as …) around one side",
        )


def common(kinds: Iterable[Type | None]) -> Type | None:
    """The one type that all of these fit into, if there is one; null fits into any."""
    known = [kind for kind in kinds if kind is not None]
    if not known:
        return None
    first = known[0]
    for kind in known[1:]:
        if kind != first:
            wider = _wider(first, kind)
            if wider is None:
                return None
            first = wider
    return first


def _wider(left: Type | None, right: Type | None) -> Type | None:
    """The type of a sum: whole numbers give a whole number, everything else a fraction."""
    if kind_of(left) != functions.NUMBER or kind_of(right) != functions.NUMBER:
        return None
    return types.BIGINT if left in types.INTEGERS and right in types.INTEGERS else types.DOUBLE
