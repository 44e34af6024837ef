"""Where the time of a run's batches goes, and what reaches each sink: the same figures on both engines.

A batch spends its time in phases (``read``, ``compute``, ``stage``, ``commit``); docs/monitoring.md defines
them for each engine.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from queenstream.core import metric_names
from queenstream.runtime.metrics import Rate

Phase: TypeAlias = Literal["read", "compute", "stage", "commit"]

_MOST_OPEN = 16
"""Batches that are not complete, of which the figures are kept: a batch that fails may never be."""


@dataclass
class _Sink:
    rows: int = 0
    bytes: int = 0
    commit_seconds: float = 0.0


@dataclass
class _Batch:
    seconds: dict[str, float] = field(default_factory=dict)
    sinks: dict[str, _Sink] = field(default_factory=dict)


class PhaseMeter:
    """Time by phase, and rows, bytes and commit time by sink: of all batches, and of the last complete one.

    ``phases`` and ``sinks`` have figures from the start; ``with_bytes``: the engine knows the bytes of rows.

    >>> meter = PhaseMeter(["read", "commit"], ["out"], with_bytes=True)
    >>> meter.add_time(7, "read", 0.5)
    >>> meter.add_rows(7, "out", rows=3, size=90)
    >>> meter.complete(7)
    >>> meter.stats()["phases.read.last_batch_seconds"], meter.stats()["sinks.out.last_batch_bytes"]
    (0.5, 90.0)
    """

    def __init__(
        self,
        phases: Iterable[Phase],
        sinks: Iterable[str],
        *,
        with_bytes: bool,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._phases = tuple(phases)
        self._with_bytes = with_bytes
        self._clock = clock
        self._lock = threading.Lock()
        # Under the lock:
        self._total = _Batch()
        self._last = _Batch()
        self._open: dict[int, _Batch] = {}
        self._rates = {name: Rate(clock) for name in sinks}

    @contextmanager
    def timed(self, batch: int, phase: Phase) -> Iterator[None]:
        """Count the time until the end, also that of an attempt that fails."""
        begun = self._clock()
        try:
            yield
        finally:
            self.add_time(batch, phase, self._clock() - begun)

    def add_time(self, batch: int, phase: Phase, seconds: float) -> None:
        """A batch has spent time in a phase."""
        with self._lock:
            for each in self._batches(batch):
                each.seconds[phase] = each.seconds.get(phase, 0.0) + seconds

    def add_rows(self, batch: int, sink: str, rows: int, size: int = 0) -> None:
        """Rows of a batch are in a sink; ``size``: their bytes."""
        if not (rows or size):
            return
        with self._lock:
            for each in self._batches(batch):
                found = each.sinks.setdefault(sink, _Sink())
                found.rows += rows
                found.bytes += size
            self._rates.setdefault(sink, Rate(self._clock)).add(rows)

    def add_commit(self, batch: int, sink: str, seconds: float) -> None:
        """A sink has taken time to commit rows of a batch."""
        if not seconds:
            return
        with self._lock:
            for each in self._batches(batch):
                each.sinks.setdefault(sink, _Sink()).commit_seconds += seconds

    def complete(self, batch: int) -> None:
        """A batch is done: it is the last one now."""
        with self._lock:
            self._last = self._open.pop(batch, _Batch())

    def _batches(self, number: int) -> tuple[_Batch, _Batch]:
        batch = self._open.setdefault(number, _Batch())
        while len(self._open) > _MOST_OPEN:
            del self._open[next(iter(self._open))]
        return self._total, batch

    @property
    def seconds(self) -> dict[str, float]:
        """The time that all batches have spent in each phase."""
        with self._lock:
            return {phase: self._total.seconds.get(phase, 0.0) for phase in self._phases}

    def size(self, sink: str) -> int:
        """The bytes that have reached a sink."""
        with self._lock:
            return self._total.sinks.get(sink, _Sink()).bytes

    def stats(self) -> dict[str, float]:
        """All figures."""
        found: dict[str, float] = {}
        with self._lock:
            for phase in self._phases:
                of_phase = {
                    "seconds": self._total.seconds.get(phase, 0.0),
                    "last_batch_seconds": self._last.seconds.get(phase, 0.0),
                }
                found |= {metric_names.PHASE.figure(phase, what): value for what, value in of_phase.items()}
            for name, rate in self._rates.items():
                total = self._total.sinks.get(name, _Sink())
                last = self._last.sinks.get(name, _Sink())
                of_sink = {
                    "rows": float(total.rows),
                    "rows_per_second": rate.per_second(),
                    "commit_seconds": total.commit_seconds,
                    "last_batch_rows": float(last.rows),
                    "last_batch_commit_seconds": last.commit_seconds,
                }
                if self._with_bytes:
                    of_sink |= {"bytes": float(total.bytes), "last_batch_bytes": float(last.bytes)}
                found |= {metric_names.SINK.figure(name, what): value for what, value in of_sink.items()}
        return found
