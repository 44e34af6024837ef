"""The nodes of ``.anomalies(…)`` and ``.patterns(…)``: what they are told, checked and put together."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Literal, TypeAlias

from queenstream.core import durations
from queenstream.core.schemas import Schema
from queenstream.core.windows import length_us
from queenstream.errors import ConfigError
from queenstream.pipeline.analytics.detectors import Algorithm, Detector
from queenstream.pipeline.analytics.dynamic_rules import Ruled
from queenstream.pipeline.analytics.evaluator import Several
from queenstream.pipeline.analytics.matcher import EVENTS
from queenstream.pipeline.analytics.patterns import expressions, numbers, parse
from queenstream.pipeline.analytics.patterns import length_us as pattern_us
from queenstream.pipeline.analytics.rules import Kind
from queenstream.pipeline.analytics.steps import Anomalies, Look, Ordered
from queenstream.pipeline.expr.expressions import Expr
from queenstream.pipeline.plan import nodes
from queenstream.pipeline.plan.nodes import Node, Place
from queenstream.pipeline.policies import ErrorPolicy

Shown: TypeAlias = Literal["anomalies", "scores"]

ANOMALY = Schema.of(
    "detector string, key variant, time timestamp, field string, algorithm string, value double, "
    "mean double, deviation double, score double, anomaly boolean"
)
MATCH = Schema.of("pattern string, key variant, start timestamp, end timestamp, value double, events variant")


@dataclass(frozen=True)
class Told:
    """What all these steps are told."""

    where: Place
    inputs: tuple[Node, ...]
    name: str
    policy: ErrorPolicy | None
    grace: timedelta


def anomalies(
    step: Told,
    *,
    field: str,
    algorithm: Algorithm,
    window: timedelta,
    threshold: float | None,
    min_samples: int,
    emit: Shown,
) -> nodes.Stateful:
    """The step that finds numbers unlike those before them."""
    detector = Detector(algorithm, window_us=length_us(window), threshold=threshold, min_samples=min_samples)
    step = replace(step, name=step.name or f"anomalies:{field}")
    look = Anomalies(step.name, field, detector, everything=emit == "scores")
    told = {
        "": f"{algorithm} of {field}, window {durations.format(window)}",
        "threshold": f"{detector.threshold:g}",
        "min_samples": str(min_samples),
    }
    return _node(step, look, told, ANOMALY, lasts_us=detector.lasts_us, numbers=(field,))


def patterns(step: Told, *, texts: Mapping[str, str], event: str, events: int) -> nodes.Stateful:
    """The step that finds patterns."""
    if not texts:
        raise ConfigError("patterns() names no pattern; write patterns(rapid='COUNT(*) > 10 IN 30s')")
    _check_events(events)
    parsed = [parse(text, event) for text in texts.values()]
    reads = tuple(expr for pattern in parsed for expr in expressions(pattern))
    taken = tuple(field for pattern in parsed for field in numbers(pattern))
    look = Several.of_patterns(texts, event=event, events=events)
    told = {name: " ".join(text.split()) for name, text in texts.items()}
    lasts_us = max(map(pattern_us, parsed))
    return _node(step, look, told, MATCH, lasts_us=lasts_us, reads=reads, numbers=taken)


def ruled(
    step: Told, kind: Kind, *, rules: str, events: int = EVENTS, emit: Shown = "anomalies"
) -> nodes.Stateful:
    """The step that goes by a set of rules, which a broker keeps."""
    if not rules.strip():
        raise ConfigError(f"{kind}(rules=…) names no set of rules; write {kind}(rules='fraud')")
    _check_events(events)
    look = Ruled(rules, kind, events=events, everything=emit == "scores")
    step = replace(step, name=step.name or f"{kind}:{rules}")
    schema = MATCH if kind == "patterns" else ANOMALY
    return _node(step, look, {"": f"{kind} of the rules {rules}"}, schema, rules=rules)


def _check_events(events: int) -> None:
    if isinstance(events, bool) or events < 1:
        raise ConfigError(f"events is {events}; give at least 1")


def _node(
    step: Told,
    look: Look,
    told: Mapping[str, str],
    schema: Schema,
    *,
    lasts_us: int | None = None,
    reads: tuple[Expr, ...] = (),
    numbers: tuple[str, ...] = (),
    rules: str | None = None,
) -> nodes.Stateful:
    ordered = Ordered(look, length_us(step.grace))
    late = {"grace": durations.format(step.grace)} if step.grace else {}
    return nodes.Stateful(
        where=step.where,
        inputs=step.inputs,
        function=ordered,
        on_timer=ordered.on_timer,
        # Then a key is as if it had never been. Where rules change, the step looks after it itself.
        ttl=None
        if lasts_us is None
        else timedelta(microseconds=lasts_us) + step.grace + timedelta(seconds=1),
        grace=step.grace,
        schema=schema,
        looks=tuple({**told, **late}.items()),
        reads=reads,
        numbers=numbers,
        rules=rules,
        name=step.name,
        on_error=step.policy,
    )
