"""What both engines count of a run, and how its figures are shown. The names are in ``core.metric_names``.

Figures are read by other threads while the run goes on: each is right at some instant, not all at the same
one.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any

from queenstream.core import metric_names
from queenstream.errors import ConfigError

if TYPE_CHECKING:
    from prometheus_client.metrics_core import Metric

Counts = Mapping[str, Mapping[str, int]]
"""By step what happened there, and how often: taken, given, failed, retried, late, dead_letters."""

Stats = Callable[[], Mapping[str, float]]
"""``get_stats`` of a run."""

_RATE_SECONDS = 10.0  # what "per second" looks back on
_LATENCIES = 1_000  # batches that the percentiles are of
_BATCHES = 100  # that are shown one by one
_PERCENTILES = (50, 95, 99)


class Rate:
    """How many records came per second, over the last ten.

    >>> rate = Rate(clock=iter([0.0, 1.0, 4.0]).__next__)
    >>> rate.add(8)
    >>> rate.per_second()
    2.0
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._started = clock()
        self._recent: deque[tuple[float, int]] = deque()

    def add(self, records: int) -> None:
        """So many more came."""
        now = self._clock()
        self._recent.append((now, records))
        while self._recent[0][0] < now - _RATE_SECONDS:
            self._recent.popleft()

    def per_second(self) -> float:
        """The rate now."""
        now = self._clock()
        recent = sum(records for at, records in self._recent.copy() if at >= now - _RATE_SECONDS)
        return recent / min(_RATE_SECONDS, max(now - self._started, 1e-3))


class Meter:
    """What a run has taken, and how long a record was on its way from the source to the sinks.

    >>> meter = Meter()
    >>> meter.took(3)
    >>> meter.delivered(3, seconds=0.25)
    >>> meter.stats()["messages"], meter.stats()["latency_p50_ms"]
    (3.0, 250.0)
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._started = clock()
        self._taken = 0
        self._rate = Rate(clock)
        self._latencies: deque[tuple[float, int]] = deque(maxlen=_LATENCIES)
        self._batches: deque[dict[str, float]] = deque(maxlen=_BATCHES)

    def took(self, records: int) -> None:
        """So many records came from the sources."""
        self._taken += records
        self._rate.add(records)

    def delivered(self, records: int, seconds: float) -> None:
        """A batch of so many records is in the sinks, so long after it was read."""
        self._latencies.append((seconds, records))
        self._batches.append({"ended": time.time(), "records": records, "seconds": round(seconds, 4)})

    def batches(self) -> list[dict[str, float]]:
        """The last ones, the oldest first: when each was in the sinks (since 1970), its records, how long."""
        return list(self._batches)

    def stats(self) -> dict[str, float]:
        """Rates and latencies."""
        return {
            "messages": float(self._taken),
            "messages_per_second": self._rate.per_second(),
            "uptime_seconds": self._clock() - self._started,
            **percentiles("latency", self._latencies.copy()),
        }


def percentiles(name: str, taken: Iterable[tuple[float, int]]) -> dict[str, float]:
    """The 50th, 95th and 99th percentile of seconds, each with its weight, in milliseconds; 0 of none.

    >>> percentiles("latency", [(0.1, 96), (2.0, 4)])
    {'latency_p50_ms': 100.0, 'latency_p95_ms': 100.0, 'latency_p99_ms': 2000.0}
    """
    ordered = sorted(taken)
    return {f"{name}_p{percent}_ms": 1_000 * _weighted(ordered, percent / 100) for percent in _PERCENTILES}


def _weighted(ordered: list[tuple[float, int]], share: float) -> float:
    left = share * sum(weight for _, weight in ordered)
    for seconds, weight in ordered:
        left -= weight
        if left <= 0 and weight:
            return seconds
    return 0.0


def step_stats(counts: Counts, sources: Iterable[str]) -> dict[str, float]:
    """What happened at the steps, in all and at each; ``sources``: the steps that read.

    >>> step_stats({"in": {"taken": 3, "failed": 1}}, ["in"])["error_rate"]
    25.0
    """
    read = [counts.get(name, {}) for name in sources]
    taken = sum(each.get("taken", 0) + each.get("failed", 0) for each in read)
    failed = _sum(counts, "failed")
    found = {
        "errors": float(failed),
        "error_rate": 100.0 * failed / taken if taken else 0.0,
        "retries": float(_sum(counts, "retried")),
        "late": float(_sum(counts, "late")),
        "dead_letters": float(_sum(counts, "dead_letters")),
    }
    for name, each in counts.items():
        found |= {
            metric_names.step_figure(name, what): float(each[what])
            for what in metric_names.STEPS
            if what in each
        }
    return found


def _sum(counts: Counts, what: str) -> int:
    return sum(each.get(what, 0) for each in counts.values())


class PrometheusCollector:
    """Gives a run's figures to Prometheus's client library, afresh each time they are asked for."""

    def __init__(self, pipeline: str, stats: Stats) -> None:
        self._pipeline = pipeline
        self._stats = stats

    def collect(self) -> Iterable[Metric]:
        """All metrics, each under the pipeline's name."""
        return metric_names.families([(self._pipeline, self._stats())])


def prometheus_text(pipeline: str, stats: Stats) -> bytes:
    """A run's figures as Prometheus reads them.

    >>> b'queen_pipeline_messages_total{pipeline="p"} 3.0' in prometheus_text("p", lambda: {"messages": 3.0})
    True
    """
    from prometheus_client import CollectorRegistry, generate_latest

    registry = CollectorRegistry()
    registry.register(PrometheusCollector(pipeline, stats))
    return generate_latest(registry)


def serve_prometheus(pipeline: str, stats: Stats, port: int, host: str, path: str) -> int:
    """Serve them over HTTP at a path while the process lives; gives the port, which is a free one for 0."""
    if not path.startswith("/"):
        raise ConfigError(f"the path of metrics is {path!r}; write it from the root, such as '/metrics'")

    from prometheus_client import CONTENT_TYPE_LATEST

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            found = self.path.partition("?")[0] == path
            body = prometheus_text(pipeline, stats) if found else b"not here\n"
            self.send_response(200 if found else 404)
            self.send_header("Content-Type", CONTENT_TYPE_LATEST if found else "text/plain")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: Any) -> None:
            """Nothing: Prometheus asks all the time."""

    server = ThreadingHTTPServer((host, port), Handler)
    threading.Thread(target=server.serve_forever, name="queenstream-metrics", daemon=True).start()
    return server.server_port
