"""``queen.admin``: every method against a real broker, and no administration route without one."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta

import httpx
import pytest

from queenstream import AsyncQueen, Queen
from queenstream.broker import api
from queenstream.broker.app import Broker
from queenstream.broker.http.routing import Request
from queenstream.client._async.admin.api import AsyncAdmin
from queenstream.client._base.responses.resources import Counts
from queenstream.errors import Conflict, InvalidRequest, NotFound
from tests.acceptance.speaking import Json
from tests.conftest import Clock, StartBroker
from tests.integration.streams.streaming import Streams, at, eventually, three_windows
from tests.integration.test_groups import push, take
from tests.integration.test_history import dead
from tests.integration.test_history import push as push_ids
from tests.integration.test_resources import ack, pop, some_queues

# Every administration route, and the method that is for it.
METHODS = {
    "GET /health": "health",
    "GET /health/live": "live",
    "GET /health/ready": "ready",
    "GET /metrics": "metrics",
    "GET /metrics/prometheus": "prometheus",
    "GET /openapi.json": "openapi",
    "POST /api/v1/stats/refresh": "refresh_stats",
    "GET /api/v1/system/database": "database_url",
    "GET /api/v1/system/maintenance": "maintenance",
    "POST /api/v1/system/maintenance": "set_maintenance",
    "GET /api/v1/system/maintenance/pop": "pop_maintenance",
    "POST /api/v1/system/maintenance/pop": "set_pop_maintenance",
    "GET /api/v1/analytics/system-metrics": "system_metrics",
    "GET /api/v1/analytics/worker-metrics": "worker_metrics",
    "GET /api/v1/analytics/queue-lag": "queue_lag",
    "GET /api/v1/analytics/queue-ops": "queue_ops",
    "GET /api/v1/analytics/retention": "retention",
    "GET /api/v1/analytics/postgres-stats": "postgres_stats",
    "GET /api/v1/resources/queues": "queues",
    "GET /api/v1/resources/queues/{queue}": "queue",
    "DELETE /api/v1/resources/queues/{queue}": "delete_queue",
    "DELETE /api/v1/queues/{queue}/clear": "clear_queue",
    "GET /api/v1/resources/namespaces": "namespaces",
    "GET /api/v1/resources/tasks": "tasks",
    "GET /api/v1/resources/partitions": "partitions",
    "GET /api/v1/resources/overview": "overview",
    "GET /api/v1/status": "status",
    "GET /api/v1/status/queues": "queue_statuses",
    "GET /api/v1/status/queues/{queue}": "queue_status",
    "GET /api/v1/status/queues/{queue}/messages": "queue_messages",
    "GET /api/v1/status/analytics": "analytics",
    "GET /api/v1/messages": "messages",
    "GET /api/v1/messages/{partitionId}/{transactionId}": "message",
    "DELETE /api/v1/messages/{partitionId}/{transactionId}": "delete_message",
    "POST /api/v1/messages/{partitionId}/{transactionId}/retry": "retry_message",
    "POST /api/v1/messages/{partitionId}/{transactionId}/dlq": "dead_letter_message",
    "GET /api/v1/queues/{queue}/search": "search_messages",
    "GET /api/v1/dlq": "dead_letters",
    "GET /api/v1/dlq/errors": "letter_errors",
    "GET /api/v1/dlq/{id}": "dead_letter",
    "DELETE /api/v1/dlq/{id}": "delete_dead_letter",
    "POST /api/v1/dlq/{id}/retry": "retry_dead_letter",
    "POST /api/v1/dlq/retry": "retry_dead_letters",
    "POST /api/v1/dlq/delete": "delete_dead_letters",
    "GET /api/v1/traces/{partitionId}/{transactionId}": "traces",
    "GET /api/v1/traces/by-name/{name}": "traces_by_name",
    "GET /api/v1/traces/names": "trace_names",
    "GET /api/v1/consumer-groups": "groups",
    "GET /api/v1/consumer-groups/lagging": "lagging",
    "GET /api/v1/consumer-groups/{group}": "group",
    "DELETE /api/v1/consumer-groups/{group}": "delete_group",
    "DELETE /api/v1/consumer-groups/{group}/queues/{queue}": "delete_group",
    "POST /api/v1/consumer-groups/{group}/subscription": "set_subscription",
    "POST /api/v1/consumer-groups/{group}/queues/{queue}/seek": "seek",
    "POST /api/v1/consumer-groups/{group}/queues/{queue}/partitions/{partition}/seek": "seek",
    "GET /api/v1/consumer-groups/{group}/lag": "group_lag",
    "GET /api/v1/live": "live_figures",
    "GET /api/v1/live/history": "live_history",
    "GET /api/v1/audit": "acts",
    "GET /api/v1/system/me": "me",
    "GET /api/v1/system/settings": "settings",
    "GET /api/v1/resources/streams": "streams",
    "GET /api/v1/resources/streams/stats": "stream_stats",
    "GET /api/v1/resources/streams/{stream}": "stream",
    "GET /api/v1/resources/streams/{stream}/consumers": "stream_groups",
    "GET /api/v1/resources/streams/{stream}/windows": "stream_windows",
    "GET /api/v1/resources/streams/{stream}/windows/{window}": "stream_window",
    "GET /api/v1/resources/streams/{stream}/timeline": "stream_timeline",
    "GET /api/v1/resources/streams/{stream}/late": "stream_late",
    "GET /api/v1/resources/streams/{stream}/explain": "explain_stream",
    "DELETE /api/v1/resources/streams/{stream}": "delete_stream",
    "GET /api/v1/pipelines": "pipelines",
    "GET /api/v1/pipelines/{pipeline}": "pipeline",
    "GET /api/v1/pipelines/{pipeline}/inside": "pipeline_inside",
    "POST /api/v1/pipelines/{pipeline}/report": "report_pipeline",
    "DELETE /api/v1/pipelines/{pipeline}": "delete_pipeline",
    "GET /api/v1/rules": "rule_sets",
    "GET /api/v1/rules/{rules}": "rules",
    "POST /api/v1/rules/{rules}": "apply_rules",
    "DELETE /api/v1/rules/{rules}": "delete_rules",
}
# What the rest of the client speaks.
ELSEWHERE = {
    *(f"{route.method} {route.path}" for route in (*api.messages.routes, *api.streams.routes)),
    "POST /api/v1/traces",
    "GET /api/v1/sinks/checkpoint",  # engines ask it, and nobody else
    "POST /api/v1/sinks/checkpoint",
    "GET /api/v1/events",  # for pages: it never ends, and live_figures has the same
}


@pytest.fixture
async def admin(broker: Broker) -> AsyncIterator[AsyncAdmin]:
    async with AsyncQueen(broker.address) as queen:
        yield queen.admin


def test_every_route_has_a_method() -> None:
    offered = {f"{route.method} {route.path}" for route in api.ROUTES}
    assert offered - ELSEWHERE <= set(METHODS)
    assert set(METHODS) <= offered
    public = {name for name in dir(AsyncAdmin) if not name.startswith("_")}
    assert public == set(METHODS.values())


# Queues

COUNTS = Counts(10, 4, 2, 4, 1)


async def test_queues(admin: AsyncAdmin, http: httpx.AsyncClient) -> None:
    await some_queues(http)
    found = await admin.queues()
    assert ([queue.name for queue in found], found.total, found.more) == (["bills", "orders"], 2, False)
    orders = found[1]
    assert (orders.namespace, orders.task, orders.priority, orders.partitions) == ("shop", "sell", 7, 3)
    assert orders.messages == COUNTS
    assert orders.options.lease_time == 300
    first = await admin.queues(namespace="shop", limit=1)
    assert ([queue.name for queue in first], first.total, first.more) == (["bills"], 2, True)
    rest = await admin.queues(namespace="shop", limit=1, offset=1)
    assert ([queue.name for queue in rest], rest.more) == (["orders"], False)
    assert [queue.name for queue in await admin.queues(task="sell")] == ["orders"]
    assert [queue.name for queue in await admin.queues(search="ill")] == ["bills"]


async def test_one_queue(admin: AsyncAdmin, http: httpx.AsyncClient) -> None:
    await some_queues(http)
    await push(http, "a/b c?", 1)
    orders = await admin.queue("orders")
    assert (orders.partition_count, orders.messages, orders.options.priority) == (3, COUNTS, 7)
    assert {part.name: part.total for part in orders.partitions} == {"Default": 0, "a": 6, "b": 4}
    assert [(group.name, group.members) for group in orders.groups] == [("g", 1)]
    assert datetime.now(UTC) - orders.created_at < timedelta(minutes=1)
    assert (await admin.queue("a/b c?")).messages.pending == 1
    with pytest.raises(NotFound, match="no queue nothing"):
        await admin.queue("nothing")


async def test_partitions_namespaces_and_tasks(admin: AsyncAdmin, http: httpx.AsyncClient) -> None:
    await some_queues(http)
    found = await admin.partitions("orders")
    assert {part.queue for part in found} == {"orders"}
    assert {part.name: part.processing for part in found} == {"Default": 0, "a": 2, "b": 0}
    everything = await admin.partitions(limit=1)
    assert (len(everything), everything.total, everything.more) == (1, 4, True)
    [shop] = await admin.namespaces()
    assert (shop.namespace, shop.queues, shop.partitions, shop.messages) == ("shop", 2, 4, COUNTS)
    assert ("sell", 1) in [(task.task, task.queues) for task in await admin.tasks()]


async def test_overview_and_status(admin: AsyncAdmin, http: httpx.AsyncClient) -> None:
    await some_queues(http)
    await admin.refresh_stats()
    overview = await admin.overview()
    assert (overview.queues, overview.partitions, overview.consumer_groups) == (2, 4, 1)
    assert (overview.messages, overview.leases) == (COUNTS, 1)
    status = await admin.status()
    assert (status.messages, status.leases.active, status.dead_letters.total) == (COUNTS, 1, 1)
    assert (status.errors.dead, sum(point.pushed for point in status.throughput)) == (1, 10)


async def test_status_of_queues(admin: AsyncAdmin, http: httpx.AsyncClient) -> None:
    await some_queues(http)
    found = await admin.queue_statuses(search="order")
    assert ([queue.name for queue in found], found.total) == (["orders"], 1)
    assert found[0].messages == COUNTS
    one = await admin.queue_status("orders", limit=1, offset=1)
    assert (one.queue.messages, one.partitions[0].name, one.pagination.total) == (COUNTS, "a", 3)
    [group] = one.partitions[0].groups
    assert (group.consumer_group, group.lag) == ("g", 3)
    assert group.leased_until is not None


async def test_analytics(admin: AsyncAdmin, http: httpx.AsyncClient) -> None:
    await some_queues(http)
    await admin.refresh_stats()
    found = await admin.analytics(queue="orders")
    assert (found.interval, found.totals.pushed, found.totals.dead) == ("minute", 10, 1)
    assert found.to - found.from_ == timedelta(hours=1)
    end = datetime.now(UTC)
    day = await admin.analytics("day", from_=end - timedelta(days=2), to=end)
    assert (day.interval, day.series[-1].pushed) == ("day", 10)
    assert (await admin.analytics(queue="bills")).totals.pushed == 0
    with pytest.raises(InvalidRequest, match="from lies after to"):
        await admin.analytics(from_=end, to=end - timedelta(days=1))


async def test_clear_and_delete_a_queue(admin: AsyncAdmin, http: httpx.AsyncClient) -> None:
    await some_queues(http)
    assert (await admin.clear_queue("orders", partition="b")).deleted == 4
    assert (await admin.clear_queue("orders")).deleted == 6
    assert (await admin.queue("orders")).messages.total == 0
    deleted = await admin.delete_queue("orders")
    assert (deleted.queue, deleted.deleted, deleted.existed) == ("orders", True, True)
    assert not (await admin.delete_queue("orders")).existed
    assert [queue.name for queue in await admin.queues()] == ["bills"]


# Messages


async def test_messages(admin: AsyncAdmin, http: httpx.AsyncClient, clock: Clock) -> None:
    await push_ids(http, "one", "a1", partition="A")
    clock.turn(100)
    middle = clock()
    clock.turn(100)
    await push_ids(http, "one", "b1", "b2", partition="B")
    await push_ids(http, "two", "x")
    await pop(http, "one/partition/B", consumerGroup="g")
    found = await admin.messages()
    assert [message.transaction_id for message in found] == ["x", "b2", "b1", "a1"]
    assert (found[2].data, found[2].status, found[2].queue) == ({"is": "b1"}, "processing", "one")
    for query, expected in (
        (admin.messages(queue="one", partition="A"), ["a1"]),
        (admin.messages(queue="one", status="pending"), ["b2", "a1"]),
        (admin.messages(from_=middle), ["x", "b2", "b1"]),
        (admin.messages(to=middle.isoformat()), ["a1"]),
        (admin.messages(limit=1, offset=1), ["b2"]),
        (admin.messages(namespace="none"), []),
        (admin.messages(task="none"), []),
        (admin.queue_messages("one", partition="B", status="processing"), ["b1"]),
        (admin.queue_messages("one", from_=middle, to=clock(), limit=1, offset=1), ["b1"]),
    ):
        assert [message.transaction_id for message in await query] == expected
    assert (await admin.messages(limit=2)).more
    with pytest.raises(NotFound, match="no queue nothing"):
        await admin.queue_messages("nothing")


async def test_one_message(admin: AsyncAdmin, http: httpx.AsyncClient) -> None:
    partition = await push_ids(http, "q", "a/b", "c")
    await dead(http, "q", "g", error="broken")
    found = await admin.message(partition, "a/b")
    assert (found.data, found.trace_id, found.encrypted) == ({"is": "a/b"}, None, False)
    assert [(g.consumer_group, g.state, g.error) for g in found.groups] == [("g", "dead", "broken")]
    assert (await admin.delete_message(partition, "c")).deleted
    with pytest.raises(NotFound, match="no message c in partition"):
        await admin.message(partition, "c")


async def test_a_message_to_the_dead_letters_and_back(admin: AsyncAdmin, http: httpx.AsyncClient) -> None:
    partition = await push_ids(http, "q", "a", "b")
    for group in ("g", "h"):
        await admin.seek(group, "q", "beginning")  # makes the group
    moved = await admin.dead_letter_message(partition, "a", group="g", error="poison")
    assert (moved.moved, moved.consumer_groups) == (1, ["g"])
    with pytest.raises(Conflict, match="dead letters"):
        await admin.dead_letter_message(partition, "a", group="g")
    assert (await admin.dead_letter_message(partition, "a")).consumer_groups == ["h"]
    back = await admin.retry_message(partition, "a", group="g")
    assert [message.consumer_group for message in back.messages] == ["g"]
    assert (await admin.retry_message(partition, "a", payload=None)).retried == 1
    assert await data_of(http, "q", "h") == [{"is": "b"}, None]
    assert await data_of(http, "q", "g") == [{"is": "b"}, {"is": "a"}]


async def data_of(http: httpx.AsyncClient, queue: str, group: str) -> list[object]:
    """What a group still gets."""
    popped = await pop(http, queue, batch=100, consumerGroup=group)
    await ack(http, popped)
    return [message["data"] for message in popped["messages"]]


async def test_dead_letters(admin: AsyncAdmin, http: httpx.AsyncClient, clock: Clock) -> None:
    await push_ids(http, "q", "a", "b", "c")
    await dead(http, "q", "g", "h", error="Timeout of ann")
    clock.turn(100)
    middle = clock()
    await dead(http, "q", "g", error="no such customer")
    everything = await admin.dead_letters()
    assert (len(everything), everything.total) == (3, 3)
    newest = everything[0]
    assert (newest.transaction_id, newest.error_message, newest.data) == (
        "b",
        "no such customer",
        {"is": "b"},
    )
    assert [letter.id for letter in await admin.dead_letters(queue="q", group="g", from_=middle)] == [
        newest.id
    ]
    page = await admin.dead_letters(partition="Default", to=middle, limit=1, offset=1)
    assert (len(page), page.total, page.more) == (1, 2, False)
    assert (await admin.dead_letter(newest.id)).cause == "rejected"
    retried = await admin.retry_dead_letter(newest.id, payload={"is": "better"})
    assert [message.consumer_group for message in retried.messages] == ["g"]
    assert (await admin.retry_dead_letters("q", group="g", error_contains="timeout", limit=5)).retried == 1
    assert await data_of(http, "q", "g") == [{"is": "c"}, {"is": "better"}, {"is": "a"}]
    assert (await admin.delete_dead_letters("q", partition="Default", error_contains="other")).deleted == 0
    [last] = await admin.dead_letters()
    assert (await admin.delete_dead_letter(last.id)).deleted == 1
    with pytest.raises(NotFound, match="no dead letter"):
        await admin.retry_dead_letter(last.id)


async def test_traces(admin: AsyncAdmin, http: httpx.AsyncClient, clock: Clock) -> None:
    partition = await push_ids(http, "q", "a")
    start = clock()
    for step, names in ((1, ["order-17", "ann"]), (2, ["order-17"])):
        body = {
            "transactionId": "a", "partitionId": partition, "data": {"step": step}, "traceNames": names,
            "eventType": "step", "consumerGroup": "g",
        }  # fmt: skip
        assert (await http.post("/api/v1/traces", json=body)).status_code == 201
        clock.turn(10)
    first, second = await admin.traces(partition, "a")
    assert (first.data, first.event_type, first.consumer_group) == ({"step": 1}, "step", "g")
    assert [trace.id for trace in await admin.traces(partition, "a", limit=1, offset=1)] == [second.id]
    named = await admin.traces_by_name("order-17", from_=start, limit=1)
    assert ([trace.data for trace in named], named.total, named.more) == ([{"step": 2}], 2, True)
    assert await admin.traces_by_name("order-17", to=start - timedelta(days=1)) == []
    names_found = await admin.trace_names()
    assert {name.name: (name.traces, name.messages) for name in names_found} == {
        "order-17": (2, 1),
        "ann": (1, 1),
    }
    assert [name.name for name in await admin.trace_names(search="an", limit=1)] == ["ann"]


# Consumer groups


async def test_groups(admin: AsyncAdmin, http: httpx.AsyncClient, clock: Clock) -> None:
    assert await admin.groups() == []
    await push(http, "q", 1, 2)
    await push(http, "q", 3, partition="p")
    await ack(http, await pop(http, "q/partition/p", consumerGroup="g"))
    await pop(http, "q/partition/Default", consumerGroup="g")
    [group] = await admin.groups()
    assert (group.name, group.topics, group.total_lag, group.state) == ("g", ["q"], 2, "Stable")
    detail = await admin.group("g")
    late, done = detail.queues["q"].partition_details
    assert (late.partition, late.lag, done.partition, done.lag) == ("Default", 2, "p", 0)
    clock.turn(100)
    [lagging] = await admin.lagging()
    assert (lagging.consumer_group, lagging.partition, lagging.lag) == ("g", "Default", 2)
    assert lagging.lag_seconds >= 100
    assert await admin.lagging(timedelta(minutes=5)) == []
    assert len(await admin.lagging("100ms", limit=1)) == 1
    with pytest.raises(NotFound, match="no consumer group nobody"):
        await admin.group("nobody")


async def test_seek(admin: AsyncAdmin, http: httpx.AsyncClient, clock: Clock) -> None:
    await push(http, "q", 1)
    await push(http, "q", 2, partition="p")
    clock.turn(100)
    middle = clock()
    clock.turn(100)
    await push(http, "q", 3)
    assert await take(http, "q", "g") == [1, 2, 3]
    dry = await admin.seek("g", "q", "beginning", dry_run=True)
    assert (dry.dry_run, dry.affected, dry.partitions_updated) == (True, 3, 0)
    assert await take(http, "q", "g") == []
    sought = await admin.seek("g", "q", middle)
    assert (sought.partitions_updated, sought.target_timestamp, sought.to_end) == (2, middle, False)
    assert await take(http, "q", "g") == [3]
    assert (await admin.seek("g", "q", "beginning", partition="p")).partitions_updated == 1
    assert await take(http, "q", "g") == [2]
    await admin.seek("g", "q", middle.isoformat())
    assert (await admin.seek("g", "q", "end")).to_end
    assert await take(http, "q", "g") == []
    await admin.seek("g", "q", "beginning")
    assert (await admin.seek("g", "q", "now", partition="Default")).to_end
    assert await take(http, "q", "g") == [2]
    with pytest.raises(InvalidRequest, match="ISO 8601"):
        await admin.seek("g", "q", "soon")


async def test_subscription(admin: AsyncAdmin, http: httpx.AsyncClient, clock: Clock) -> None:
    await push(http, "q", 1, 2)
    await pop(http, "q", consumerGroup="g", autoAck=True)
    clock.turn(100)
    updated = await admin.set_subscription("g", clock())
    assert (updated.consumer_group, updated.rows_updated) == ("g", 1)
    assert abs(updated.new_timestamp - clock()) < timedelta(seconds=30)
    await push(http, "q", 3)
    assert await take(http, "q", "g") == [3]


async def test_delete_group(admin: AsyncAdmin, http: httpx.AsyncClient) -> None:
    for queue in ("q", "r"):
        await push(http, queue, 1)
        assert await take(http, queue, "g") == [1]
    one = await admin.delete_group("g", queue="q", delete_metadata=False)
    assert (one.queues, one.deleted_partitions) == (["q"], 1)
    assert await take(http, "q", "g") == [1]  # it starts over
    assert (await admin.delete_group("g")).queues == ["q", "r"]
    with pytest.raises(NotFound, match="no consumer group g"):
        await admin.delete_group("g")


# Streams


async def test_streams(admin: AsyncAdmin, streams: Streams) -> None:
    await three_windows(streams, "ann", "bob")
    await streams.done()
    taken = await streams.take()
    [listed] = await admin.streams()
    assert (listed.name, listed.namespace, listed.partitioned) == ("s", "tests", True)
    assert (listed.window_type, listed.window_duration_ms) == ("tumbling", 60_000)

    async def all_closed() -> bool:
        return (await admin.stream_stats()).windows.closed == 6

    await eventually(all_closed)
    stats = await admin.stream_stats()
    assert (stats.streams, stats.windows.leased, stats.messages) == (1, 1, 6)
    one = await admin.stream("s")
    assert ([source.queue for source in one.sources], one.windows.closed) == (["q"], 6)
    [group] = await admin.stream_groups("s")
    assert (group.consumer_group, group.lag, group.leased, group.done) == ("g", 5, 1, 1)
    assert one.groups == [group]
    [leased] = await admin.stream_windows("s", group="g", state="leased")
    assert (leased.id, leased.key, leased.messages, leased.attempt) == (taken["id"], taken["key"], 1, 1)
    assert leased.end is not None
    assert leased.start == leased.end - timedelta(minutes=1)
    assert {window.key for window in await admin.stream_windows("s", key="bob")} == {"bob"}
    assert len(await admin.stream_windows("s", limit=2)) == 2
    with pytest.raises(NotFound, match="nowhere"):
        await admin.stream("nowhere")


async def test_late_messages_of_a_stream(admin: AsyncAdmin, streams: Streams) -> None:
    await streams.made(event_time_path="data.ts", partitioned=True)
    await streams.push({"ts": at(5)}, {"ts": at(61)}, key="a")
    await streams.take()
    await streams.push({"ts": at(6)}, key="a")
    await streams.late(1)
    found = await admin.stream_late("s", key="a", limit=1)
    assert (found.total, found[0].lateness_ms, found[0].queue) == (1, 55_000.0, "q")
    assert found[0].window is not None
    assert found[0].window.end == datetime.fromisoformat(at(60))
    assert await admin.stream_late("s", key="b") == []


async def test_why_a_window_does_not_come(admin: AsyncAdmin, streams: Streams) -> None:
    await streams.made()
    explained = await admin.explain_stream("s", group="g", key="a")
    assert (explained.stream, explained.consumer_group, explained.key) == ("s", "g", "a")
    assert "no_such_group" in [reason.code for reason in explained.reasons]
    assert all(reason.message and reason.remedy for reason in explained.reasons)
    assert (await admin.explain_stream("s")).consumer_group is None


async def test_delete_a_stream(admin: AsyncAdmin, streams: Streams) -> None:
    await streams.made()
    assert (await admin.delete_stream("s")).existed
    assert not (await admin.delete_stream("s")).existed
    assert await admin.streams() == []


# The brokers


async def test_health(admin: AsyncAdmin, broker: Broker) -> None:
    health = await admin.health()
    assert (health.status, health.database, health.version) == ("healthy", "connected", broker.version)
    assert (await admin.live()).server == health.server == "queenstream"
    assert (await admin.ready()).status == "healthy"


async def test_metrics(admin: AsyncAdmin, http: httpx.AsyncClient) -> None:
    await some_queues(http)
    await admin.refresh_stats()
    metrics = await admin.metrics()
    assert (metrics.messages.pushed, metrics.messages.dead) == (10, 1)
    assert metrics.memory_bytes > 0
    assert metrics.latency_seconds["push"].p99 > 0
    [orders] = [queue for queue in metrics.queues if queue.queue == "orders"]
    assert (orders.leases, orders.dead_letters) == (1, 1)
    assert [(lag.queue, lag.group) for lag in metrics.groups] == [("orders", "g")]
    text = await admin.prometheus()
    assert text.startswith("# HELP ")
    assert "orders" in text


async def test_the_document_of_the_routes(admin: AsyncAdmin) -> None:
    paths: Json = (await admin.openapi())["paths"]
    assert "post" in paths["/api/v1/push"]


async def test_where_an_embedded_database_is(
    admin: AsyncAdmin, http: httpx.AsyncClient, database_url: str, start_broker: StartBroker
) -> None:
    assert await admin.database_url() == database_url
    there = await http.get("/api/v1/system/database", headers={"X-Forwarded-For": "203.0.113.7"})
    assert there.status_code == 404  # for somebody else, through a proxy on this machine
    own = await start_broker(pg=database_url)
    async with AsyncQueen(own.address) as queen:
        with pytest.raises(NotFound, match="option pg"):
            await queen.admin.database_url()


class Came(asyncio.BaseTransport):
    """From an address."""

    def __init__(self, *peer: str | int) -> None:
        super().__init__({"peername": peer})


def test_who_is_on_this_machine() -> None:
    request = Request("GET", "/", "", {}, b"")
    for peer, local in (("127.0.0.1", True), ("::1", True), ("192.0.2.2", False), ("fe80::1%eth0", False)):
        request.transport = Came(peer, 6632)
        assert request.is_local is local
    request.transport = Came()
    assert not request.is_local


async def test_maintenance(admin: AsyncAdmin, http: httpx.AsyncClient) -> None:
    await push(http, "q", 1)
    assert not (await admin.maintenance()).enabled
    on = await admin.set_pop_maintenance(True)
    assert (on.enabled, on.pop_maintenance_mode, on.maintenance_mode) == (True, True, False)
    assert (await http.get("/api/v1/pop/queue/q")).status_code == 204
    assert (await admin.pop_maintenance()).enabled
    assert not (await admin.set_pop_maintenance(False)).enabled
    assert (await admin.set_maintenance(True)).maintenance_mode
    assert (await admin.maintenance()).enabled
    assert "normal" in (await admin.set_maintenance(False)).message
    assert await take(http, "q", "g") == [1]


async def test_brokers_and_their_database(admin: AsyncAdmin, http: httpx.AsyncClient, broker: Broker) -> None:
    await some_queues(http)
    system = await admin.system_metrics()
    assert [one.address for one in system.brokers] == [broker.address]
    assert (system.totals.brokers, system.totals.messages.pushed) == (1, 10)
    [worker] = await admin.worker_metrics()
    assert (worker.id, worker.messages.pushed) == (str(broker.id), 10)
    stats = await admin.postgres_stats()
    assert stats.server_version.startswith("18")
    assert stats.database_bytes > 1_000_000
    assert {"messages", "cursors"} <= {table.table.rpartition(".")[2] for table in stats.tables}


async def test_lag_operations_and_retention(admin: AsyncAdmin, http: httpx.AsyncClient, clock: Clock) -> None:
    await some_queues(http)
    await admin.refresh_stats()
    [lag] = await admin.queue_lag("orders")
    assert (lag.queue, lag.group, lag.lag) == ("orders", "g", 6)
    assert await admin.queue_lag("bills") == []
    ops = await admin.queue_ops("hour", from_=clock() - timedelta(hours=2), to=clock(), queue="orders")
    assert (ops.interval, ops.queue, sum(bucket.pushed for bucket in ops.series)) == ("hour", "orders", 10)
    [kept] = await admin.retention("orders")
    assert (kept.queue, kept.ttl, kept.retention_enabled, kept.expired_last_24h) == ("orders", 0, False, 0)
    assert kept.oldest_message_at is not None
    assert {queue.queue for queue in await admin.retention()} == {"bills", "orders"}


# The other client


async def test_the_synchronous_client_is_the_same(broker: Broker, http: httpx.AsyncClient) -> None:
    await some_queues(http)

    def look() -> tuple[Counts, int | None, list[str]]:
        with Queen(broker.address) as queen:
            found = queen.admin.queues(search="orders")
            return found[0].messages, found.total, [group.name for group in queen.admin.groups()]

    assert await asyncio.to_thread(look) == (COUNTS, 1, ["g"])


# What the console shows


async def test_what_goes_on_and_who_did_what(admin: AsyncAdmin, http: httpx.AsyncClient) -> None:
    await push(http, "orders", *range(3))
    await pop(http, "orders", consumerGroup="g")
    figures = await admin.live_figures()
    assert figures.database.connected
    assert [(group.consumer_group, group.queue) for group in figures.groups] == [("g", "orders")]
    assert (await admin.live_history(5)).broker == figures.broker
    lag = await admin.group_lag("g", queue="orders")
    assert lag.series[0].points[-1].lag == 3

    await admin.clear_queue("orders")
    found = await admin.acts(target="orders")
    assert [(act.action, act.role, act.details["path"]) for act in found.acts] == [
        ("clear_queue", "admin", {"queue": "orders"})
    ]
    me = await admin.me()
    assert (me.role, me.authentication) == ("admin", False)
    assert (await admin.settings()).settings["pool"].value == 8


async def test_search_errors_and_a_seek_to_a_message(admin: AsyncAdmin, http: httpx.AsyncClient) -> None:
    await push_ids(http, "orders", "a", "b", "c")
    found = await admin.search_messages("orders", path="is", value="b")
    [message] = found.messages
    assert (message.data, message.left_out, found.stopped, found.next) == ({"is": "b"}, False, None, None)
    await pop(http, "orders", consumerGroup="g")
    sought = await admin.seek("g", "orders", partition=message.partition, message_id=message.id, dry_run=True)
    assert (sought.affected, sought.target_message_id) == (1, message.id)
    [group] = (await admin.message(message.partition_id, "c")).groups
    assert group.ahead == 2
    assert [each.name for each in await admin.partitions("orders", prefix="Def")] == ["Default"]
    assert [each.name for each in await admin.partitions("orders", waiting_for="g")] == ["Default"]

    await dead(http, "orders", "h", error="timeout after 30 s")
    [error] = (await admin.letter_errors(queue="orders")).errors
    assert (error.pattern, error.letters) == ("timeout after # s", 1)
    assert len(await admin.dead_letters(queue="orders", error_pattern=error.pattern)) == 1
    assert (await admin.retry_dead_letters("orders", error_pattern=error.pattern)).retried == 1


async def test_a_time_line_and_a_window(admin: AsyncAdmin, streams: Streams) -> None:
    await three_windows(streams)
    await streams.done()
    line = await admin.stream_timeline("s", group="g")
    [key] = line.keys
    assert (len(key.windows), line.complete, line.next) == (3, True, None)
    shown = await admin.stream_window("s", key.windows[-1].id, group="g")
    assert shown.window.id == key.windows[-1].id
    assert len(shown.content) == key.windows[-1].messages
    assert shown.reasons
