"""What a broker does beside answering: upkeep, heartbeat, statistics.

Each task runs in small steps at its own pace. A step that fails is logged and counted
(``queen_background_failures_total``), and the task goes on.
"""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

import msgspec

from queenstream.broker import auditing
from queenstream.errors import Unavailable

if TYPE_CHECKING:
    from queenstream.broker.app import Broker

log = logging.getLogger(__name__)

EXPIRE_SECONDS = 3.0
EXPIRE_MESSAGES = 20_000  # in one step; more steps follow at once while there is more
COMPACT_SECONDS = 2.0
COMPACT_ROWS = 50_000  # live cursors, about 0.4 s; more would take too long while everybody waits
COMPACT_PAUSE = 60.0  # at most, between attempts at a table that is never free
HEARTBEAT_SECONDS = 5.0
FORGET_SECONDS = 60.0
FORGET_WINDOWS = 10_000  # in one step
PIPELINE_SERIES_SECONDS = 6 * 3600.0  # what is kept of a pipeline's figures
PIPELINE_SECONDS = 30 * 86_400.0  # what is kept of a pipeline that tells nothing any more


class Background:
    """The tasks of one broker."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._tasks: set[asyncio.Task[None]] = set()
        self._loops: list[asyncio.Task[None]] = []
        self._compact_pause = 0.0
        self._compact_after = 0.0

    def start(self) -> None:
        for name, seconds, step in (
            ("expire", EXPIRE_SECONDS, self.expire),
            ("compact", COMPACT_SECONDS, self.compact),
            ("heartbeat", HEARTBEAT_SECONDS, self.heartbeat),
            ("forget", FORGET_SECONDS, self.forget),
        ):
            self._loops.append(asyncio.create_task(self._repeat(name, seconds, step), name=name))

    async def stop(self) -> None:
        loops = set(self._loops)
        while loops:  # Python 3.11's wait_for may lose a cancellation: until it is heard
            for task in loops:
                task.cancel()
            _, loops = await asyncio.wait(loops, timeout=0.5)
        while self._tasks:
            await asyncio.wait(self._tasks)
        try:
            await self.flush()
            await self._broker.database.admin("goodbye", self._broker.id)
        except Unavailable:
            log.warning("the database is away: the last statistics are lost")

    def soon(self, work: Callable[[], Awaitable[None]]) -> None:
        """Run something once, now, outside of any request."""
        task = asyncio.create_task(self._once(getattr(work, "__name__", "task"), work))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _once(self, name: str, work: Callable[[], Awaitable[None]]) -> None:
        try:
            await work()
        except Unavailable as error:
            log.warning("%s: %s", name, error)
            self._broker.metrics.background_failed(name)
        except Exception:
            log.exception("background task %s", name)
            self._broker.metrics.background_failed(name)

    async def _repeat(self, name: str, seconds: float, step: Callable[[], Awaitable[None]]) -> None:
        while True:
            await self._once(name, step)
            await asyncio.sleep(seconds)

    async def expire(self) -> None:
        """Delete what is past its time. Paused in maintenance."""
        broker = self._broker
        while not broker.maintenance:
            rows = await broker.database.admin("expire", EXPIRE_MESSAGES, broker.database.now())
            for row in rows:
                broker.metrics.queue(row["queue_name"]).expired += row["deleted"]
            if not rows or not rows[0]["more"]:
                break
            await asyncio.sleep(0.01)
        while not broker.maintenance:
            buried = await broker.database.admin("bury_overdue", 100, broker.database.now())
            if buried[0]["done"] < 100:
                return
            await asyncio.sleep(0.01)

    async def compact(self) -> None:
        """Write the cursors anew when somebody's open transaction keeps their dead versions."""
        now = time.monotonic()
        if self._broker.maintenance or now < self._compact_after:
            return
        row = (await self._broker.database.admin("compact", COMPACT_ROWS))[0]
        if row["outcome"] == "busy":  # each attempt makes everybody wait a little: try less and less often
            self._compact_pause = min(COMPACT_PAUSE, max(COMPACT_SECONDS, self._compact_pause * 2))
            self._compact_after = now + self._compact_pause
            log.debug("compact: cursors could not be locked; again in %.0f s", self._compact_pause)
            return
        self._compact_pause = 0.0
        if row["outcome"] == "done":
            log.info(
                "compact: %d cursors written anew in %.0f ms, %d pages before, %d now; "
                "a transaction held open somewhere keeps vacuum from it",
                row["live"], row["seconds"] * 1000, row["pages_before"], row["pages_after"],
            )  # fmt: skip

    async def heartbeat(self) -> None:
        """Say that this broker is alive, with its counters, and store what its queues counted."""
        broker = self._broker
        stats = broker.metrics.snapshot(broker.live())
        broker.live_figures.note()
        await broker.database.admin(
            "heartbeat", broker.id, broker.address, broker.hostname, os.getpid(), broker.version,
            msgspec.json.encode(stats).decode(),
        )  # fmt: skip
        await self.flush()

    async def flush(self) -> None:
        """Store what was counted since the last time."""
        metrics = self._broker.metrics
        deltas = metrics.take_deltas()
        if not deltas:
            return
        try:
            columns = zip(*deltas.values(), strict=True)
            await self._broker.database.admin("add_stats", list(deltas), *map(list, columns))
        except BaseException:
            metrics.put_back(deltas)
            raise

    async def forget(self) -> None:
        """Drop what nobody needs any more."""
        broker = self._broker
        now = broker.database.now()
        if broker.maintenance:
            return
        await broker.database.admin("forget_dead_letters", broker.settings.dead_letter_retention, now)
        await broker.database.admin("forget_traces", broker.settings.trace_retention, now)
        await broker.database.admin("forget_acts", broker.settings.audit_retention, auditing.MOST_ACTS, now)
        await broker.database.admin("forget_stats")
        await broker.database.admin("forget_first_pops")
        await broker.database.admin("forget_brokers")
        await broker.database.admin("forget_windows", FORGET_WINDOWS, now)
        await broker.database.admin("forget_pipeline_stats", now, PIPELINE_SERIES_SECONDS)
        await broker.database.admin("forget_pipelines", now, PIPELINE_SECONDS)
