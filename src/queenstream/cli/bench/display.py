"""What ``queen bench`` shows: a live line and a table for people, one JSON object a line for programs."""

from __future__ import annotations

import json
import sys
import time
from collections import deque
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from queenstream.cli.bench.connections import Tally

if TYPE_CHECKING:
    from rich.console import Console

BUSY_SHARE = 0.9  # of a core: above this the generator is what is measured


@dataclass(frozen=True)
class Progress:
    """Where a run is. ``rate`` is that of the last second; the percentiles are those of all so far."""

    phase: str
    seconds: float
    left_seconds: float
    messages: int
    rate: float
    mean_rate: float
    p50_ms: float
    p99_ms: float
    errors: int
    of_messages: int = 0  # how many there will be, if that is known


class Meter:
    """Reads a tally from time to time."""

    def __init__(self, phase: str, tally: Tally, of_messages: int = 0) -> None:
        self._phase = phase
        self._tally = tally
        self._of = of_messages
        self._seen: deque[tuple[float, int]] = deque([(tally.started, 0)])

    def read(self) -> Progress:
        """Where the run is now."""
        tally, now = self._tally, time.perf_counter() + 1e-9  # never zero seconds
        self._seen.append((now, tally.count))
        while len(self._seen) > 2 and self._seen[1][0] <= now - 1:
            self._seen.popleft()
        since, before = self._seen[0]
        p50, p99 = tally.times.quantiles(0.5, 0.99)
        return Progress(
            self._phase,
            round(now - tally.started, 3),
            round(max(0.0, tally.ends - now), 3),
            tally.count,
            round((tally.count - before) / (now - since), 1),
            round(tally.count / (now - tally.started), 1),
            round(p50 * 1e3, 3),
            round(p99 * 1e3, 3),
            tally.errors,
            self._of,
        )


@dataclass
class Summary:
    """What a run has found. ``extra``: what only this command has."""

    command: str
    url: str
    queue: str
    seconds: float
    messages: int
    rate: float
    mb_per_second: float
    p50_ms: float
    p90_ms: float
    p99_ms: float
    p999_ms: float
    max_ms: float
    errors: int
    error: str
    cpu_share: float
    interrupted: bool
    extra: dict[str, Any] = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)


def summarize(
    tally: Tally, *, command: str, url: str, queue: str, payload_bytes: int, whole: bool, cpu_share: float
) -> Summary:
    """The summary of a tally; ``whole``: rates are over all of the time, else up to the last answer."""
    times = tally.times
    p50, p90, p99, p999 = (round(value * 1e3, 3) for value in times.quantiles(0.5, 0.9, 0.99, 0.999))
    rate = tally.rate(whole=whole)
    each = payload_bytes / tally.count if tally.count else 0.0
    found = Summary(
        command, url, queue, round((tally.ends if whole else tally.last) - tally.started, 3), tally.count,
        round(rate, 1), round(rate * each / 1e6, 3), p50, p90, p99, p999, round(times.highest * 1e3, 3),
        tally.errors, tally.error, round(cpu_share, 3), tally.stopped,
    )  # fmt: skip
    if cpu_share > BUSY_SHARE:
        found.warnings.append(
            f"the load generator is the bottleneck: it took {cpu_share:.2f} of a core; raise --batch,"
            " or run several at once"
        )
    return found


class View(Protocol):
    """Somebody who is shown a run. ``every_seconds``: how often; 0: not while it runs."""

    every_seconds: float

    def show(self, progress: Progress) -> None:
        """Where the run is."""

    def end(self, summary: Summary) -> None:
        """What it has found."""

    def close(self) -> None:
        """Nothing more comes."""


class Lines:
    """NDJSON: an object each second, and the summary."""

    every_seconds = 1.0

    def show(self, progress: Progress) -> None:
        """One line."""
        self._write({"type": "progress", **asdict(progress)})

    def end(self, summary: Summary) -> None:
        """The last line."""
        said = asdict(summary)
        self._write({"type": "summary", **said.pop("extra"), **said})

    def close(self) -> None:
        """There is nothing to put back."""

    def _write(self, value: dict[str, Any]) -> None:
        sys.stdout.write(json.dumps(value) + "\n")
        sys.stdout.flush()


class Screen:
    """For people: on a terminal a display that is redrawn, and a table at the end."""

    def __init__(self) -> None:
        from rich.console import Console
        from rich.live import Live

        self._console: Console = Console(file=sys.stdout, highlight=False, markup=False, emoji=False)
        self.every_seconds = 0.25 if self._console.is_terminal else 0.0
        # Drawn by us, in the event loop: a thread of Rich's own would take turns with the load.
        self._live = Live(
            console=self._console,
            auto_refresh=False,
            transient=True,
            redirect_stdout=False,
            redirect_stderr=False,
        )

    def show(self, progress: Progress) -> None:
        """Draw it anew. Plain text: it takes 0.2 ms, a Rich table 1.6, and the load waits meanwhile."""
        from rich.text import Text

        if not self._live.is_started:
            self._live.start()
        p = progress
        left = f"{p.left_seconds:.0f} s left"
        if p.of_messages:
            left = f"of {p.of_messages:,}, at most {left}"
        text = Text.assemble(
            (f"{p.phase:<8}", "bold"),
            (f"{p.rate:>12,.0f}", "bold green"), " messages/s now",
            f"{p.mean_rate:>12,.0f} mean{p.messages:>14,} messages\n",
            f"{'':8}{p.p50_ms:>12,.1f} ms p50       {p.p99_ms:>12,.1f} p99 ",
            (f"{p.errors:>14,} errors  ", "bold red" if p.errors else ""), f"{left}",
        )  # fmt: skip
        text.no_wrap, text.overflow = True, "crop"
        self._live.update(text, refresh=True)

    def end(self, summary: Summary) -> None:
        """The table."""
        from rich.table import Table

        self.close()
        s = summary
        table = Table(show_header=False, box=None, padding=(0, 2))
        table.add_column()
        table.add_column(justify="right")
        table.add_column()
        rows = [
            ("messages", f"{s.messages:,}", ""),
            ("rate", f"{s.rate:,.0f}", "messages/s"),
            ("payloads", f"{s.mb_per_second:,.2f}", "MB/s"),
            ("latency p50", f"{s.p50_ms:,.2f}", f"ms, {LATENCY[s.command]}"),
            ("p90", f"{s.p90_ms:,.2f}", "ms"),
            ("p99", f"{s.p99_ms:,.2f}", "ms"),
            ("p99.9", f"{s.p999_ms:,.2f}", "ms"),
            ("max", f"{s.max_ms:,.2f}", "ms"),
            ("errors", f"{s.errors:,}", s.error),
            *((name, f"{s.extra[name]:,}", "messages") for name in ("lost", "repeated") if name in s.extra),
            ("generator", f"{s.cpu_share:.2f}", "of a core"),
        ]
        for row in rows:
            table.add_row(*row, style="red" if row[0] in ("errors", "lost") and row[1] != "0" else None)
        title = f"\n  queen bench {s.command}  {s.url}  {s.seconds:.1f} s\n"
        self._console.print(title, style="bold", soft_wrap=True)
        self._console.print(table)
        if s.interrupted:
            self._console.print("\nended early")
        for warning in s.warnings:
            self._console.print(f"\nwarning: {warning}", style="yellow", soft_wrap=True)
        self._console.print()

    def close(self) -> None:
        """Leave the terminal as it was."""
        if self._live.is_started:
            self._live.stop()


LATENCY = {"produce": "of a push", "consume": "of a pop with its ack", "e2e": "from sending to arrival"}
