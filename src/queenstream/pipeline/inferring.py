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

from queenstream.pipeline import expressions, values
from queenstream.pipeline.expressions import Binary, Call, Case, Cast, Column, Expr, IsIn, Unary
from queenstream.schemas import Schema, types
from queenstream.schemas.types import Type

Report: TypeAlias = Callable[[str, str], None]
"""Takes what is wrong, and what to write instead."""

_SCALAR_KINDS: dict[Type, str] = {
    types.BOOLEAN: values.BOOL,
    types.STRING: values.TEXT,
    types.TIMESTAMP: values.TIME,
    types.DATE: values.TIME,
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
    values.BOOL: "a boolean",
    values.NUMBER: "a number",
    values.TEXT: "text",
    values.TIME: "a time",
    values.LIST: "a list",
    values.MAP: "a map",
}


def _of(names: str, takes: str, gives: Type) -> dict[str, tuple[str, Type]]:
    return dict.fromkeys(names.split(), (takes, gives))


# What a function takes as its first argument, and gives.
_FUNCTIONS: dict[str, tuple[str, Type]] = {
    **_of("ceil floor", values.NUMBER, types.BIGINT),
    **_of("contains ends_with starts_with like", values.TEXT, types.BOOLEAN),
    **_of("concat lower upper trim substring", values.TEXT, types.STRING),
    **_of("length", values.TEXT, types.BIGINT),
    **_of("year month day hour minute weekday", values.TIME, types.BIGINT),
    **_of("plus minus", values.TIME, types.TIMESTAMP),
}


def kind_of(kind: Type | None) -> str | None:
    """What an expression sees of a type: number, text, time …; None: anything."""
    if kind is None or kind == types.VARIANT:
        return None
    if types.is_number(kind):
        return values.NUMBER
    if isinstance(kind, types.List):
        return values.LIST
    if isinstance(kind, types.Map | types.Struct):
        return values.MAP
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
                self._expect(values.BOOL, kind, operand, expr)
            return types.BOOLEAN
        left, right = kinds
        if expr.op in values.ARITHMETIC:
            for operand, kind in zip(expr.operands, kinds, strict=True):
                self._expect(values.NUMBER, kind, operand, expr)
            return types.DOUBLE if expr.op == "/" else _wider(left, right)
        self._comparable(kind_of(left), kind_of(right), expr)
        return types.BOOLEAN

    def _unary(self, expr: Unary) -> Type | None:
        kind = self.of(expr.operand)
        if expr.op == "-":
            self._expect(values.NUMBER, kind, expr.operand, expr)
            return kind
        if expr.op == "not":
            self._expect(values.BOOL, kind, expr.operand, expr)
        return types.BOOLEAN

    def _is_in(self, expr: IsIn) -> Type:
        kind = kind_of(self.of(expr.operand))
        for option in expr.options:
            self._comparable(kind, values.kind_of(option), expr)
        return types.BOOLEAN

    def _call(self, expr: Call) -> Type | None:
        kinds = [self.of(argument) for argument in expr.arguments]
        if expr.name == "coalesce":
            return common(kinds)
        if expr.name == "to_timestamp":
            return types.TIMESTAMP
        if expr.name in ("abs", "round"):
            self._expect(values.NUMBER, kinds[0], expr.arguments[0], expr)
            return kinds[0]
        takes, gives = _FUNCTIONS[expr.name]
        self._expect(takes, kinds[0], expr.arguments[0], expr)
        return gives

    def _case(self, expr: Case) -> Type | None:
        for condition, _ in expr.branches:
            self._expect(values.BOOL, self.of(condition), condition, expr)
        return common([*(self.of(value) for _, value in expr.branches), self.of(expr.default)])

    def _expect(self, wanted: str, kind: Type | None, operand: Expr, expr: Expr) -> None:
        found = kind_of(kind)
        # A text may be a time: that is read when the records come.
        if found is None or found == wanted or (wanted == values.TIME and found == values.TEXT):
            return
        self.report(
            f"needs {_SHOWN[wanted]} in `{expr}`, and `{operand}` is {kind}",
            f"write cast({operand} as …), or another field",
        )

    def _comparable(self, left: str | None, right: str | None, expr: Expr) -> None:
        if left is None or right is None or left == right or {left, right} == {values.TEXT, values.TIME}:
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
    if kind_of(left) != values.NUMBER or kind_of(right) != values.NUMBER:
        return None
    return types.BIGINT if left in types.INTEGERS and right in types.INTEGERS else types.DOUBLE
