"""What a broker answers about itself: health, metrics, maintenance, analytics."""

from __future__ import annotations

from datetime import datetime
from typing import Literal

from msgspec import field

from queenstream.client._base.responses.resources import Interval, Reply


class Liveness(Reply):
    """The process answers; nothing else was asked."""

    status: Literal["healthy"]
    server: str
    version: str


class Health(Reply):
    """Whether a broker can do its work, else the ``reason``; ``failing_tasks`` keep failing."""

    status: Literal["healthy", "unhealthy"]
    database: Literal["connected", "disconnected"]
    server: str
    version: str
    reason: str | None = None
    failing_tasks: list[str] = field(default_factory=list)


# Metrics


class Happened(Reply):
    """Messages, by what happened to them."""

    pushed: int = 0
    duplicates: int = 0
    popped: int = 0
    acked: int = 0
    failed: int = 0
    dead: int = 0
    expired: int = 0


class Rates(Reply):
    """The same, each second, over the last minute."""

    pushed: float = 0.0
    duplicates: float = 0.0
    popped: float = 0.0
    acked: float = 0.0
    failed: float = 0.0
    dead: float = 0.0
    expired: float = 0.0


class Latency(Reply):
    """Bounds below which half, 95 % and 99 % of the statements stay."""

    p50: float = 0.0
    p95: float = 0.0
    p99: float = 0.0


class UpkeepState(Reply):
    """One task of upkeep since the broker started. ``error``: what its last run failed with."""

    runs: int = 0
    rows: int = 0
    seconds: float = 0.0
    errors: int = 0
    last_success_at: datetime | None = None
    error: str | None = None


class Snapshot(Reply, kw_only=True):
    """One broker process. Every field has a default: a broker of another version may count fewer."""

    uptime_seconds: float = 0.0
    cpu_seconds: float = 0.0
    memory_bytes: int = 0
    messages: Happened = field(default_factory=Happened)
    messages_per_second: Rates = field(default_factory=Rates)
    requests: int = 0
    latency_seconds: dict[str, Latency] = field(default_factory=dict)
    background_failures: dict[str, int] = field(default_factory=dict)
    task_restarts: dict[str, int] = field(default_factory=dict)
    upkeep: dict[str, UpkeepState] = field(default_factory=dict)
    pool_connections_busy: int = 0
    pool_connections_max: int = 0
    waiting_pops: int = 0
    open_connections: int = 0
    requests_in_flight: int = 0
    postgres_restarts: int = 0


class QueueGauges(Reply, kw_only=True):
    """One queue, as the database has it."""

    queue: str
    depth: int
    oldest_seconds: float | None = None
    leases: int
    dead_letters: int


class GroupLag(Reply):
    """How far a group is behind in a queue."""

    queue: str
    group: str
    lag: int
    lag_seconds: float


class ProcessMetrics(Snapshot, kw_only=True):
    """The broker process that answered, and the queues."""

    queues: list[QueueGauges]
    groups: list[GroupLag]


# Maintenance


class Maintenance(Reply):
    """``enabled`` is the mode that was asked about."""

    enabled: bool
    maintenance_mode: bool
    pop_maintenance_mode: bool
    message: str


# The database


class DatabaseUrl(Reply):
    """Where an embedded PostgreSQL is."""

    url: str


# Analytics


class BrokerState(Snapshot, kw_only=True):
    """One live broker."""

    id: str
    hostname: str
    pid: int
    address: str
    version: str
    started_at: datetime
    seen_at: datetime


class Totals(Reply):
    """Over all live brokers."""

    brokers: int
    cpu_seconds: float
    memory_bytes: int
    requests: int
    messages: Happened
    messages_per_second: Rates
    pool_connections_busy: int
    pool_connections_max: int
    waiting_pops: int
    open_connections: int


class SystemMetrics(Reply):
    """Every live broker as it is now, and their sums."""

    brokers: list[BrokerState]
    totals: Totals


class WorkerMetrics(Reply):
    workers: list[BrokerState]


class QueueLag(Reply):
    queues: list[GroupLag]


class OpsBucket(Happened, kw_only=True):
    """What went through in the interval that starts at ``time``."""

    time: datetime


class QueueOps(Reply, kw_only=True):
    """What went through, interval by interval; ``queue``: of this one alone."""

    from_: datetime = field(name="from")
    to: datetime
    interval: Interval
    queue: str | None = None
    series: list[OpsBucket]


class QueueRetention(Reply, kw_only=True):
    """What a queue keeps, and what it let go of."""

    queue: str
    ttl: int
    retention_enabled: bool
    retention_seconds: int
    completed_retention_seconds: int
    expired_last_24h: int = field(name="expiredLast24h")
    oldest_message_at: datetime | None = None
    oldest_message_seconds: float | None = None


class Retention(Reply):
    queues: list[QueueRetention]


class TableStats(Reply):
    """A table of the broker's, in bytes and rows."""

    table: str
    total_bytes: int
    table_bytes: int
    index_bytes: int
    live_tuples: int
    dead_tuples: int
    dead_bytes_estimate: int = 0
    last_vacuum: datetime | None = None
    last_analyze: datetime | None = None


class XminHolder(Reply, kw_only=True):
    """Who keeps dead rows from being removed. ``age`` in transactions."""

    pid: int
    application: str
    state: str | None = None
    age: int
    transaction_seconds: float | None = None


class PostgresStats(Reply, kw_only=True):
    """The database: sizes, dead rows, connections by state, settings that matter."""

    server_version: str
    database_bytes: int
    cache_hit_ratio: float | None = None
    connections: dict[str, int]
    oldest_transaction_seconds: float | None = None
    xmin_holders: list[XminHolder]
    tables: list[TableStats]
    settings: dict[str, str]


class Refreshed(Reply):
    success: bool
