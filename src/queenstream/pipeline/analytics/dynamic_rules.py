"""Steps that go by a set of rules which may change while they run (``rules`` says what a set is)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from queenstream.errors import ConfigError
from queenstream.pipeline.analytics.evaluator import Detecting, Matching, Part, Several
from queenstream.pipeline.analytics.matcher import EVENTS
from queenstream.pipeline.analytics.rolling import Held
from queenstream.pipeline.analytics.rules import Book, Kind, RuleSet, Version
from queenstream.pipeline.analytics.steps import Ordered


class Ruled:
    """Goes by the rules of a set, as they are at the moment. What a rule has seen stays while the rule does.

    A key's state has the number of the version that it was last looked at with: a process that knows only
    an older one asks, and if nobody answers leaves alone what it does not know.
    """

    def __init__(
        self,
        called: str,
        kind: Kind,
        *,
        events: int = EVENTS,
        everything: bool = False,
        book: Book | None = None,
    ) -> None:
        self._called = called
        self._kind: Kind = kind
        self._events = events
        self._everything = everything
        self._book = book
        self._known: Version | None = None
        self._several = Several({})

    def with_book(self, book: Book) -> Ruled:
        """The same, with where it finds its rules."""
        return Ruled(self._called, self._kind, events=self._events, everything=self._everything, book=book)

    def taken(self, record: Any) -> Any:
        return self._now().taken(record)

    def begin(self) -> Held:
        return {"version": 0, "rules": {}}

    def see(self, held: Held, at: int, taken: Any, key: Any) -> list[dict[str, Any]]:
        return self._fitted(held).see(held["rules"], at, taken, key)

    def reach(self, held: Held, at: int, key: Any) -> list[dict[str, Any]]:
        return self._fitted(held).reach(held["rules"], at, key)

    def due(self, held: Held) -> int | None:
        return self._several.due(held["rules"])

    def lasts_us(self) -> int | None:
        return self._several.lasts_us()

    def _fitted(self, held: Held) -> Several:
        """The rules of now; the state of those that are gone, goes."""
        several = self._now(held["version"])
        assert self._known is not None, "they have just been looked up"
        if held["version"] < self._known.number:
            several.forget_others(held["rules"])
            held["version"] = self._known.number
        return several

    def _now(self, at_least: int = 0) -> Several:
        if self._book is None:
            raise ConfigError(
                f"the rules {self._called!r} are with a broker; run the pipeline with one, or give the test "
                "driver a file: PipelineDriver(…, rules='rules.toml')"
            )
        found = self._book.current(at_least)
        if self._known is None or found.number != self._known.number:
            self._known = found
            self._several = several_of(
                found.rules, self._kind, events=self._events, everything=self._everything
            )
        return self._several


def several_of(rules: RuleSet, kind: Kind, *, events: int, everything: bool) -> Several:
    """The rules of one kind, ready to look."""
    parts: dict[str, Part] = {}
    longest = 0
    if kind == "patterns":
        for pattern in rules.patterns.values():
            matching = parts[pattern.identity] = Matching.of(pattern, events)
            longest = max(longest, matching.span_us)
    else:
        for anomaly in rules.anomalies.values():
            parts[anomaly.identity] = Detecting(anomaly, everything=everything)
            longest = max(longest, anomaly.detector().lasts_us)
    return Several(parts, longest)


def with_book(function: Callable[..., Any], book: Book) -> Ordered:
    """The function of a step that goes by rules, with where it finds them."""
    assert isinstance(function, Ordered), "other functions have no rules to find"
    assert isinstance(function.look, Ruled), "nor have steps that say them"
    return Ordered(function.look.with_book(book), function.grace_us)
