"""Expressions: computations over a record, as data that an engine can read.

>>> big = (col("amount") > 100) & col("user.country").is_in(["DE", "FR"])
>>> big.evaluate({"amount": 120, "user": {"country": "DE"}})
True
>>> print(big)
amount > 100 and user.country in ('DE', 'FR')
>>> sorted(big.columns)
['amount', 'user.country']

They run here as Python closures (``compile``), and are made to become Spark's own expressions. The rules are
SQL's, with null for what is not there:

- A column that a record does not have is null. Null in, null out; ``is_null``, ``coalesce``, ``when`` and
  the logic are the ways around it.
- ``&``, ``|`` and ``~`` have three values: ``false & null`` is false, ``true | null`` is true, else null
  wins.
- A filter keeps a record whose expression is true, and drops it where that is false or null.
- ``is_in`` is as many ``==`` with ``|`` between them, so a null among the options makes a miss null.
- Nothing raises while records flow: a value of the wrong kind, a division by zero and a text that is no
  number all give null. ``values`` has the rules for each operator and function.

An expression is a frozen node; ``str`` writes it as ``grammar.parse`` reads it. As ``==`` builds an
expression, two of them are compared by ``same_as``, and they are no keys for a dict.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from datetime import date
from decimal import Decimal
from typing import Any, TypeAlias

from queenstream.core import paths
from queenstream.errors import ConfigError
from queenstream.pipeline.expr import compiler, functions
from queenstream.pipeline.expr.fluent import Fluent
from queenstream.pipeline.expr.literals import ExpressionError, Plain, plain, written

__all__ = [
    "Binary",
    "Call",
    "Case",
    "Cast",
    "Column",
    "Expr",
    "ExpressionError",
    "IsIn",
    "Literal",
    "Operand",
    "Plain",
    "Unary",
    "coalesce",
    "col",
    "lit",
    "to_timestamp",
    "when",
]

NAME = re.compile(r"[^\W\d]\w*")
"""A name that needs no backticks."""

_PLAIN_STEP = re.compile(rf"{NAME.pattern}|[0-9]+")

RESERVED = {"and", "or", "not", "in", "is", "like", "between", "null", "true", "false", "case"}
"""Words that are no column, in any case, unless in backticks."""

DEEPEST = 100
"""How many levels an expression may have; a chain of ``and`` or of ``or`` is one."""

# How tightly an operator binds; an operand that binds less stands in parentheses.
OR, AND, NOT, COMPARE, ADD, MULTIPLY, NEGATE, ATOM = range(8)
BINDING = {
    "or": OR,
    "and": AND,
    "+": ADD,
    "-": ADD,
    "*": MULTIPLY,
    "/": MULTIPLY,
    "%": MULTIPLY,
} | dict.fromkeys(functions.COMPARISONS, COMPARE)


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Expr(Fluent):
    """What every expression can do. Start one with ``col``, ``lit``, ``when``, ``coalesce`` or ``parse``."""

    depth: int = field(init=False)

    @property
    def children(self) -> tuple[Expr, ...]:
        """The expressions that this one is made of, in order."""
        return ()

    @property
    def label(self) -> object:
        """What this node says beside its children, such as its operator; with types, for 1 is not true."""
        raise NotImplementedError

    @property
    def binding(self) -> int:
        """How tightly its text holds together."""
        return ATOM

    def compile(self, reader: Callable[[str], paths.Getter] = paths.getter) -> compiler.Compiled:
        """A function of a record; ``reader`` makes what reads a column from one.

        >>> check = (col("n") % 2 == 0).compile()
        >>> [check({"n": n}) for n in (1, 2, None)]
        [False, True, None]
        """
        raise NotImplementedError

    def evaluate(self, record: object) -> Any:
        """The value for one record; for many, ``compile`` once.

        >>> (col("price") * col("n")).evaluate({"price": 2.5, "n": 4})
        10.0
        """
        return self.compile()(record)

    def walk(self) -> Iterator[Expr]:
        """This node and all below it, from the left."""
        pending: list[Expr] = [self]
        while pending:
            node = pending.pop()
            yield node
            pending.extend(reversed(node.children))

    @property
    def columns(self) -> frozenset[str]:
        """The paths it reads."""
        return frozenset(node.path for node in self.walk() if isinstance(node, Column))

    def same_as(self, other: Expr) -> bool:
        """Whether both say the same, node for node.

        >>> (col("a") > 1).same_as(col("a") > 1), (col("a") > 1).same_as(col("a") > 1.0)
        (True, False)
        """
        pending: list[tuple[Expr, Expr]] = [(self, other)]
        while pending:
            one, two = pending.pop()
            alike = type(one) is type(two) and one.label == two.label
            if not alike or len(one.children) != len(two.children):
                return False
            pending.extend(zip(one.children, two.children, strict=True))
        return True

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self}>"

    def __bool__(self) -> bool:
        raise ExpressionError(
            f"{self} has no truth value before it meets a record; write & | ~ instead of and, or, not, "
            "with each comparison in parentheses, and .between(a, b) instead of a < x < b"
        )

    def _binary(self, op: str, other: Operand, *, swapped: bool = False) -> Expr:
        return Binary(op, lift(other), self) if swapped else Binary(op, self, lift(other))

    def _unary(self, op: str) -> Expr:
        return Unary(op, self)

    def _call(self, name: str, *others: Operand) -> Expr:
        return Call(name, (self, *map(lift, others)))

    def _is_in(self, options: Iterable[Plain]) -> Expr:
        if isinstance(options, (str, bytes)):
            raise ExpressionError(f"is_in({options!r}) takes a list; write is_in([{options!r}])")
        return IsIn(self, tuple(options))

    def _cast(self, to: str) -> Expr:
        return Cast(self, to)

    def _settle(self, depth: int | None = None) -> None:
        if depth is None:
            depth = 1 + max((child.depth for child in self.children), default=0)
        if depth > DEEPEST:
            raise ExpressionError(
                f"an expression of over {DEEPEST} levels; use is_in for many values, steps for long chains"
            )
        object.__setattr__(self, "depth", depth)

    def _inside(self, least: int) -> str:
        """Its text where an operand of this binding is wanted."""
        return str(self) if self.binding >= least else f"({self})"


Operand: TypeAlias = Expr | Plain | date | Decimal


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Column(Expr):
    """What a record holds at a path."""

    path: str

    def __post_init__(self) -> None:
        names = paths.segments(self.path)
        if not names:
            raise ExpressionError('a column needs a name; write col("amount") or col("user.country")')
        object.__setattr__(self, "path", paths.join(names))
        self._settle()

    @property
    def label(self) -> object:
        return self.path

    def compile(self, reader: Callable[[str], paths.Getter] = paths.getter) -> compiler.Compiled:
        return reader(self.path)

    def __str__(self) -> str:
        first, *rest = paths.segments(self.path)
        bare = NAME.fullmatch(first) and first.lower() not in RESERVED
        names = [first if bare else paths.quote(first)]
        names += [name if _PLAIN_STEP.fullmatch(name) else paths.quote(name) for name in rest]
        return ".".join(names)


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Literal(Expr):
    """A value that is the same for all records. Times are kept in UTC, Decimals as floats."""

    value: Plain

    def __post_init__(self) -> None:
        object.__setattr__(self, "value", plain(self.value))
        self._settle()

    @property
    def label(self) -> object:
        return type(self.value), self.value

    def compile(self, reader: Callable[[str], paths.Getter] = paths.getter) -> compiler.Compiled:  # noqa: ARG002
        return compiler.constant(self.value)

    def __str__(self) -> str:
        return written(self.value)


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Binary(Expr):
    """Two operands and a comparison (``=``, not ``==``), an arithmetic operator, ``and`` or ``or``."""

    op: str
    left: Expr
    right: Expr

    def __post_init__(self) -> None:
        binding = BINDING.get(self.op)
        if binding is None:
            raise ExpressionError(f"no operator {self.op!r}; there are {' '.join(BINDING)}")
        for side in (self.left, self.right):
            kind = functions.kind_of(side.value) if isinstance(side, Literal) else None
            if kind and binding in (AND, OR) and kind != functions.BOOL:
                raise ExpressionError(f"{side} is neither true nor false; put each comparison in parentheses")
            if kind and binding in (ADD, MULTIPLY) and kind != functions.NUMBER:
                remedy = "write .concat for text, .plus and .minus for times"
                raise ExpressionError(f"{self.op} takes numbers, and {side} is none; {remedy}")
        if self.op in ("and", "or") and isinstance(self.left, Binary) and self.left.op == self.op:
            # A chain may be long: it counts as the flat thing that it is.
            self._settle(max(self.left.depth, 1 + self.right.depth))
        else:
            self._settle()

    @property
    def children(self) -> tuple[Expr, ...]:
        return self.left, self.right

    @property
    def operands(self) -> list[Expr]:
        """The two sides; of ``a and b and c``, all that stand in a row."""
        found: list[Expr] = [self.right]
        left = self.left
        while self.op in ("and", "or") and isinstance(left, Binary) and left.op == self.op:
            found.append(left.right)
            left = left.left
        return [left, *reversed(found)]

    @property
    def label(self) -> object:
        return self.op

    @property
    def binding(self) -> int:
        return BINDING[self.op]

    def compile(self, reader: Callable[[str], paths.Getter] = paths.getter) -> compiler.Compiled:
        operands = [operand.compile(reader) for operand in self.operands]
        if self.op == "and":
            return compiler.all_of(operands)
        if self.op == "or":
            return compiler.any_of(operands)
        left, right = operands
        if self.op in functions.ARITHMETIC:
            return compiler.call(functions.ARITHMETIC[self.op], [left, right])
        test = functions.COMPARISONS[self.op]
        if isinstance(self.right, Literal):
            return compiler.compare_with(test, left, self.right.value)
        return compiler.compare(test, left, right)

    def __str__(self) -> str:
        first, *others = self.operands
        # From the left without parentheses; but a comparison of a comparison has them on both sides.
        left = first._inside(self.binding + (self.binding == COMPARE))
        return f" {self.op} ".join([left, *(operand._inside(self.binding + 1) for operand in others)])


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Unary(Expr):
    """One operand and ``-``, ``not``, ``is null`` or ``is not null``."""

    op: str
    operand: Expr

    def __post_init__(self) -> None:
        if self.op not in compiler.UNARY:
            raise ExpressionError(
                f"no operator {self.op!r} of one value; there are {', '.join(compiler.UNARY)}"
            )
        self._settle()

    @property
    def children(self) -> tuple[Expr, ...]:
        return (self.operand,)

    @property
    def label(self) -> object:
        return self.op

    @property
    def binding(self) -> int:
        return {"-": NEGATE, "not": NOT}.get(self.op, COMPARE)

    def compile(self, reader: Callable[[str], paths.Getter] = paths.getter) -> compiler.Compiled:
        return compiler.call(compiler.UNARY[self.op], [self.operand.compile(reader)])

    def __str__(self) -> str:
        if self.op == "not":
            return f"not {self.operand._inside(NOT)}"
        if self.op != "-":
            return f"{self.operand._inside(ADD)} {self.op}"
        # -5 is a literal; minus of a literal is something else.
        return (
            f"-({self.operand})" if isinstance(self.operand, Literal) else f"-{self.operand._inside(NEGATE)}"
        )


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Call(Expr):
    """A function of ``values.FUNCTIONS`` and its arguments."""

    name: str
    arguments: tuple[Expr, ...]

    def __post_init__(self) -> None:
        function = functions.FUNCTIONS.get(self.name)
        if function is None:
            raise ExpressionError(f"no function {self.name!r}; there are {', '.join(functions.FUNCTIONS)}")
        given = len(self.arguments)
        if given < function.least or (function.most is not None and given > function.most):
            raise ExpressionError(f"{self.name} takes {function.takes}, not {given}")
        if function.prepared:
            self._prepared(function)
        self._settle()

    @property
    def children(self) -> tuple[Expr, ...]:
        return self.arguments

    @property
    def label(self) -> object:
        return self.name

    @property
    def binding(self) -> int:
        return COMPARE if self.name == "like" else ATOM

    def compile(self, reader: Callable[[str], paths.Getter] = paths.getter) -> compiler.Compiled:
        function = functions.FUNCTIONS[self.name]
        if function.prepared:
            return compiler.call(self._prepared(function), [self.arguments[0].compile(reader)])
        return compiler.call(function.call, [argument.compile(reader) for argument in self.arguments])

    def _prepared(self, function: functions.Function) -> compiler.Compiled:
        constants: list[Plain] = []
        for argument in self.arguments[1:]:
            if not isinstance(argument, Literal):
                raise ExpressionError(
                    f"{self.name} takes {argument} only as a constant; write the value itself"
                )
            constants.append(argument.value)
        try:
            prepared: compiler.Compiled = function.call(*constants)
        except ConfigError as error:
            raise ExpressionError(str(error)) from None
        return prepared

    def __str__(self) -> str:
        if self.name == "like":
            return " like ".join(argument._inside(ADD) for argument in self.arguments)
        return f"{self.name}({', '.join(map(str, self.arguments))})"


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class IsIn(Expr):
    """Whether the operand is one of some values."""

    operand: Expr
    options: tuple[Plain, ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "options", tuple(map(plain, self.options)))
        self._settle()

    @property
    def children(self) -> tuple[Expr, ...]:
        return (self.operand,)

    @property
    def label(self) -> object:
        return tuple((type(option), option) for option in self.options)

    @property
    def binding(self) -> int:
        return COMPARE

    def compile(self, reader: Callable[[str], paths.Getter] = paths.getter) -> compiler.Compiled:
        return compiler.one_of(self.operand.compile(reader), self.options)

    def __str__(self) -> str:
        return f"{self.operand._inside(ADD)} in ({', '.join(map(written, self.options))})"


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Case(Expr):
    """The value of the first branch whose condition is true, or else the default: see ``when``."""

    branches: tuple[tuple[Expr, Expr], ...]
    default: Expr

    def __post_init__(self) -> None:
        self._settle()

    def when(self, condition: Expr, value: Operand) -> Case:
        """One more branch, looked at when none before it was true."""
        return Case((*self.branches, (condition, lift(value))), self.default)

    def otherwise(self, value: Operand) -> Case:
        """The value when no branch is true; without it, null."""
        return Case(self.branches, lift(value))

    @property
    def children(self) -> tuple[Expr, ...]:
        return (*(part for branch in self.branches for part in branch), self.default)

    @property
    def label(self) -> object:
        return len(self.branches)

    def compile(self, reader: Callable[[str], paths.Getter] = paths.getter) -> compiler.Compiled:
        branches = [(condition.compile(reader), value.compile(reader)) for condition, value in self.branches]
        return compiler.first_true(branches, self.default.compile(reader))

    def __str__(self) -> str:
        branches = " ".join(f"when {condition} then {value}" for condition, value in self.branches)
        rest = (
            ""
            if isinstance(self.default, Literal) and self.default.value is None
            else f" else {self.default}"
        )
        return f"case {branches}{rest} end"


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Cast(Expr):
    """The operand as another type."""

    operand: Expr
    to: str

    def __post_init__(self) -> None:
        to = self.to.lower()
        to = functions.CAST_SYNONYMS.get(to, to)
        if to not in functions.CASTS:
            raise ExpressionError(f"no type {self.to!r}; there are {', '.join(functions.CASTS)}")
        object.__setattr__(self, "to", to)
        self._settle()

    @property
    def children(self) -> tuple[Expr, ...]:
        return (self.operand,)

    @property
    def label(self) -> object:
        return self.to

    def compile(self, reader: Callable[[str], paths.Getter] = paths.getter) -> compiler.Compiled:
        return compiler.call(functions.CASTS[self.to], [self.operand.compile(reader)])

    def __str__(self) -> str:
        return f"cast({self.operand} as {self.to})"


def col(path: str) -> Column:
    """What a record holds at ``path``: ``amount``, ``user.country``, ``items.0.price``.

    >>> col("user.country").evaluate({"user": {"country": "DE"}})
    'DE'
    """
    return Column(path)


def lit(value: Operand) -> Expr:
    """A constant, where Python needs to be told.

    >>> print(lit(1) / col("n"))
    1 / n
    """
    return lift(value)


def when(condition: Expr, value: Operand) -> Case:
    """A value that depends: ``when(…).when(…).otherwise(…)``.

    >>> size = when(col("n") > 100, "big").when(col("n") > 10, "medium").otherwise("small")
    >>> size.evaluate({"n": 50})
    'medium'
    """
    return Case(((condition, lift(value)),), Literal(None))


def coalesce(*choices: Operand) -> Call:
    """The first of them that is not null.

    >>> coalesce(col("nick"), col("name"), "nobody").evaluate({"name": "Ann"})
    'Ann'
    """
    return Call("coalesce", tuple(map(lift, choices)))


def to_timestamp(value: Operand, unit: str = "s") -> Call:
    """A text in ISO 8601 as a time; a number as ``s``, ``ms`` or ``us`` since 1970.

    >>> to_timestamp(col("ts"), "ms").evaluate({"ts": 1500})
    datetime.datetime(1970, 1, 1, 0, 0, 1, 500000, tzinfo=datetime.timezone.utc)
    """
    return Call("to_timestamp", (lift(value),) if unit == "s" else (lift(value), Literal(unit)))


def lift(value: Operand) -> Expr:
    """An expression as it is; a plain value as a literal."""
    return value if isinstance(value, Expr) else Literal(plain(value))
