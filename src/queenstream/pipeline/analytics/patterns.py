"""Patterns in the records of a key, written as text.

    COUNT(*) > 10 IN 30s WHERE action = 'click'
    SUM(amount) >= 1000 IN 1h WHERE not refunded
    (AVG(load) > 0.9 IN 5m) AND NOT (COUNT(*) < 3 IN 5m)
    login THEN purchase WITHIN 5m
    (action = 'add' and price > 100) THEN NOT (action = 'pay') WITHIN 30m

A condition is true of the records of a span of event time that ends with a record and does not hold the one
that is exactly as old as the span is long. It fires when it becomes true, and not again before it was false:
``COUNT(*) > 10`` fires once, at the 11th click. It can also become true when records leave the span.

In a sequence every record that fits the first step starts a match of its own. Each further step is the next
record that fits it, others may lie between. ``THEN NOT`` says that no such record comes before the next step,
or, at the end, before the time is over. A step is a predicate in parentheses, or a name: the value of the
field that says what a record is (``event``).

What cannot be read is an ``ExpressionError`` that shows the place:

>>> parse("COUNT(*) > 10 WHERE action = 'click'")
Traceback (most recent call last):
queenstream.pipeline.expr.literals.ExpressionError: expected IN and a span such as 30s, found WHERE
  COUNT(*) > 10 WHERE action = 'click'
                ^
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias, get_args

from queenstream.core import durations, paths
from queenstream.core.windows import length_us as microseconds
from queenstream.pipeline.expr.expressions import Binary, Column, Expr
from queenstream.pipeline.expr.expressions import Literal as Constant
from queenstream.pipeline.expr.parser import Tokens, parse_predicate

Aggregate: TypeAlias = Literal["count", "sum", "avg", "min", "max"]
AGGREGATES: tuple[Aggregate, ...] = get_args(Aggregate)
COMPARISONS = (">", ">=", "<", "<=", "=", "!=")


@dataclass(frozen=True, slots=True)
class Threshold:
    """``AGG(field) OP number IN span WHERE predicate``; ``field`` None is ``*``: of all records."""

    aggregate: Aggregate
    field: str | None
    comparison: str
    number: float
    span_us: int
    where: Expr | None = None

    @property
    def only_grows(self) -> bool:
        """Whether it can become true only when a record comes, never when one leaves."""
        return self.aggregate == "count" and self.comparison in (">", ">=")


@dataclass(frozen=True, slots=True)
class Junction:
    """``and``, ``or`` or ``not`` of conditions."""

    word: Literal["and", "or", "not"]
    parts: tuple[Condition, ...]

    @property
    def only_grows(self) -> bool:
        """As of a threshold."""
        return self.word != "not" and all(part.only_grows for part in self.parts)


Condition: TypeAlias = Threshold | Junction


@dataclass(frozen=True, slots=True)
class Step:
    """A step of a sequence. ``never``: it is one that must not come."""

    where: Expr
    never: bool = False


@dataclass(frozen=True, slots=True)
class Sequence:
    """Steps, the last at most ``within_us`` after the first."""

    steps: tuple[Step, ...]
    within_us: int


Pattern: TypeAlias = Threshold | Junction | Sequence


def parse(text: str, event: str = "type") -> Pattern:
    """The pattern that a text says; ``event`` is the field that a bare name in a sequence is a value of.

    >>> parse("login THEN purchase WITHIN 5m").within_us
    300000000
    """
    tokens = Tokens(text)
    found: Pattern = _sequence(tokens, event) if _is_sequence(tokens) else _any_of(tokens)
    tokens.expect_end("AND, OR or the end")
    return found


def thresholds(pattern: Pattern) -> list[Threshold]:
    """Those that a condition is made of, from left to right.

    >>> [each.aggregate for each in thresholds(parse("COUNT(*) > 1 IN 1s OR NOT MIN(x) < 2 IN 1s"))]
    ['count', 'min']
    """
    if isinstance(pattern, Junction):
        return [each for part in pattern.parts for each in thresholds(part)]
    return [pattern] if isinstance(pattern, Threshold) else []


def length_us(pattern: Pattern) -> int:
    """How far back it looks.

    >>> length_us(parse("COUNT(*) > 1 IN 1s OR MIN(x) < 2 IN 2s"))
    2000000
    """
    if isinstance(pattern, Sequence):
        return pattern.within_us
    return max(each.span_us for each in thresholds(pattern))


def expressions(pattern: Pattern) -> list[Expr]:
    """All that it reads of a record, but for its numbers."""
    if isinstance(pattern, Sequence):
        return [step.where for step in pattern.steps]
    found: list[Expr] = []
    for each in thresholds(pattern):
        found += [Column(each.field)] if each.field is not None and each.aggregate == "count" else []
        found += [] if each.where is None else [each.where]
    return found


def numbers(pattern: Pattern) -> list[str]:
    """The fields that it takes numbers of; a COUNT takes whatever is there."""
    if isinstance(pattern, Sequence):
        return []
    return [each.field for each in thresholds(pattern) if each.field and each.aggregate != "count"]


def _is_sequence(tokens: Tokens) -> bool:
    """Whether THEN comes after the first word or parenthesis."""
    if tokens.current.symbol != "(":
        is_aggregate = tokens.current.word in AGGREGATES and tokens.ahead().symbol == "("
        return not is_aggregate and tokens.current.word != "not"
    depth, at = 0, 0
    while (token := tokens.ahead(at)).kind != "end":
        depth += (token.symbol == "(") - (token.symbol == ")")
        at += 1
        if not depth:
            return tokens.ahead(at).word == "then"
    return False


# Conditions


def _any_of(tokens: Tokens) -> Condition:
    return _joined(tokens, "or")


def _joined(tokens: Tokens, word: Literal["and", "or"]) -> Condition:
    parts = [_joined(tokens, "and") if word == "or" else _negated(tokens)]
    while tokens.accept(word):
        parts.append(_joined(tokens, "and") if word == "or" else _negated(tokens))
    return parts[0] if len(parts) == 1 else Junction(word, tuple(parts))


def _negated(tokens: Tokens) -> Condition:
    with tokens.deeper():
        if tokens.accept("not"):
            return Junction("not", (_negated(tokens),))
        if tokens.accept("("):
            found = _any_of(tokens)
            tokens.expect(")")
            return found
    return _threshold(tokens)


def _threshold(tokens: Tokens) -> Threshold:
    token = tokens.current
    aggregate = next((each for each in AGGREGATES if each == token.word), None)
    if aggregate is None:
        raise tokens.expected("COUNT, SUM, AVG, MIN or MAX")
    tokens.take()
    field = _field(tokens, aggregate)
    comparison = tokens.accept(*COMPARISONS)
    if comparison is None:
        raise tokens.expected("a comparison such as >")
    number = _number(tokens)
    span_us = _span(tokens, "in", "IN and a span such as 30s")
    where = parse_predicate(tokens) if tokens.accept("where") else None
    return Threshold(aggregate, field, comparison.symbol, number, span_us, where)


def _field(tokens: Tokens, aggregate: Aggregate) -> str | None:
    tokens.expect("(")
    star = tokens.accept("*")
    if star is not None:
        if aggregate != "count":
            raise tokens.error(f"{aggregate.upper()} is of a field; only COUNT is of all records", star)
        tokens.expect(")")
        return None
    token = tokens.take()
    if token.kind != "name":
        raise tokens.expected("a field or *", token)
    tokens.expect(")")
    return paths.join(paths.segments(token.written))


def _number(tokens: Tokens) -> float:
    minus = tokens.accept("-") is not None
    token = tokens.take()
    if token.kind != "number" or isinstance(token.value, str):
        raise tokens.expected("a number", token)
    return -token.value if minus else token.value


def _span(tokens: Tokens, word: str, said: str) -> int:
    tokens.expect(word, said)
    token = tokens.take()
    if token.kind != "duration":
        raise tokens.expected("a span such as 30s", token)
    found = microseconds(durations.parse(token.written))
    if found <= 0:
        raise tokens.error("a span of no time", token)
    return found


# Sequences


def _sequence(tokens: Tokens, event: str) -> Sequence:
    steps = [_step(tokens, event, never=False)]
    while not steps[1:] or tokens.current.word == "then":
        tokens.expect("then", "THEN")
        never = tokens.accept("not") is not None
        if never and steps[-1].never:
            raise tokens.error("two steps that must not come; write (a or b)", tokens.current)
        steps.append(_step(tokens, event, never=never))
    return Sequence(tuple(steps), _span(tokens, "within", "THEN, or WITHIN and a span such as 5m"))


def _step(tokens: Tokens, event: str, *, never: bool) -> Step:
    if tokens.accept("("):
        where = parse_predicate(tokens)
        tokens.expect(")")
        return Step(where, never)
    token = tokens.take()
    if token.kind not in ("name", "text"):
        raise tokens.expected("a name or a predicate in parentheses", token)
    return Step(Binary("=", Column(paths.join(paths.segments(event))), Constant(str(token.value))), never)
