"""Writes what a long run of fault tests has shown to docs/reliability.md."""

from __future__ import annotations

import os
import platform
from datetime import UTC, datetime
from pathlib import Path

import psutil
import pyspark

PAGE = Path(__file__).parents[2] / "docs" / "reliability.md"
_BEGIN, _END = "<!-- figures of long runs: begin -->\n", "<!-- figures of long runs: end -->\n"
_HEAD = "| Test | Kills | Seed | Minutes | Spark | Machine | Day |\n|---|---|---|---|---|---|---|\n"


def record(name: str, kills: int, seed: int, seconds: float) -> None:
    """Replace the row of a test, or add one."""
    memory = psutil.virtual_memory().total / 2**30
    machine = f"{os.cpu_count()} cores, {memory:.0f} GiB, {platform.system()} {platform.machine()}"
    day = datetime.now(UTC).strftime("%Y-%m-%d")
    row = f"| {name} | {kills} | {seed} | {seconds / 60:.1f} | {pyspark.__version__} | {machine} | {day} |\n"
    text = PAGE.read_text()
    before, rest = text.split(_BEGIN)
    table, after = rest.split(_END)
    rows = [line + "\n" for line in table.splitlines()[2:] if not line.startswith(f"| {name} |")]
    PAGE.write_text(before + _BEGIN + _HEAD + "".join(sorted([*rows, row])) + _END + after)
