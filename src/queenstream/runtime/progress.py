"""The progress of a run on standard error: the phases of its start, then how far it is if it comes to an end.

On a terminal it is one line, which is drawn anew and erased at the end. Elsewhere only a start that takes
longer than two seconds is told of, in plain lines.

>>> import io
>>> log = io.StringIO()
>>> times = iter([0.0, 0.0, 4.25, 9.0, 9.0])
>>> display = ProgressDisplay("totals", dict, stream=log, clock=times.__next__)
>>> display("session")
>>> display.show()
>>> display("running")
>>> print(log.getvalue(), end="")
totals: starting Spark …
totals: started in 9.0 s: session 9.0 s
"""

from __future__ import annotations

import contextlib
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Literal, TextIO, TypeAlias

from queenstream.pipeline.endpoints import Function
from queenstream.runtime.summary import format_seconds, terminal_width

if TYPE_CHECKING:
    from queenstream.pipeline.plan.planner import Plan

Phase: TypeAlias = Literal["session", "plan", "first batch", "running"]
"""``running``: the first batch is done, or the run ended without one."""

Progress: TypeAlias = Callable[[Phase], None]
"""Is called when a phase begins: once for each, in this order, from any thread."""

PATIENCE_SECONDS = 2.0
"""How long a start may take before a log is told of it, and a run before a terminal shows its figures."""

_DRAW_SECONDS = 0.5
_CLEAR = "\r\x1b[K"
_TEXTS: dict[Phase, str] = {
    "session": "starting Spark",
    "plan": "planning the query",
    "first batch": "computing the first batch",
}


class ProgressDisplay:
    """Shows the progress of one run. Call it with each phase; ``end`` must be called.

    ``stats`` gives the figures of the run. ``shows_figures``: whether they are shown on a terminal once the
    run is under way; not where functions of the user's may print there.
    """

    def __init__(
        self,
        pipeline: str,
        stats: Callable[[], Mapping[str, float]],
        *,
        shows_figures: bool = False,
        stream: TextIO | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._pipeline = pipeline
        self._stats = stats
        self._stream = sys.stderr if stream is None else stream
        self._clock = clock
        self._is_terminal = self._stream is not None and terminal_width(self._stream) is not None
        self._shows_figures = shows_figures and self._is_terminal
        self._began = clock()
        self._phases: list[tuple[Phase, float]] = []  # what it was at, and since when; only added to
        self._told = 0  # of these, in plain lines
        self._drawn = False
        self._over = threading.Event()
        self._writing = threading.Lock()
        self._thread = threading.Thread(
            target=self._run, name=f"queenstream progress {pipeline}", daemon=True
        )

    def start(self) -> None:
        """Show it from here on."""
        self._thread.start()

    def __call__(self, phase: Phase) -> None:
        self._phases.append((phase, self._clock()))
        if phase == "running" and not self._shows_figures:
            self.end()

    def end(self) -> None:
        """Show no more, and leave the terminal as it was."""
        self._over.set()
        self.show()

    def show(self) -> None:
        """Write what there is to say now, if anything."""
        with self._writing:
            if not self._is_terminal:
                for line in self._lines():
                    self._write(f"{line}\n")
                return
            shown = "" if self._over.is_set() else self._line()
            if shown or self._drawn:
                width = (terminal_width(self._stream) or 80) - 1
                self._write(f"{_CLEAR}{shown[:width]}")
                self._drawn = bool(shown)

    def _run(self) -> None:
        while not self._over.wait(_DRAW_SECONDS):
            self.show()

    def _line(self) -> str:
        """What a terminal shows."""
        phase, since = self._phases[-1] if self._phases else ("running", self._began)
        now = self._clock()
        if phase != "running":
            return f"{self._pipeline}: {_TEXTS[phase]} … {format_seconds(now - since)}"
        if not self._shows_figures or now - self._began < PATIENCE_SECONDS:
            return ""
        try:
            stats = self._stats()
        except Exception:  # noqa: BLE001 - a run that is ending may have none any more
            return ""
        read, rate, left = (stats.get(name, 0) for name in ("messages", "messages_per_second", "queue_depth"))
        rest = f", {left:,.0f} left" if left else ""  # not every source knows
        return f"{self._pipeline}: {read:,.0f} records, {rate:,.0f} per second{rest}"

    def _lines(self) -> list[str]:
        """What a log is told of a start that takes long: each phase, and at last the time of each."""
        phases = self._phases[:]
        if not phases or self._clock() - self._began < PATIENCE_SECONDS:
            return []
        new, self._told = phases[self._told :], len(phases)
        if new and phases[-1][0] == "running":
            return [f"{self._pipeline}: started in {format_start(phases)}"]
        return [f"{self._pipeline}: {_TEXTS[phase]} …" for phase, _ in new]

    def _write(self, text: str) -> None:
        with contextlib.suppress(OSError, ValueError):
            self._stream.write(text)
            self._stream.flush()


def format_start(phases: Sequence[tuple[Phase, float]]) -> str:
    """How long a start took, in all and by phase.

    >>> format_start([("session", 0.0), ("plan", 5.5), ("running", 6.0)])
    '6.0 s: session 5.5 s, plan 500 ms'
    """
    parts = [f"{name} {format_seconds(until - since)}" for (name, since), (_, until) in pairwise(phases)]
    return f"{format_seconds(phases[-1][1] - phases[0][1])}: {', '.join(parts)}"


def shows_figures(plan: Plan, *, comes_to_an_end: bool) -> bool:
    """Whether a run's figures are shown while it goes on.

    Not of one without an end; and not where a function is a sink, as it may print on the same terminal.
    """
    return comes_to_an_end and not any(isinstance(write.sink, Function) for write in plan.sinks)
