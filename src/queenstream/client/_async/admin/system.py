"""Administration of the brokers themselves: health, metrics, maintenance, analytics."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from queenstream.client._async.retry import Calls
from queenstream.client._base.http import path_of
from queenstream.client._base.responses.resources import Interval
from queenstream.client._base.responses.system import (
    BrokerState,
    DatabaseUrl,
    GroupLag,
    Health,
    Liveness,
    Maintenance,
    PostgresStats,
    ProcessMetrics,
    QueueLag,
    QueueOps,
    QueueRetention,
    Refreshed,
    Retention,
    SystemMetrics,
    WorkerMetrics,
)

_SYSTEM = ("api", "v1", "system")
_ANALYTICS = ("api", "v1", "analytics")


class AsyncSystemAdmin:
    """Brokers and their database."""

    _calls: Calls

    # Health and metrics are of the broker that happens to answer. Whoever asks for health wants to know it as
    # it is now, not to wait until it is better: no repeats.

    async def health(self) -> Health:
        """Whether a broker reaches its database; none that does is ``Unavailable``.

        >>> (await queen.admin.health()).database  # doctest: +SKIP
        'connected'
        """
        return await self._calls.call("GET", "/health", type=Health, repeat=False)

    async def live(self) -> Liveness:
        """Whether a broker process answers at all: ``(await admin.live()).version``."""
        return await self._calls.call("GET", "/health/live", type=Liveness, repeat=False)

    async def ready(self) -> Health:
        """Whether a broker takes requests: not while it starts, stops, or has no database."""
        return await self._calls.call("GET", "/health/ready", type=Health, repeat=False)

    async def metrics(self) -> ProcessMetrics:
        """What the broker process counts, and what the queues hold.

        >>> (await queen.admin.metrics()).messages_per_second.pushed  # doctest: +SKIP
        1203.5
        """
        return await self._calls.call("GET", "/metrics", type=ProcessMetrics)

    async def prometheus(self) -> str:
        """The same as Prometheus text: ``print(await admin.prometheus())``."""
        return (await self._calls.send("GET", "/metrics/prometheus")).body.decode("utf-8")

    async def openapi(self) -> dict[str, Any]:
        """The broker's own description of all its routes: ``(await admin.openapi())["paths"]``."""
        return await self._calls.call("GET", "/openapi.json", type=dict[str, Any])

    async def refresh_stats(self) -> None:
        """Store what was counted and read the gauges, now rather than in a few seconds."""
        await self._calls.call("POST", path_of("api", "v1", "stats", "refresh"), type=Refreshed)

    async def database_url(self) -> str:
        """Where the broker's embedded PostgreSQL is, for programs on its machine; otherwise ``NotFound``.

        >>> await queen.admin.database_url()  # doctest: +SKIP
        'postgresql://postgres@/queen?host=/var/lib/queenstream/data/socket&port=5432'
        """
        return (await self._calls.call("GET", path_of(*_SYSTEM, "database"), type=DatabaseUrl)).url

    # Maintenance: of all brokers

    async def maintenance(self) -> Maintenance:
        """Whether all brokers are in maintenance: ``(await admin.maintenance()).enabled``."""
        return await self._calls.call("GET", path_of(*_SYSTEM, "maintenance"), type=Maintenance)

    async def set_maintenance(self, enabled: bool) -> Maintenance:
        """Start or end maintenance: pushes are stored, pops wait, nothing is deleted.

        ``await admin.set_maintenance(True)``
        """
        path = path_of(*_SYSTEM, "maintenance")
        return await self._calls.call("POST", path, body={"enabled": enabled}, type=Maintenance)

    async def pop_maintenance(self) -> Maintenance:
        """Whether pops are withheld: ``(await admin.pop_maintenance()).enabled``."""
        return await self._calls.call("GET", path_of(*_SYSTEM, "maintenance", "pop"), type=Maintenance)

    async def set_pop_maintenance(self, enabled: bool) -> Maintenance:
        """Withhold pops, or deliver again; everything else goes on.

        ``await admin.set_pop_maintenance(False)``
        """
        path = path_of(*_SYSTEM, "maintenance", "pop")
        return await self._calls.call("POST", path, body={"enabled": enabled}, type=Maintenance)

    # Analytics

    async def system_metrics(self) -> SystemMetrics:
        """Every live broker as it is now, and their sums: ``(await admin.system_metrics()).totals``."""
        return await self._calls.call("GET", path_of(*_ANALYTICS, "system-metrics"), type=SystemMetrics)

    async def worker_metrics(self) -> list[BrokerState]:
        """Every live broker process: ``[one.address for one in await admin.worker_metrics()]``."""
        path = path_of(*_ANALYTICS, "worker-metrics")
        return (await self._calls.call("GET", path, type=WorkerMetrics)).workers

    async def queue_lag(self, queue: str | None = None) -> list[GroupLag]:
        """How far each group is behind, in messages and seconds: ``await admin.queue_lag("orders")``."""
        path = path_of(*_ANALYTICS, "queue-lag")
        return (await self._calls.call("GET", path, query={"queue": queue}, type=QueueLag)).queues

    async def queue_ops(
        self,
        interval: Interval = "minute",
        *,
        from_: datetime | str | None = None,
        to: datetime | str | None = None,
        queue: str | None = None,
    ) -> QueueOps:
        """What happened to messages, by minute, hour or day; the last hour unless said otherwise.

        >>> sum(bucket.pushed for bucket in (await queen.admin.queue_ops()).series)  # doctest: +SKIP
        48210
        """
        query = {"interval": interval, "from": from_, "to": to, "queue": queue}
        return await self._calls.call("GET", path_of(*_ANALYTICS, "queue-ops"), query=query, type=QueueOps)

    async def retention(self, queue: str | None = None) -> list[QueueRetention]:
        """What each queue keeps and for how long, and what it deleted in the last day.

        ``(await admin.retention("orders"))[0].oldest_message_at``
        """
        path = path_of(*_ANALYTICS, "retention")
        return (await self._calls.call("GET", path, query={"queue": queue}, type=Retention)).queues

    async def postgres_stats(self) -> PostgresStats:
        """Sizes, dead rows, connections and settings of the database.

        >>> (await queen.admin.postgres_stats()).cache_hit_ratio  # doctest: +SKIP
        0.998
        """
        return await self._calls.call("GET", path_of(*_ANALYTICS, "postgres-stats"), type=PostgresStats)
