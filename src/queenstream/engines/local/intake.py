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

import msgspec

from queenstream.connectors import Reader
from queenstream.core.batches import Batch
from queenstream.engines.local.operators.base import together
from queenstream.errors import BufferFull
from queenstream.pipeline.plan.nodes import Read, Replay

log = logging.getLogger("queenstream.local")

MOST = 10_000  # records in a batch
MOST_TOGETHER = 500  # the same of a source that goes by event time with others: so far it may be ahead
MOST_BYTES = 32 << 20  # and their bytes, about
_FIRST = 32  # records in a source's first batch
_GROWTH = 8  # how many times more may be in the next one
_SAMPLES = 8  # records of a batch that are looked at for their size
_WAIT_SECONDS = 0.2


@dataclass(frozen=True, slots=True)
class Pressure:
    """Told when a source's threshold is crossed (``on``), and when half of it has drained (not ``on``)."""

    source: str
    on: bool
    waiting: int
    dropped: int


class Sizes:
    """How many records the next batch may have, so that it has about ``most_bytes`` at most.

    Nobody knows how large a source's records are before some have come: it begins with few, and grows
    quickly. A look at some records of each batch says how large those of the next one will be; one that is
    far larger than those before it is not foreseen.

    >>> sizes = Sizes()
    >>> sizes.most, sizes.saw(Batch([{"text": "x" * 1_000_000}] * 32)), sizes.most
    (32, 32000352, 33)
    """

    def __init__(self, most: int = MOST, most_bytes: int = MOST_BYTES) -> None:
        self._limit = most
        self._most_bytes = most_bytes
        self.most = min(most, _FIRST)

    def saw(self, batch: Batch) -> int:
        """A batch has come; gives about how many bytes it has."""
        records = batch.records
        if not records:
            return 0
        step = -(-len(records) // _SAMPLES)
        sizes = [size_of(record) for record in records[::step]]
        fitting = self._most_bytes // max(1, *sizes)
        self.most = max(1, min(self._limit, self.most * _GROWTH, fitting))
        return sum(sizes) * len(records) // len(sizes)


def size_of(record: Any) -> int:
    """About how many bytes a record takes: those of its JSON.

    >>> size_of({"text": "x" * 100})
    111
    """
    try:
        return len(msgspec.json.encode(record, enc_hook=repr))
    except (msgspec.MsgspecError, ValueError, TypeError, OverflowError):
        return len(repr(record))


class Intake(Protocol):
    """A source that is being read."""

    node: Read
    waiting: int
    dropped: int
    bytes: int

    async def take(self, wait_seconds: float) -> Batch | None:
        """The next batch; an empty one if nothing came in so many seconds; None at the end.

        ``bytes`` is then about how large it is.
        """
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


def intake_for(
    node: Read,
    reader: Reader,
    told: Callable[[Pressure], None],
    *,
    together: bool = False,
    max_rows: int | None = None,
    max_bytes: int | None = None,
) -> Intake:
    """A source with its strategy; ``told`` hears of crossings. ``together``: it goes in step with others."""
    rows = min(max_rows or MOST, MOST_TOGETHER if together else max_rows or MOST)
    if node.backpressure.strategy == "block":
        rows = min(rows, node.backpressure.threshold)
    sizes = Sizes(rows, max_bytes or MOST_BYTES)
    if isinstance(node, Replay):
        return Beside(node, reader, sizes)
    if node.backpressure.strategy == "block":
        return Blocking(node, reader, sizes)
    return Dropping(node, reader, told, sizes)


class Blocking:
    """Reads when asked."""

    def __init__(self, node: Read, reader: Reader, sizes: Sizes) -> None:
        self.node = node
        self.waiting = self.dropped = self.bytes = 0
        self._reader = reader
        self._sizes = sizes

    async def take(self, wait_seconds: float) -> Batch | None:
        batch = await self._reader.read(self._sizes.most, wait_seconds)
        if batch is not None:
            self.bytes = self._sizes.saw(batch)
        return batch

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


class Beside:
    """Asks in a task of its own: a source that is quiet nearly always costs the others no time.

    The next batch is asked for when the positions of the last one were taken, so that nothing is
    acknowledged that was not worked on.
    """

    def __init__(self, node: Read, reader: Reader, sizes: Sizes) -> None:
        self.node = node
        self.waiting = self.dropped = self.bytes = 0
        self._reader = reader
        self._sizes = sizes
        self._asking: asyncio.Task[Batch | None] | None = None
        self._untold = False  # there are positions to be taken
        self._quiet = False  # the last answer was that there is nothing

    async def take(self, wait_seconds: float) -> Batch | None:
        if self._untold:
            return Batch([])
        if self._asking is None:
            asked = self._reader.read(self._sizes.most, _WAIT_SECONDS if self._quiet else 0.0)
            self._asking = asyncio.get_running_loop().create_task(asked)
        await asyncio.wait([self._asking], timeout=wait_seconds)
        if not self._asking.done():
            return Batch([])
        batch, self._asking = self._asking.result(), None
        if batch is not None:
            self.bytes = self._sizes.saw(batch)
            self._quiet = batch.empty and self._reader.drained()
            self._untold = not self._quiet
        return batch

    def changes(self) -> dict[str, Any]:
        if not self._untold:
            return {}
        self._untold = False
        return self._reader.changes()

    async def commit(self) -> None:
        await self._reader.commit()

    def drained(self) -> bool:
        return self._quiet and self._reader.drained()

    def lag(self) -> float | None:
        return self._reader.lag()

    async def close(self) -> None:
        if self._asking is not None:  # not cancelled: what it was given would be leased to nobody
            await asyncio.gather(self._asking, return_exceptions=True)
        await self._reader.close()


class Dropping:
    """Reads all the time, and drops what is too much."""

    def __init__(self, node: Read, reader: Reader, told: Callable[[Pressure], None], sizes: Sizes) -> None:
        self.node = node
        self.waiting = self.dropped = self.bytes = 0
        self._reader = reader
        self._told = told
        self._strategy = node.backpressure.strategy
        self._threshold = node.backpressure.threshold
        self._sizes = sizes
        self._held_bytes = 0
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
        self.bytes, self._held_bytes = self._held_bytes, 0
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
            while (batch := await self._reader.read(self._sizes.most, _WAIT_SECONDS)) is not None:
                self._held_bytes += self._sizes.saw(batch)
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
