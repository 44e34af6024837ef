"""What goes on, once a second, for all who watch: computed once, and only while somebody does.

Rates and latency come from this process's own counters. What only the database knows is read as often as it
costs less than a hundredth of a core (``Paced``): every two seconds with a few groups, less often with
thousands. Every five seconds a point is kept for small plots, whoever watches: that costs no query.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter, deque
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from time import monotonic
from typing import TYPE_CHECKING, Any

import asyncpg
import msgspec

from queenstream.broker.ops.gauges import LOST_SECONDS, Shared
from queenstream.broker.ops.metrics import SECONDS, Histogram
from queenstream.broker.ops.supervisor import SupervisedTask
from queenstream.broker.schemas.live import (
    LiveBroker,
    LiveDatabase,
    LiveFigures,
    LiveGroup,
    LiveLatency,
    LivePipeline,
    LivePoint,
    LiveRates,
)
from queenstream.broker.schemas.system import Snapshot
from queenstream.errors import Unavailable

if TYPE_CHECKING:
    from queenstream.broker.app import Broker

log = logging.getLogger(__name__)

TICK_SECONDS = 1.0
LATENCY_SECONDS = 10.0  # over which quantiles are
HISTORY_SECONDS = 900.0
MOST_POINTS = 900
MOST_LISTENERS = 100
MOST_LISTENERS_OF_ONE = 20
MOST_GROUPS = 10
MOST_PIPELINES = 50
SHARE = 100.0  # a question is asked again after so many times what it took
SHORTEST_SECONDS, LONGEST_SECONDS = 2.0, 60.0  # between two of them
WAIT_SECONDS = 2.0  # for the database; who asks gets the old figures then
QUIET_SECONDS = 10.0  # after which a listener hears that the connection lives


class Paced:
    """A question to the database that is asked as often as it is cheap. ``ask`` must not raise."""

    def __init__(self, ask: Callable[[], Awaitable[None]], shortest_seconds: float) -> None:
        self._ask = ask
        self._shared = Shared(self._timed)
        self.every_seconds = shortest_seconds
        self._shortest_seconds = shortest_seconds
        self._due = 0.0

    async def fresh(self, within_seconds: float = WAIT_SECONDS) -> None:
        """Ask, if it is time; waits no longer than that for the answer, which comes later then."""
        if self._shared.running or monotonic() >= self._due:
            await self._shared.result(within_seconds)

    async def now(self, within_seconds: float) -> None:
        """Ask, whether or not it is time; what is under way may not know of what the caller wants to see."""
        if self._shared.running:
            await self._shared.result(within_seconds)
        await self._shared.result(within_seconds)

    async def _timed(self) -> bool:
        begun = monotonic()
        try:
            await self._ask()
        finally:
            took = monotonic() - begun
            self.every_seconds = min(LONGEST_SECONDS, max(self._shortest_seconds, SHARE * took))
            self._due = monotonic() + self.every_seconds
        return True


class Facts(msgspec.Struct):
    """What the database said last."""

    database: LiveDatabase = msgspec.field(default_factory=LiveDatabase)
    brokers: list[LiveBroker] = []
    groups: list[LiveGroup] = []
    pipelines: list[LivePipeline] = []
    oldest_at: datetime | None = None
    dead_letters: int | None = None


class Live:
    """The figures of one broker.

    >>> await live.figures()  # as they are now  # doctest: +SKIP
    >>> async for event in live.listen(600.0):  # doctest: +SKIP
    ...     print(event)
    """

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._facts = Facts()
        self._reading = Paced(self._read, SHORTEST_SECONDS)
        self._rates = LiveRates()
        self._latency = LiveLatency()
        self._by_kind: dict[str, LiveLatency] = {}
        self._ticked_at = monotonic()
        self._totals = (0,) * len(LiveRates.__struct_fields__)
        self._latencies: deque[tuple[float, dict[str, list[int]]]] = deque()
        self.history: deque[LivePoint] = deque(maxlen=MOST_POINTS)
        self.listeners = 0
        self._listeners_of: Counter[str] = Counter()
        self.event = b""  # the latest figures, as they are sent
        self.ticked = asyncio.Event()  # set by the next tick, and then another one
        self.closed = False
        self._loop: SupervisedTask | None = None

    # Watching

    def listen(self, seconds: float, caller: str = "") -> Listener:
        """The figures of each second, for so long; Unavailable if too many listen, in all or of a caller."""
        if self.closed:
            raise Unavailable("the broker is stopping; ask another one, or try again in a moment")
        if self.listeners >= MOST_LISTENERS:
            raise Unavailable(
                f"{MOST_LISTENERS} listen to the events already; GET /api/v1/live has the same figures"
            )
        if self._listeners_of[caller] >= MOST_LISTENERS_OF_ONE:
            raise Unavailable(
                f"you listen to the events {MOST_LISTENERS_OF_ONE} times already; close some, or poll "
                "GET /api/v1/live, which has the same figures"
            )
        self.listeners += 1
        self._listeners_of[caller] += 1
        if self._loop is None:
            self._loop = self._broker.supervisor.start("live", self._run)
        return Listener(self, seconds, caller)

    def left(self, caller: str) -> None:
        """One of the caller's listeners has gone."""
        self.listeners -= 1
        self._listeners_of[caller] -= 1
        if not self._listeners_of[caller]:
            del self._listeners_of[caller]

    async def figures(self) -> LiveFigures:
        """The figures as they are now."""
        await self._reading.fresh()
        stale = self._loop is None and monotonic() - self._ticked_at >= TICK_SECONDS
        return self.tick() if stale else self._show()

    def note(self) -> None:
        """Keep a point, if nobody's watching has."""
        if self._loop is None:
            self.tick()

    async def close(self) -> None:
        """Let the listeners go."""
        self.closed = True
        self.ticked.set()
        if self._loop is not None:
            await self._loop.stop()

    async def _run(self) -> None:
        due = monotonic()
        while self.listeners:
            await self._step()
            due = max(due + TICK_SECONDS, monotonic())
            await asyncio.sleep(due - monotonic())
        self._loop = None
        self.event = b""  # it would be old news to the next one

    async def _step(self) -> None:
        try:
            await self._reading.fresh(TICK_SECONDS / 2)  # a database that hangs stops no clock
            self.event = b"event: figures\ndata: " + msgspec.json.encode(self.tick()) + b"\n\n"
        except Exception:
            log.exception("live figures")
            self._broker.metrics.background_failed("live")
        self.ticked.set()
        self.ticked = asyncio.Event()

    # Computing

    def tick(self) -> LiveFigures:
        """Count anew, keep a point, and show it beside what the database said."""
        now = monotonic()
        self._rates = self._count(now)
        self._by_kind, self._latency = self._measure(now)
        made = self._show()
        self._keep(made)
        return made

    def _show(self) -> LiveFigures:
        broker, facts = self._broker, self._facts
        live = broker.live()
        lag = facts.groups[0].lag_seconds if facts.groups else 0.0 if facts.database.read_at else None
        return LiveFigures(
            time=self._time(), broker=str(broker.id), rates=self._rates, latency=self._latency,
            latency_by_kind=self._by_kind, waiting_pops=int(live["waiting_pops"]),
            open_connections=int(live["open_connections"]), listeners=self.listeners, lag_seconds=lag,
            oldest_unacknowledged_at=facts.oldest_at, dead_letters=facts.dead_letters,
            database=facts.database, brokers=facts.brokers, groups=facts.groups, pipelines=facts.pipelines,
        )  # fmt: skip

    def since(self, minutes: float) -> list[LivePoint]:
        """The points of the last minutes."""
        start = self._time() - timedelta(minutes=minutes)
        return [point for point in self.history if point.time > start]

    def _time(self) -> datetime:
        return self._broker.database.now() or datetime.now(UTC)

    def _keep(self, made: LiveFigures) -> None:
        oldest = made.time - timedelta(seconds=HISTORY_SECONDS)
        while self.history and self.history[0].time < oldest:
            self.history.popleft()
        rates, latency = made.rates, made.latency
        point = LivePoint(
            made.time, rates.pushed, rates.popped, rates.acked, rates.failed, latency.p50_ms, latency.p99_ms,
            made.lag_seconds, made.dead_letters,
        )  # fmt: skip
        self.history.append(point)

    def _count(self, now: float) -> LiveRates:
        names = LiveRates.__struct_fields__
        queues = self._broker.metrics.queues.values()
        totals = tuple(sum(getattr(queue, name) for queue in queues) for name in names)
        seconds = max(now - self._ticked_at, 0.001)
        before, self._totals, self._ticked_at = self._totals, totals, now
        return LiveRates(*(round((a - b) / seconds, 2) for a, b in zip(totals, before, strict=True)))

    def _measure(self, now: float) -> tuple[dict[str, LiveLatency], LiveLatency]:
        histograms = self._broker.metrics.batch_seconds
        kept = self._latencies
        kept.append((now, {kind: list(h.counts) for kind, h in histograms.items()}))
        while len(kept) > 1 and kept[1][0] <= now - LATENCY_SECONDS:
            kept.popleft()
        before, after = kept[0][1], kept[-1][1]
        both = Histogram(SECONDS)
        by_kind = {}
        for kind in histograms:
            counted = Histogram(SECONDS)
            counted.counts = [a - b for a, b in zip(after[kind], before[kind], strict=True)]
            both.counts = [a + b for a, b in zip(both.counts, counted.counts, strict=True)]
            by_kind[kind] = _quantiles(counted)
        return by_kind, _quantiles(both)

    # What the database knows

    async def _read(self) -> None:
        begun = monotonic()
        database = self._broker.database
        try:
            now = database.now()
            [about] = await database.admin("live_database")
            took = monotonic() - begun
            groups = await database.admin("live_groups", now, MOST_GROUPS)
            brokers = await database.admin("live_brokers")
            runs = await database.admin("list_pipelines", now, LOST_SECONDS, MOST_PIPELINES, 0)
        except (Unavailable, asyncpg.PostgresError) as error:
            log.debug("live figures: %s", error)
            self._facts.database = LiveDatabase(False, read_at=self._time())
            return
        self._facts = Facts(
            LiveDatabase(
                True, round(took * 1000, 2), about["connections"], about["max_connections"],
                about["oldest_transaction_seconds"], self._time(),
            ),
            [_broker(row) for row in brokers],
            [LiveGroup(r["consumer_group"], r["queue"], round(r["lag_seconds"], 3)) for r in groups],
            [_pipeline(row) for row in runs],
            groups[0]["created_at"] if groups else None,
            about["dead_letters"],
        )  # fmt: skip
        if self.listeners:
            for group in self._facts.groups:
                self._broker.lags.watch(group.consumer_group, group.queue, None)


class Listener:
    """One who watches: an iterator of server-sent events. Who is slow misses some, and makes nobody wait."""

    def __init__(self, live: Live, seconds: float, caller: str) -> None:
        self._live = live
        self._caller = caller
        self._until = monotonic() + seconds
        self._sent: bytes | None = None
        self._open = True

    def __aiter__(self) -> Listener:
        return self

    async def __anext__(self) -> bytes:
        live = self._live
        if self._sent is None:
            self._sent = b""
            return b"retry: 2000\n\n"
        while not live.closed:
            if live.event and live.event is not self._sent:
                self._sent = live.event
                return live.event
            left = self._until - monotonic()
            if left <= 0:
                break
            try:
                async with asyncio.timeout(min(left, QUIET_SECONDS)):
                    await live.ticked.wait()
            except TimeoutError:
                if left > QUIET_SECONDS:
                    return b": alive\n\n"
        raise StopAsyncIteration

    async def aclose(self) -> None:
        """It watches no longer; also if it never began to."""
        if self._open:
            self._open = False
            self._live.left(self._caller)


def _quantiles(histogram: Histogram) -> LiveLatency:
    if not any(histogram.counts):
        return LiveLatency()
    return LiveLatency(histogram.quantile(0.5) * 1000, histogram.quantile(0.99) * 1000)


def _broker(row: Any) -> LiveBroker:
    try:
        told = msgspec.json.decode(row["stats"], type=Snapshot).messages_per_second
    except msgspec.ValidationError:  # written by a version that counts in another way
        told = Snapshot().messages_per_second
    return LiveBroker(
        str(row["id"]), row["address"], row["version"], row["started_at"], row["seen_at"],
        LiveRates(told.pushed, told.popped, told.acked, told.failed, told.dead),
    )  # fmt: skip


def _pipeline(row: Any) -> LivePipeline:
    stats = msgspec.json.decode(row["stats"], type=dict[str, float])
    shown = (stats.get(name) for name in LivePipeline.__struct_fields__[3:])
    return LivePipeline(row["name"], row["engine"], row["state"], *shown)
