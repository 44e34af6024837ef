"""The figures of a pipeline's run: what they are called and what they say, the same wherever they are shown.

Both engines count under these names, ``get_stats()`` gives them, the broker stores them, and Prometheus gets
them as ``queen_pipeline_<name>``, those of a step as ``queen_pipeline_step_<name>``; so are sinks and
phases.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from prometheus_client.metrics_core import Metric

GAUGES = {
    "messages_per_second": "Records taken from the sources per second, over the last ten.",
    "latency_p50_ms": "Median time of a record from source to sinks, in milliseconds.",
    "latency_p95_ms": "95th percentile of the same.",
    "latency_p99_ms": "99th percentile of the same.",
    "error_rate": "Share of records that a step failed on, in percent.",
    "queue_depth": "Records that the sources have and that were not taken yet.",
    "watermark_lag_seconds": "How far the watermark is behind the clock.",
    "live": "1 once the pipeline has caught up with its sources.",
    "uptime_seconds": "How long the run has lasted.",
}
COUNTERS = {
    "messages": "Records taken from the sources.",
    "errors": "Records that a step failed on.",
    "retries": "Further tries of steps that failed.",
    "late": "Records that came too late for a step.",
    "dead_letters": "Records that went to the dead letters.",
    "dropped": "Records dropped by backpressure.",
}
# Only where there is such a thing: on Spark.
SOME_GAUGES = {
    "batch_duration_p50_ms": "Median time of a batch, in milliseconds.",
    "batch_duration_p95_ms": "95th percentile of the same.",
    "batch_duration_p99_ms": "99th percentile of the same.",
    "state_rows": "Rows that steps with state remember.",
    "state_bytes": "Memory that these take.",
    "recovering": "1 while the query waits to go on after a failure.",
}
SOME_COUNTERS = {
    "batches": "Batches that are done.",
    "restarts": "How often the query went on from its last batch after a failure.",
}
STEPS = {
    "taken": "Records that a step took.",
    "given": "Records that a step gave.",
    "failed": "Records that a step failed on.",
    "late": "Records that came too late for a step.",
}
STEP_GAUGES = {
    "watermark_timestamp_seconds": "How far event time has come at a step, in seconds since 1970.",
    "busy_ratio": "Share of the last ten seconds for which a step worked.",
    "backpressure_ratio": "Share of the last ten seconds for which steps after a step held it up.",
}
HISTORY = (
    "messages",
    "errors",
    "late",
    "dead_letters",
    "dropped",
    "messages_per_second",
    "latency_p50_ms",
    "latency_p95_ms",
    "latency_p99_ms",
    "error_rate",
    "queue_depth",
    "watermark_lag_seconds",
    "state_rows",
    "state_bytes",
)
"""The main ones, which the broker keeps for some hours."""

SINKS = {
    "rows": "Rows that are in a sink.",
    "bytes": "Bytes of these rows, as they were staged.",
    "commit_seconds": "Time it took to commit rows to a sink.",
}
SINK_GAUGES = {
    "rows_per_second": "Rows that came into a sink per second, over the last ten.",
    "last_batch_rows": "Rows of the last batch.",
    "last_batch_bytes": "Bytes of the last batch, as they were staged.",
    "last_batch_commit_seconds": "Time it took to commit the last batch to a sink.",
}
PHASES = {"seconds": "Time that batches spent in a phase."}
PHASE_GAUGES = {"last_batch_seconds": "Time that the last batch spent in a phase."}


@dataclass(frozen=True)
class Part:
    """A kind of part of a pipeline that has figures of its own; ``label`` is what Prometheus calls it."""

    prefix: str
    label: str
    counters: Mapping[str, str]
    gauges: Mapping[str, str]

    def figure(self, name: str, what: str) -> str:
        """What ``get_stats()`` calls a figure of one of them."""
        return f"{self.prefix}{name}.{what}"

    def parse(self, figure: str) -> tuple[str, str] | None:
        """The name and the figure of it that ``get_stats()`` calls so; None: it is not a figure of these."""
        name, _, what = figure.removeprefix(self.prefix).rpartition(".")
        known = what in self.counters or what in self.gauges
        return (name, what) if figure.startswith(self.prefix) and known else None

    def group(self, stats: Mapping[str, float]) -> dict[str, dict[str, float]]:
        """The figures of these parts, by the name of the part, in the order in which they stand."""
        found: dict[str, dict[str, float]] = {}
        for figure, value in stats.items():
            parsed = self.parse(figure)
            if parsed is not None:
                name, what = parsed
                found.setdefault(name, {})[what] = value
        return found


STEP = Part("steps.", "step", STEPS, STEP_GAUGES)
SINK = Part("sinks.", "sink", SINKS, SINK_GAUGES)
PHASE = Part("phases.", "phase", PHASES, PHASE_GAUGES)
PARTS = (STEP, SINK, PHASE)


def step_figure(step: str, what: str) -> str:
    """What ``get_stats()`` calls a figure of a step.

    >>> step_figure("parse", "taken")
    'steps.parse.taken'
    """
    return STEP.figure(step, what)


def step_of(figure: str) -> tuple[str, str] | None:
    """The step and the figure of it that ``get_stats()`` calls so; None: it is not a step's.

    >>> step_of("steps.parse.v2.taken"), step_of("messages")
    (('parse.v2', 'taken'), None)
    """
    return STEP.parse(figure)


def is_of_whole(figure: str) -> bool:
    """Whether a figure is one of the whole pipeline, and not of a step, a sink or a phase.

    >>> is_of_whole("messages"), is_of_whole("sinks.out.rows")
    (True, False)
    """
    return all(part.parse(figure) is None for part in PARTS)


def families(runs: Iterable[tuple[str, Mapping[str, float]]]) -> Iterator[Metric]:
    """Runs' figures, each with its pipeline's name, as Prometheus's client library takes them."""
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

    runs = list(runs)
    for names, kind in (
        (GAUGES | SOME_GAUGES, GaugeMetricFamily),
        (COUNTERS | SOME_COUNTERS, CounterMetricFamily),
    ):
        for name, told in names.items():
            family = kind(f"queen_pipeline_{name}", told, labels=["pipeline"])
            for pipeline, stats in runs:
                if name in stats:
                    family.add_metric([pipeline], stats[name])
            if family.samples:
                yield family
    for part in PARTS:
        of_part: dict[str, CounterMetricFamily | GaugeMetricFamily] = {
            what: kind(f"queen_pipeline_{part.label}_{what}", told, labels=["pipeline", part.label])
            for names, kind in ((part.counters, CounterMetricFamily), (part.gauges, GaugeMetricFamily))
            for what, told in names.items()
        }
        for pipeline, stats in runs:
            for name, value in stats.items():
                found = part.parse(name)
                if found is not None:
                    of_part[found[1]].add_metric([pipeline, found[0]], value)
        yield from (family for family in of_part.values() if family.samples)
