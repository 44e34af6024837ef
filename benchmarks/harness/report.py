"""A small table for people, and one line of JSON for machines."""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import platform
import statistics
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import asyncpg
import psutil

from harness.servers import CannotRun


class Report:
    """Rows and checks of one benchmark; ``finish`` prints the JSON line."""

    def __init__(self, question: str) -> None:
        self.figures: dict[str, Any] = {}
        self.targets: dict[str, dict[str, Any]] = {}
        self.notes: list[str] = []
        self.client_cpu: list[float] = []
        self.machine = machine()
        self.busy = psutil.cpu_percent(0.5) * (os.cpu_count() or 1) / 100  # cores at work without us
        print(question)
        m = self.machine
        print(
            f"{m['cpu']}, {m['cores']} cores, Python {m['python']}; cores busy before the run {self.busy:.2f}"
        )
        if self.busy > 0.3:
            print("The machine is not quiet: ratios are rough, absolute figures mean nothing.")
        print(flush=True)

    def table(self, heads: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
        cells = [[_show(cell) for cell in row] for row in rows]
        widths = [max(len(line[at]) for line in [list(heads), *cells]) for at in range(len(heads))]
        for line in [list(heads), *cells]:
            first, rest = line[0].ljust(widths[0]), zip(line[1:], widths[1:], strict=True)
            print("  ".join([first, *(cell.rjust(width) for cell, width in rest)]))
        print(flush=True)

    def note(self, text: str) -> None:
        """What is unlike, or was left out."""
        self.notes.append(text)
        print(f"note: {text}", flush=True)

    def at_least(self, name: str, value: float, target: float) -> None:
        self._check(name, value, target, value >= target, "≥")

    def at_most(self, name: str, value: float, target: float) -> None:
        self._check(name, value, target, value <= target, "≤")

    def _check(self, name: str, value: float, target: float, good: bool, sign: str) -> None:
        verdict = "reached" if good else "missed"
        self.targets[name] = {"value": round(value, 3), "target": f"{sign} {target:g}", "verdict": verdict}
        print(f"{name}: {_show(value)} (target {sign} {target:g}): {verdict}", flush=True)

    def clients(self, share: float) -> None:
        """The share of a core that the load generator took in one run."""
        self.client_cpu.append(share)

    def finish(self) -> None:
        highest = max(self.client_cpu, default=0.0)
        print(f"load generator: at most {highest:.2f} of a core", flush=True)
        if highest > 0.9:
            self.note("the load generator was as good as busy: the figures are a lower bound")
        line = {
            "benchmark": Path(sys.argv[0]).stem,
            "targets": self.targets,
            "figures": self.figures,
            "machine": self.machine,
            "cores_busy_before": round(self.busy, 2),
            "load_generator_cpu": round(highest, 2),
            "notes": self.notes,
        }
        print(json.dumps(line, ensure_ascii=False), flush=True)


def machine() -> dict[str, Any]:
    """What the figures were measured on."""
    lines = Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").exists() else []
    model = next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), "")
    return {
        "cpu": model or platform.processor() or platform.machine(),
        "cores": os.cpu_count(),
        "python": platform.python_version(),
    }


def postgres_version(report: Report, url: str) -> None:
    """Ask the server for its version, for the report."""

    async def ask() -> str:
        connection = await asyncpg.connect(url)
        try:
            return str(await connection.fetchval("show server_version"))
        finally:
            await connection.close()

    report.machine["postgres"] = asyncio.run(ask())


def median(values: Sequence[float]) -> float:
    return statistics.median(values) if values else 0.0


def _show(value: object) -> str:
    if isinstance(value, float):
        return (
            f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}" if abs(value) < 10 else f"{value:.1f}"
        )
    return f"{value:,}" if isinstance(value, int) else str(value)


def main(
    question: str,
    run: Callable[[Report, argparse.Namespace], None],
    add_arguments: Callable[[argparse.ArgumentParser], None] | None = None,
) -> None:
    """The command line that all benchmarks share; ``add_arguments`` adds options of one of them."""
    parser = argparse.ArgumentParser(description=question)
    parser.add_argument("--quick", action="store_true", help="a short run, about 20 s; rougher figures")
    parser.add_argument("--peers", action="store_true", help="also install and start the peers")
    if add_arguments is not None:
        add_arguments(parser)
    options = parser.parse_args()
    report = Report(question)
    try:
        run(report, options)
    except CannotRun as error:
        print(f"cannot run: {error}", file=sys.stderr)
        sys.exit(1)
    report.finish()
