"""The operators and methods of expressions: ``col("a") > 1``, ``.lower()``, ``.plus("5m")``.

They only name what is meant; ``expressions`` has the nodes that they make.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import timedelta
from typing import TYPE_CHECKING

from queenstream.core import durations

if TYPE_CHECKING:
    from queenstream.pipeline.expr.expressions import Expr, Operand, Plain


class Fluent:
    """What one writes behind an expression. Times are in UTC."""

    __slots__ = ()

    def _binary(self, op: str, other: Operand, *, swapped: bool = False) -> Expr:
        raise NotImplementedError

    def _unary(self, op: str) -> Expr:
        raise NotImplementedError

    def _call(self, name: str, *others: Operand) -> Expr:
        raise NotImplementedError

    def _is_in(self, options: Iterable[Plain]) -> Expr:
        raise NotImplementedError

    def _cast(self, to: str) -> Expr:
        raise NotImplementedError

    # Comparisons and logic

    def __hash__(self) -> int:
        return object.__hash__(self)

    def __eq__(self, other: Operand) -> Expr:  # type: ignore[override]
        return self._binary("=", other)

    def __ne__(self, other: Operand) -> Expr:  # type: ignore[override]
        return self._binary("!=", other)

    def __lt__(self, other: Operand) -> Expr:
        return self._binary("<", other)

    def __le__(self, other: Operand) -> Expr:
        return self._binary("<=", other)

    def __gt__(self, other: Operand) -> Expr:
        return self._binary(">", other)

    def __ge__(self, other: Operand) -> Expr:
        return self._binary(">=", other)

    def __and__(self, other: Expr | bool) -> Expr:
        return self._binary("and", other)

    def __rand__(self, other: bool) -> Expr:
        return self._binary("and", other, swapped=True)

    def __or__(self, other: Expr | bool) -> Expr:
        return self._binary("or", other)

    def __ror__(self, other: bool) -> Expr:
        return self._binary("or", other, swapped=True)

    def __invert__(self) -> Expr:
        return self._unary("not")

    def is_null(self) -> Expr:
        """Whether there is no value."""
        return self._unary("is null")

    def is_not_null(self) -> Expr:
        """Whether there is a value."""
        return self._unary("is not null")

    def is_in(self, options: Iterable[Plain]) -> Expr:
        """Whether it is one of these values; of none, it is not.

        >>> col("country").is_in(["DE", "FR"]).evaluate({"country": "IT"})
        False
        """
        return self._is_in(options)

    def between(self, low: Operand, high: Operand) -> Expr:
        """Whether it is ``low`` or more and ``high`` or less."""
        return (self >= low) & (self <= high)

    # Arithmetic

    def __add__(self, other: Expr | float) -> Expr:
        return self._binary("+", other)

    def __radd__(self, other: float) -> Expr:
        return self._binary("+", other, swapped=True)

    def __sub__(self, other: Expr | float) -> Expr:
        return self._binary("-", other)

    def __rsub__(self, other: float) -> Expr:
        return self._binary("-", other, swapped=True)

    def __mul__(self, other: Expr | float) -> Expr:
        return self._binary("*", other)

    def __rmul__(self, other: float) -> Expr:
        return self._binary("*", other, swapped=True)

    def __truediv__(self, other: Expr | float) -> Expr:
        return self._binary("/", other)

    def __rtruediv__(self, other: float) -> Expr:
        return self._binary("/", other, swapped=True)

    def __mod__(self, other: Expr | float) -> Expr:
        return self._binary("%", other)

    def __rmod__(self, other: float) -> Expr:
        return self._binary("%", other, swapped=True)

    def __neg__(self) -> Expr:
        return self._unary("-")

    def abs(self) -> Expr:
        """The number without its sign."""
        return self._call("abs")

    def round(self, digits: int = 0) -> Expr:
        """Rounded to so many digits behind the point, halves away from zero.

        >>> col("x").round(1).evaluate({"x": 0.25})
        0.3
        """
        return self._call("round", *([digits] if digits else []))

    def floor(self) -> Expr:
        """The next whole number below."""
        return self._call("floor")

    def ceil(self) -> Expr:
        """The next whole number above."""
        return self._call("ceil")

    def cast(self, to: str) -> Expr:
        """As ``int``, ``double``, ``text``, ``bool`` or ``timestamp``; null, if it cannot be read as one.

        >>> col("n").cast("int").evaluate({"n": " 42 "})
        42
        """
        return self._cast(to)

    # Text

    def like(self, pattern: str) -> Expr:
        """Whether the text fits: ``%`` stands for any text, ``_`` for one character, a backslash before them.

        >>> col("name").like("A%n_").evaluate({"name": "Anna"})
        True
        """
        return self._call("like", pattern)

    def contains(self, part: Expr | str) -> Expr:
        """Whether ``part`` is somewhere in the text."""
        return self._call("contains", part)

    def starts_with(self, part: Expr | str) -> Expr:
        """Whether the text starts with ``part``."""
        return self._call("starts_with", part)

    def ends_with(self, part: Expr | str) -> Expr:
        """Whether the text ends with ``part``."""
        return self._call("ends_with", part)

    def lower(self) -> Expr:
        """In small letters."""
        return self._call("lower")

    def upper(self) -> Expr:
        """In capital letters."""
        return self._call("upper")

    def trim(self) -> Expr:
        """Without the spaces around it."""
        return self._call("trim")

    def length(self) -> Expr:
        """How many characters."""
        return self._call("length")

    def substring(self, start: Expr | int, length: Expr | int | None = None) -> Expr:
        """``length`` characters from ``start`` on; the first is 1, the last -1.

        >>> col("id").substring(1, 2).evaluate({"id": "DE-42"})
        'DE'
        """
        return self._call("substring", start, *([] if length is None else [length]))

    def concat(self, *others: Expr | str) -> Expr:
        """This text and the others, in a row; null, if one of them is none.

        >>> col("a").concat("-", col("b")).evaluate({"a": "x", "b": "y"})
        'x-y'
        """
        return self._call("concat", *others)

    # Time, in UTC

    def year(self) -> Expr:
        """The year of a time."""
        return self._call("year")

    def month(self) -> Expr:
        """The month of a time, 1 to 12."""
        return self._call("month")

    def day(self) -> Expr:
        """The day of the month."""
        return self._call("day")

    def hour(self) -> Expr:
        """The hour of a time, 0 to 23."""
        return self._call("hour")

    def minute(self) -> Expr:
        """The minute of a time."""
        return self._call("minute")

    def weekday(self) -> Expr:
        """The day of the week: Monday is 0, Sunday 6."""
        return self._call("weekday")

    def plus(self, duration: str | float | timedelta) -> Expr:
        """A time, later by ``duration``.

        >>> print(col("ts").plus("90s"))
        plus(ts, '90s')
        """
        return self._call("plus", durations.format(durations.parse(duration)))

    def minus(self, duration: str | float | timedelta) -> Expr:
        """A time, earlier by ``duration``."""
        return self._call("minus", durations.format(durations.parse(duration)))
