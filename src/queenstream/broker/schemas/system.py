"""What the routes about the broker itself take and answer: health, metrics, maintenance, analytics."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Literal

from msgspec import UNSET, Meta, Struct, UnsetType, field

from queenstream.broker.schemas.messages import Text

# Health


class Health(Struct, rename="camel"):
    """Whether the broker can do its work, else the ``reason``; ``failing_tasks`` keep failing."""

    status: Literal["healthy", "unhealthy"]
    database: Literal["connected", "disconnected"]
    server: str
    version: str
    reason: str | UnsetType = UNSET
    failing_tasks: list[str] | UnsetType = UNSET


class Liveness(Struct, rename="camel"):
    """The process answers; nothing else was asked."""

    status: Literal["healthy"]
    server: str
    version: str


# Metrics


class Counts(Struct, rename="camel"):
    """Messages, by what happened to them."""

    pushed: int = 0
    duplicates: int = 0
    popped: int = 0
    acked: int = 0
    failed: int = 0
    dead: int = 0
    expired: int = 0


class Rates(Struct, rename="camel"):
    """The same, each second, over the last minute."""

    pushed: float = 0.0
    duplicates: float = 0.0
    popped: float = 0.0
    acked: float = 0.0
    failed: float = 0.0
    dead: float = 0.0
    expired: float = 0.0


class Latency(Struct, rename="camel"):
    """Bounds below which half, 95 % and 99 % of the statements stay."""

    p50: float = 0.0
    p95: float = 0.0
    p99: float = 0.0


class UpkeepState(Struct, rename="camel"):
    """One task of upkeep since the broker started. ``error``: what its last run failed with."""

    runs: int = 0
    rows: int = 0
    seconds: float = 0.0
    errors: int = 0
    last_success_at: datetime | None = None
    error: str | None = None


class Snapshot(Struct, rename="camel", kw_only=True):
    """One process. Every field has a default: a broker of another version may know fewer."""

    uptime_seconds: float = 0.0
    cpu_seconds: float = 0.0
    memory_bytes: int = 0
    messages: Counts = field(default_factory=Counts)
    messages_per_second: Rates = field(default_factory=Rates)
    requests: int = 0
    latency_seconds: dict[str, Latency] = {}
    background_failures: dict[str, int] = {}
    task_restarts: dict[str, int] = {}
    upkeep: dict[str, UpkeepState] = {}
    pool_connections_busy: int = 0
    pool_connections_max: int = 0
    waiting_pops: int = 0
    open_connections: int = 0
    requests_in_flight: int = 0
    postgres_restarts: int = 0


class QueueGauges(Struct, rename="camel"):
    """One queue, as the database has it."""

    queue: str
    depth: int
    oldest_seconds: float | None
    leases: int
    dead_letters: int


class GroupLag(Struct, rename="camel"):
    """How far a group is behind in a queue."""

    queue: str
    group: str
    lag: int
    lag_seconds: float


class ProcessMetrics(Snapshot, rename="camel", kw_only=True):
    """This process, and the queues."""

    queues: list[QueueGauges]
    groups: list[GroupLag]


# Maintenance


class MaintenanceBody(Struct):
    enabled: bool


class Maintenance(Struct, rename="camel"):
    """``enabled`` is the mode that the route is about."""

    enabled: bool
    maintenance_mode: bool
    pop_maintenance_mode: bool
    message: str


# The database


class DatabaseUrl(Struct):
    """Where the embedded server is; it has no password, only who may use its socket can use it."""

    url: str


# Analytics


class BrokerState(Snapshot, rename="camel", kw_only=True):
    """One live broker."""

    id: str
    hostname: str
    pid: int
    address: str
    version: str
    started_at: datetime
    seen_at: datetime


class Totals(Struct, rename="camel"):
    """Over all live brokers."""

    brokers: int
    cpu_seconds: float
    memory_bytes: int
    requests: int
    messages: Counts
    messages_per_second: Rates
    pool_connections_busy: int
    pool_connections_max: int
    waiting_pops: int
    open_connections: int


class SystemMetrics(Struct, rename="camel"):
    brokers: list[BrokerState]
    totals: Totals


class WorkerMetrics(Struct, rename="camel"):
    workers: list[BrokerState]


class QueueQuery(Struct, rename="camel"):
    """Everything, or one queue."""

    queue: Text | None = None


class QueueLag(Struct, rename="camel"):
    queues: list[GroupLag]


Interval = Literal["minute", "hour", "day"]


class OpsQuery(Struct, rename="camel"):
    """A span of time, both ends ISO 8601; the last hour when nothing is said."""

    from_: Text | None = field(default=None, name="from")
    to: Text | None = None
    interval: Interval = "minute"
    queue: Text | None = None


class OpsBucket(Counts, rename="camel", kw_only=True):
    """What went through in one interval."""

    time: datetime


class QueueOps(Struct, rename="camel"):
    from_: datetime = field(name="from")
    to: datetime
    interval: Interval
    queue: str | None
    series: list[OpsBucket]


class QueueRetention(Struct, rename="camel"):
    """What a queue keeps, and what it let go of."""

    queue: str
    ttl: int
    retention_enabled: bool
    retention_seconds: int
    completed_retention_seconds: int
    expired_last_24h: int = field(name="expiredLast24h")
    oldest_message_at: datetime | None
    oldest_message_seconds: float | None


class Retention(Struct, rename="camel"):
    queues: list[QueueRetention]


class TableStats(Struct, rename="camel"):
    """``dead_bytes_estimate``: what vacuum could give back, if all rows were equally large."""

    table: str
    total_bytes: int
    table_bytes: int
    index_bytes: int
    live_tuples: int
    dead_tuples: int
    dead_bytes_estimate: int
    last_vacuum: datetime | None
    last_analyze: datetime | None


class XminHolder(Struct, rename="camel"):
    """Who keeps dead rows from being removed. ``age`` in transactions."""

    pid: int
    application: str
    state: str | None
    age: int
    transaction_seconds: float | None


class PostgresStats(Struct, rename="camel"):
    server_version: str
    database_bytes: int
    cache_hit_ratio: Annotated[float, Meta(ge=0, le=1)] | None
    connections: dict[str, int]
    oldest_transaction_seconds: float | None
    xmin_holders: list[XminHolder]
    tables: list[TableStats]
    settings: dict[str, str]


class Refreshed(Struct):
    success: bool
