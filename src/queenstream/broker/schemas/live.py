"""What crosses the wire about what goes on now: the figures of each second, and lag over time."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Literal

from msgspec import Meta, Struct

from queenstream.broker.schemas.messages import Text


class EventStream(str):
    """An answer of server-sent events: it goes on until one side ends it."""

    __slots__ = ()
    media_type = "text/event-stream"


class LiveRates(Struct, rename="camel"):
    """Messages each second."""

    pushed: float = 0.0
    popped: float = 0.0
    acked: float = 0.0
    failed: float = 0.0
    dead: float = 0.0


class LiveLatency(Struct, rename="camel"):
    """Bounds below which half, and 99 %, of the statements of the last ten seconds stayed; None: of none."""

    p50_ms: float | None = None
    p99_ms: float | None = None


class LiveGroup(Struct, rename="camel"):
    """``lag_seconds``: the age of the oldest message that the group has not completed."""

    consumer_group: str
    queue: str
    lag_seconds: float


class LiveBroker(Struct, rename="camel"):
    """A broker that is alive; its rates are over a minute, as it told them last."""

    id: str
    address: str
    version: str
    started_at: datetime
    seen_at: datetime
    messages_per_second: LiveRates


class LivePipeline(Struct, rename="camel"):
    """The newest run of a pipeline, as it told last."""

    name: str
    engine: str
    state: Literal["running", "stopped", "failed", "lost"]
    messages_per_second: float | None
    error_rate: float | None
    dead_letters: float | None
    queue_depth: float | None
    watermark_lag_seconds: float | None


class LiveDatabase(Struct, rename="camel"):
    """``connected`` and the rest are as of ``read_at``."""

    connected: bool = False
    answered_in_ms: float | None = None
    connections: int | None = None
    max_connections: int | None = None
    oldest_transaction_seconds: float | None = None
    read_at: datetime | None = None


class LiveFigures(Struct, rename="camel", kw_only=True):
    """What goes on. Rates and latency are those of the broker that answers, of this second.

    What the database knows (``database``, ``brokers``, ``groups``, ``pipelines``, dead letters and lag) is a
    few seconds old: it is read as often as that costs less than a hundredth of a core. ``groups`` are the
    ten that are furthest behind; ``lag_seconds`` is that of the first, ``oldest_unacknowledged_at`` the time
    of the message behind it.
    """

    time: datetime
    broker: str
    rates: LiveRates
    latency: LiveLatency
    latency_by_kind: dict[str, LiveLatency]
    waiting_pops: int
    open_connections: int
    listeners: int
    lag_seconds: float | None
    oldest_unacknowledged_at: datetime | None
    dead_letters: int | None
    database: LiveDatabase
    brokers: list[LiveBroker]
    groups: list[LiveGroup]
    pipelines: list[LivePipeline]


class LivePoint(Struct, rename="camel"):
    """One moment, for a small plot; None: it was not known then."""

    time: datetime
    pushed: float
    popped: float
    acked: float
    failed: float
    p50_ms: float | None
    p99_ms: float | None
    lag_seconds: float | None
    dead_letters: int | None


class HistoryQuery(Struct, rename="camel"):
    minutes: Annotated[float, Meta(gt=0, le=15)] = 15


class LiveHistory(Struct, rename="camel"):
    """Of one broker: each remembers its own. A point each second while somebody looks, else each five."""

    broker: str
    points: list[LivePoint]


class LagQuery(Struct, rename="camel"):
    """One queue, and one partition of it; without, the group's queues."""

    queue: Text | None = None
    partition: Text | None = None


class LagPoint(Struct, rename="camel"):
    time: datetime
    lag: int
    lag_seconds: float


class LagSeries(Struct, rename="camel"):
    queue: str
    partition: str | None
    points: list[LagPoint]


class LagHistory(Struct, rename="camel"):
    """Kept in memory from the first question on, for as long as somebody asks every ten minutes."""

    consumer_group: str
    broker: str
    every_seconds: float
    series: list[LagSeries]
