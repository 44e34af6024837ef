"""What ``queen pipeline run`` shows: a display that is redrawn for people, an object a line for programs."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeAlias

from queenstream.cli.support import moments
from queenstream.cli.support.output import Column, Printer, clock, note, number, visible
from queenstream.core.metric_names import PHASE, SINK, is_of_whole
from queenstream.runtime.summary import print_summary

if TYPE_CHECKING:
    from rich.text import Text

    from queenstream.pipeline.plan.planner import Plan
    from queenstream.runtime.summary import Summary

State: TypeAlias = Literal["starting", "catching up", "live", "stopping", "ended", "failed"]
"""Where a run is: with what its sources had when it started, or with what comes."""

_COUNTS = ("messages", "late", "errors", "retries", "dead_letters", "dropped", "queue_depth")
_SCREEN_SECONDS = 0.25
_LINES_SECONDS = 1.0
_COLOURS: Mapping[State, str] = {"live": "bold green", "ended": "bold", "failed": "bold red"}

_STEPS = (
    Column("STEP", "step"),
    Column("KIND", "kind", style="bright_black"),
    number("IN", "taken"),
    number("OUT", "given"),
    number("ERRORS", "failed", alarm="red"),
    number("LATE", "late", alarm="yellow"),
)


@dataclass(frozen=True)
class Progress:
    """The figures of a run at one instant, by the names of ``get_stats()``."""

    pipeline: str
    state: State
    stats: Mapping[str, float]
    kinds: Mapping[str, str]  # of its steps, by name, in the order of the plan
    at: datetime

    @classmethod
    def of(cls, plan: Plan, state: State, stats: Mapping[str, float]) -> Progress:
        """What a run says of itself."""
        kinds = {node.name: node.kind for node in plan.nodes}
        return cls(plan.name, state, stats, kinds, datetime.now(UTC))

    @property
    def watermark(self) -> datetime | None:
        """How far event time has come, if the pipeline goes by it and has seen some."""
        behind = self.stats.get("watermark_lag_seconds")
        if not behind:
            return None
        # A moment lies between the run's look at the clock and ours.
        return datetime.fromtimestamp(round((self.at - timedelta(seconds=behind)).timestamp(), 2), UTC)

    @property
    def left(self) -> str:
        """How far it is with what was there when it started, and how long that may take."""
        waiting, done = self.stats.get("queue_depth", 0.0), self.stats.get("messages", 0.0)
        rate = self.stats.get("messages_per_second", 0.0)
        if self.state != "catching up" or not waiting or not rate:
            return ""
        return f"{done / (done + waiting):.0%}, about {moments.length(waiting / rate)} left"

    def step(self, name: str) -> dict[str, int]:
        """The counts of one step."""
        return {
            what: int(self.stats.get(f"steps.{name}.{what}", 0))
            for what in ("taken", "given", "failed", "late")
        }

    def record(self, event: str) -> dict[str, Any]:
        """All of it, as programs read it."""
        figures = {
            name: int(value) if name in _COUNTS else round(value, 3)
            for name, value in self.stats.items()
            if is_of_whole(name) and name != "live"
        }
        said = {"event": event, "pipeline": self.pipeline, "state": self.state, "at": self.at}
        steps = {name: self.step(name) for name in self.kinds}
        parts = {"steps": steps, "sinks": SINK.group(self.stats), "phases": PHASE.group(self.stats)}
        return {**said, **figures, "watermark": self.watermark, **parts}

    def rows(self) -> list[dict[str, Any]]:
        """A row for each step."""
        return [{"step": name, "kind": kind, **self.step(name)} for name, kind in self.kinds.items()]


class View(Protocol):
    """Somebody who is shown a run."""

    def show(self, progress: Progress) -> None:
        """Where it is; called often, shown now and then."""

    def say(self, event: str, sentence: str, **facts: object) -> None:
        """Something has happened."""

    def end(self, progress: Progress, summary: Summary) -> None:
        """It has ended: these are its last figures, and what it did."""

    def close(self) -> None:
        """Nothing more comes."""


class Lines:
    """For programs: an object each second, and one for each event. ``sums_up``: the summary is for people."""

    def __init__(self, out: Printer, *, sums_up: bool = True) -> None:
        self._out = out
        self._sums_up = sums_up
        self._last = time.monotonic()

    def show(self, progress: Progress) -> None:
        """One line, if it is time."""
        now = time.monotonic()
        if now - self._last >= _LINES_SECONDS:
            self._last = now
            self._out.line(progress.record("stats"), ())

    def say(self, event: str, sentence: str, **facts: object) -> None:
        """One line."""
        self._out.line({"event": event, "message": sentence, "at": datetime.now(UTC), **facts}, ())

    def end(self, progress: Progress, summary: Summary) -> None:
        """The last line of this run; the summary goes to standard error."""
        self._out.line(progress.record("ended"), ())
        if self._sums_up:
            print_summary(summary)

    def close(self) -> None:
        """There is nothing to put back."""


class Screen:
    """For people: figures that are redrawn in place, if there is a terminal; what stays is the summary."""

    def __init__(self, *, sums_up: bool = True) -> None:
        from rich.console import Console
        from rich.live import Live

        self._sums_up = sums_up
        self._console = Console(file=sys.stdout, highlight=False, markup=False, emoji=False)
        self._last = 0.0
        # What steps print and log comes above it: Rich takes both streams in as long as it draws.
        self._live = Live(console=self._console, auto_refresh=False, transient=True)

    def show(self, progress: Progress) -> None:
        """Draw it anew, if it is time."""
        now = time.monotonic()
        if not self._console.is_terminal or now - self._last < _SCREEN_SECONDS:
            return
        self._last = now
        if not self._live.is_started:
            self._live.start()
        self._live.update(self._drawn(progress), refresh=True)

    def say(self, event: str, sentence: str, **facts: object) -> None:  # noqa: ARG002 - for programs
        """A line beside the answer."""
        for line in sentence.splitlines():
            note(line)

    def end(self, progress: Progress, summary: Summary) -> None:  # noqa: ARG002 - figures are for programs
        """Show what it did."""
        self.close()
        if self._sums_up:
            print_summary(summary)

    def close(self) -> None:
        """Leave the terminal as it was."""
        if self._live.is_started:
            self._live.stop()

    def _drawn(self, progress: Progress) -> Text:
        from rich.text import Text

        lines = [_heading(progress), *_figures(progress), Text()]
        widths = [max(len(column.title), 7) for column in _STEPS]
        cells = [[column.cell(row) for column in _STEPS] for row in progress.rows()]
        for row in cells:
            widths = [max(width, cell.cell_len) for width, cell in zip(widths, row, strict=True)]
        titles = [Text(column.title, "bright_black") for column in _STEPS]
        lines += [_aligned(row, widths) for row in [titles, *cells]]
        for line in lines:
            line.truncate(self._console.width)
        # A display that is taller than the terminal could not be redrawn.
        drawn = Text("\n").join(lines[: self._console.height - 1])
        drawn.no_wrap = True
        return drawn


def _heading(progress: Progress) -> Text:
    from rich.text import Text

    told = [moments.length(progress.stats.get("uptime_seconds", 0.0)), progress.left]
    return Text.assemble(
        (visible(progress.pipeline), "bold"),
        "  ",
        (progress.state, _COLOURS.get(progress.state, "bold yellow")),
        "  ",
        ("  ".join(filter(None, told)), "bright_black"),
    )


def _figures(progress: Progress) -> list[Text]:
    from rich.text import Text

    stats = progress.stats
    reached = progress.watermark
    behind = moments.length(stats.get("watermark_lag_seconds", 0.0))
    alarms = {"late": "yellow", "errors": "bold red", "dead_letters": "bold red", "dropped": "bold red"}
    first: list[str | tuple[str, str]] = [
        (f"{stats.get('messages_per_second', 0.0):,.0f}", "bold green"),
        f" records/s   {stats.get('messages', 0.0):,.0f} records   lag {stats.get('queue_depth', 0.0):,.0f}",
        f"   p99 {stats.get('latency_p99_ms', 0.0):,.0f} ms",
    ]
    second: list[str | tuple[str, str]] = []
    for name, colour in alarms.items():
        value = int(stats.get(name, 0))
        if value or name != "dropped":
            second.append((f"{name.replace('_', ' ')} {value:,}   ", colour if value else "bright_black"))
    if reached is not None:
        second.append(f"watermark {clock(reached)} ({behind} behind)")
    return [Text.assemble(*first), Text.assemble(*second)]


def _aligned(cells: list[Text], widths: list[int]) -> Text:
    from rich.text import Text

    line = Text()
    for cell, column, width in zip(cells, _STEPS, widths, strict=True):
        space = Text(" " * (width - cell.cell_len))
        line += (space + cell if column.right else cell + space) + Text("  ")
    return line
