"""What the broker counts, in plain integers, and how Prometheus sees it.

The hot path adds to attributes and lists; names, labels and text come into it only when somebody asks.
"""

from __future__ import annotations

import os
import resource
from bisect import bisect_left
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from time import monotonic

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)

from queenstream.broker.schemas.system import (
    Counts,
    GroupLag,
    Latency,
    QueueGauges,
    Rates,
    Snapshot,
    UpkeepState,
)
from queenstream.core import metric_names

SECONDS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
ROWS = (1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0, 500.0, 1000.0, 2000.0, 5000.0, 10000.0)
MOST_QUEUES = 10_000  # label values kept; the rest is counted under "(other)"
RATE_SECONDS = 60.0  # rates are over about this long
COUNTERS = ("pushed", "duplicates", "popped", "acked", "failed", "dead", "expired")


class Histogram:
    """Counts by bucket."""

    __slots__ = ("bounds", "counts", "total")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.total = 0.0

    def add(self, value: float) -> None:
        self.counts[bisect_left(self.bounds, value)] += 1
        self.total += value

    def buckets(self) -> list[tuple[str, float]]:
        """Cumulative, as Prometheus wants them."""
        result: list[tuple[str, float]] = []
        running = 0
        for bound, count in zip((*map(str, self.bounds), "+Inf"), self.counts, strict=True):
            running += count
            result.append((bound, float(running)))
        return result

    def quantile(self, share: float) -> float:
        """The upper bound of the bucket in which this share of the values is reached."""
        wanted = share * sum(self.counts)
        running = 0
        for bound, count in zip((*self.bounds, self.bounds[-1]), self.counts, strict=True):
            running += count
            if running >= wanted and running:
                return bound
        return 0.0


class QueueCounters:
    """What went through one queue since the broker started."""

    __slots__ = COUNTERS

    def __init__(self) -> None:
        self.pushed = self.duplicates = self.popped = self.acked = 0
        self.failed = self.dead = self.expired = 0

    def values(self) -> tuple[int, ...]:
        return tuple(getattr(self, name) for name in COUNTERS)


@dataclass(frozen=True)
class Gauges:
    """What was read from the database last (see ``gauges.py``), and when."""

    queues: list[QueueGauges] = field(default_factory=list)
    groups: list[GroupLag] = field(default_factory=list)
    pipelines: list[tuple[str, dict[str, float]]] = field(default_factory=list)
    read_at: float | None = None


class Metrics:
    """Everything that is counted in this process."""

    def __init__(self) -> None:
        self.started = monotonic()
        self.queues: dict[str, QueueCounters] = {}
        self.batch_rows = {kind: Histogram(ROWS) for kind in ("push", "pop", "ack")}
        self.batch_seconds = {kind: Histogram(SECONDS) for kind in ("push", "pop", "ack")}
        self.requests: dict[tuple[str, str, int], int] = {}
        self.request_seconds: dict[str, Histogram] = {}
        self.background_failures: dict[str, int] = {}
        self.task_restarts: dict[str, int] = {}
        self.upkeep: dict[str, UpkeepState] = {}
        self.gauges = Gauges()
        self._flushed: dict[str, tuple[int, ...]] = {}
        self._samples: deque[tuple[float, dict[str, int]]] = deque([(self.started, self.totals())])

    # Counting

    def queue(self, name: str) -> QueueCounters:
        counters = self.queues.get(name)
        if counters is None:
            if len(self.queues) >= MOST_QUEUES:
                name = "(other)"
            counters = self.queues.setdefault(name, QueueCounters())
        return counters

    def batch(self, kind: str, rows: int, seconds: float) -> None:
        self.batch_rows[kind].add(rows)
        self.batch_seconds[kind].add(seconds)

    def pushed(self, queue: str, count: int, repeats: int) -> None:
        counters = self.queue(queue)
        counters.pushed += count
        counters.duplicates += repeats

    def popped(self, queue: str, count: int, auto_ack: bool) -> None:
        counters = self.queue(queue)
        counters.popped += count
        if auto_ack:
            counters.acked += count

    def acked(self, queue: str, status: str, dead: bool, again: bool) -> None:
        counters = self.queue(queue)
        if dead:
            counters.dead += 1
        if status == "failed":
            counters.failed += 1
        elif status == "completed" and not again:
            counters.acked += 1

    def request(self, route: str, method: str, status: int, seconds: float) -> None:
        key = (route, method, status)
        self.requests[key] = self.requests.get(key, 0) + 1
        histogram = self.request_seconds.get(route)
        if histogram is None:
            histogram = self.request_seconds[route] = Histogram(SECONDS)
        histogram.add(seconds)

    def background_failed(self, task: str) -> None:
        self.background_failures[task] = self.background_failures.get(task, 0) + 1

    def task_restarted(self, task: str) -> None:
        self.task_restarts[task] = self.task_restarts.get(task, 0) + 1

    def take_deltas(self) -> dict[str, tuple[int, ...]]:
        """What each queue counted since the last call."""
        deltas: dict[str, tuple[int, ...]] = {}
        for name, counters in self.queues.items():
            now = counters.values()
            before = self._flushed.get(name, (0,) * len(COUNTERS))
            if now != before:
                deltas[name] = tuple(a - b for a, b in zip(now, before, strict=True))
                self._flushed[name] = now
        return deltas

    def put_back(self, deltas: dict[str, tuple[int, ...]]) -> None:
        """What was taken could not be stored: take it again next time."""
        for name, delta in deltas.items():
            now = self._flushed[name]
            self._flushed[name] = tuple(a - b for a, b in zip(now, delta, strict=True))

    # Showing

    def totals(self) -> dict[str, int]:
        """Each counter, over all queues."""
        return {n: sum(getattr(q, n) for q in self.queues.values()) for n in COUNTERS}

    def rates(self) -> dict[str, float]:
        """Each counter by second, over the last minute (less, just after the start)."""
        now, totals, samples = monotonic(), self.totals(), self._samples
        while len(samples) > 1 and samples[1][0] <= now - RATE_SECONDS:
            samples.popleft()
        then, before = samples[0]
        if now - samples[-1][0] >= 1.0:
            samples.append((now, totals))
        # Under a second there is no rate, only a burst.
        seconds = max(now - then, 1.0)
        return {name: round((totals[name] - before[name]) / seconds, 3) for name in COUNTERS}

    def snapshot(self, live: dict[str, float]) -> Snapshot:
        """The process, for JSON."""
        usage = resource.getrusage(resource.RUSAGE_SELF)
        return Snapshot(
            uptime_seconds=round(monotonic() - self.started, 1),
            cpu_seconds=round(usage.ru_utime + usage.ru_stime, 2),
            memory_bytes=resident_bytes(),
            messages=Counts(**self.totals()),
            messages_per_second=Rates(**self.rates()),
            requests=sum(self.requests.values()),
            latency_seconds={
                kind: Latency(h.quantile(0.5), h.quantile(0.95), h.quantile(0.99))
                for kind, h in self.batch_seconds.items()
            },
            background_failures=dict(self.background_failures),
            task_restarts=dict(self.task_restarts),
            upkeep=dict(self.upkeep),
            **{name: int(value) for name, value in live.items()},
        )

    def prometheus(self, live: dict[str, float]) -> bytes:
        """The text format."""
        registry = CollectorRegistry(auto_describe=False)
        registry.register(_Collector(self, live))
        return generate_latest(registry)

    def families(self, live: dict[str, float]) -> Iterator[Metric]:
        yield from self._queue_families()
        yield from self._latency_families()
        yield from self._gauge_families()
        rates = GaugeMetricFamily(
            "queen_messages_per_second", "Over the last minute, all queues", labels=["kind"]
        )
        for name, rate in self.rates().items():
            rates.add_metric([name], rate)
        yield rates
        failures = CounterMetricFamily(
            "queen_background_failures", "Failed background steps", labels=["task"]
        )
        for task, count in self.background_failures.items():
            failures.add_metric([task], count)
        yield failures
        restarts = CounterMetricFamily(
            "queen_task_restarts", "Long-lived tasks that failed and were restarted", labels=["task"]
        )
        for task, count in self.task_restarts.items():
            restarts.add_metric([task], count)
        yield restarts
        yield from self._upkeep_families()
        usage = resource.getrusage(resource.RUSAGE_SELF)
        yield CounterMetricFamily(
            "process_cpu_seconds", "CPU time of this process", value=usage.ru_utime + usage.ru_stime
        )
        yield GaugeMetricFamily("process_resident_memory_bytes", "Resident memory", value=resident_bytes())
        yield GaugeMetricFamily("queen_uptime_seconds", "Since the start", value=monotonic() - self.started)
        for name, value in live.items():
            yield GaugeMetricFamily(f"queen_{name}", name.replace("_", " "), value=value)

    def _queue_families(self) -> Iterator[Metric]:
        words = {
            "pushed": "Messages stored",
            "duplicates": "Messages that were there already",
            "popped": "Messages delivered, redeliveries included",
            "acked": "Messages completed",
            "failed": "Messages reported as failed",
            "dead": "Messages put among the dead letters by an acknowledgement",
            "expired": "Messages deleted by ttl and retention",
        }
        for name, text in words.items():
            family = CounterMetricFamily(f"queen_messages_{name}", text, labels=["queue"])
            for queue, counters in self.queues.items():
                family.add_metric([queue], getattr(counters, name))
            yield family

    def _upkeep_families(self) -> Iterator[Metric]:
        for name, text in (
            ("runs", "Runs of a task"),
            ("rows", "Rows that a task deleted or moved"),
            ("seconds", "Time that a task took"),
            ("errors", "Runs of a task that failed"),
        ):
            family = CounterMetricFamily(f"queen_upkeep_{name}", text, labels=["task"])
            for task, state in self.upkeep.items():
                family.add_metric([task], getattr(state, name))
            yield family
        last = GaugeMetricFamily(
            "queen_upkeep_last_success_timestamp_seconds", "When a task last succeeded", labels=["task"]
        )
        for task, state in self.upkeep.items():
            if state.last_success_at is not None:
                last.add_metric([task], state.last_success_at.timestamp())
        yield last

    def _latency_families(self) -> Iterator[Metric]:
        yield _histogram("queen_batch_rows", "Rows in one statement", "kind", self.batch_rows)
        yield _histogram("queen_batch_seconds", "Time of one statement", "kind", self.batch_seconds)
        yield _histogram(
            "queen_request_seconds", "Time of a request, waiting included", "route", self.request_seconds
        )
        requests = CounterMetricFamily(
            "queen_requests", "Requests answered", labels=["route", "method", "status"]
        )
        for (route, method, status), count in self.requests.items():
            requests.add_metric([route, method, str(status)], count)
        yield requests

    def _gauge_families(self) -> Iterator[Metric]:
        queues, groups, read_at = self.gauges.queues, self.gauges.groups, self.gauges.read_at
        for name, text, values in (
            ("queue_depth", "Messages waiting for the slowest group", [q.depth for q in queues]),
            (
                "oldest_message_seconds",
                "Age of the oldest message that waits",
                [q.oldest_seconds for q in queues],
            ),
            ("leases", "Leases that are out", [q.leases for q in queues]),
            ("dead_letters", "Dead letters kept", [q.dead_letters for q in queues]),
        ):
            family = GaugeMetricFamily(f"queen_{name}", text, labels=["queue"])
            for queue, value in zip(queues, values, strict=True):
                if value is not None:
                    family.add_metric([queue.queue], value)
            yield family
        lag = GaugeMetricFamily("queen_group_lag", "Messages behind", labels=["queue", "group"])
        age = GaugeMetricFamily(
            "queen_group_lag_seconds", "Age of the next message", labels=["queue", "group"]
        )
        for group in groups:
            lag.add_metric([group.queue, group.group], group.lag)
            age.add_metric([group.queue, group.group], group.lag_seconds)
        yield lag
        yield age
        yield from metric_names.families(self.gauges.pipelines)
        if read_at is not None:
            # When the database is away the gauges above stay as they were: this one tells.
            yield GaugeMetricFamily(
                "queen_gauges_age_seconds", "Since the gauges were read", value=monotonic() - read_at
            )


class _Collector:
    def __init__(self, metrics: Metrics, live: dict[str, float]) -> None:
        self._metrics = metrics
        self._live = live

    def collect(self) -> Iterable[Metric]:
        return self._metrics.families(self._live)


def _histogram(name: str, text: str, label: str, values: dict[str, Histogram]) -> Metric:
    family = HistogramMetricFamily(name, text, labels=[label])
    for key, histogram in values.items():
        family.add_metric([key], histogram.buckets(), histogram.total)
    return family


def resident_bytes() -> int:
    """Resident memory of this process."""
    try:
        with open("/proc/self/statm", encoding="ascii") as statm:  # noqa: PTH123 - not a file on a disk
            return int(statm.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
