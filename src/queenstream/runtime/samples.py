"""Samples of what steps give, for who looks into a run: a few rows of each, and only while somebody does.

>>> samples = Samples()
>>> samples.see("parse", [{"n": 1}])
>>> samples.rows()
{}
>>> samples.ask()
>>> samples.see("parse", [{"n": 1}, {"n": 2}])
>>> samples.rows()
{'parse': ['{"n":1}', '{"n":2}']}
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

ASKED_SECONDS = 20.0  # how long somebody's question keeps it at work
MOST_ROWS = 5  # of each step
MOST_CHARACTERS = 2_000  # of each row
MOST_STEPS = 100


class Samples:
    """The last rows of each step, as text. One thread sees rows, another may read them."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._until = 0.0
        self._rows: dict[str, list[str]] = {}
        self.on = False  # read for every batch of every step: an attribute, not a property

    def ask(self) -> None:
        """Somebody looks: keep rows for a while."""
        self._until = self._clock() + ASKED_SECONDS
        self.on = True

    def see(self, step: str, rows: Sequence[Any]) -> None:
        """A step gave these; the last of them are kept, if anybody looks."""
        if not self.on or not rows:
            return
        if self._clock() > self._until:
            self.on = False
            self._rows = {}
        elif step in self._rows or len(self._rows) < MOST_STEPS:
            self._rows[step] = [as_text(row) for row in rows[-MOST_ROWS:]]

    def keep(self, step: str, rows: Sequence[str]) -> None:
        """Rows of a step that are text already."""
        if step in self._rows or len(self._rows) < MOST_STEPS:
            self._rows[step] = list(rows[-MOST_ROWS:])

    def rows(self) -> dict[str, list[str]]:
        """What was kept last, by step."""
        return dict(self._rows)


def as_text(row: Any) -> str:
    """A row as JSON, or as Python shows it if it cannot be; cut, if it is long.

    >>> as_text({"at": 1, "who": {"b", "b"}}), as_text(object)
    ('{"at":1,"who":["b"]}', "<class 'object'>")
    """
    try:
        text = msgspec.json.encode(row, enc_hook=repr).decode()
        text = text if not isinstance(row, type) else repr(row)
    except Exception:  # noqa: BLE001 - a user's object may do anything when it is shown
        text = f"({type(row).__name__}, which cannot be shown)"
    return text if len(text) <= MOST_CHARACTERS else f"{text[: MOST_CHARACTERS - 1]}…"
