"""Random expressions and records, for Hypothesis."""

from __future__ import annotations

import math
from datetime import UTC
from decimal import Decimal
from typing import Any

from hypothesis import strategies as st

from queenstream.core.paths import join
from queenstream.pipeline.expr import functions
from queenstream.pipeline.expr.expressions import (
    BINDING,
    Binary,
    Call,
    Case,
    Cast,
    Column,
    Expr,
    IsIn,
    Literal,
    Unary,
)

INTEGERS = st.integers(functions.LEAST, functions.GREATEST)
TIMES = st.datetimes(timezones=st.just(UTC))
PLAIN = (
    st.none()
    | st.booleans()
    | st.integers(-3, 3)
    | INTEGERS
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=4)
    | TIMES
)
WORDS = st.sampled_from(
    ["and", "NOT", "case", "end", "when", "timestamp", "cast", "lower", "null", "a", "b", "x_1"]
)
NAMES = WORDS | st.integers(0, 3).map(str) | st.text(max_size=4)
COLUMNS = st.lists(NAMES, min_size=1, max_size=3).map(join).map(Column)

# What a record may hold, beside what can be written as a literal.
VALUES = (
    PLAIN
    | st.sampled_from(
        [math.nan, math.inf, -math.inf, Decimal("0.1"), Decimal("NaN"), Decimal("sNaN"), 10**400]
    )
    | st.sampled_from(
        ["1", " -7 ", "1.5", "2025-11-03T10:00:00Z", "2025-02-30", "9999-12-31T23:59:59-10:00", "true"]
    )
    | st.datetimes()
    | st.dates()
    | st.binary(max_size=2)
    | st.lists(st.integers(0, 2), max_size=2)
    | st.dictionaries(st.sampled_from("ab"), st.integers(0, 2), max_size=2)
)
RECORDS = st.dictionaries(st.sampled_from("abc"), VALUES)


def _numeric(side: Expr) -> bool:
    return not isinstance(side, Literal) or functions.kind_of(side.value) in (None, functions.NUMBER)


def _logical(side: Expr) -> bool:
    return not isinstance(side, Literal) or functions.kind_of(side.value) in (None, functions.BOOL)


@st.composite
def _binaries(draw: st.DrawFn, inner: st.SearchStrategy[Expr]) -> Expr:
    op = draw(st.sampled_from(sorted(BINDING)))
    if op in functions.ARITHMETIC:
        inner = inner.filter(_numeric)
    elif op in ("and", "or"):
        inner = inner.filter(_logical)
    return Binary(op, draw(inner), draw(inner))


_CONSTANTS: dict[str, st.SearchStrategy[Any]] = {
    "like": st.sampled_from(["a%", "_", "%b%", "100\\%", "", "it's"]),
    "plus": st.sampled_from(["5m", "1.5h", "36500d"]),
    "minus": st.sampled_from(["0s", "1w"]),
    "round": st.integers(-5, 5),
    "to_timestamp": st.sampled_from(["s", "ms", "us"]),
}


@st.composite
def _calls(draw: st.DrawFn, inner: st.SearchStrategy[Expr]) -> Expr:
    name = draw(st.sampled_from(sorted(functions.FUNCTIONS)))
    function = functions.FUNCTIONS[name]
    count = draw(st.integers(function.least, function.most or 3))
    arguments = [draw(inner) for _ in range(count)]
    if function.prepared:
        arguments[1:] = [Literal(draw(_CONSTANTS[name])) for _ in arguments[1:]]
    return Call(name, tuple(arguments))


def _grown(inner: st.SearchStrategy[Expr]) -> st.SearchStrategy[Expr]:
    return (
        _binaries(inner)
        | _calls(inner)
        | st.builds(Unary, st.sampled_from(["-", "not", "is null", "is not null"]), inner)
        | st.builds(IsIn, inner, st.lists(PLAIN, max_size=3).map(tuple))
        | st.builds(Case, st.lists(st.tuples(inner, inner), min_size=1, max_size=2).map(tuple), inner)
        | st.builds(Cast, inner, st.sampled_from(sorted(functions.CASTS)))
    )


def expressions(columns: st.SearchStrategy[Expr] = COLUMNS) -> st.SearchStrategy[Expr]:
    """Any expression of any nodes."""
    return st.recursive(columns | st.builds(Literal, PLAIN), _grown, max_leaves=12)
