"""The text form: what it reads, what it writes, and how it says no."""

from __future__ import annotations

import doctest
from datetime import UTC, datetime

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from queenstream.pipeline.expr import parser
from queenstream.pipeline.expr.expressions import (
    Binary,
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
from queenstream.pipeline.expr.parser import LONGEST, Tokens, parse, parse_predicate
from tests.unit.pipeline.expressions_strategy import expressions

A, B, C = col("a"), col("b"), col("c")


def test_examples() -> None:
    assert doctest.testmod(parser).failed == 0


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            'data.amount > 100 and (user.country in ("DE","FR") or not vip)',
            (col("data.amount") > 100) & (col("user.country").is_in(["DE", "FR"]) | ~col("vip")),
        ),
        ("a = 1", A == 1),
        ("a == 1", A == 1),
        ("a != 1", A != 1),
        ("a <> 1", A != 1),
        ("a=1 AND b<=2 Or NOT c", ((A == 1) & (B <= 2)) | ~C),
        ("a or b and c", A | (B & C)),
        ("not a and b", ~A & B),
        ("not a = b", ~(A == B)),
        ("a is null", A.is_null()),
        ("a IS NOT NULL", A.is_not_null()),
        ("a in (1, -2, 2.5, 'x', null, true)", A.is_in([1, -2, 2.5, "x", None, True])),
        ("a in ()", A.is_in([])),
        ("a not in (1)", ~A.is_in([1])),
        ("a between 1 and 2 and b", A.between(1, 2) & B),
        ("a not between b + 1 and 2", ~A.between(B + 1, 2)),
        ("a like 'x%'", A.like("x%")),
        ("a not like 'x%'", ~A.like("x%")),
        ("a + b * c", A + B * C),
        ("(a + b) * c", (A + B) * C),
        ("a - b - c", (A - B) - C),
        ("a - (b - c)", A - (B - C)),
        ("a % 2 = 0", A % 2 == 0),
        ("a - -1", A - lit(-1)),
        ("a-1", A - 1),
        ("-a * b", -A * B),
        ("-(5)", Unary("-", Literal(5))),
        ("1.5e3", Literal(1500.0)),
        (".5", Literal(0.5)),
        ("-9223372036854775808", Literal(-(2**63))),
        ('\'it\'\'s\' = "a ""b"""', Binary("=", Literal("it's"), Literal('a "b"'))),
        ("'multi\nline'", Literal("multi\nline")),
        ("TRUE", Literal(True)),
        ("lower(a) = 'x'", A.lower() == "x"),
        ("SUBSTRING(a, 1, 2)", A.substring(1, 2)),
        ("concat(a, '-', b)", A.concat("-", B)),
        ("coalesce(a, b, 0)", coalesce(A, B, 0)),
        ("plus(a, '5m')", A.plus("5m")),
        ("to_timestamp(a, 'ms')", to_timestamp(A, "ms")),
        ("round(a, 2)", A.round(2)),
        ("cast(a as INT)", A.cast("int")),
        ("cast(a + 1 as string)", (A + 1).cast("text")),
        ("case when a > 1 then 'x' when b then 'y' else c end", when(A > 1, "x").when(B, "y").otherwise(C)),
        ("case when a then 1 end", when(A, 1)),
        ("ts > timestamp '2025-11-03T10:00:00Z'", col("ts") > datetime(2025, 11, 3, 10, tzinfo=UTC)),
        ("timestamp > 5", col("timestamp") > 5),
        ("items.0.price", col("items.0.price")),
        ("`first name`.`a.b` = 1", col("first name.`a.b`") == 1),
        ("`and` and `a``b`", col("and") & col("`a``b`")),
        ("user.end = 1 and straße", (col("user.end") == 1) & col("straße")),
        ("  ( ( a ) )  ", A),
    ],
)
def test_what_is_read(text: str, expected: Expr) -> None:
    found = parse(text)
    assert found.same_as(expected), repr(found)
    assert parse(str(found)).same_as(found)


@pytest.mark.parametrize(
    ("expression", "text"),
    [
        ((A + B) * C - 1, "(a + b) * c - 1"),
        (A - (B - C), "a - (b - c)"),
        ((A | B) & ~(C == 1), "(a or b) and not c = 1"),
        (A.is_in(["it's", 1.0, None]), "a in ('it''s', 1.0, null)"),
        ((A > 1) == B, "(a > 1) = b"),
        (col("and.or"), "`and`.or"),
        (Unary("-", -A), "--a"),
        (lit(5) - lit(-5), "5 - -5"),
        (lit(datetime(2025, 1, 2, tzinfo=UTC)), "timestamp '2025-01-02T00:00:00Z'"),
        (A.cast("bool"), "cast(a as bool)"),
        ((A + 1).like("x"), "a + 1 like 'x'"),
        (when(A, 1).otherwise(2), "case when a then 1 else 2 end"),
    ],
)
def test_what_is_written(expression: Expr, text: str) -> None:
    assert str(expression) == text


@given(expressions())
@example(Unary("-", Literal(-5)))
@example(Binary("-", Literal(-0.0), Unary("-", Literal(0))))
@example(when(col("when"), col("case")).when(col("then"), col("end")).otherwise(col("else")))
def test_what_is_written_is_read_back(expression: Expr) -> None:
    assert parse(str(expression)).same_as(expression)


@pytest.mark.parametrize(
    ("text", "position", "message"),
    [
        ("", 0, "expected a value, found the end"),
        ("a >", 3, "expected a value, found the end"),
        ("a > and b", 4, "expected a value, found and"),
        ("a 100", 2, "expected an operator or the end, found 100"),
        ("a = 1)", 5, "expected an operator or the end, found )"),
        ("(a = 1", 6, "expected ), found the end"),
        ("a < b < c", 6, "comparisons do not follow one another; write a < b and b < c"),
        ("a is b", 5, "expected null, found b"),
        ("a is null + 1", 10, "expected an operator or the end, found +"),
        ("a in 5", 5, "expected (, found 5"),
        ("a in (1 2)", 8, "expected a comma or ), found 2"),
        ("a in (b)", 6, "expected a constant, found b"),
        ("a like b", 7, "expected a text such as 'a%', found b"),
        ("a like 5", 2, "like 5: the pattern must be a text, such as 'a%'"),
        ("a between 1 or 2", 12, "expected and, found or"),
        ("a not 5", 2, "expected an operator or the end, found not"),
        ("a = not b", 4, "expected a value, found not"),
        ("a + 'x'", 2, "+ takes numbers, and 'x' is none"),
        ("a and 5", 2, "5 is neither true nor false"),
        ("sqrt(a)", 0, "no function 'sqrt'; there are abs, ceil"),
        ("x = 1 and lower(a, b)", 10, "lower takes 1 argument, not 2"),
        ("lower(a", 7, "expected a comma or ), found the end"),
        ("cast(a as uuid)", 10, "no type 'uuid'; there are int"),
        ("cast(a, int)", 6, "expected as, found ,"),
        ("case a end", 5, "expected when, found a"),
        ("case when a end", 12, "expected then, found end"),
        ("plus(a, '5 parsecs')", 0, "'5 parsecs' is not a duration"),
        ("a = 'open", 4, "what starts here does not end; close it with '"),
        ("a = `b", 4, "what starts here does not end; close it with `"),
        ("a = $1", 4, "'$' means nothing here"),
        ("a > 5minutes", 4, "5minutes is neither a number nor a duration"),
        ("a > 5m", 4, "expected a value, found 5m"),
        ("a > " + "9" * 5000, 4, "a number of too many digits"),
        ("a > 9223372036854775808", 4, "a whole number of over 64 bits"),
        ("a > 1e999", 4, "inf cannot be written as a number"),
        ("a > timestamp 'soon'", 14, "expected a time such as '2025-11-03T10:00:00Z', found 'soon'"),
    ],
)
def test_an_error_shows_the_place(text: str, position: int, message: str) -> None:
    with pytest.raises(ExpressionError) as caught:
        parse(text)
    assert caught.value.message.startswith(message)
    assert caught.value.position == position
    first, shown, caret = str(caught.value).splitlines()
    assert first == caught.value.message
    place = caret.index("^")
    assert shown[place : place + 5].rstrip(".") == text[position : position + 5].rstrip(".")


def test_an_error_in_a_long_text_shows_its_surroundings() -> None:
    text = "first line\nand " + "x = 1 and " * 30 + "\ty > > 1 and " + "z = 1 and " * 30 + "z\nlast line"
    with pytest.raises(ExpressionError) as caught:
        parse("a = 1 and b = 2 or " + text.replace("first line\nand", "c\nand"))
    _, shown, caret = str(caught.value).splitlines()
    assert shown[caret.index("^") :].startswith("> 1 and")
    assert shown.startswith("  ...")
    assert shown.endswith("...")
    assert len(shown) < 110


def test_hostile_texts_are_refused_early() -> None:
    with pytest.raises(ExpressionError, match="an expression of 10001 characters; the longest has 10000"):
        parse("a" * (LONGEST + 1))
    for opening in ("(", "not ", "-", "lower(", "case when ", "coalesce(a, -(not "):
        with pytest.raises(ExpressionError, match=r"over 100 levels|expected a value"):
            parse(opening * 500)
    with pytest.raises(ExpressionError, match="over 100 levels"):
        parse(" + ".join(["a"] * 500))
    assert parse(" or ".join(["a"] * 1000)).columns == {"a"}


VALUES = [
    "a",
    "b.c",
    "`d`",
    "1",
    "-1",
    "2.5",
    "5m",
    "'x'",
    '"',
    "(",
    ")",
    "lower(",
    "timestamp",
    "case",
    "null",
]
OPERATORS = ["=", "<", "+", "-", "*", "and", "or", "not", "in", "is", "like", "between", ","]
PIECES = st.sampled_from([*VALUES, *OPERATORS, "when", "then", "else", "end", "cast", "as", "int", "$"])


@given(st.lists(PIECES, max_size=12).map(" ".join) | st.text(max_size=20))
def test_any_text_is_read_or_refused_with_a_place(text: str) -> None:
    try:
        found = parse(text)
    except ExpressionError as error:
        place = error.position
    else:
        place = 0
        assert parse(str(found)).same_as(found)
    assert place in range(len(text) + 1)


def test_other_grammars_read_on_behind_a_predicate() -> None:
    tokens = Tokens('COUNT(*) > 10 IN 30s WHERE action = "click" and n > 1 THEN other')
    assert tokens.take().word == "count"
    for symbol in "(*)>":
        tokens.expect(symbol)
    assert tokens.take().value == 10
    tokens.expect("in")
    span = tokens.take()
    assert (span.kind, span.value) == ("duration", "30s")
    tokens.expect("where")
    assert parse_predicate(tokens).same_as((col("action") == "click") & (col("n") > 1))
    assert tokens.current.word == "then"
    with pytest.raises(ExpressionError, match="expected the end, found THEN"):
        tokens.expect_end("the end")
