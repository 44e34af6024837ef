"""How messages are printed: shared by ``pop`` and ``tail``."""

from __future__ import annotations

from queenstream.cli.support.output import Column, clock, compact

COLUMNS = (
    Column("TIME", "createdAt", clock, style="bright_black"),
    Column("PARTITION", "partition", style="cyan"),
    Column("DATA", "data", compact),
)
