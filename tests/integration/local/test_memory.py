"""A run with large records: what has come together is delivered before there is too much of it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from typing import Any

from queenstream.engines.local.intake import MOST_BYTES
from queenstream.pipeline.builder import Pipeline

MEGABYTE = "x" * (1 << 20)
MANY = 4 * MOST_BYTES // len(MEGABYTE)  # more than may wait for a commit


def test_large_records_are_committed_before_their_time() -> None:
    """The interval is an hour; the source stops giving until the first rows are in the sink."""
    delivered = threading.Event()
    seen: list[int] = []

    async def records() -> AsyncIterator[dict[str, Any]]:
        for n in range(MANY):
            yield {"n": n, "text": MEGABYTE}
        assert await asyncio.to_thread(delivered.wait, 60), "all of it is in memory, and nothing delivered"
        yield {"n": MANY, "text": ""}

    def sink(row: dict[str, Any]) -> None:
        seen.append(row["n"])
        delivered.set()

    pipeline = Pipeline("large").source(records).filter(lambda record: True).to(sink)
    pipeline.run(engine="local", interval="1h")
    assert seen == list(range(MANY + 1))
