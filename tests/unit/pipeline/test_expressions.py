"""Expressions: SQL's rules by table, and as properties over random expressions and records."""

from __future__ import annotations

import doctest
import functools
import math
import operator
import pickle
from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from queenstream.core import paths
from queenstream.errors import ConfigError
from queenstream.pipeline.expr import expressions, fluent, functions, literals
from queenstream.pipeline.expr.expressions import (
    Binary,
    Call,
    Column,
    Expr,
    ExpressionError,
    Literal,
    Unary,
    coalesce,
    col,
    lit,
    to_timestamp,
    when,
)
from tests.unit.pipeline.expressions_strategy import PLAIN, RECORDS, VALUES
from tests.unit.pipeline.expressions_strategy import expressions as any_expression

NAN, INF = math.nan, math.inf
NOON = datetime(2025, 11, 3, 12, 30, 15, tzinfo=UTC)
A, B = col("a"), col("b")


def of(expression: Expr, a: object = None, b: object = None) -> Any:
    return expression.evaluate({"a": a, "b": b})


def untyped(value: Any) -> Any:
    """What a type checker would not let pass."""
    return value


def same(one: object, two: object) -> bool:
    """Equal, and of one type; NaN is equal to itself."""
    return repr(one) == repr(two)


@pytest.mark.parametrize(
    "module", [expressions, literals, functions, fluent], ids=lambda module: module.__name__
)
def test_examples(module: Any) -> None:
    assert doctest.testmod(module, extraglobs={"col": col}).failed == 0


# Logic


@pytest.mark.parametrize(
    ("a", "b", "both", "either"),
    [
        (True, True, True, True),
        (True, False, False, True),
        (True, None, None, True),
        (False, True, False, True),
        (False, False, False, False),
        (False, None, False, None),
        (None, True, None, True),
        (None, False, False, None),
        (None, None, None, None),
        (True, "yes", None, True),
        (1, False, False, None),
    ],
)
def test_logic_has_three_values(a: object, b: object, both: object, either: object) -> None:
    assert of(A & B, a, b) is both
    assert of(A | B, a, b) is either


@pytest.mark.parametrize(
    ("a", "negated"), [(True, False), (False, True), (None, None), (0, None), ("", None)]
)
def test_not(a: object, negated: object) -> None:
    assert of(~A, a) is negated


def test_null_can_be_asked_for() -> None:
    assert of(A.is_null()) is True
    assert of(A.is_null(), 0) is False
    assert of(A.is_not_null()) is False
    assert col("no.such.column").is_null().evaluate({}) is True


def test_python_values_may_stand_on_the_left() -> None:
    assert of(1 < A, 2) is True  # noqa: SIM300
    assert of(10 - A, 2) == 8
    assert of(10 / A, 4) == 2.5
    assert of(10 % A, 4) == 2
    assert of(1 + A * 2, 4) == 9
    assert of(2 * A, 4) == 8
    assert of(True & A, True) is True
    assert of(False | A, True) is True


# Comparisons

TESTS = {
    "==": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}


@pytest.mark.parametrize(
    ("a", "b", "true"),
    [
        (1, 2, "!= < <="),
        (1, 1.0, "== <= >="),
        (Decimal("0.5"), 0.25, "!= > >="),
        (Decimal("0.1"), 0.1, "== <= >="),
        (10**400, 1.5, "!= > >="),
        ("a", "b", "!= < <="),
        (False, True, "!= < <="),
        (NAN, NAN, "== <= >="),
        (NAN, INF, "!= > >="),
        (5, NAN, "!= < <="),
        (Decimal("sNaN"), 5, "!= > >="),
        (NOON, NOON.astimezone(timezone(timedelta(hours=9))), "== <= >="),
        (NOON, NOON.replace(tzinfo=None), "== <= >="),
        (date(2025, 11, 3), NOON, "!= < <="),
        (NOON, "2025-11-03T13:30:15+01:00", "== <= >="),
        ("2025-11-03", NOON, "!= < <="),
    ],
)
def test_comparisons(a: object, b: object, true: str) -> None:
    assert [name for name, test in TESTS.items() if of(test(A, B), a, b) is True] == true.split()
    assert [name for name, test in TESTS.items() if of(test(A, B), a, b) is None] == []


@pytest.mark.parametrize(
    ("a", "b"),
    [
        (None, None),
        (None, 1),
        (1, None),
        (1, "1"),
        (True, 1),
        ("true", True),
        (NOON, 1),
        (NOON, "yesterday"),
        ([1], 1),
        (b"x", b"x"),
    ],
)
def test_no_comparison_between_kinds_or_with_null(a: object, b: object) -> None:
    for test in TESTS.values():
        assert of(test(A, B), a, b) is None


def test_lists_and_maps_are_equal_or_not() -> None:
    assert of(A == B, [1, 2], [1, 2]) is True
    assert of(A != B, {"x": 1}, {"x": 2}) is True
    assert of(A < B, [1], [2]) is None


@given(VALUES, VALUES)
def test_a_constant_compares_as_a_column_does(a: Any, b: Any) -> None:
    try:
        constant = lit(b)
    except ExpressionError:
        return  # it cannot be written
    for test in TESTS.values():
        assert of(test(A, constant), a) is of(test(A, B), a, b) is functions.compare(test, a, b)


@given(VALUES, st.lists(PLAIN, max_size=4))
def test_is_in_is_equal_to_one_of_them(a: Any, options: list[Any]) -> None:
    spelled = functools.reduce(operator.or_, [col("a") == option for option in options], lit(False))
    assert of(A.is_in(options), a) is of(spelled, a)


def test_is_in() -> None:
    assert of(A.is_in(["DE", "FR"]), "DE") is True
    assert of(A.is_in(["DE", "FR"]), "IT") is False
    assert of(A.is_in(["DE", None]), "IT") is None
    assert of(A.is_in([1, 2.0]), 2) is True
    assert of(A.is_in([1]), True) is None
    assert of(A.is_in([NOON]), "2025-11-03T12:30:15Z") is True
    assert of(A.is_in([])) is False


def test_between() -> None:
    assert [of(A.between(1, 3), a) for a in (0, 1, 3, 4, None)] == [False, True, True, False, None]


# Arithmetic


@pytest.mark.parametrize(
    ("expression", "a", "b", "expected"),
    [
        (A + B, 1, 2, 3),
        (A + B, 1, 2.5, 3.5),
        (A + B, Decimal("0.5"), 1, 1.5),
        (A - B, 1, None, None),
        (A * B, "x", 2, None),
        (A + B, True, 1, None),
        (A / B, 6, 3, 2.0),
        (A / B, 1, 0, None),
        (A / B, 1.5, 0.0, None),
        (A % B, 7, 3, 1),
        (A % B, -7, 3, -1),
        (A % B, 7, -3, 1),
        (A % B, -7.5, 2, -1.5),
        (A % B, 7, 0, None),
        (A % B, INF, 2, NAN),
        (A + B, 2**63 - 1, 1, None),
        (A * B, 2**62, 2, None),
        (A - B, -(2**63), 0, -(2**63)),
        (A + B, 10**400, 1.5, None),
        (A * B, 1e308, 10.0, INF),
        (-A, 5, None, -5),
        (-A, -(2**63), None, None),
        (-A, "x", None, None),
        (A.abs(), -2.5, None, 2.5),
        (A.floor(), -2.5, None, -3),
        (A.ceil(), 2.1, None, 3),
        (A.floor(), 7, None, 7),
        (A.floor(), NAN, None, None),
        (A.floor(), 1e300, None, None),
        (A.round(), 2.5, None, 3.0),
        (A.round(), -2.5, None, -3.0),
        (A.round(2), 2.675, None, 2.68),
        (A.round(-2), 150, None, 200),
        (A.round(1), 7, None, 7),
        (A.round(), INF, None, INF),
        (A.round(2), 1e300, None, 1e300),
        (A.round(), "x", None, None),
    ],
)
def test_arithmetic(expression: Expr, a: object, b: object, expected: object) -> None:
    assert same(of(expression, a, b), expected)


# Text


@pytest.mark.parametrize(
    ("expression", "a", "expected"),
    [
        (A.lower(), "ÄB", "äb"),
        (A.upper(), "äb", "ÄB"),
        (A.trim(), "  a b\t ", "a b\t"),
        (A.length(), "日本🙂", 3),
        (A.length(), 12, None),
        (A.contains("b"), "abc", True),
        (A.contains(col("a")), "abc", True),
        (A.contains("x"), None, None),
        (A.starts_with("ab"), "abc", True),
        (A.ends_with("ab"), "abc", False),
        (A.substring(2), "abc", "bc"),
        (A.substring(2, 1), "abc", "b"),
        (A.substring(0, 2), "abc", "ab"),
        (A.substring(-2, 1), "abc", "b"),
        (A.substring(-5, 3), "abc", "a"),
        (A.substring(2, -1), "abc", ""),
        (A.substring(9), "abc", ""),
        (A.concat("-", A), "x", "x-x"),
        (A.concat(B), "x", None),
        (A.concat("x"), 5, None),
        (A.like("a%"), "abc", True),
        (A.like("a_"), "abc", False),
        (A.like("a%c"), "a\nc", True),
        (A.like("%b%b%"), "abab", True),
        (A.like("%ab%ab"), "abab", True),
        (A.like("%ab%b"), "ab", False),
        (A.like("100\\%"), "100%", True),
        (A.like("100\\%"), "100x", False),
        (A.like("a.c"), "abc", False),
        (A.like("%"), "", True),
        (A.like("a"), 5, None),
    ],
)
def test_text(expression: Expr, a: object, expected: object) -> None:
    assert same(of(expression, a), expected)


@given(st.text("ab%_\\", max_size=6), st.text("ab%_", max_size=8))
def test_like_against_a_plain_matcher(pattern: str, text: str) -> None:
    def matches(at: int, of: int) -> bool:
        if at == len(pattern):
            return of == len(text)
        if pattern[at] == "%":
            return any(matches(at + 1, rest) for rest in range(of, len(text) + 1))
        if of == len(text):
            return False
        if pattern[at] == "\\":
            return pattern[at + 1] == text[of] and matches(at + 2, of + 1)
        return pattern[at] in ("_", text[of]) and matches(at + 1, of + 1)

    try:
        found = of(A.like(pattern), text)
    except ExpressionError:
        assert "\\" in pattern  # before something else, or at the end
        return
    assert found is matches(0, 0)


def test_like_takes_no_longer_for_a_nasty_pattern() -> None:
    # Tried every way, this would outlast the timeout of the test by far.
    assert of(A.like("%a" * 30 + "%b"), "a" * 3000) is False


# Time


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        (A.year(), 2025),
        (A.month(), 11),
        (A.day(), 3),
        (A.hour(), 12),
        (A.minute(), 30),
        (A.weekday(), 0),
        (A.plus("1h"), NOON + timedelta(hours=1)),
        (A.minus(timedelta(days=3)), NOON - timedelta(days=3)),
    ],
)
@pytest.mark.parametrize("a", [NOON, NOON.astimezone(timezone(timedelta(hours=-8))), "2025-11-03 12:30:15"])
def test_time(expression: Expr, expected: object, a: object) -> None:
    assert of(expression, a) == expected


def test_times_out_of_reach_are_null() -> None:
    assert of(A.year(), "2025-02-30") is None
    assert of(A.year(), 5) is None
    assert of(A.plus("1d"), datetime.max.replace(tzinfo=UTC)) is None
    assert of(A.year(), datetime.min.replace(tzinfo=timezone(timedelta(hours=5)))) is None


@pytest.mark.parametrize(
    ("expression", "a", "expected"),
    [
        (to_timestamp(A), "2025-11-03T12:30:15Z", NOON),
        (to_timestamp(A), 1762173015, NOON),
        (to_timestamp(A, "ms"), 1762173015000, NOON),
        (to_timestamp(A, "us"), -1, datetime(1969, 12, 31, 23, 59, 59, 999999, tzinfo=UTC)),
        (to_timestamp(A), 0.5, datetime(1970, 1, 1, 0, 0, 0, 500000, tzinfo=UTC)),
        (to_timestamp(A), NAN, None),
        (to_timestamp(A), 10**30, None),
        (to_timestamp(A), "20251103", None),
    ],
)
def test_to_timestamp(expression: Expr, a: object, expected: object) -> None:
    assert of(expression, a) == expected


# Casts


@pytest.mark.parametrize(
    ("to", "a", "expected"),
    [
        ("int", " 42 ", 42),
        ("int", "+7", 7),
        ("int", "4.2", None),
        ("int", "٤", None),
        ("int", "9223372036854775808", None),
        ("int", -2.9, -2),
        ("int", 1e300, None),
        ("int", NAN, None),
        ("int", Decimal("sNaN"), None),
        ("int", True, 1),
        ("int", NOON, 1762173015),
        ("int", [1], None),
        ("double", "1.5e3", 1500.0),
        ("double", "-Infinity", -INF),
        ("double", "1_0", None),
        ("double", 2, 2.0),
        ("double", False, 0.0),
        ("double", 10**400, None),
        ("double", NOON, 1762173015.0),
        ("text", 5, "5"),
        ("text", True, "true"),
        ("text", 1.0, "1.0"),
        ("text", 1e7, "1.0E7"),
        ("text", -1.25e-7, "-1.25E-7"),
        ("text", 123456789.125, "1.23456789125E8"),
        ("text", NAN, "NaN"),
        ("text", -INF, "-Infinity"),
        ("text", NOON, "2025-11-03 12:30:15"),
        ("text", NOON.replace(microsecond=120000), "2025-11-03 12:30:15.12"),
        ("text", date(2025, 11, 3), "2025-11-03"),
        ("text", 10**400, None),
        ("text", {}, None),
        ("bool", "Yes", True),
        ("bool", "0", False),
        ("bool", "maybe", None),
        ("bool", 2, True),
        ("bool", 0.0, False),
        ("bool", NOON, None),
        ("timestamp", "2025-11-03T12:30:15Z", NOON),
        ("timestamp", 1762173015, NOON),
        ("timestamp", date(2025, 11, 3), datetime(2025, 11, 3, tzinfo=UTC)),
        ("timestamp", True, None),
    ],
)
def test_casts(to: str, a: object, expected: object) -> None:
    assert same(of(A.cast(to), a), expected)


@given(st.floats())
def test_a_float_survives_the_cast_to_text_and_back(number: float) -> None:
    assert same(of(A.cast("text").cast("double"), number), number)


# Choices


def test_when_takes_the_first_that_is_true() -> None:
    size = when(A > 100, "big").when(A > 10, "medium")
    assert [of(size, a) for a in (500, 50, 5, None)] == ["big", "medium", None, None]
    assert [of(size.otherwise("small"), a) for a in (500, 5, None)] == ["big", "small", "small"]


def test_coalesce() -> None:
    assert of(coalesce(A, B, 0), None, False) is False
    assert of(coalesce(A, B, 0)) == 0


# Expressions as things


def test_columns_are_the_paths_that_are_read() -> None:
    found = when(col("a.b") > 1, col("c").lower()).otherwise(coalesce(col("d"), A)).is_in(["x"])
    assert found.columns == {"a.b", "c", "d", "a"}
    assert lit(1).columns == frozenset()


def test_a_reader_decides_what_a_column_is() -> None:
    check = (col("data.amount") > 100).compile(lambda path: paths.getter(paths.strip(path)))
    assert check({"amount": 120}) is True


def test_and_or_not_are_caught() -> None:
    with pytest.raises(
        ExpressionError, match=r"a > 1 has no truth value .* write & \| ~ instead of and, or, not"
    ):
        bool((A > 1) and (B > 2))
    with pytest.raises(ExpressionError, match=r"\.between\(a, b\) instead of a < x < b"):
        assert 1 < A < 2
    with pytest.raises(
        ExpressionError, match="1 is neither true nor false; put each comparison in parentheses"
    ):
        bool(untyped(1) & B < A)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: col(""), "a column needs a name"),
        (lambda: A + untyped("x"), r"\+ takes numbers, and 'x' is none; write \.concat"),
        (lambda: A & untyped("x"), "'x' is neither true nor false"),
        (lambda: A.is_in("DE"), r"write is_in\(\['DE'\]\)"),
        (lambda: A.cast("uuid"), "no type 'uuid'; there are int, double, text, bool, timestamp"),
        (lambda: A.like("a\\b"), "a backslash stands before"),
        (lambda: A.round(99), "a whole number from -30 to 30"),
        (lambda: to_timestamp(A, "min"), "write one of s, ms, us"),
        (lambda: A.plus("5 parsecs"), "is not a duration"),
        (lambda: lit(Decimal("sNaN")), "sNaN cannot be written as a number"),
        (lambda: lit(Decimal("1E+400")), r"1E\+400 cannot be written as a number"),
        (lambda: lit(NAN), "nan cannot be written as a number"),
        (lambda: lit(2**63), "over 64 bits"),
        (lambda: lit(datetime(2025, 1, 1)), "has no time zone"),  # noqa: DTZ001
        (lambda: lit(untyped([1])), r"\[1\] cannot stand in an expression"),
        (lambda: Call("sqrt", (A,)), "no function 'sqrt'; there are abs, ceil"),
        (lambda: Call("lower", (A, B)), "lower takes 1 argument, not 2"),
        (lambda: Call("substring", (A,)), "substring takes 2 to 3 arguments, not 1"),
        (lambda: Call("coalesce", ()), "coalesce takes 1 or more arguments, not 0"),
        (lambda: Call("like", (A, B)), "like takes b only as a constant"),
        (lambda: Binary("^", A, B), r"no operator '\^'"),
        (lambda: Unary("!", A), "no operator '!'"),
    ],
)
def test_what_cannot_be_is_refused_when_it_is_written(make: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        make()


def test_depth_has_a_limit_and_long_chains_are_not_deep() -> None:
    chain = functools.reduce(operator.or_, [col("a") == n for n in range(5000)])
    assert of(chain, 4999) is True
    assert of(chain, -1) is False
    assert chain.columns == {"a"}
    assert chain.same_as(functools.reduce(operator.or_, [col("a") == n for n in range(5000)]))
    with pytest.raises(ExpressionError, match="over 100 levels"):
        functools.reduce(operator.add, [A] * 200)


def test_same_as_knows_types() -> None:
    assert lit(1).same_as(lit(1))
    assert not lit(1).same_as(lit(True))
    assert not lit(1).same_as(lit(1.0))
    assert not A.is_in([1]).same_as(A.is_in([True]))
    assert not (A < B).same_as(B < A)
    assert Column("`a`").same_as(A)


def test_nodes_are_frozen() -> None:
    with pytest.raises(AttributeError):
        Literal(1).value = 2  # type: ignore[misc]


@given(any_expression())
def test_expressions_travel(expression: Expr) -> None:
    copy = pickle.loads(pickle.dumps(expression))
    assert copy.same_as(expression)
    assert copy.depth == expression.depth


@given(any_expression(st.sampled_from([A, B, col("c.a")])), st.lists(RECORDS, max_size=3))
def test_nothing_raises_while_records_flow(expression: Expr, records: list[Any]) -> None:
    run = expression.compile()
    for record in [None, 5, {}, *records]:
        assert same(run(record), expression.evaluate(record))
