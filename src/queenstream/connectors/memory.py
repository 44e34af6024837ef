"""Records that are at hand. A position is how many of them were taken."""

from __future__ import annotations

from typing import Any

from queenstream.connectors.base import Context, Positions
from queenstream.connectors.validation import fit, schema_of
from queenstream.core.batches import Batch
from queenstream.pipeline.endpoints import Memory

TAKEN = "taken"


class MemoryReader:
    """Gives the records of a ``Memory`` source, and then ends."""

    def __init__(self, source: Memory[Any], context: Context) -> None:  # noqa: ARG002 - as all readers
        self._records = source.records
        self._schema = schema_of(source.schema)
        self._taken = 0
        self._told = 0

    async def open(self, positions: Positions) -> None:
        self._taken = self._told = int(positions.get(TAKEN, 0))

    async def read(self, most: int, wait_seconds: float) -> Batch | None:  # noqa: ARG002 - nothing to wait for
        if self._taken >= len(self._records):
            return None
        records = list(self._records[self._taken : self._taken + most])
        self._taken += len(records)
        return fit(self._schema, records)

    def changes(self) -> dict[str, Any]:
        if self._told == self._taken:
            return {}
        self._told = self._taken
        return {TAKEN: self._taken}

    async def commit(self) -> None:
        """There is nobody to tell."""

    def drained(self) -> bool:
        return True

    def lag(self) -> float | None:
        return max(0, len(self._records) - self._taken)

    async def close(self) -> None:
        """There is nothing to let go of."""
