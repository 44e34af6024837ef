"""What only the database knows, read when somebody asks: health, depths, lags.

Probes and scrapes come by the second and from several sides. ``Shared`` runs the one question for all who
ask meanwhile, and nobody waits for it longer than they want to: a database that hangs costs one
connection, not one for each probe.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from time import monotonic
from typing import Generic, TypeVar

import asyncpg
import msgspec

from queenstream.broker.ops.metrics import Gauges, Metrics
from queenstream.broker.schemas.system import GroupLag, QueueGauges
from queenstream.broker.storage.database import Database
from queenstream.errors import Unavailable

log = logging.getLogger(__name__)

PROBE_SECONDS = 2.0  # a database that takes longer is away
FRESH_SECONDS = 5.0  # the gauges are not read more often than this
SCRAPE_SECONDS = 2.0  # a scrape that waited this long gets the old gauges
LOST_SECONDS = 30.0  # a run of a pipeline that has told nothing for so long is lost
MOST_PIPELINES = 200  # whose figures are shown

T = TypeVar("T")


class Shared(Generic[T]):
    """Work that many may ask for and that runs once at a time. It must not raise."""

    def __init__(self, work: Callable[[], Awaitable[T]]) -> None:
        self._work = work
        self._task: asyncio.Task[T] | None = None

    @property
    def running(self) -> bool:
        return self._task is not None

    async def result(self, within_seconds: float) -> T | None:
        """Of the run under way, or of a new one; None if it takes longer than that (it goes on)."""
        task = self._task
        if task is None:
            task = self._task = asyncio.create_task(self._run())
        # Not wait_for: to cancel a query is to wait for the server, which may be what hangs.
        await asyncio.wait({task}, timeout=within_seconds)
        return task.result() if task.done() and not task.cancelled() else None

    async def _run(self) -> T:
        try:
            return await self._work()
        finally:
            self._task = None


class Probe:
    """Whether the database answers and takes writes."""

    def __init__(self, database: Database) -> None:
        self._answers = Shared(database.find_trouble)

    async def find_trouble(self) -> str:
        """Why no message could be stored now; empty if one could."""
        trouble = await self._answers.result(PROBE_SECONDS)
        return f"the database does not answer within {PROBE_SECONDS:g} s" if trouble is None else trouble


class GaugeReader:
    """Fills ``metrics.gauges``. A read that fails leaves the old ones, and is counted."""

    def __init__(self, database: Database, metrics: Metrics) -> None:
        self._database = database
        self._metrics = metrics
        self._reading = Shared(self._read)
        self._tried_at = -FRESH_SECONDS

    async def read(self) -> None:
        """Read them, unless they are fresh."""
        if self._reading.running or monotonic() - self._tried_at >= FRESH_SECONDS:
            await self._reading.result(SCRAPE_SECONDS)

    async def refresh(self) -> None:
        """Read them now; Unavailable if that fails."""
        if self._reading.running:  # it may have begun before what the caller wants to see
            await self._reading.result(SCRAPE_SECONDS)
        if not await self._reading.result(60.0):
            raise Unavailable("the gauges could not be read; the log says why. Try again.")

    async def _read(self) -> bool:
        self._tried_at = monotonic()
        try:
            now = self._database.now()
            queues = await self._database.admin("queue_gauges", now)
            groups = await self._database.admin("group_lag", now, None)
            runs = await self._database.admin("running_pipelines", now, LOST_SECONDS, MOST_PIPELINES)
        except (Unavailable, asyncpg.PostgresError) as error:
            log.warning("gauges: %s", error)
            self._metrics.background_failed("gauges")
            return False
        self._metrics.gauges = Gauges(
            [
                QueueGauges(q["name"], q["depth"], q["oldest_seconds"], q["leases"], q["dead_letters"])
                for q in queues
            ],
            [GroupLag(g["queue"], g["group_name"], g["lag"], g["lag_seconds"]) for g in groups],
            [(run["name"], msgspec.json.decode(run["stats"], type=dict[str, float])) for run in runs],
            monotonic(),
        )
        return True
