"""``--where`` and ``--matching``: which messages a command is about."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from queenstream.cli.support.output import fields_of

Predicate = Callable[[object], bool]


def predicate(expression: str | None) -> Predicate:
    """Whether a message fits the expression; without one, every message does.

    The expression sees what ``-o json`` prints: ``data.amount > 100 and partition = 'ann'``.

    >>> predicate("data.amount > 100")({"data": {"amount": 101}})
    True
    """
    if expression is None:
        return lambda _: True
    from queenstream.pipeline.expr import parser

    fits: Callable[[Any], Any] = parser.parse(expression).compile()
    # As in SQL: what is neither true nor false, because something is missing, does not fit.
    return lambda message: fits(fields_of(message)) is True
