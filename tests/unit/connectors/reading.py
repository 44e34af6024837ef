"""What the tests of connectors share: readers driven to their end."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from queenstream.connectors import Context, Reader, reader_for
from queenstream.core.batches import Batch
from queenstream.pipeline.endpoints import Source

CONTEXT = Context("p", "in")


async def opened(source: Source[Any], positions: Mapping[str, Any] | None = None) -> Reader:
    reader = reader_for(source, CONTEXT)
    await reader.open(positions or {})
    return reader


async def some(reader: Reader, most: int = 100) -> Batch:
    """The next batch that has something in it."""
    while True:
        batch = await reader.read(most, 5.0)
        assert batch is not None, "the source has ended"
        if not batch.empty:
            return batch


async def rest(reader: Reader, most: int = 100) -> Batch:
    """All that is left, as one batch."""
    found = Batch([])
    while (batch := await reader.read(most, 5.0)) is not None:
        found.records += batch.records
        found.failures += batch.failures
    return found


async def everything(
    source: Source[Any], positions: Mapping[str, Any] | None = None, most: int = 100
) -> Batch:
    reader = await opened(source, positions)
    try:
        return await rest(reader, most)
    finally:
        await reader.close()
