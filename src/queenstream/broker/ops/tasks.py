"""What a broker does beside answering: upkeep, heartbeat, statistics.

Each task runs in small steps at its own pace. A step that fails is logged and counted
(``queen_background_failures_total``), and the task goes on.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Awaitable, Callable
from functools import partial
from typing import TYPE_CHECKING

import msgspec

from queenstream.broker.ops import maintenance
from queenstream.broker.ops.maintenance import Upkeep
from queenstream.broker.ops.supervisor import SupervisedTask
from queenstream.broker.storage import sql
from queenstream.errors import Unavailable

if TYPE_CHECKING:
    from queenstream.broker.app import Broker

log = logging.getLogger(__name__)

EXPIRE_SECONDS = 3.0
COMPACT_SECONDS = 2.0
HEARTBEAT_SECONDS = 5.0
FORGET_SECONDS = 60.0


class Background:
    """The tasks of one broker."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._tasks: set[asyncio.Task[None]] = set()
        self._loops: list[SupervisedTask] = []
        self.upkeep = Upkeep(broker)

    def start(self) -> None:
        for name, seconds, step in (
            ("expire", EXPIRE_SECONDS, self.expire),
            ("compact", COMPACT_SECONDS, self.compact),
            ("heartbeat", HEARTBEAT_SECONDS, self.heartbeat),
            ("forget", FORGET_SECONDS, self.forget),
        ):
            work = partial(self._repeat, name, seconds, step)
            self._loops.append(self._broker.supervisor.start(name, work))

    async def stop(self) -> None:
        await asyncio.gather(*(loop.stop() for loop in self._loops))
        while self._tasks:
            await asyncio.wait(self._tasks)
        try:
            await self.flush()
            await self._broker.database.upkeep("goodbye", self._broker.id)
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
        """Delete messages that are past their time."""
        await self.upkeep.run(maintenance.MESSAGES)

    async def compact(self) -> None:
        """Write the cursors anew when somebody's open transaction keeps their dead versions."""
        await self.upkeep.compact()

    async def heartbeat(self) -> None:
        """Say that this broker is alive, with its counters, and store what its queues counted."""
        broker = self._broker
        stats = broker.metrics.snapshot(broker.live())
        broker.live_figures.note()
        [row] = await broker.database.upkeep(
            "heartbeat", broker.id, broker.address, broker.hostname, os.getpid(), broker.version,
            msgspec.json.encode(stats).decode(), sql.FUNCTION_SET,
        )  # fmt: skip
        if not row["has_functions"]:
            log.warning("the functions of this release are gone from the database; making them again")
            await broker.database.prepare()
        await self.flush()

    async def flush(self) -> None:
        """Store what was counted since the last time."""
        metrics = self._broker.metrics
        deltas = metrics.take_deltas()
        if not deltas:
            return
        try:
            columns = zip(*deltas.values(), strict=True)
            await self._broker.database.upkeep("add_stats", list(deltas), *map(list, columns))
        except BaseException:
            metrics.put_back(deltas)
            raise

    async def forget(self) -> None:
        """Delete records that nobody needs any more."""
        await self.upkeep.run(maintenance.RECORDS)
