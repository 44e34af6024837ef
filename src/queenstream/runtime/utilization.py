"""Which steps of a run work, and which wait for them: shares of the last seconds, the same on both engines.

Neither engine has buffers between its steps that could be measured: a batch goes through, and while a step
works on it, those before it get no further. So a step's backpressure is the time for which steps after it
worked. The step to look at is the first from the left that works much and is held up little.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

from queenstream.core import metric_names
from queenstream.pipeline.plan.planner import Plan

_SECONDS = 10.0  # what the shares are of
_APART_SECONDS = 1.0  # how near to each other it is looked
_MOST_STEPS = 200  # the figures of larger plans are not told step by step


class Work:
    """How long each worker of a run has worked: a step, or several that are worked on together.

    ``done_by``: the workers of the steps that are not their own; ``held_by``: who holds up the steps before
    a step, where that is another one.

    >>> work = Work(plan, clock=iter([0.0, 0.0, 2.5, 10.0]).__next__)  # doctest: +SKIP
    >>> with work.at("parse"):  # doctest: +SKIP
    ...     parse()
    >>> work.stats()  # doctest: +SKIP
    {'steps.in.busy_ratio': 0.0, 'steps.in.backpressure_ratio': 0.25, 'steps.parse.busy_ratio': 0.25, …}
    """

    def __init__(
        self,
        plan: Plan,
        done_by: Mapping[str, str] | None = None,
        held_by: Mapping[str, str] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        small = len(plan.nodes) <= _MOST_STEPS
        names = [node.name for node in plan.nodes] if small else []
        done_by = done_by or {}
        self._done_by = {name: done_by.get(name, name) for name in names}
        self._held_by = _held_by(plan, {**self._done_by, **(held_by or {})}) if small else {}
        self._clock = clock
        self._lock = threading.Lock()
        # Under the lock:
        self._totals: dict[str, float] = {}
        self._working: dict[str, tuple[int, float]] = {}  # at how many places, and since when
        self._looks: deque[tuple[float, dict[str, float]]] = deque([(clock(), {})])

    @contextmanager
    def at(self, worker: str) -> Iterator[None]:
        """A worker works; if it does so at two places at once, that is no more."""
        with self._lock:
            places, since = self._working.get(worker, (0, 0.0))
            self._working[worker] = (places + 1, since if places else self._clock())
        try:
            yield
        finally:
            with self._lock:
                places, since = self._working.pop(worker)
                if places > 1:
                    self._working[worker] = (places - 1, since)
                else:
                    self._totals[worker] = self._totals.get(worker, 0.0) + self._clock() - since

    def stats(self) -> dict[str, float]:
        """The figures of all steps."""
        shares = self._shares()
        found: dict[str, float] = {}
        for step, worker in self._done_by.items():
            held = sum(shares.get(each, 0.0) for each in self._held_by[step])
            found[metric_names.step_figure(step, "busy_ratio")] = shares.get(worker, 0.0)
            found[metric_names.step_figure(step, "backpressure_ratio")] = min(1.0, held)
        return found

    def _shares(self) -> dict[str, float]:
        """Of the time since a look ten seconds ago, or the last one before that; of who works now, too."""
        with self._lock:
            now = self._clock()
            totals = dict(self._totals)
            for worker, (_, since) in self._working.items():
                totals[worker] = totals.get(worker, 0.0) + now - since
            looks = self._looks
            while len(looks) > 1 and looks[1][0] <= now - _SECONDS:
                looks.popleft()
            begun, before = looks[0]
            if now - looks[-1][0] >= _APART_SECONDS:
                looks.append((now, totals))
        span = max(now - begun, 1e-3)
        return {
            worker: min(1.0, max(0.0, total - before.get(worker, 0.0)) / span)
            for worker, total in totals.items()
        }


def _held_by(plan: Plan, workers: Mapping[str, str]) -> dict[str, set[str]]:
    """The workers of all that comes after a step, by step; a worker does not wait for itself."""
    found: dict[str, set[str]] = {node.name: set() for node in plan.nodes}
    for node in reversed(plan.nodes):
        for before in node.inputs:
            found[before.name] |= found[node.name] | {workers[node.name]}
    return {step: held - {workers[step]} for step, held in found.items()}
