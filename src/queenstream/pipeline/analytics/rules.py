"""Rules that change while a pipeline runs: named sets of them, as a file says them and a broker keeps them.

    [fraud]
    event = "action"        # the field that a bare name in a sequence is a value of; "type", if not said

    [fraud.patterns]
    rapid = "COUNT(*) > 10 IN 30s WHERE action = 'click'"
    left = "login THEN NOT purchase WITHIN 5m"

    [fraud.anomalies.spend]
    field = "amount"
    window = "10m"
    algorithm = "mad"       # zscore, if not said
    threshold = 5
    min_samples = 20
    where = "action = 'pay'"

A rule's state goes by what the rule is (``identity``): a pattern by its name and text; an anomaly by its
name, field, algorithm, window and condition. Its threshold and how many must have come before can be turned,
and it goes on with what it has seen.

>>> fraud = RuleSet.of({"patterns": {"rapid": "COUNT(*) > 10 IN 30s"}})
>>> [(change.rule, change.verdict) for change in changes(fraud, RuleSet())]
[('rapid', 'removed')]
"""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, TypeAlias, TypeVar, cast

from queenstream.core import durations
from queenstream.core.windows import length_us
from queenstream.errors import ConfigError
from queenstream.pipeline.analytics.detectors import Algorithm, Detector
from queenstream.pipeline.analytics.patterns import Sequence, parse
from queenstream.pipeline.expr.parser import parse as parse_expression

MOST_RULES = 200
"""How many patterns, and how many anomalies, a set may have."""
MOST_TEXT = 10_000
"""How many characters a pattern or a condition may have."""

Kind: TypeAlias = Literal["patterns", "anomalies"]
Verdict: TypeAlias = Literal["new", "changed", "tuned", "kept", "removed"]

R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class PatternRule:
    """A pattern; ``event`` is its set's."""

    name: str
    text: str
    event: str = "type"

    @property
    def identity(self) -> str:
        """What its state goes by."""
        by = f" by {self.event}" if isinstance(parse(self.text, self.event), Sequence) else ""
        return f"{self.name}: {self.text}{by}"

    def __str__(self) -> str:
        return " ".join(self.text.split())


@dataclass(frozen=True, slots=True)
class AnomalyRule:
    """What ``.anomalies(…)`` takes, under a name; ``where``: only of such records."""

    name: str
    field: str
    window: str
    algorithm: Algorithm = "zscore"
    threshold: float | None = None
    min_samples: int = 10
    where: str | None = None

    @property
    def window_us(self) -> int:
        """The window in microseconds."""
        return length_us(durations.parse(self.window))

    @property
    def identity(self) -> str:
        """What its state goes by."""
        where = "" if self.where is None else f" where {self.where}"
        return f"{self.name}: {self.algorithm} of {self.field}, window {self.window_us}{where}"

    def detector(self) -> Detector:
        """What judges."""
        return Detector(
            self.algorithm,
            window_us=self.window_us,
            threshold=self.threshold,
            min_samples=self.min_samples,
        )

    def __str__(self) -> str:
        where = "" if self.where is None else f" where {self.where}"
        return (
            f"{self.algorithm} of {self.field}{where}, window {self.window}, "
            f"threshold {self.detector().threshold:g}, min_samples {self.min_samples}"
        )


Rule: TypeAlias = PatternRule | AnomalyRule


@dataclass(frozen=True, slots=True)
class RuleSet:
    """The rules of a set by name. Every one was read and checked when the set was made."""

    patterns: Mapping[str, PatternRule] = field(default_factory=dict)
    anomalies: Mapping[str, AnomalyRule] = field(default_factory=dict)
    event: str = "type"

    @classmethod
    def of(cls, definition: object, called: str = "rules") -> RuleSet:
        """The set that a part of a file, or an answer of the broker, says.

        >>> RuleSet.of({"patterns": {"rapid": "COUNT(*) > 10"}}, "a")
        Traceback (most recent call last):
        queenstream.errors.ConfigError: a.patterns.rapid: expected IN and a span such as 30s, found the end
          COUNT(*) > 10
                       ^
        """
        said = _table(definition, called, ("event", "patterns", "anomalies"))
        event = _text(said.get("event") or "type", f"{called}.event")
        patterns = _rules(said, called, "patterns", lambda name, rule, at: _pattern(name, rule, at, event))
        return cls(patterns, _rules(said, called, "anomalies", _anomaly), event)

    def definition(self) -> dict[str, Any]:
        """The inverse of ``of``, made of plain values."""
        return {
            "event": self.event,
            "patterns": {rule.name: rule.text for rule in self.patterns.values()},
            "anomalies": {rule.name: _said(rule) for rule in self.anomalies.values()},
        }

    @property
    def rules(self) -> list[tuple[Kind, Rule]]:
        """All of them, each with its kind."""
        return [
            *(("patterns", rule) for rule in self.patterns.values()),
            *(("anomalies", rule) for rule in self.anomalies.values()),
        ]


@dataclass(frozen=True, slots=True)
class RuleChange:
    """What becomes of one rule. ``changed``: it begins anew; ``tuned``: it goes on with its state."""

    kind: Kind
    rule: str
    verdict: Verdict
    says: str


def changes(before: RuleSet, after: RuleSet) -> list[RuleChange]:
    """What becomes of each rule: those of the new set first, then those that are gone."""
    old = {(kind, rule.name): rule for kind, rule in before.rules}
    found = []
    for kind, rule in after.rules:
        found.append(RuleChange(kind, rule.name, _verdict(old.pop((kind, rule.name), None), rule), str(rule)))
    found += [RuleChange(kind, name, "removed", str(rule)) for (kind, name), rule in old.items()]
    return found


def _verdict(old: Rule | None, new: Rule) -> Verdict:
    if old is None:
        return "new"
    if old.identity != new.identity:
        return "changed"
    return "kept" if str(old) == str(new) else "tuned"


def read_file(text: str, called: str = "the rules file") -> dict[str, RuleSet]:
    """The sets of a file.

    >>> sorted(read_file("[fraud.patterns]\\nrapid = 'COUNT(*) > 10 IN 30s'"))
    ['fraud']
    """
    try:
        found = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{called} is no TOML: {error}; see docs/analytics.md for how it looks") from None
    if not found:
        raise ConfigError(f"{called} has no set of rules; write [fraud.patterns] and a pattern below it")
    for name, part in found.items():
        if not isinstance(part, dict):
            raise ConfigError(f"{name!r} stands outside of a set; write [{name}] or put it under one")
        if not 1 <= len(name) <= 255:
            raise ConfigError(f"the name of a set has {len(name)} characters; give it 1 to 255")
    return {name: RuleSet.of(part, name) for name, part in found.items()}


# Books: where a step finds its rules


@dataclass(frozen=True, slots=True)
class Version:
    """A set of rules as it was from some time on; a later version has a higher number."""

    number: int
    rules: RuleSet


class Book(Protocol):
    """Knows the rules of one set."""

    def current(self, at_least: int = 0) -> Version:
        """The newest version that is known; ``at_least``: somebody has seen that one already."""
        ...


@dataclass(slots=True)
class FixedBook:
    """Rules that somebody holds: for tests, and for trying them out.

    >>> FixedBook(RuleSet()).current().number
    1
    """

    rules: RuleSet
    number: int = 1

    def current(self, at_least: int = 0) -> Version:  # noqa: ARG002 - there is nothing else to look at
        """These rules."""
        return Version(self.number, self.rules)


# Reading


def _table(value: object, called: str, known: tuple[str, ...]) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise ConfigError(f"{called} is no table; write [{called}] and {', '.join(known)} below it")
    unknown = [name for name in value if name not in known]
    if unknown:
        raise ConfigError(f"{called} has {unknown[0]!r}; it knows {', '.join(known)}")
    return value


def _rules(
    said: Mapping[str, Any], called: str, kind: Kind, read: Callable[[str, object, str], R]
) -> dict[str, R]:
    given = said.get(kind, {})
    if not isinstance(given, dict):
        raise ConfigError(f"{called}.{kind} is no table; write [{called}.{kind}] and a rule below it")
    if len(given) > MOST_RULES:
        raise ConfigError(f"{called}.{kind} has {len(given)} rules; make several sets, {MOST_RULES} in each")
    found = {}
    for name, rule in given.items():
        at = f"{called}.{kind}.{name}"
        if not 1 <= len(name) <= 255:
            raise ConfigError(f"{at}: a rule's name has 1 to 255 characters")
        try:
            found[name] = read(name, rule, at)
        except ConfigError as error:
            told = str(error)
            raise ConfigError(told if told.startswith(at) else f"{at}: {told}") from None
    return found


def _pattern(name: str, rule: object, at: str, event: str) -> PatternRule:
    text = _text(rule, at)
    parse(text, event)
    return PatternRule(name, text, event)


_SAID = ("field", "window", "algorithm", "threshold", "min_samples", "where")


def _anomaly(name: str, rule: object, at: str) -> AnomalyRule:
    said = {each: value for each, value in _table(rule, at, _SAID).items() if value is not None}
    for needed in ("field", "window"):
        if needed not in said:
            example = {"field": "'temperature'", "window": "'10m'"}[needed]
            raise ConfigError(f"{at} has no {needed}; add {needed} = {example}")
    threshold = said.get("threshold")
    if threshold is not None and (isinstance(threshold, bool) or not isinstance(threshold, int | float)):
        raise ConfigError(f"{at}.threshold is {threshold!r}; give a number above 0")
    samples = said.get("min_samples", 10)
    if isinstance(samples, bool) or not isinstance(samples, int):
        raise ConfigError(f"{at}.min_samples is {samples!r}; give a whole number")
    where = None if "where" not in said else _text(said["where"], f"{at}.where")
    if where is not None:
        parse_expression(where)
    found = AnomalyRule(
        name,
        _text(said["field"], f"{at}.field"),
        _text(said["window"], f"{at}.window"),
        cast(Algorithm, _text(said.get("algorithm", "zscore"), f"{at}.algorithm")),
        None if threshold is None else float(threshold),
        samples,
        where,
    )
    found.detector()  # says what is wrong with the rest
    return found


def _said(rule: AnomalyRule) -> dict[str, Any]:
    said = {name: getattr(rule, name) for name in _SAID}
    return {name: value for name, value in said.items() if value is not None}


def _text(value: object, at: str) -> str:
    if not isinstance(value, str) or not value.strip():
        raise ConfigError(f"{at} is {value!r}; write a text")
    if len(value) > MOST_TEXT:
        raise ConfigError(f"{at} has {len(value)} characters; write at most {MOST_TEXT}")
    return value.strip()
