"""Readers and writers as an engine uses them, against a real Kafka."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from typing import Any

from queenstream.connectors import Context, Reader, Writer, reader_for, writer_for
from queenstream.core.batches import Batch
from queenstream.pipeline.endpoints import Kafka

SECONDS = 20.0


async def opened(
    source: Kafka,
    positions: Mapping[str, Any] | None = None,
    *,
    exclusive: bool = False,
    rewound: bool = False,
) -> Reader:
    """A reader of a group that is called like the topic."""
    context = Context(source.label, source.slug, exclusive=exclusive, rewound=rewound)
    reader = reader_for(source, context)
    await reader.open(positions or {})
    return reader


async def taken(reader: Reader, count: int, *, most: int = 1_000) -> Batch:
    """So many records and failures, or an error after a while."""
    times: list[int] = []
    found = Batch([], times)
    end = time.monotonic() + SECONDS
    while len(found) + len(found.failures) < count:
        assert time.monotonic() < end, f"only {found} came"
        batch = await reader.read(most, 0.2)
        assert batch is not None
        found.records += batch.records
        times += batch.times or []
        found.failures += batch.failures
    return found


async def everything(reader: Reader) -> list[Any]:
    """All records up to the end of what is there."""
    found = []
    end = time.monotonic() + SECONDS
    while True:
        assert time.monotonic() < end, "there is no end"
        batch = await reader.read(1_000, 0.2)
        assert batch is not None
        found += batch.records
        reader.changes()
        if batch.empty and reader.drained():
            return found


async def committed(reader: Reader) -> dict[str, Any]:
    """Commit what was read; gives the changes."""
    changes = reader.changes()
    await reader.commit()
    return changes


async def writer(sink: Kafka) -> Writer:
    made = writer_for(sink, Context("p", sink.slug))
    await made.open()
    return made


async def until(condition: Any) -> None:
    """Wait for what must come."""
    end = time.monotonic() + SECONDS
    while not condition():
        assert time.monotonic() < end, "it did not come"
        await asyncio.sleep(0.05)
