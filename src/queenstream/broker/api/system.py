"""The routes about the broker itself: health, metrics, maintenance, analytics, and ``/openapi.json``."""

from __future__ import annotations

from datetime import datetime, timedelta
from functools import cache
from typing import Any

import msgspec
from prometheus_client import CONTENT_TYPE_LATEST

from queenstream.broker.api.messages import parse_time
from queenstream.broker.auth.scope import ANYTHING, QUEUE_IN_QUERY
from queenstream.broker.http import openapi
from queenstream.broker.http.routing import Call, Response, Role, Routes, reply
from queenstream.broker.schemas.messages import ErrorBody
from queenstream.broker.schemas.system import (
    BrokerState,
    Counts,
    DatabaseUrl,
    GroupLag,
    Health,
    Liveness,
    Maintenance,
    MaintenanceBody,
    OpsBucket,
    OpsQuery,
    PostgresStats,
    ProcessMetrics,
    QueueLag,
    QueueOps,
    QueueQuery,
    QueueRetention,
    Rates,
    Refreshed,
    Retention,
    Snapshot,
    SystemMetrics,
    TableStats,
    Totals,
    WorkerMetrics,
    XminHolder,
)
from queenstream.broker.storage.database import READ_ONLY
from queenstream.errors import InvalidRequest, NotFound

routes = Routes("system")

SERVER = "queenstream"
MOST_BUCKETS = 10_000
_INTERVALS = {"minute": timedelta(minutes=1), "hour": timedelta(hours=1), "day": timedelta(days=1)}


# Health


async def _health(call: Call, *, ready: bool) -> Response:
    trouble = await call.broker.probe.find_trouble()
    if trouble and call.broker.postgres_restarts.under_way:
        trouble = "the embedded PostgreSQL has died and is being started again"
    connected = not trouble or trouble.startswith(READ_ONLY)
    reason = trouble or ("" if ready else "the broker is starting or stopping")
    answer = Health(
        "unhealthy" if reason else "healthy",
        "connected" if connected else "disconnected",
        SERVER,
        call.broker.version,
        reason or msgspec.UNSET,
        call.broker.supervisor.failing or msgspec.UNSET,
    )
    headers = (("Retry-After", "1"),) if reason else ()
    return Response(503 if reason else 200, msgspec.json.encode(answer), headers=headers)


@routes.get("/health", role=Role.PUBLIC, answers={200: Health, 503: Health})
async def health(call: Call) -> Response:
    """Whether the broker reaches its database and can write to it."""
    return await _health(call, ready=True)


@routes.get("/health/live", role=Role.PUBLIC, answers={200: Liveness})
async def health_live(call: Call) -> Response:
    """Whether the process runs: if not, restart it."""
    return reply(Liveness("healthy", SERVER, call.broker.version))


@routes.get("/health/ready", role=Role.PUBLIC, answers={200: Health, 503: Health})
async def health_ready(call: Call) -> Response:
    """Whether to send requests here: not while it starts, stops, or has no database to write to."""
    return await _health(call, ready=call.broker.ready)


# Metrics


@routes.get("/metrics", role=Role.READ_ONLY, answers={200: ProcessMetrics | str})
async def metrics(call: Call) -> Response:
    """What this process counts and what the queues hold: Prometheus text, or JSON if asked for."""
    if b"application/json" not in call.request.headers.get(b"accept", b""):
        return await _prometheus(call)
    broker = call.broker
    await broker.gauges.read()
    snapshot = broker.metrics.snapshot(broker.live())
    gauges = broker.metrics.gauges
    return reply(
        ProcessMetrics(**msgspec.structs.asdict(snapshot), queues=gauges.queues, groups=gauges.groups)
    )


@routes.get("/metrics/prometheus", role=Role.READ_ONLY, answers={200: str})
async def metrics_prometheus(call: Call) -> Response:
    """The same, as Prometheus text whatever is asked for."""
    return await _prometheus(call)


async def _prometheus(call: Call) -> Response:
    broker = call.broker
    await broker.gauges.read()
    return Response(200, broker.metrics.prometheus(broker.live()), CONTENT_TYPE_LATEST)


@routes.post("/api/v1/stats/refresh", audited=False, role=Role.READ_WRITE, answers={200: Refreshed})
async def refresh_stats(call: Call) -> Response:
    """Store what was counted and read the gauges, now rather than in a few seconds."""
    await call.broker.background.flush()
    await call.broker.gauges.refresh()
    return reply(Refreshed(True))


# The database


@routes.get("/api/v1/system/database", role=Role.ADMIN, answers={200: DatabaseUrl, 404: ErrorBody})
async def database_url(call: Call) -> Response:
    """Where the embedded PostgreSQL is, for programs on the same machine that read it directly (Spark)."""
    if call.broker.settings.pg is not None or not call.request.is_local:
        raise NotFound(
            "only the address of an embedded PostgreSQL is told, and only on its own machine; "
            "give the same --pg URL to Spark as option pg"
        )
    return reply(DatabaseUrl(call.broker.database.url))


# Maintenance

MAINTENANCE = "maintenance"
MAINTENANCE_POP = "maintenance_pop"


async def _maintenance(call: Call, about: str) -> Response:
    rows = await call.broker.database.admin("read_settings")
    values = {row["key"]: msgspec.json.decode(row["value"]) for row in rows}
    everything, pops = bool(values.get(MAINTENANCE)), bool(values.get(MAINTENANCE_POP))
    if everything:
        message = "maintenance: messages are accepted and kept, none is delivered or deleted"
    elif pops:
        message = "pop maintenance: messages are accepted, none is delivered"
    else:
        message = "normal operation"
    return reply(Maintenance(everything if about == MAINTENANCE else pops, everything, pops, message))


async def _set_maintenance(call: Call, about: str) -> Response:
    broker = call.broker
    await broker.database.admin("write_setting", about, msgspec.json.encode(call.body.enabled).decode())
    await broker.load_settings()
    broker.notices.settings()
    return await _maintenance(call, about)


@routes.get("/api/v1/system/maintenance", role=Role.READ_ONLY, answers={200: Maintenance})
async def get_maintenance(call: Call) -> Response:
    """Whether all brokers are in maintenance."""
    return await _maintenance(call, MAINTENANCE)


@routes.post("/api/v1/system/maintenance", role=Role.ADMIN, body=MaintenanceBody, answers={200: Maintenance})
async def set_maintenance(call: Call) -> Response:
    """Start or end maintenance on all brokers: pushes are stored, pops wait, nothing is deleted."""
    return await _set_maintenance(call, MAINTENANCE)


@routes.get("/api/v1/system/maintenance/pop", role=Role.READ_ONLY, answers={200: Maintenance})
async def get_pop_maintenance(call: Call) -> Response:
    """Whether pops are withheld."""
    return await _maintenance(call, MAINTENANCE_POP)


@routes.post(
    "/api/v1/system/maintenance/pop", role=Role.ADMIN, body=MaintenanceBody, answers={200: Maintenance}
)
async def set_pop_maintenance(call: Call) -> Response:
    """Withhold pops on all brokers, or deliver again; everything else goes on."""
    return await _set_maintenance(call, MAINTENANCE_POP)


# Analytics


async def _live_brokers(call: Call) -> list[BrokerState]:
    broker = call.broker
    found = []
    for row in await broker.database.admin("live_brokers"):
        if row["id"] == broker.id:
            stats = broker.metrics.snapshot(broker.live())  # the stored one is seconds old
        else:
            stats = _decode_stats(row["stats"])
        found.append(
            BrokerState(
                id=str(row["id"]),
                hostname=row["hostname"],
                pid=row["pid"],
                address=row["address"],
                version=row["version"],
                started_at=row["started_at"],
                seen_at=row["seen_at"],
                **msgspec.structs.asdict(stats),
            )
        )
    return found


def _decode_stats(stored: str) -> Snapshot:
    try:
        return msgspec.json.decode(stored, type=Snapshot)
    except msgspec.ValidationError:  # written by a version that counts in another way
        return Snapshot()


@routes.get("/api/v1/analytics/system-metrics", role=Role.READ_ONLY, answers={200: SystemMetrics})
async def system_metrics(call: Call) -> Response:
    """Every live broker as it is now, and their sums."""
    brokers = await _live_brokers(call)

    def total(name: str) -> Any:
        return sum(getattr(broker, name) for broker in brokers)

    messages, rates = Counts(), Rates()
    for broker in brokers:
        for name in Counts.__struct_fields__:
            setattr(messages, name, getattr(messages, name) + getattr(broker.messages, name))
            rate = getattr(rates, name) + getattr(broker.messages_per_second, name)
            setattr(rates, name, round(rate, 3))
    totals = Totals(
        brokers=len(brokers),
        cpu_seconds=round(total("cpu_seconds"), 2),
        memory_bytes=total("memory_bytes"),
        requests=total("requests"),
        messages=messages,
        messages_per_second=rates,
        pool_connections_busy=total("pool_connections_busy"),
        pool_connections_max=total("pool_connections_max"),
        waiting_pops=total("waiting_pops"),
        open_connections=total("open_connections"),
    )
    return reply(SystemMetrics(brokers, totals))


@routes.get("/api/v1/analytics/worker-metrics", role=Role.READ_ONLY, answers={200: WorkerMetrics})
async def worker_metrics(call: Call) -> Response:
    """Every live broker process, with what it counts."""
    return reply(WorkerMetrics(await _live_brokers(call)))


@routes.get(
    "/api/v1/analytics/queue-lag",
    scope=QUEUE_IN_QUERY,
    costly=True,
    role=Role.READ_ONLY,
    query=QueueQuery,
    answers={200: QueueLag},
)
async def queue_lag(call: Call) -> Response:
    """How far each group is behind, in messages and seconds."""
    database = call.broker.database
    rows = await database.admin("group_lag", database.now(), call.query.queue or None)
    return reply(QueueLag([GroupLag(r["queue"], r["group_name"], r["lag"], r["lag_seconds"]) for r in rows]))


@routes.get(
    "/api/v1/analytics/queue-ops",
    expensive=True,
    scope=QUEUE_IN_QUERY,
    role=Role.READ_ONLY,
    query=OpsQuery,
    answers={200: QueueOps, 400: ErrorBody},
)
async def queue_ops(call: Call) -> Response:
    """What went through the queues, by minute, hour or day; the last hour unless from and to say else."""
    query: OpsQuery = call.query
    since, until = await _span(call, query)
    if since.year < 1970 or until.year > 9998:
        # The ends of Python's time are infinite to PostgreSQL, and so would the series be.
        raise InvalidRequest("from and to must lie in the years 1970 to 9998")
    if since > until:
        raise InvalidRequest("from is later than to; swap them")
    if (until - since) / _INTERVALS[query.interval] >= MOST_BUCKETS:
        raise InvalidRequest(f"that is over {MOST_BUCKETS} intervals; ask for longer ones, or a shorter time")
    queue = query.queue or None
    rows = await call.broker.database.admin("queue_ops", since, until, query.interval, queue)
    return reply(QueueOps(since, until, query.interval, queue, [OpsBucket(**row) for row in rows]))


async def _span(call: Call, query: OpsQuery) -> tuple[datetime, datetime]:
    if query.to:
        until = parse_time(query.to, "to")
    else:
        database = call.broker.database
        until = (await database.admin("the_time", database.now()))[0]["now"]
    if query.from_:
        return parse_time(query.from_, "from"), until
    # At the beginning of time there is no hour before; it is refused anyway.
    return (until - timedelta(hours=1) if until.year > 1 else until), until


@routes.get(
    "/api/v1/analytics/retention",
    scope=QUEUE_IN_QUERY,
    costly=True,
    role=Role.READ_ONLY,
    query=QueueQuery,
    answers={200: Retention},
)
async def retention(call: Call) -> Response:
    """What each queue keeps and for how long, and what it deleted in the last day."""
    database = call.broker.database
    rows = await database.admin("queue_retention", database.now(), call.query.queue or None)
    return reply(Retention([QueueRetention(**row) for row in rows]))


@routes.get(
    "/api/v1/analytics/postgres-stats", costly=True, role=Role.READ_ONLY, answers={200: PostgresStats}
)
async def postgres_stats(call: Call) -> Response:
    """Sizes, dead rows, connections and settings of the database."""
    admin = call.broker.database.admin
    about = (await admin("postgres_database"))[0]
    return reply(
        PostgresStats(
            **about,
            connections={r["state"]: r["connections"] for r in await admin("postgres_connections")},
            xmin_holders=[XminHolder(**row) for row in await admin("postgres_xmin_holders")],
            tables=[TableStats(**row) for row in await admin("postgres_tables")],
            settings={r["name"]: r["value"] for r in await admin("postgres_settings")},
        )
    )


# The document


@cache
def _document(version: str) -> bytes:
    from queenstream.broker.api import ROUTES  # it imports this module

    return msgspec.json.encode(openapi.document(ROUTES, version))


@routes.get("/openapi.json", scope=ANYTHING, role=Role.READ_ONLY, answers={200: dict[str, Any]})
async def openapi_json(call: Call) -> Response:
    """This document."""
    return Response(200, _document(call.broker.version))
