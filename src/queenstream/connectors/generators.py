"""Functions that give records. A position is how many of them were taken.

The function runs beside the engine, a plain one in a thread of its own, and never further ahead than one
batch: one that waits for its next record holds up nobody else.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import threading
from collections.abc import AsyncIterable, AsyncIterator, Iterable, Iterator
from typing import Any, Protocol

from queenstream.connectors.base import Context, Positions
from queenstream.connectors.memory import TAKEN
from queenstream.connectors.validation import fit, schema_of
from queenstream.core.batches import Batch
from queenstream.errors import ConfigError
from queenstream.pipeline.endpoints import Generator

AHEAD = 10_000  # records that may wait to be read
LINGER_SECONDS = 0.001  # an epoch for each single record would cost more than this wait


class _Pump(Protocol):
    """Takes records from an iterator, as long as there is room for them."""

    async def take(self, most: int, wait_seconds: float) -> list[Any] | None: ...
    async def close(self) -> None: ...


class GeneratorReader:
    """Reads what a ``Generator``'s function gives."""

    def __init__(self, source: Generator[Any], context: Context) -> None:
        self._source = source
        self._node = context.node
        self._schema = schema_of(source.schema)
        self._pump: _Pump | None = None
        self._taken = 0
        self._told = 0

    async def open(self, positions: Positions) -> None:
        self._taken = self._told = int(positions.get(TAKEN, 0))
        source = self._source
        given = source.function(self._taken) if source.resumable else source.function()
        skip = 0 if source.resumable else self._taken
        if isinstance(given, AsyncIterable):
            self._pump = _TaskPump(aiter(given), skip)
        elif isinstance(given, Iterable):
            self._pump = _ThreadPump(itertools.islice(iter(given), skip, None), self._node)
        else:
            raise ConfigError(f"{source.label} gave {type(given).__name__}, not records; write it with yield")

    async def read(self, most: int, wait_seconds: float) -> Batch | None:
        assert self._pump is not None
        records = await self._pump.take(most, wait_seconds)
        if records is None:
            return None
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
        return None

    async def close(self) -> None:
        if self._pump is not None:
            await self._pump.close()


class _TaskPump:
    """Of an async iterator, in a task."""

    def __init__(self, iterator: AsyncIterator[Any], skip: int) -> None:
        self._iterator = iterator
        self._skip = skip
        self._waiting: list[Any] = []
        self._some = asyncio.Event()  # there are records, or it has ended
        self._room = asyncio.Event()
        self._task = asyncio.get_running_loop().create_task(self._run())

    async def _run(self) -> None:
        try:
            async for record in self._iterator:
                if self._skip:
                    self._skip -= 1
                    continue
                self._waiting.append(record)
                self._some.set()
                if len(self._waiting) >= AHEAD:
                    self._room.clear()
                    await self._room.wait()
        finally:
            self._some.set()

    async def take(self, most: int, wait_seconds: float) -> list[Any] | None:
        if not self._waiting:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(wait_seconds):
                    await self._some.wait()
        if self._waiting and not self._task.done():
            await asyncio.sleep(LINGER_SECONDS)
        taken, self._waiting = self._waiting[:most], self._waiting[most:]
        self._room.set()
        if self._task.done():
            if not taken:
                self._task.result()  # what the function raised
                return None
        elif not self._waiting:
            self._some.clear()
        return taken

    async def close(self) -> None:
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        end = getattr(self._iterator, "aclose", None)
        if end is not None:
            await end()


class _ThreadPump:
    """Of a plain iterator, in a thread, as it may block. Python ends without waiting for it."""

    def __init__(self, iterator: Iterator[Any], name: str) -> None:
        self._iterator = iterator
        self._loop = asyncio.get_running_loop()
        self._some = asyncio.Event()  # there are records, or it has ended
        self._lock = threading.Condition()
        # Under the lock:
        self._waiting: list[Any] = []
        self._ended = False
        self._closed = False
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name=f"queenstream {name}", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        error: BaseException | None = None
        try:
            for record in self._iterator:
                with self._lock:
                    while len(self._waiting) >= AHEAD and not self._closed:
                        self._lock.wait()
                    if self._closed:
                        return
                    self._waiting.append(record)
                    first = len(self._waiting) == 1
                if first:
                    self._wake()
        except BaseException as raised:  # noqa: BLE001 - it is raised where the records are read
            error = raised
        finally:
            with self._lock:
                self._error = error
                self._ended = True
            self._wake()

    def _wake(self) -> None:
        with contextlib.suppress(RuntimeError):  # the loop has ended meanwhile
            self._loop.call_soon_threadsafe(self._some.set)

    async def take(self, most: int, wait_seconds: float) -> list[Any] | None:
        if not self._waiting and not self._ended:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(wait_seconds):
                    await self._some.wait()
        if self._waiting and not self._ended:
            await asyncio.sleep(LINGER_SECONDS)
        with self._lock:
            taken, self._waiting = self._waiting[:most], self._waiting[most:]
            self._lock.notify()
            if taken or not self._ended:
                if not self._waiting and not self._ended:
                    self._some.clear()
                return taken
        if self._error is not None:
            raise self._error
        return None

    async def close(self) -> None:
        with self._lock:
            self._closed = True
            self._lock.notify()
