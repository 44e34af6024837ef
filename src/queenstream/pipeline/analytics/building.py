"""The nodes of ``.anomalies(…)`` and ``.patterns(…)``: what they are told, checked and put together."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import Any, Literal, TypeAlias

from queenstream import durations
from queenstream.errors import ConfigError
from queenstream.pipeline import nodes
from queenstream.pipeline.analytics.detectors import Algorithm, Detector
from queenstream.pipeline.analytics.patterns import Pattern, Sequence, expressions, parse, thresholds
from queenstream.pipeline.analytics.steps import Anomalies, Look, Ordered, Patterns
from queenstream.pipeline.expressions import Column
from queenstream.pipeline.nodes import Node, Place
from queenstream.pipeline.policies import ErrorPolicy
from queenstream.schemas import Schema
from queenstream.windows import length_us

Shown: TypeAlias = Literal["anomalies", "scores"]

ANOMALY = Schema.of(
    "detector string, key variant, time timestamp, field string, algorithm string, value double, "
    "mean double, deviation double, score double, anomaly boolean"
)
MATCH = Schema.of("pattern string, key variant, start timestamp, end timestamp, value double, events variant")
_FADED = 20  # so many windows later nothing is left of a value that counts by its age


def anomalies(
    where: Place,
    inputs: tuple[Node, ...],
    name: str,
    policy: ErrorPolicy | None,
    *,
    field: str,
    algorithm: Algorithm,
    window: timedelta,
    threshold: float | None,
    min_samples: int,
    grace: timedelta,
    emit: Shown,
) -> nodes.Stateful:
    """The step that finds numbers unlike those before them."""
    window_us = length_us(window)
    detector = Detector(algorithm, window_us=window_us, threshold=threshold, min_samples=min_samples)
    name = name or f"anomalies:{field}"
    look = Anomalies(name, field, detector, everything=emit == "scores")
    faded = window * (_FADED if algorithm == "ewma" else 1)
    told = {
        "": f"{algorithm} of {field}, window {durations.format(window)}",
        "threshold": f"{detector.threshold:g}",
        "min_samples": str(min_samples),
    }
    column = Column(field)
    return _node(
        where, inputs, name or f"anomalies:{field}", policy, look, grace, faded, told, (column,), ANOMALY
    )


def patterns(
    where: Place,
    inputs: tuple[Node, ...],
    name: str,
    policy: ErrorPolicy | None,
    *,
    texts: Mapping[str, str],
    event: str,
    events: int,
    grace: timedelta,
) -> nodes.Stateful:
    """The step that finds patterns."""
    if not texts:
        raise ConfigError("patterns() names no pattern; write patterns(rapid='COUNT(*) > 10 IN 30s')")
    if isinstance(events, bool) or events < 1:
        raise ConfigError(f"events is {events}; give at least 1")
    parsed = [parse(text, event) for text in texts.values()]
    longest = timedelta(microseconds=max(map(_length_us, parsed)))
    reads = tuple(expr for pattern in parsed for expr in expressions(pattern))
    look = Patterns(texts, event=event, events=events)
    told = {name: " ".join(text.split()) for name, text in texts.items()}
    return _node(where, inputs, name, policy, look, grace, longest, told, reads, MATCH)


def _node(
    where: Place,
    inputs: tuple[Node, ...],
    name: str,
    policy: ErrorPolicy | None,
    look: Look,
    grace: timedelta,
    lasts: timedelta,
    told: Mapping[str, str],
    reads: tuple[Any, ...],
    schema: Schema,
) -> nodes.Stateful:
    ordered = Ordered(look, length_us(grace))
    late = {"grace": durations.format(grace)} if grace else {}
    return nodes.Stateful(
        where=where,
        inputs=inputs,
        function=ordered,
        on_timer=ordered.on_timer,
        # Then a key is as if it had never been.
        ttl=lasts + grace + timedelta(seconds=1),
        grace=grace,
        schema=schema,
        looks=tuple({**told, **late}.items()),
        reads=reads,
        name=name,
        on_error=policy,
    )


def _length_us(pattern: Pattern) -> int:
    if isinstance(pattern, Sequence):
        return pattern.within_us
    return max(each.span_us for each in thresholds(pattern))
