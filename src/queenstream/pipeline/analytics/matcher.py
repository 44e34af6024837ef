"""Finding patterns in records that come in the order of time. What is kept in between is plain values.

>>> matcher = Matcher("clicks", parse("COUNT(*) > 2 IN 10s"))
>>> held = matcher.begin()
>>> [len(matcher.see(held, second * 1_000_000, {"n": second})) for second in range(5)]
[0, 0, 1, 0, 0]
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, Protocol

from queenstream.core import paths
from queenstream.core.records import short
from queenstream.pipeline.analytics.patterns import Condition, Pattern, Sequence, Threshold, parse
from queenstream.pipeline.analytics.patterns import thresholds as thresholds_of
from queenstream.pipeline.analytics.rolling import TOTALS, Held, Total

__all__ = ["Match", "Matcher", "parse"]

EVENTS = 10
"""How many of a match's records it shows, the last ones, unless said."""

RUNS = 100
"""How many beginnings of a sequence one key may have waiting; then the oldest gives way."""

_INFINITE = float("inf")
_COMPARE: dict[str, Callable[[float, float], bool]] = {
    ">": operator.gt,
    ">=": operator.ge,
    "<": operator.lt,
    "<=": operator.le,
    "=": operator.eq,
    "!=": operator.ne,
}


@dataclass(frozen=True, slots=True)
class Match:
    """A pattern was found in what happened from ``start`` to ``end``.

    ``value``: what the (first) aggregate came to; None for a sequence.
    """

    pattern: str
    start: int
    end: int
    value: float | None
    events: list[Any]


class _Finder(Protocol):
    """Finds one pattern."""

    def begin(self) -> Held: ...

    def check(self, record: Any) -> None: ...

    def see(self, held: Held, at: int, record: Any) -> list[Match]: ...

    def reach(self, held: Held, at: int) -> list[Match]: ...

    def due(self, held: Held) -> int | None: ...


class Matcher:
    """One pattern, under a name. ``events``: how many records a match shows."""

    def __init__(self, name: str, pattern: Pattern, events: int = EVENTS) -> None:
        self.name = name
        self.pattern = pattern
        self._finder: _Finder = (
            _Sequences(name, pattern, events)
            if isinstance(pattern, Sequence)
            else _Conditions(name, pattern, events)
        )

    def begin(self) -> Held:
        """Nothing seen yet."""
        return self._finder.begin()

    def check(self, record: Any) -> None:
        """Raises ``ValueError`` for a record that the pattern takes and cannot count."""
        self._finder.check(record)

    def see(self, held: Held, at: int, record: Any) -> list[Match]:
        """What is found with this record, and what became true before it by the time alone."""
        return self._finder.reach(held, at - 1) + self._finder.see(held, at, record)

    def reach(self, held: Held, at: int) -> list[Match]:
        """What is found when time is so far, and no more records come up to there."""
        return self._finder.reach(held, at)

    def due(self, held: Held) -> int | None:
        """When something may become true by the time alone."""
        return self._finder.due(held)


class _Conditions:
    """A condition over spans. It fires when it becomes true, and is ready again once it was false."""

    def __init__(self, name: str, pattern: Condition, events: int) -> None:
        self._name = name
        self._events = events
        self._thresholds = thresholds_of(pattern)
        self._holds = _compiled(pattern, iter(range(len(self._thresholds))))
        self._parts = [
            (
                each,
                None if each.field is None else paths.getter(each.field),
                None if each.where is None else each.where.compile(),
            )
            for each in self._thresholds
        ]
        self._of_numbers = [
            (each, read, fits)
            for each, read, fits in self._parts
            if read is not None and each.aggregate != "count"
        ]
        self._only_grows = pattern.only_grows
        self._longest_us = max(each.span_us for each in self._thresholds)

    def begin(self) -> Held:
        spans = [TOTALS.begin() for _ in self._thresholds]
        # What holds of nothing at all has not become true yet: it must have been false before.
        return {"spans": spans, "ready": not self._is_true({"spans": spans}), "events": []}

    def check(self, record: Any) -> None:
        for each, read, fits in self._of_numbers:
            if fits is not None and fits(record) is not True:
                continue
            if number_of(read(record)) is None:
                told = f"{each.aggregate.upper()}({each.field})"
                raise ValueError(
                    f"{self._name}: {each.field} is {short(read(record))}, and {told} takes numbers; "
                    f"mend the record, or write WHERE {each.field} is not null"
                )

    def see(self, held: Held, at: int, record: Any) -> list[Match]:
        found = self._leave(held, at)
        taken = False
        for (each, read, fits), span in zip(self._parts, held["spans"], strict=True):
            if fits is not None and fits(record) is not True:
                continue
            value = 1.0 if read is None else _counted(each, read(record))
            if value is not None:
                TOTALS.add(span, at, value)
                taken = True
        if taken:
            events = held["events"]
            events.append([at, record])
            del events[: -self._events]
            found += self._judged(held, at)
        return found

    def reach(self, held: Held, at: int) -> list[Match]:
        return [] if self._only_grows else self._leave(held, at)

    def due(self, held: Held) -> int | None:
        return None if self._only_grows else self._next(held)

    def _next(self, held: Held) -> int | None:
        """When the next record leaves a span."""
        leaving = [
            oldest + each.span_us
            for each, span in zip(self._thresholds, held["spans"], strict=True)
            if (oldest := TOTALS.oldest(span)) is not None
        ]
        return min(leaving, default=None)

    def _leave(self, held: Held, until: int) -> list[Match]:
        """Records leave their spans one after the other: what a condition is in between counts."""
        if self._only_grows:  # leaving can only make it false, and what is false at the end may fire again
            for each, span in zip(self._thresholds, held["spans"], strict=True):
                TOTALS.expire(span, until - each.span_us)
            held["ready"] = held["ready"] or not self._is_true(held)
            return []
        found: list[Match] = []
        while (at := self._next(held)) is not None and at <= until:
            for each, span in zip(self._thresholds, held["spans"], strict=True):
                TOTALS.expire(span, at - each.span_us)
            found += self._judged(held, at)
        return found

    def _judged(self, held: Held, at: int) -> list[Match]:
        totals = [TOTALS.total(span) for span in held["spans"]]
        if not self._holds(totals):
            held["ready"] = True
            return []
        if not held["ready"]:
            return []
        held["ready"] = False
        oldest = [time for span in held["spans"] if (time := TOTALS.oldest(span)) is not None]
        shown = [record for time, record in held["events"] if time > at - self._longest_us]
        value = _value(self._thresholds[0], totals[0])
        return [Match(self._name, min(oldest, default=at), at, value, shown)]

    def _is_true(self, held: Held) -> bool:
        return self._holds([TOTALS.total(span) for span in held["spans"]])


def _compiled(condition: Condition, places: Iterator[int]) -> Callable[[list[Total]], bool]:
    """Whether a condition is true, by the totals of its thresholds; ``places``: of these, left to right."""
    if isinstance(condition, Threshold):
        place, compare, number = next(places), _COMPARE[condition.comparison], condition.number

        def reached(totals: list[Total]) -> bool:
            value = _value(condition, totals[place])
            return value is not None and compare(value, number)

        return reached
    parts = [_compiled(part, places) for part in condition.parts]
    if condition.word == "not":
        return lambda totals: not parts[0](totals)
    together = all if condition.word == "and" else any
    return lambda totals: together(part(totals) for part in parts)


def _counted(threshold: Threshold, value: Any) -> float | None:
    """What a record adds; COUNT of a field takes whatever is there."""
    if threshold.aggregate == "count":
        return None if value is None else 1.0
    return number_of(value)


def _value(threshold: Threshold, totals: Total) -> float | None:
    """What the aggregate came to; the average, least and greatest of nothing are nothing."""
    number, total, low, high = totals
    if threshold.aggregate == "count":
        return number
    if threshold.aggregate == "sum":
        return total
    if not number:
        return None
    if threshold.aggregate == "avg":
        return total / number
    return low if threshold.aggregate == "min" else high


class _Sequences:
    """Steps that follow one another. A beginning that waits: its time, its next step, its records."""

    def __init__(self, name: str, pattern: Sequence, events: int) -> None:
        self._name = name
        self._within_us = pattern.within_us
        self._steps = [(step.where.compile(), step.never) for step in pattern.steps]
        self._events = events

    def begin(self) -> Held:
        return {"runs": []}

    def check(self, record: Any) -> None:
        """A sequence takes whatever comes."""

    def see(self, held: Held, at: int, record: Any) -> list[Match]:
        found: list[Match] = []
        going = []
        for run in held["runs"]:
            if self._goes_on(run, record):
                if run[1] == len(self._steps):
                    found.append(Match(self._name, run[0], at, None, run[2]))
                else:
                    going.append(run)
        if self._steps[0][0](record) is True:
            going.append([at, 1, [record]])
        held["runs"] = going[-RUNS:]
        return found

    def _goes_on(self, run: list[Any], record: Any) -> bool:
        """Whether a beginning still waits after a record, or is a match: then there is no next step."""
        _, at, events = run
        fits, never = self._steps[at]
        if never:
            if fits(record) is True:
                return False
            at += 1
            if at == len(self._steps):
                return True
            fits, _ = self._steps[at]
        if fits(record) is True:
            run[1] = at + 1
            events.append(record)
            del events[1 : 1 - self._events or None]  # the first one stays: it is why
        return True

    def reach(self, held: Held, at: int) -> list[Match]:
        """Those whose time is over: a match, if all that was left is what must not come."""
        over = [run for run in held["runs"] if run[0] + self._within_us <= at]
        if not over:
            return []
        held["runs"] = [run for run in held["runs"] if run[0] + self._within_us > at]
        last = len(self._steps) - 1
        return [
            Match(self._name, run[0], run[0] + self._within_us, None, run[2])
            for run in over
            if run[1] == last and self._steps[last][1]
        ]

    def due(self, held: Held) -> int | None:
        return held["runs"][0][0] + self._within_us if held["runs"] and self._steps[-1][1] else None


def number_of(value: Any) -> float | None:
    """A finite number, or None: everything else is passed over."""
    if type(value) is float:
        return value if abs(value) < _INFINITE else None
    if isinstance(value, bool) or not isinstance(value, int | float | Decimal):
        return None
    try:
        found = float(value)
    except OverflowError:
        return None
    return found if abs(found) < _INFINITE else None
