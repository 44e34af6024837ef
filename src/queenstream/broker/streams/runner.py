"""Runs streams: reads what is new in their sources, fills their windows, closes those that are ripe.

Any broker can do it and all try; a lock in the database lets one at a time. So nothing of it is in memory: a
broker that dies in the middle leaves a transaction that did not happen.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Iterable
from typing import TYPE_CHECKING

from queenstream.broker.streams.model import Source, Stream, from_row
from queenstream.broker.streams.worker import Work
from queenstream.errors import Unavailable

if TYPE_CHECKING:
    from queenstream.broker.app import Broker

log = logging.getLogger(__name__)

SPACING_SECONDS = 0.02  # between steps for what is pushed all the time
FAILED_SECONDS = 1.0
NET_SECONDS = 5.0  # the slow look, should a notice be lost


class Streams:
    """The streams that this broker knows, each with a task of its own."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._runners: dict[str, Runner] = {}
        self._by_queue: dict[str, list[Runner]] = {}
        self._loading = asyncio.Lock()
        self.closing = False

    def get(self, name: str) -> Stream | None:
        """A stream by its name, as this broker knows it."""
        runner = self._runners.get(name)
        return None if runner is None else runner.stream

    def by_id(self, stream_id: int) -> Stream | None:
        return next((r.stream for r in self._runners.values() if r.stream.id == stream_id), None)

    async def find(self, name: str) -> Stream | None:
        """A stream by its name; looked for if it is not known."""
        if name not in self._runners:
            await self.load()
        return self.get(name)

    async def load(self) -> None:
        """Learn which streams there are."""
        async with self._loading:
            if self.closing:
                return
            known = await read_streams(self._broker)
            for name in [name for name, r in self._runners.items() if known.get(name) != r.stream]:
                old = self._runners[name]
                fresh = known.get(name)
                if fresh is not None and fresh.id == old.stream.id:
                    old.stream = fresh
                else:
                    del self._runners[name]
                    await old.stop()
            for name, stream in known.items():
                if name not in self._runners:
                    self._runners[name] = Runner(self._broker, stream)
            self._by_queue = {}
            for runner in self._runners.values():
                for source in runner.stream.sources:
                    self._by_queue.setdefault(source.name, []).append(runner)

    def reads(self, queue: str) -> bool:
        """Whether a stream has this queue as a source."""
        return queue in self._by_queue

    def stored(self, queues: Iterable[str]) -> None:
        """Something was pushed into these queues."""
        if self._by_queue:
            for queue in queues:
                for runner in self._by_queue.get(queue, ()):
                    runner.wake()

    def asked(self, name: str) -> None:
        """Somebody polls: look, if it is time."""
        runner = self._runners.get(name)
        if runner is not None and runner.due():
            runner.wake()

    def wake_all(self) -> None:
        for runner in self._runners.values():
            runner.wake()

    async def close(self) -> None:
        self.closing = True
        for runner in self._runners.values():
            await runner.stop()


async def read_streams(broker: Broker, name: str | None = None) -> dict[str, Stream]:
    """Streams with their sources, from the database."""
    streams = {row["id"]: from_row(row) for row in await broker.database.upkeep("stream_rows", name)}
    for row in await broker.database.upkeep("stream_source_rows", None):
        stream = streams.get(row["stream_id"])
        if stream is not None:
            stream.sources.append(Source(*tuple(row)[1:]))
    return {stream.name: stream for stream in streams.values()}


class Runner:
    """Keeps one stream going."""

    def __init__(self, broker: Broker, stream: Stream) -> None:
        self._broker = broker
        self._work = Work(broker, stream)
        self._wanted = asyncio.Event()
        self._wanted.set()
        self._task = broker.supervisor.start("streams", self._run)

    @property
    def stream(self) -> Stream:
        return self._work.stream

    @stream.setter
    def stream(self, stream: Stream) -> None:
        self._work.stream = stream

    def wake(self) -> None:
        self._wanted.set()

    def due(self) -> bool:
        """Whether a window may be ripe by now."""
        return self._work.due is not None and self._work.now() >= self._work.due

    async def stop(self) -> None:
        await self._task.stop()

    async def _run(self) -> None:
        while True:
            try:
                await self._wait()
                if not self._broker.maintenance:
                    await self._work.step()
                pause = SPACING_SECONDS
                if self._work.due is not None:  # a window that is ripe does not wait
                    pause = min(pause, max(0.001, self._work.due - self._work.now()))
            except Exception as error:
                if isinstance(error, Unavailable):
                    log.warning("stream %s: %s", self.stream.name, error)
                else:
                    log.exception("stream %s", self.stream.name)
                self._broker.metrics.background_failed("streams")
                self._wanted.set()
                pause = FAILED_SECONDS
            await asyncio.sleep(pause)

    async def _wait(self) -> None:
        """Until something is pushed, or a window is ripe."""
        give_up = time.monotonic() + NET_SECONDS
        while not self._wanted.is_set() and not self.due() and time.monotonic() < give_up:
            due = self._work.due
            seconds = NET_SECONDS if due is None else min(NET_SECONDS, max(0.0, due - self._work.now()))
            if self._broker.database.now() is not None:  # a clock that is turned by hand
                seconds = min(seconds, 0.02)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await self._wanted.wait()
        self._wanted.clear()
