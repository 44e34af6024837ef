"""Several rules over the same records, each with its own state: ``.patterns(…)`` and sets of rules."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from queenstream.core.records import moment
from queenstream.pipeline.analytics.matcher import EVENTS, Match, Matcher, parse
from queenstream.pipeline.analytics.patterns import length_us
from queenstream.pipeline.analytics.rolling import Held
from queenstream.pipeline.analytics.rules import AnomalyRule, PatternRule
from queenstream.pipeline.analytics.steps import Anomalies
from queenstream.pipeline.expr.parser import parse as parse_expression


class Part(Protocol):
    """One of several rules."""

    def check(self, record: Any) -> None:
        """Raises for a record that it takes and cannot count."""
        ...

    def begin(self) -> Held: ...

    def see(self, held: Held, at: int, record: Any, key: Any) -> list[dict[str, Any]]: ...

    def reach(self, held: Held, at: int, key: Any) -> list[dict[str, Any]]: ...

    def due(self, held: Held) -> int | None: ...


class Several:
    """Several rules over the same records. Each keeps its own state, under what it is."""

    def __init__(self, parts: Mapping[str, Part], lasts_us: int | None = None) -> None:
        self._parts = dict(parts)
        self._lasts_us = lasts_us

    @classmethod
    def of_patterns(cls, texts: Mapping[str, str], *, event: str = "type", events: int = EVENTS) -> Several:
        """The patterns of a pipeline that says them itself."""
        found = {
            f"{name}: {text}": Matching(Matcher(name, parse(text, event), events))
            for name, text in texts.items()
        }
        return cls(found)

    def taken(self, record: Any) -> Any:
        for part in self._parts.values():
            part.check(record)
        return record

    def begin(self) -> Held:
        return {}

    def see(self, held: Held, at: int, taken: Any, key: Any) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = []
        for name, part in self._parts.items():
            own = held.get(name)
            if own is None:
                own = held[name] = part.begin()
            found += part.see(own, at, taken, key)
        return found

    def reach(self, held: Held, at: int, key: Any) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = []
        for name, part in self._parts.items():
            if name in held:
                found += part.reach(held[name], at, key)
        return found

    def due(self, held: Held) -> int | None:
        dues = [part.due(held[name]) for name, part in self._parts.items() if name in held]
        return min((due for due in dues if due is not None), default=None)

    def lasts_us(self) -> int | None:
        return self._lasts_us

    def forget_others(self, held: Held) -> None:
        """Drop the state of rules that are not among these."""
        for name in [name for name in held if name not in self._parts]:
            del held[name]


class Matching:
    """A pattern as one of several rules."""

    def __init__(self, matcher: Matcher) -> None:
        self._matcher = matcher
        self.check = matcher.check
        self.begin = matcher.begin
        self.due = matcher.due

    @classmethod
    def of(cls, rule: PatternRule, events: int) -> Matching:
        """A pattern of a set."""
        return cls(Matcher(rule.name, parse(rule.text, rule.event), events))

    @property
    def span_us(self) -> int:
        """How far back it looks."""
        return length_us(self._matcher.pattern)

    def see(self, held: Held, at: int, record: Any, key: Any) -> list[dict[str, Any]]:
        return [_row(match, key) for match in self._matcher.see(held, at, record)]

    def reach(self, held: Held, at: int, key: Any) -> list[dict[str, Any]]:
        return [_row(match, key) for match in self._matcher.reach(held, at)]


class Detecting:
    """An anomaly as one of several rules: of the records that fit its condition."""

    def __init__(self, rule: AnomalyRule, *, everything: bool) -> None:
        self._name = rule.name
        self._look = Anomalies(rule.name, rule.field, rule.detector(), everything=everything)
        self._fits = None if rule.where is None else parse_expression(rule.where).compile()
        self.begin = self._look.begin
        self.reach = self._look.reach
        self.due = self._look.due

    def check(self, record: Any) -> None:
        if self._fits is None or self._fits(record) is True:
            try:
                self._look.taken(record)
            except ValueError as error:
                raise ValueError(f"{self._name}: {error}") from None

    def see(self, held: Held, at: int, record: Any, key: Any) -> list[dict[str, Any]]:
        if self._fits is not None and self._fits(record) is not True:
            return []
        value = self._look.number(record)
        # The record may have come before the rule did, which has not seen it yet.
        return [] if value is None else self._look.see(held, at, value, key)


def _row(match: Match, key: Any) -> dict[str, Any]:
    return {
        "pattern": match.pattern,
        "key": key,
        "start": moment(match.start),
        "end": moment(match.end),
        "value": match.value,
        "events": match.events,
    }
