"""The verbs ``.anomalies`` and ``.patterns``, a part of ``Pipeline``."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Generic, TypeVar, get_args, overload

from queenstream.core import durations
from queenstream.errors import ConfigError
from queenstream.pipeline import arguments
from queenstream.pipeline.analytics import nodes
from queenstream.pipeline.analytics.detectors import Algorithm
from queenstream.pipeline.analytics.matcher import EVENTS
from queenstream.pipeline.analytics.nodes import Shown
from queenstream.pipeline.endpoints import Record
from queenstream.pipeline.expr.expressions import Expr, lit
from queenstream.pipeline.plan.lineage import parts_of
from queenstream.pipeline.plan.nodes import Node, caller
from queenstream.pipeline.policies import Duration, OnError

if TYPE_CHECKING:
    from queenstream.pipeline.builder import Pipeline

T = TypeVar("T")


class AnalyticsVerbs(Generic[T]):
    """What ``Pipeline`` adds to itself by these verbs."""

    __slots__ = ()

    def key_by(
        self, *paths: str | Expr | Callable[[T], object], **named: str | Expr | Callable[[T], object]
    ) -> Pipeline[T]:
        """What the next steps group by."""
        raise NotImplementedError

    def _inputs(self) -> tuple[Node, ...]:
        raise NotImplementedError

    def _then(self, node: Node) -> Pipeline[Any]:
        raise NotImplementedError

    @overload
    def anomalies(
        self,
        field: str,
        *,
        window: Duration,
        algorithm: Algorithm = "zscore",
        threshold: float | None = None,
        by: str | Expr | Callable[[T], object] | None = None,
        min_samples: int = 10,
        grace: Duration = 0,
        emit: Shown = "anomalies",
        name: str | None = None,
        on_error: OnError | None = None,
    ) -> Pipeline[Record]: ...
    @overload
    def anomalies(
        self,
        *,
        rules: str,
        by: str | Expr | Callable[[T], object] | None = None,
        grace: Duration = 0,
        emit: Shown = "anomalies",
        name: str | None = None,
        on_error: OnError | None = None,
    ) -> Pipeline[Record]: ...
    def anomalies(
        self,
        field: str | None = None,
        *,
        window: Duration | None = None,
        algorithm: Algorithm | None = None,
        threshold: float | None = None,
        by: str | Expr | Callable[[T], object] | None = None,
        min_samples: int | None = None,
        grace: Duration = 0,
        emit: Shown = "anomalies",
        rules: str | None = None,
        name: str | None = None,
        on_error: OnError | None = None,
    ) -> Pipeline[Record]:
        """A row for each number that is unlike those before it: value, mean, deviation, score, key, time.

        ``algorithm``: zscore, mad, iqr or ewma (``pipeline.analytics.detectors`` says how they judge), of the
        last ``window`` of event time, for each key. ``threshold``: the score above which a number is unusual.
        ``min_samples``: how many must have come before. ``emit="scores"`` gives a row for every number.
        ``rules``: a set that the broker keeps says all that, and may change while the pipeline runs.

            .anomalies("temperature", by="sensor", window="10m", threshold=4)
            .anomalies(rules="sensors", by="sensor")
        """
        arguments.choice("emit", emit, get_args(Shown))
        step, keyed = self._looking(by, name, grace, on_error)
        if rules is not None:
            arguments.refuse_beside_rules("anomalies", field, window, algorithm, threshold, min_samples)
            return keyed._then(nodes.ruled(step, "anomalies", rules=rules, emit=emit))
        if field is None or window is None:
            raise ConfigError(
                "anomalies() needs a field and a window: anomalies('temperature', window='10m')"
            )
        return keyed._then(
            nodes.anomalies(
                step,
                field=field,
                algorithm=algorithm or "zscore",
                window=durations.parse(window),
                threshold=threshold,
                min_samples=10 if min_samples is None else min_samples,
                emit=emit,
            )
        )

    def patterns(
        self,
        texts: Mapping[str, str] | None = None,
        *,
        by: str | Expr | Callable[[T], object] | None = None,
        event: str | None = None,
        events: int = EVENTS,
        grace: Duration = 0,
        rules: str | None = None,
        step_name: str | None = None,
        on_error: OnError | None = None,
        **named: str,
    ) -> Pipeline[Record]:
        """A row for each pattern that is found: its name, key, start and end, value, and its last events.

        ``pipeline.analytics.patterns`` says what can be written. ``event``: the field that a bare name in a
        sequence is a value of (``type``, if not said). ``events``: how many records a row shows. ``rules``:
        the patterns are those of a set that the broker keeps, and may change while the pipeline runs.

            .patterns(rapid="COUNT(*) > 10 IN 30s WHERE action = 'click'", by="user_id")
            .patterns({"left": "login THEN NOT purchase WITHIN 5m"}, by="user_id", event="action")
            .patterns(rules="fraud", by="user_id")
        """
        step, keyed = self._looking(by, step_name, grace, on_error)
        if rules is not None:
            arguments.refuse_beside_rules("patterns", texts or None, named or None, event)
            return keyed._then(nodes.ruled(step, "patterns", rules=rules, events=events))
        said = {**(texts or {}), **named}
        return keyed._then(nodes.patterns(step, texts=said, event=event or "type", events=events))

    def _looking(
        self,
        by: str | Expr | Callable[[T], object] | None,
        name: str | None,
        grace: Duration,
        on_error: OnError | None,
    ) -> tuple[nodes.Told, AnalyticsVerbs[T]]:
        """What a step that looks for something is told, and what it follows."""
        keyed = self._keyed(by)
        policy = arguments.policy(on_error)
        told = nodes.Told(caller(), keyed._inputs(), name or "", policy, durations.parse(grace))
        return told, keyed

    def _keyed(self, by: str | Expr | Callable[[T], object] | None) -> AnalyticsVerbs[T]:
        """By that key; else by the one there is, or all together."""
        if by is not None:
            return self.key_by(by)
        return self if any(map(parts_of, self._inputs())) else self.key_by(all=lit("all"))
