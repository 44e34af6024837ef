"""How far groups are behind, over time: kept in memory, for those that somebody looks at.

Whoever asks for a group's lag makes it watched for ten minutes; a page that stays open asks again and again.
All that is watched is read by one statement, as often as that is cheap.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from datetime import UTC, datetime
from time import monotonic
from typing import TYPE_CHECKING

import asyncpg

from queenstream.broker.ops.live_metrics import Paced
from queenstream.broker.ops.supervisor import SupervisedTask
from queenstream.broker.schemas.live import LagPoint
from queenstream.errors import Unavailable

if TYPE_CHECKING:
    from queenstream.broker.app import Broker

log = logging.getLogger(__name__)

SAMPLE_SECONDS = 5.0
WATCH_SECONDS = 600.0
MOST_WATCHED = 200
MOST_POINTS = 360  # half an hour
WAIT_SECONDS = 5.0  # for a first point

Place = tuple[str, str, str | None]  # group, queue, partition (None: all)


class Watched:
    """One series."""

    def __init__(self) -> None:
        self.asked_at = monotonic()
        self.points: deque[LagPoint] = deque(maxlen=MOST_POINTS)


class Lags:
    """The series of one broker.

    >>> lags.watch("billing", "orders", None)  # doctest: +SKIP
    """

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._watched: dict[Place, Watched] = {}
        self._reading = Paced(self._read, SAMPLE_SECONDS)
        self._loop: SupervisedTask | None = None
        self._closed = False

    @property
    def every_seconds(self) -> float:
        return self._reading.every_seconds

    def watch(self, group: str, queue: str, partition: str | None) -> Watched:
        """Keep a series from now on; the one that was asked for longest ago makes room."""
        place = (group, queue, partition)
        watched = self._watched.get(place)
        if watched is None:
            if len(self._watched) >= MOST_WATCHED:
                del self._watched[min(self._watched, key=lambda each: self._watched[each].asked_at)]
            watched = self._watched[place] = Watched()
        watched.asked_at = monotonic()
        if self._loop is None and not self._closed:
            self._loop = self._broker.supervisor.start("lags", self._run)
        return watched

    async def first(self) -> None:
        """Wait until what was just asked for has a point, if that does not take long."""
        await self._reading.now(WAIT_SECONDS)

    async def close(self) -> None:
        self._closed = True
        if self._loop is not None:
            await self._loop.stop()

    async def _run(self) -> None:
        while self._watched:
            await self._reading.fresh()
            await asyncio.sleep(SAMPLE_SECONDS / 5)
            self._forget()
        self._loop = None

    def _forget(self) -> None:
        before = monotonic() - WATCH_SECONDS
        for place in [place for place, watched in self._watched.items() if watched.asked_at < before]:
            del self._watched[place]

    async def _read(self) -> None:
        database, places = self._broker.database, list(self._watched)
        columns = ([place[at] for place in places] for at in range(3))
        try:
            rows = await database.admin("watched_lag", *columns, database.now())
        except (Unavailable, asyncpg.PostgresError) as error:
            log.warning("lag over time: %s", error)
            self._broker.metrics.background_failed("lags")
            return
        at = database.now() or datetime.now(UTC)
        for row in rows:
            watched = self._watched.get(places[row["n"]])
            if watched is not None:
                watched.points.append(LagPoint(at, row["lag"], round(row["lag_seconds"], 3)))
