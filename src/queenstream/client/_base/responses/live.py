"""What a broker answers about what goes on now, and how far groups were behind."""

from __future__ import annotations

from datetime import datetime
from typing import Literal

from queenstream.client._base.responses.resources import Reply


class LiveRates(Reply):
    """Messages each second."""

    pushed: float = 0.0
    popped: float = 0.0
    acked: float = 0.0
    failed: float = 0.0
    dead: float = 0.0


class LiveLatency(Reply):
    """Bounds below which half, and 99 %, of the statements of the last ten seconds stayed; None: of none."""

    p50_ms: float | None = None
    p99_ms: float | None = None


class LiveGroup(Reply):
    """``lag_seconds``: the age of the oldest message that the group has not completed."""

    consumer_group: str
    queue: str
    lag_seconds: float


class LiveBroker(Reply):
    """A broker that is alive; its rates are over a minute, as it told them last."""

    id: str
    address: str
    version: str
    started_at: datetime
    seen_at: datetime
    messages_per_second: LiveRates


class LivePipeline(Reply):
    """The newest run of a pipeline, as it told last."""

    name: str
    engine: str
    state: Literal["running", "stopped", "failed", "lost"]
    messages_per_second: float | None = None
    error_rate: float | None = None
    dead_letters: float | None = None
    queue_depth: float | None = None
    watermark_lag_seconds: float | None = None


class LiveDatabase(Reply):
    """The database as of ``read_at``."""

    connected: bool = False
    answered_in_ms: float | None = None
    connections: int | None = None
    max_connections: int | None = None
    oldest_transaction_seconds: float | None = None
    read_at: datetime | None = None


class LiveFigures(Reply, kw_only=True):
    """What goes on. Rates and latency are those of the broker that answers, of this second.

    ``groups`` are the ten that are furthest behind; ``lag_seconds`` is that of the first.
    """

    time: datetime
    broker: str
    rates: LiveRates
    latency: LiveLatency
    latency_by_kind: dict[str, LiveLatency]
    waiting_pops: int
    open_connections: int
    listeners: int
    lag_seconds: float | None = None
    oldest_unacknowledged_at: datetime | None = None
    dead_letters: int | None = None
    database: LiveDatabase
    brokers: list[LiveBroker]
    groups: list[LiveGroup]
    pipelines: list[LivePipeline]


class LivePoint(Reply, kw_only=True):
    """One moment; None: it was not known then."""

    time: datetime
    pushed: float
    popped: float
    acked: float
    failed: float
    p50_ms: float | None = None
    p99_ms: float | None = None
    lag_seconds: float | None = None
    dead_letters: int | None = None


class LiveHistory(Reply):
    """Of one broker: each remembers its own."""

    broker: str
    points: list[LivePoint]


class LagPoint(Reply):
    """``lag`` in messages, ``lag_seconds``: the age of the oldest of them."""

    time: datetime
    lag: int
    lag_seconds: float


class LagSeries(Reply):
    """A group in one queue, or in one partition of it."""

    queue: str
    partition: str | None
    points: list[LagPoint]


class LagHistory(Reply):
    """Kept by one broker from the first question on, for as long as somebody asks every ten minutes."""

    consumer_group: str
    broker: str
    every_seconds: float
    series: list[LagSeries]
