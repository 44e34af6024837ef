"""The figures of a run, as numbers and as Prometheus reads them.

They are read by other threads while the run goes on: each is right at some instant, not all at the same one.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING

from queenstream.local.failures import Counts

if TYPE_CHECKING:
    from prometheus_client.metrics_core import Metric

_RATE_SECONDS = 10.0  # what "per second" looks back on
_LATENCIES = 1_000  # batches that the percentiles are of
_PERCENTILES = (50, 95, 99)


class Meter:
    """What a run has taken, and how long a record was on its way from the source to the sinks."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._started = clock()
        self._taken = 0
        self._recent: deque[tuple[float, int]] = deque()
        self._latencies: deque[tuple[float, int]] = deque(maxlen=_LATENCIES)

    def took(self, records: int) -> None:
        """So many records came from the sources."""
        now = self._clock()
        self._taken += records
        self._recent.append((now, records))
        while self._recent[0][0] < now - _RATE_SECONDS:
            self._recent.popleft()

    def delivered(self, records: int, seconds: float) -> None:
        """A batch of so many records is in the sinks, so long after it was read."""
        self._latencies.append((seconds, records))

    def stats(self) -> dict[str, float]:
        """Rates and latencies."""
        now = self._clock()
        recent = [(at, records) for at, records in self._recent.copy() if at >= now - _RATE_SECONDS]
        span = min(_RATE_SECONDS, max(now - self._started, 1e-3))
        found = {
            "messages": float(self._taken),
            "messages_per_second": sum(records for _, records in recent) / span,
            "uptime_seconds": now - self._started,
        }
        latencies = sorted(self._latencies.copy())
        for percent in _PERCENTILES:
            found[f"latency_p{percent}_ms"] = 1_000 * _weighted(latencies, percent / 100)
        return found


def _weighted(latencies: list[tuple[float, int]], share: float) -> float:
    """The latency below which that share of the records lies; 0 of none."""
    left = share * sum(records for _, records in latencies)
    for seconds, records in latencies:
        left -= records
        if left <= 0:
            return seconds
    return 0.0


def step_stats(counts: Mapping[str, Counts], sources: Iterable[str]) -> dict[str, float]:
    """What happened at the steps, in all and at each."""
    taken = sum(counts[name].taken + counts[name].failed for name in sources)
    failed = sum(each.failed for each in counts.values())
    found = {
        "errors": float(failed),
        "error_rate": 100.0 * failed / taken if taken else 0.0,
        "retries": float(sum(each.retried for each in counts.values())),
        "late": float(sum(each.late for each in counts.values())),
        "dead_letters": float(sum(each.dead_letters for each in counts.values())),
    }
    for name, each in counts.items():
        for what in ("taken", "given", "failed", "late"):
            found[f"steps.{name}.{what}"] = float(getattr(each, what))
    return found


_GAUGES = {
    "messages_per_second": "Records taken from the sources per second, over the last ten.",
    "latency_p50_ms": "Median time of a record from source to sinks, in milliseconds.",
    "latency_p95_ms": "95th percentile of the same.",
    "latency_p99_ms": "99th percentile of the same.",
    "error_rate": "Share of records that a step failed on, in percent.",
    "queue_depth": "Records that the sources have and that were not taken yet.",
    "watermark_lag_seconds": "How far the watermark is behind the clock.",
    "live": "1 once the pipeline has caught up with its sources.",
}
_COUNTERS = {
    "messages": "Records taken from the sources.",
    "errors": "Records that a step failed on.",
    "retries": "Further tries of steps that failed.",
    "late": "Records that came too late for a step.",
    "dead_letters": "Records that went to the dead letters.",
    "dropped": "Records dropped by backpressure.",
}
_STEPS = {
    "taken": "Records that a step took.",
    "given": "Records that a step gave.",
    "failed": "Records that a step failed on.",
    "late": "Records that came too late for a step.",
}


class PrometheusCollector:
    """Gives a run's figures to Prometheus's client library, afresh each time they are asked for."""

    def __init__(self, pipeline: str, stats: Callable[[], Mapping[str, float]]) -> None:
        self._pipeline = pipeline
        self._stats = stats

    def collect(self) -> Iterable[Metric]:
        """All metrics, each under the pipeline's name."""
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

        stats = self._stats()
        own = [self._pipeline]
        for name, told in _GAUGES.items():
            gauge = GaugeMetricFamily(f"queen_pipeline_{name}", told, labels=["pipeline"])
            gauge.add_metric(own, stats[name])
            yield gauge
        for name, told in _COUNTERS.items():
            counter = CounterMetricFamily(f"queen_pipeline_{name}", told, labels=["pipeline"])
            counter.add_metric(own, stats[name])
            yield counter
        for what, told in _STEPS.items():
            family = CounterMetricFamily(f"queen_pipeline_step_{what}", told, labels=["pipeline", "step"])
            for name, value in stats.items():
                if name.startswith("steps.") and name.endswith(f".{what}"):
                    family.add_metric([*own, name[len("steps.") : -len(what) - 1]], value)
            yield family
