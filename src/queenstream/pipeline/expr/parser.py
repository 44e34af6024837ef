"""Expressions as text: ``amount > 100 and (user.country in ('DE', 'FR') or not vip)``.

>>> big = parse("data.amount > 100 AND status <> 'paid'")
>>> big.evaluate({"data": {"amount": 120}, "status": "open"})
True

From the weakest to the strongest: ``or``; ``and``; ``not``; ``= == != <> < <= > >=``, ``is [not] null``,
``[not] in (…)``, ``[not] like '…'``, ``[not] between … and …``; ``+ -``; ``* / %``; ``-`` before a value.
Words may be in capitals. A value is a number, a text in either kind of quotes (doubled inside), ``true``,
``false``, ``null``, ``timestamp '2025-11-03T10:00:00Z'``, a column (names in backticks may hold anything),
a function of ``values.FUNCTIONS``, ``cast(… as int)``, ``case when … then … else … end``, or anything in
parentheses.

What does not fit is an ``ExpressionError`` that shows the place:

>>> parse("amount > and vip")
Traceback (most recent call last):
queenstream.pipeline.expr.literals.ExpressionError: expected a value, found and
  amount > and vip
           ^

Other grammars build on this one: they read their own words from ``Tokens``, and hand these to
``parse_predicate``, which takes one expression and leaves the rest.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from queenstream.core import paths
from queenstream.pipeline.expr import functions
from queenstream.pipeline.expr.expressions import (
    ADD,
    ATOM,
    BINDING,
    COMPARE,
    DEEPEST,
    NAME,
    NEGATE,
    NOT,
    OR,
    RESERVED,
    Binary,
    Call,
    Case,
    Cast,
    Column,
    Expr,
    ExpressionError,
    IsIn,
    Literal,
    Plain,
    Unary,
)

LONGEST = 10_000
"""How many characters an expression may have."""

_QUOTED = r"`(?:[^`]|``)*`"
_TOKEN = re.compile(
    rf"""
      (?P<space>\s+)
    | (?P<name>(?:{NAME.pattern}|{_QUOTED})(?:\.(?:{NAME.pattern}|[0-9]+|{_QUOTED}))*)
    | (?P<number>(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]+)?)(?P<unit>\w*)
    | (?P<text>'(?:[^']|'')*'|"(?:[^"]|"")*")
    | (?P<symbol>==|!=|<>|<=|>=|[=<>+\-*/%(),])
    """,
    re.VERBOSE,
)
_UNITS = {"ms", "s", "m", "h", "d", "w"}
_ALIASES = {"==": "=", "<>": "!="}
_TESTS = {"is", "in", "like", "between", "not"}


@dataclass(frozen=True, slots=True)
class Token:
    """A piece of the text: its ``kind`` is name, number, duration, text, symbol or end.

    ``value`` is the number or the text meant, for the other kinds what is written; but ``==`` and ``<>`` are
    ``=`` and ``!=`` there.
    """

    kind: str
    written: str
    value: str | int | float
    position: int

    @property
    def word(self) -> str:
        """A name without dots and quotes, in small letters; else empty."""
        bare = self.kind == "name" and NAME.fullmatch(self.written)
        return self.written.lower() if bare else ""

    @property
    def symbol(self) -> str:
        """The operator or punctuation, else empty."""
        return str(self.value) if self.kind == "symbol" else ""

    def __str__(self) -> str:
        return self.written or "the end"


class Tokens:
    """A text, piece by piece; ``current`` is the next one to be taken.

    >>> tokens = Tokens("COUNT(*) > 10 IN 30s WHERE x = 1")
    >>> [str(token) for token in (tokens.take(), tokens.take(), tokens.take())]
    ['COUNT', '(', '*']
    >>> tokens.accept(")") is not None, tokens.accept("<", "<=") is not None
    (True, False)
    """

    def __init__(self, text: str) -> None:
        if len(text) > LONGEST:
            raise ExpressionError(f"an expression of {len(text)} characters; the longest has {LONGEST}")
        self.text = text
        self._tokens = list(_pieces(text))
        self._at = 0
        self._depth = 0

    @property
    def current(self) -> Token:
        """The next token; at the end, again and again the end."""
        return self.ahead(0)

    def ahead(self, by: int = 1) -> Token:
        """The token behind the current one, or further."""
        return self._tokens[min(self._at + by, len(self._tokens) - 1)]

    def take(self) -> Token:
        """The current token, and on to the next."""
        token = self.current
        self._at += 1
        return token

    def accept(self, *wanted: str) -> Token | None:
        """The current token if it is one of these symbols or words, and then on to the next."""
        return self.take() if (self.current.symbol or self.current.word) in wanted else None

    def expect(self, wanted: str, said: str = "") -> Token:
        """The same, or an error, which may say in other words what was wanted."""
        token = self.accept(wanted)
        if token is None:
            raise self.expected(said or wanted)
        return token

    def expect_end(self, wanted: str = "an operator or the end") -> None:
        """Nothing more, or an error."""
        if self.current.kind != "end":
            raise self.expected(wanted)

    def expected(self, wanted: str, token: Token | None = None) -> ExpressionError:
        """The error for a token, by default the current one, that is not what was wanted."""
        token = token or self.current
        return self.error(f"expected {wanted}, found {token}", token)

    def error(self, message: str, token: Token) -> ExpressionError:
        """An error at the place of a token."""
        return ExpressionError(message, self.text, token.position)

    def build(self, token: Token, make: Callable[[], Expr]) -> Expr:
        """What ``make`` makes; if it cannot be, the error is at ``token``."""
        try:
            return make()
        except ExpressionError as error:
            raise self.error(error.message, token) from None

    @contextmanager
    def deeper(self) -> Iterator[None]:
        """One level further in, of not too many: a hostile text must not overflow the stack."""
        if self._depth == DEEPEST:
            raise self.error(f"over {DEEPEST} levels of parentheses; write it flatter", self.current)
        self._depth += 1
        yield
        self._depth -= 1


def parse(text: str) -> Expr:
    """The expression that a text says.

    >>> parse("lower(name) like 'a%'").evaluate({"name": "Ann"})
    True
    """
    tokens = Tokens(text)
    found = parse_predicate(tokens)
    tokens.expect_end()
    return found


def parse_predicate(tokens: Tokens) -> Expr:
    """One expression from ``tokens``, up to the first token that cannot go on with it.

    >>> tokens = Tokens("action = 'click' WITHIN 5m")
    >>> print(parse_predicate(tokens), "|", tokens.current)
    action = 'click' | WITHIN
    """
    return _expression(tokens, OR)


def _pieces(text: str) -> Iterator[Token]:
    at = 0
    while at < len(text):
        match = _TOKEN.match(text, at)
        if match is None:
            raise ExpressionError(_unreadable(text[at]), text, at)
        if match.lastgroup != "space":
            yield _token(match)
        at = match.end()
    yield Token("end", "", "", len(text))


def _unreadable(char: str) -> str:
    if char in "'\"`":
        return f"what starts here does not end; close it with {char}"
    return f"{char!r} means nothing here; put a name that holds it in backticks"


def _token(match: re.Match[str]) -> Token:
    written, position = match[0], match.start()
    if match["number"] is None:
        kind = match.lastgroup or ""
        value = written[1:-1].replace(written[0] * 2, written[0]) if kind == "text" else written
        return Token(kind, written, _ALIASES.get(value, value) if kind == "symbol" else value, position)
    if match["unit"] in _UNITS:
        return Token("duration", written, written, position)
    if match["unit"]:
        message = f"{written} is neither a number nor a duration such as 30s; put a name in backticks"
        raise ExpressionError(message, match.string, position)
    number = match["number"]
    whole = number.isdigit()
    # The longest whole number has 19 digits, and a float no use for a thousand.
    if len(number) > (19 if whole else 400):
        raise ExpressionError("a number of too many digits; write it as 1.5e30", match.string, position)
    return Token("number", written, int(number) if whole else float(number), position)


def _expression(tokens: Tokens, least: int) -> Expr:
    """An operand, and all operators behind it that bind at least so tightly."""
    left = _operand(tokens, least)
    compared = False
    while True:
        token = tokens.current
        op = token.symbol or token.word
        binding = COMPARE if op in _TESTS else BINDING.get(op, -1)
        dangling = (op == "not" and tokens.ahead().word not in _TESTS) or (compared and binding > COMPARE)
        if binding < least or dangling:
            return left
        if compared and binding == COMPARE:
            raise tokens.error("comparisons do not follow one another; write a < b and b < c", token)
        compared = binding == COMPARE
        left = _test(tokens, left) if op in _TESTS else _binary(tokens, left, binding)


def _binary(tokens: Tokens, left: Expr, binding: int) -> Expr:
    token = tokens.take()
    right = _expression(tokens, binding + 1)
    return tokens.build(token, lambda: Binary(token.symbol or token.word, left, right))


def _test(tokens: Tokens, left: Expr) -> Expr:
    """``is null``, ``in``, ``like`` and ``between``, with ``not`` where it can stand."""
    negated = tokens.accept("not")
    token = tokens.take()
    if token.word == "is":
        op = "is not null" if tokens.accept("not") else "is null"
        tokens.expect("null")
        return tokens.build(token, lambda: Unary(op, left))
    if token.word == "in":
        options = _options(tokens)
        found = tokens.build(token, lambda: IsIn(left, options))
    elif token.word == "like":
        pattern = _constant(tokens, "a text such as 'a%'")
        found = tokens.build(token, lambda: Call("like", (left, pattern)))
    else:
        low = _expression(tokens, ADD)
        tokens.expect("and")
        high = _expression(tokens, ADD)
        found = tokens.build(token, lambda: left.between(low, high))
    return tokens.build(token, lambda: Unary("not", found)) if negated else found


def _options(tokens: Tokens) -> tuple[Plain, ...]:
    tokens.expect("(")
    found: list[Plain] = []
    while not tokens.accept(")"):
        if found:
            tokens.expect(",", "a comma or )")
        found.append(_constant(tokens, "a constant").value)
    return tuple(found)


def _constant(tokens: Tokens, wanted: str) -> Literal:
    token = tokens.current
    found = _operand(tokens, ATOM)
    if not isinstance(found, Literal):
        raise tokens.expected(wanted, token)
    return found


def _operand(tokens: Tokens, least: int) -> Expr:
    """A value, or what stands before one: ``not``, a minus, a parenthesis."""
    token = tokens.take()
    if token.kind in ("number", "text"):
        return tokens.build(token, lambda: Literal(token.value))
    if token.symbol == "-" and tokens.current.kind == "number":
        value = tokens.take().value
        return tokens.build(token, lambda: Literal(-value))  # type: ignore[operator]  # a number, by its kind
    if token.kind == "name" and token.word not in RESERVED:
        return _named(tokens, token)
    if token.word in _CONSTANTS:
        return Literal(_CONSTANTS[token.word])
    with tokens.deeper():
        if token.word == "case":
            return _case(tokens, token)
        if token.symbol == "(":
            found = _expression(tokens, OR)
            tokens.expect(")")
            return found
        if token.word == "not" and least <= NOT:
            operand = _expression(tokens, NOT)
            return tokens.build(token, lambda: Unary("not", operand))
        if token.symbol == "-" and least <= NEGATE:
            operand = _expression(tokens, NEGATE)
            return tokens.build(token, lambda: Unary("-", operand))
    raise tokens.expected("a value", token)


_CONSTANTS = {"true": True, "false": False, "null": None}


def _named(tokens: Tokens, token: Token) -> Expr:
    """A function, a time, or a column."""
    if token.word and tokens.current.symbol == "(":
        with tokens.deeper():
            return _cast(tokens) if token.word == "cast" else _call(tokens, token)
    if token.word == "timestamp" and tokens.current.kind == "text":
        written = tokens.take()
        found = functions.instant(written.value)
        if found is None:
            raise tokens.expected("a time such as '2025-11-03T10:00:00Z'", written)
        return Literal(found)
    return Column(paths.join(paths.segments(token.written)))


def _call(tokens: Tokens, token: Token) -> Expr:
    tokens.expect("(")
    arguments: list[Expr] = []
    while not tokens.accept(")"):
        if arguments:
            tokens.expect(",", "a comma or )")
        arguments.append(_expression(tokens, OR))
    return tokens.build(token, lambda: Call(token.word, tuple(arguments)))


def _cast(tokens: Tokens) -> Expr:
    tokens.expect("(")
    operand = _expression(tokens, OR)
    tokens.expect("as")
    to = tokens.take()
    found = tokens.build(to, lambda: Cast(operand, to.written))
    tokens.expect(")")
    return found


def _case(tokens: Tokens, token: Token) -> Expr:
    branches: list[tuple[Expr, Expr]] = []
    tokens.expect("when")
    while not branches or tokens.accept("when"):
        condition = _expression(tokens, OR)
        tokens.expect("then")
        branches.append((condition, _expression(tokens, OR)))
    default = _expression(tokens, OR) if tokens.accept("else") else Literal(None)
    tokens.expect("end")
    return tokens.build(token, lambda: Case(tuple(branches), default))
