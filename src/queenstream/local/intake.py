"""How records come in from a source: no faster than they are worked on, or, if the user says so, with loss.

``block`` reads only when the engine asks, so a slow sink slows the source. The other strategies are for
sources that do not wait: they are read all the time, into a buffer with a threshold, and what does not fit
is dropped or ends the run. Such a source is told that a record is done when it is read.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from queenstream.batches import Batch
from queenstream.connectors import Reader
from queenstream.errors import BufferFull
from queenstream.local.operators.base import together
from queenstream.pipeline.nodes import Read

log = logging.getLogger("queenstream.local")

MOST = 10_000  # records in a batch
_WAIT_SECONDS = 0.2


@dataclass(frozen=True, slots=True)
class Pressure:
    """Told when a source's threshold is crossed (``on``), and when half of it has drained (not ``on``)."""

    source: str
    on: bool
    waiting: int
    dropped: int


class Intake(Protocol):
    """A source that is being read."""

    node: Read
    waiting: int
    dropped: int

    async def take(self, wait_seconds: float) -> Batch | None:
        """The next batch; an empty one if nothing came in so many seconds; None at the end."""
        ...

    def changes(self) -> dict[str, Any]:
        """The positions that moved by what was taken since the last call."""
        ...

    async def commit(self) -> None:
        """What was taken up to the last ``changes()`` is durable."""
        ...

    def drained(self) -> bool:
        """Whether an empty batch means that there is nothing, and not that a commit must come first."""
        ...

    def lag(self) -> float | None:
        """How many records were not taken yet, if that is known."""
        ...

    async def close(self) -> None:
        """Stop reading."""
        ...


def intake_for(node: Read, reader: Reader, told: Callable[[Pressure], None]) -> Intake:
    """A source with its strategy; ``told`` hears of crossings."""
    if node.backpressure.strategy == "block":
        return Blocking(node, reader)
    return Dropping(node, reader, told)


class Blocking:
    """Reads when asked."""

    def __init__(self, node: Read, reader: Reader) -> None:
        self.node = node
        self.waiting = self.dropped = 0
        self._reader = reader
        self._most = min(MOST, node.backpressure.threshold)

    async def take(self, wait_seconds: float) -> Batch | None:
        return await self._reader.read(self._most, wait_seconds)

    def changes(self) -> dict[str, Any]:
        return self._reader.changes()

    async def commit(self) -> None:
        await self._reader.commit()

    def drained(self) -> bool:
        return self._reader.drained()

    def lag(self) -> float | None:
        return self._reader.lag()

    async def close(self) -> None:
        await self._reader.close()


class Dropping:
    """Reads all the time, and drops what is too much."""

    def __init__(self, node: Read, reader: Reader, told: Callable[[Pressure], None]) -> None:
        self.node = node
        self.waiting = self.dropped = 0
        self._reader = reader
        self._told = told
        self._strategy = node.backpressure.strategy
        self._threshold = node.backpressure.threshold
        self._buffer: deque[tuple[Batch, dict[str, Any]]] = deque()
        self._positions: dict[str, Any] = {}
        self._some = asyncio.Event()  # there are records, or it has ended
        self._over = False
        self._task = asyncio.get_running_loop().create_task(self._pump())

    async def take(self, wait_seconds: float) -> Batch | None:
        if not self._buffer and not self._task.done():
            self._some.clear()
            try:
                async with asyncio.timeout(wait_seconds):
                    await self._some.wait()
            except TimeoutError:
                return Batch([])
        if not self._buffer:
            self._task.result()  # what reading it raised
            return None
        batches = []
        for batch, moved in self._buffer:
            batches.append(batch)
            self._positions |= moved
        self._buffer.clear()
        self.waiting = 0
        self._tell()
        taken = together(batches)
        return Batch(taken.records, taken.times, None, [each for batch in batches for each in batch.failures])

    def changes(self) -> dict[str, Any]:
        moved, self._positions = self._positions, {}
        return moved

    async def commit(self) -> None:
        await self._reader.commit()

    def drained(self) -> bool:
        return not self._buffer and self._reader.drained()

    def lag(self) -> float | None:
        behind = self._reader.lag()
        return self.waiting if behind is None else behind + self.waiting

    async def close(self) -> None:
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        await self._reader.close()

    async def _pump(self) -> None:
        try:
            while (batch := await self._reader.read(MOST, _WAIT_SECONDS)) is not None:
                if not batch.empty:
                    self._put(batch)
                # A source that always has more would leave nobody else a turn.
                await asyncio.sleep(0)
        finally:
            self._some.set()

    def _put(self, batch: Batch) -> None:
        self._buffer.append((batch, self._reader.changes()))
        self.waiting += len(batch)
        over = self.waiting - self._threshold
        if over > 0:
            self._tell()
            self._shed(over)
        self._some.set()

    def _shed(self, over: int) -> None:
        """Give up so many records; that they were read stays true."""
        if self._strategy == "error":
            raise BufferFull(
                f"{self.node.name}: {self.waiting} records wait, {self._threshold} may; make the sinks "
                "faster, or write backpressure='block'"
            )
        self.dropped += over
        self.waiting -= over
        oldest = self._strategy == "drop_oldest"
        index = 0 if oldest else -1
        while over:
            batch, moved = self._buffer[index]
            cut = min(over, len(batch))
            kept = slice(cut, None) if oldest else slice(0, len(batch) - cut)
            times = None if batch.times is None else batch.times[kept]
            self._buffer[index] = (Batch(batch.records[kept], times, None, batch.failures), moved)
            over -= cut
            index += 1 if oldest else -1

    def _tell(self) -> None:
        """Say that the threshold is crossed, or that half of it is free again; once each."""
        over = self.waiting > self._threshold if not self._over else self.waiting > self._threshold // 2
        if over == self._over:
            return
        self._over = over
        log.warning(
            "%s: %s (%d wait, %d may; %d dropped so far)",
            self.node.name,
            f"more comes than goes, {self._strategy}" if over else "drained",
            self.waiting,
            self._threshold,
            self.dropped,
        )
        self._told(Pressure(self.node.name, over, self.waiting, self.dropped))
