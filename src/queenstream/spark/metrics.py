"""The figures of a run, under the names that the local engine has for them too."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from queenstream.spark import flow

_RATE_SECONDS = 10.0  # what "per second" looks back on
_LATENCIES = 1_000  # batches that the percentiles are of
_PERCENTILES = (50, 95, 99)


@dataclass(frozen=True)
class Observed:
    """What Spark counts for a query without Python: by its names the step and what happened there.

    ``late_at``: the step whose late groups Spark drops; ``all_of``: the step that takes every row of the
    input.
    """

    names: Mapping[str, tuple[str, str]]
    late_at: str | None
    all_of: str | None


class Meter:
    """Counts what batches have told; the rest is in Spark's own progress."""

    def __init__(self, sources: Sequence[str]) -> None:
        self._sources = sources
        self._started = time.monotonic()
        self._counts: dict[str, dict[str, int]] = {}
        self._sink_counts: Mapping[str, Mapping[str, int]] = {}
        self._recent: deque[tuple[float, int]] = deque()
        self._durations: deque[float] = deque(maxlen=_LATENCIES)
        self._last_batch = -1
        self._observed = -1
        self.batches = 0

    def count(
        self, counts: Mapping[str, Mapping[str, int]], at_sinks: Mapping[str, Mapping[str, int]]
    ) -> None:
        """What happened in a batch, and at the sinks so far."""
        now = time.monotonic()
        self.batches += 1
        self._sink_counts = at_sinks
        self._add(counts)
        self._recent.append((now, sum(counts.get(name, {}).get("taken", 0) for name in self._sources)))
        while self._recent[0][0] < now - _RATE_SECONDS:
            self._recent.popleft()

    def observe(self, progresses: Sequence[Any], told: Observed) -> None:
        """Count what a query without Python does not tell with its rows; a batch counts once."""
        for progress in progresses:
            if progress["batchId"] <= self._observed:
                continue
            self._observed = progress["batchId"]
            if told.late_at is not None:
                late = sum(each["numRowsDroppedByWatermark"] for each in progress["stateOperators"])
                self._add({told.late_at: {"late": late}})
            if told.all_of is not None:
                self._add({told.all_of: {"taken": progress["numInputRows"]}})
            for name, (step, what) in told.names.items():
                row = progress["observedMetrics"].get(name)
                if row is not None:
                    self._add({step: {what: row[what]}})

    def _add(self, counts: Mapping[str, Mapping[str, int]]) -> None:
        for step, numbers in counts.items():
            known = self._counts.setdefault(step, {})
            for what, number in numbers.items():
                known[what] = known.get(what, 0) + number

    def stats(self, progress: Any) -> dict[str, float]:
        """All figures; ``progress`` is Spark's last, if there is one."""
        now = time.monotonic()
        counts = {step: dict(numbers) for step, numbers in self._counts.items()}
        for step, more in self._sink_counts.items():
            counts[step] = {**counts.get(step, {}), **more}
        span = min(_RATE_SECONDS, max(now - self._started, 1e-3))
        recent = sum(number for at, number in self._recent.copy() if at >= now - _RATE_SECONDS)
        taken = self._sum(counts, "taken")
        failed = self._sum(counts, "failed")
        found = {
            "messages": float(taken),
            "messages_per_second": recent / span,
            "uptime_seconds": now - self._started,
            "errors": float(failed),
            "error_rate": 100.0 * failed / taken if taken else 0.0,
            "retries": float(self._sum(counts, "retried")),
            "late": float(self._sum(counts, "late")),
            "dead_letters": float(self._sum(counts, "dead_letters")),
            "dropped": 0.0,
            "batches": float(self.batches),
        }
        for step, numbers in counts.items():
            found |= {f"steps.{step}.{what}": float(number) for what, number in numbers.items()}
        return found | self._of_spark(progress)

    def _sum(self, counts: Mapping[str, Mapping[str, int]], what: str) -> int:
        return sum(numbers.get(what, 0) for numbers in counts.values())

    def _of_spark(self, progress: Any) -> dict[str, float]:
        """Durations, state, the watermark: of the last batch that Spark tells of."""
        found = dict.fromkeys(
            ("queue_depth", "watermark_lag_seconds", "state_rows", "state_bytes", "live"), 0.0
        )
        if progress is not None:
            if progress["batchId"] != self._last_batch:
                self._last_batch = progress["batchId"]
                self._durations.append(float(progress["batchDuration"]))
            state = progress["stateOperators"]
            found["state_rows"] = float(sum(each["numRowsTotal"] for each in state))
            found["state_bytes"] = float(sum(each["memoryUsedBytes"] for each in state))
            found["live"] = float(progress["numInputRows"] == 0)
            found["watermark_lag_seconds"] = _lag(dict(progress["eventTime"]).get("watermark"))
        ordered = sorted(self._durations)
        for percent in _PERCENTILES:
            at = min(len(ordered) - 1, len(ordered) * percent // 100)
            found[f"latency_p{percent}_ms"] = ordered[at] if ordered else 0.0
        return found


def _lag(watermark: str | None) -> float:
    """How far the watermark is behind the clock, in seconds; 0, where there is none."""
    if watermark is None:
        return 0.0
    try:
        shown = datetime.fromisoformat(watermark)
    except ValueError:  # the end of all input: a year with more than four digits
        return 0.0
    reached = flow.from_watermark(int(shown.timestamp() * 1_000))
    return 0.0 if reached is None else max(0.0, datetime.now(UTC).timestamp() - reached / 1e6)
