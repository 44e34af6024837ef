"""The constants of expressions: which there are, how they are kept and how they are written."""

from __future__ import annotations

import math
from datetime import date, datetime
from decimal import Decimal
from typing import TypeAlias

from queenstream.errors import ConfigError
from queenstream.pipeline.expr import functions

Plain: TypeAlias = bool | int | float | str | datetime | None
"""What a literal can hold."""


class ExpressionError(ConfigError):
    """An expression that cannot be; with the text it comes from, the message shows the place.

    >>> print(ExpressionError("expected a value", "amount >", 8))
    expected a value
      amount >
              ^
    """

    def __init__(self, message: str, text: str | None = None, position: int | None = None) -> None:
        shown = message if text is None or position is None else f"{message}\n{_excerpt(text, position)}"
        super().__init__(shown)
        self.message, self.text, self.position = message, text, position


def plain(value: object) -> Plain:
    """The value as a literal keeps it."""
    if value is None or isinstance(value, (bool, str)):
        return value
    if isinstance(value, int):
        if functions.LEAST <= value <= functions.GREATEST:
            return int(value)
        raise ExpressionError("a whole number of over 64 bits; write it as a float")
    if isinstance(value, (float, Decimal)):
        finite = value.is_finite() if isinstance(value, Decimal) else math.isfinite(value)
        if finite and math.isfinite(float(value)):
            return float(value)
        raise ExpressionError(
            f"{value} cannot be written as a number; cast it: lit('{value}').cast('double')"
        )
    if isinstance(value, datetime) and value.utcoffset() is None:
        raise ExpressionError(f"{value} has no time zone; write it with one, such as {value}+00:00")
    if isinstance(value, date) and (found := functions.instant(value)) is not None:
        return found
    raise ExpressionError(
        f"{value!r} cannot stand in an expression; use numbers, text, bools, times and None"
    )


def written(value: Plain) -> str:
    """Its text, as ``grammar.parse`` reads it."""
    if isinstance(value, str):
        return "'" + value.replace("'", "''") + "'"
    if isinstance(value, datetime):
        return f"timestamp '{value.isoformat().replace('+00:00', 'Z')}'"
    if value is None:
        return "null"
    return str(value).lower() if isinstance(value, bool) else repr(value)


def _excerpt(text: str, position: int) -> str:
    """The line of the position, or what fits of it, with a caret below the place."""
    start = text.rfind("\n", 0, position) + 1
    end = text.find("\n", position)
    end = len(text) if end < 0 else end
    low, high = max(start, position - 60), min(end, position + 30)
    before = ("..." if low > start else "") + text[low:position]
    after = text[position:high] + ("..." if high < end else "")
    # A tab is as wide as it is; a caret below it must not be.
    return f"  {before.replace(chr(9), ' ')}{after.replace(chr(9), ' ')}\n  {' ' * len(before)}^"
