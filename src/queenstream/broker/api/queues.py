"""The routes that show what there is: queues, namespaces, tasks, partitions, and how they do."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

from msgspec import UNSET

from queenstream.broker.api.messages import check_name, parse_time
from queenstream.broker.auth.scope import FILTERED, QUEUE_IN_PATH, QUEUE_IN_QUERY, visible_queues
from queenstream.broker.http.routing import Call, Response, Role, Routes, reply
from queenstream.broker.messaging.catalog import Queue
from queenstream.broker.schemas.admin import (
    Analytics,
    AnalyticsQuery,
    Cleared,
    ClearQuery,
    Counts,
    DeadLetterCounts,
    Errors,
    Flow,
    FlowPoint,
    Leases,
    NamespaceInfo,
    NamespaceList,
    Overview,
    Page,
    PageQuery,
    PartitionGroup,
    PartitionInfo,
    PartitionList,
    PartitionRow,
    PartitionsQuery,
    PartitionStatus,
    QueueDetail,
    QueueDetailQuery,
    QueueGroup,
    QueueInfo,
    QueueList,
    QueuesQuery,
    QueueStatus,
    QueueStatusDetail,
    QueueStatusList,
    Status,
    TaskInfo,
    TaskList,
)
from queenstream.broker.schemas.messages import ErrorBody, Options
from queenstream.errors import InvalidRequest, NotFound

routes = Routes("resources")

MOST_POINTS = 10_000  # in a series
_STEPS = {"minute": timedelta(minutes=1), "hour": timedelta(hours=1), "day": timedelta(days=1)}
_SPANS = {"minute": timedelta(hours=1), "hour": timedelta(days=1), "day": timedelta(days=30)}


def pick(struct: Any, row: Any, **more: Any) -> Any:
    """A ``struct`` from the columns of a row that bear its fields' names."""
    given = dict(row)
    return struct(**{name: given[name] for name in struct.__struct_fields__ if name in given}, **more)


def moment_or_none(text: str | None, what: str) -> datetime | None:
    """An optional timestamp of a query; an empty one is none."""
    return parse_time(text, what) if text else None


async def find_queue(call: Call) -> Queue:
    """The queue that the path names, looked up afresh."""
    name = check_name(call.params["queue"], "the queue's name")
    call.broker.directory.drop(name)
    queue = await call.broker.directory.queue(name)
    if queue is None:
        raise unknown_queue(name)
    return queue


def unknown_queue(name: str) -> NotFound:
    return NotFound(f"there is no queue {name}; push to it or configure it first")


async def find_partition(call: Call, queue: Queue, name: str) -> int:
    """The id of a partition of the queue."""
    partition = await call.broker.directory.partition(queue, name)
    if partition is None:
        raise NotFound(
            f"queue {queue.name} has no partition {name}; "
            "GET /api/v1/resources/partitions?queue= lists those it has"
        )
    return partition


async def _queues(call: Call, query: QueuesQuery) -> tuple[list[Any], Page]:
    database = call.broker.database
    wanted = (query.namespace or None, query.task or None, query.search or None)
    names = await visible_queues(call)
    rows = await database.admin("list_queues", *wanted, query.limit, query.offset, database.now(), names)
    total = (await database.admin("count_queues", *wanted, names))[0]["matches"]
    return rows, Page(query.limit, query.offset, total=total)


async def _one_queue(call: Call) -> Any:
    name = check_name(call.params["queue"], "the queue's name")
    database = call.broker.database
    rows = await database.admin("list_queues", None, None, None, 1, 0, database.now(), [name])
    if not rows:
        raise unknown_queue(name)
    return rows[0]


async def _partitions(call: Call, queue: str, limit: int, offset: int) -> list[Any]:
    database = call.broker.database
    return await database.admin("queue_partitions", queue, limit, offset, database.now(), None, None)


async def _groups(call: Call, queue: str, partitions: list[Any]) -> dict[str, list[PartitionGroup]]:
    """Where each group stands in these partitions, by their ids."""
    database = call.broker.database
    ids = [int(partition["id"]) for partition in partitions]
    groups: dict[str, list[PartitionGroup]] = {}
    for group in await database.admin("partition_groups", queue, ids, database.now()):
        groups.setdefault(group["partition_id"], []).append(pick(PartitionGroup, group))
    return groups


@routes.get(
    "/api/v1/resources/queues",
    scope=FILTERED,
    costly=True,
    role=Role.READ_ONLY,
    query=QueuesQuery,
    answers={200: QueueList, 400: ErrorBody},
)
async def list_queues(call: Call) -> Response:
    """List the queues, with what lies in them."""
    rows, page = await _queues(call, call.query)
    queues = [pick(QueueInfo, row, messages=pick(Counts, row), options=pick(Options, row)) for row in rows]
    return reply(QueueList(queues, page))


@routes.get(
    "/api/v1/resources/queues/{queue}",
    scope=QUEUE_IN_PATH,
    costly=True,
    role=Role.READ_ONLY,
    query=QueueDetailQuery,
    answers={200: QueueDetail, 400: ErrorBody, 404: ErrorBody},
)
async def show_queue(call: Call) -> Response:
    """Show one queue: options, partitions, groups, counts."""
    row = await _one_queue(call)
    partitions = await _partitions(call, row["name"], call.query.partitions, 0)
    database = call.broker.database
    groups = await database.admin("list_groups", None, database.now(), row["name"])
    detail = QueueDetail(
        row["id"],
        row["name"],
        row["namespace"],
        row["task"],
        row["created_at"],
        row["priority"],
        row["partitions"],
        pick(Counts, row),
        pick(Options, row),
        [pick(PartitionInfo, partition) for partition in partitions],
        [pick(QueueGroup, group) for group in groups],
    )
    return reply(detail)


@routes.get("/api/v1/resources/namespaces", costly=True, role=Role.READ_ONLY, answers={200: NamespaceList})
async def list_namespaces(call: Call) -> Response:
    """List the namespaces, with the sums of their queues."""
    rows = await call.broker.database.admin("list_namespaces", call.broker.database.now())
    return reply(
        NamespaceList(
            [NamespaceInfo(row["name"], row["queues"], row["partitions"], pick(Counts, row)) for row in rows]
        )
    )


@routes.get("/api/v1/resources/tasks", costly=True, role=Role.READ_ONLY, answers={200: TaskList})
async def list_tasks(call: Call) -> Response:
    """List the tasks, with the sums of their queues."""
    rows = await call.broker.database.admin("list_tasks", call.broker.database.now())
    return reply(
        TaskList([TaskInfo(row["name"], row["queues"], row["partitions"], pick(Counts, row)) for row in rows])
    )


@routes.get(
    "/api/v1/resources/partitions",
    expensive=True,
    scope=QUEUE_IN_QUERY,
    role=Role.READ_ONLY,
    query=PartitionsQuery,
    answers={200: PartitionList, 400: ErrorBody},
)
async def list_partitions(call: Call) -> Response:
    """List the partitions, of one queue or of all, with what lies in them."""
    query: PartitionsQuery = call.query
    rows, total = await _chosen(call, query)
    shown: list[PartitionRow] = [pick(PartitionRow, row) for row in rows]
    if query.groups and query.queue:
        groups = await _groups(call, query.queue, rows)
        for row in shown:
            row.groups = groups.get(row.id, [])
    by_name = query.queue and query.order == "name"
    following = shown[-1].name if by_name and len(shown) == query.limit else UNSET
    return reply(PartitionList(shown, Page(query.limit, query.offset, total=total), following))


async def _chosen(call: Call, query: PartitionsQuery) -> tuple[list[Any], int]:
    """The partitions asked for, and how many there are in all."""
    database = call.broker.database
    queue, group = query.queue or None, query.consumer_group or None
    page = (query.limit, query.offset, database.now())
    if queue is None and (query.prefix or query.after or query.order != "name"):
        raise InvalidRequest("prefix, after and order=waiting are for one queue: name it with queue")
    if query.order == "waiting":
        if group is None:
            raise InvalidRequest("a partition waits for a group: name it with consumerGroup")
        if query.prefix or query.after:
            raise InvalidRequest("order=waiting takes neither prefix nor after; page on with offset")
        rows = await database.admin("waiting_partitions", queue, *page, group)
        counted = await database.admin("count_waiting_partitions", queue, group)
    elif queue is None:
        rows = await database.admin("list_partitions", *page)
        counted = await database.admin("count_partitions", None, None)
    else:
        prefix = query.prefix or None
        rows = await database.admin("queue_partitions", queue, *page, query.after or None, prefix)
        counted = await database.admin("count_partitions", queue, prefix)
    return rows, counted[0]["matches"]


async def _flow(
    call: Call, interval: str, start: datetime, end: datetime, *filters: str | None
) -> list[FlowPoint]:
    rows = await call.broker.database.admin("throughput", interval, start, end, *filters)
    return [pick(FlowPoint, row) for row in rows]


def _sum(points: list[FlowPoint]) -> Flow:
    return Flow(*(sum(getattr(point, name) for point in points) for name in Flow.__struct_fields__))


@routes.get("/api/v1/resources/overview", costly=True, role=Role.READ_ONLY, answers={200: Overview})
async def overview(call: Call) -> Response:
    """Show what there is in all."""
    row = (await call.broker.database.admin("overview", call.broker.database.now()))[0]
    now = row["timestamp"]
    minute = await _flow(call, "minute", now, now, None, None, None)
    return reply(pick(Overview, row, messages=pick(Counts, row), throughput=_sum(minute)))


@routes.get("/api/v1/status", costly=True, role=Role.READ_ONLY, answers={200: Status})
async def status(call: Call) -> Response:
    """Show how the broker does: counts, the last hour by minute, errors, leases, dead letters."""
    row = (await call.broker.database.admin("overview", call.broker.database.now()))[0]
    now = row["timestamp"]
    points = await _flow(call, "minute", now - timedelta(minutes=59), now, None, None, None)
    errors = Errors(*(sum(getattr(p, name) for p in points) for name in Errors.__struct_fields__))
    return reply(
        Status(
            now,
            row["queues"],
            row["partitions"],
            pick(Counts, row),
            points,
            errors,
            Leases(row["leases"], row["leased_partitions"]),
            DeadLetterCounts(row["dead_letter"], row["dead_last_hour"]),
        )
    )


def _queue_status(row: Any) -> QueueStatus:
    made: QueueStatus = pick(QueueStatus, row, messages=pick(Counts, row), throughput=pick(Flow, row))
    return made


@routes.get(
    "/api/v1/status/queues",
    scope=FILTERED,
    costly=True,
    role=Role.READ_ONLY,
    query=QueuesQuery,
    answers={200: QueueStatusList, 400: ErrorBody},
)
async def status_of_queues(call: Call) -> Response:
    """Show how the queues do."""
    rows, page = await _queues(call, call.query)
    return reply(QueueStatusList([_queue_status(row) for row in rows], page))


@routes.get(
    "/api/v1/status/queues/{queue}",
    scope=QUEUE_IN_PATH,
    costly=True,
    role=Role.READ_ONLY,
    query=PageQuery,
    answers={200: QueueStatusDetail, 400: ErrorBody, 404: ErrorBody},
)
async def status_of_queue(call: Call) -> Response:
    """Show how one queue does: where each group stands in each partition."""
    query: PageQuery = call.query
    row = await _one_queue(call)
    partitions = await _partitions(call, row["name"], query.limit, query.offset)
    groups = await _groups(call, row["name"], partitions)
    return reply(
        QueueStatusDetail(
            _queue_status(row),
            [pick(PartitionStatus, p, groups=groups.get(p["id"], [])) for p in partitions],
            Page(query.limit, query.offset, total=row["partitions"]),
        )
    )


@routes.get(
    "/api/v1/status/analytics",
    expensive=True,
    scope=QUEUE_IN_QUERY,
    role=Role.READ_ONLY,
    query=AnalyticsQuery,
    answers={200: Analytics, 400: ErrorBody},
)
async def analytics(call: Call) -> Response:
    """Show what went through the queues, by minute, hour or day."""
    query: AnalyticsQuery = call.query
    database = call.broker.database
    end = moment_or_none(query.to, "to")
    if end is None:
        end = (await database.admin("moment", database.now()))[0]["now"]
    start = moment_or_none(query.from_, "from") or end
    if not 2000 <= start.year <= end.year < 9000:
        # The ends of the calendar mean infinity to the database, and a series has to end.
        raise InvalidRequest("from and to must lie in this order, between the years 2000 and 9000")
    if not query.from_:
        start = end - _SPANS[query.interval]
    if start > end:
        raise InvalidRequest("from lies after to; swap them")
    if (end - start) / _STEPS[query.interval] > MOST_POINTS:
        raise InvalidRequest(
            f"that makes more than {MOST_POINTS} points; take a longer interval or a shorter time"
        )
    filters = (query.queue or None, query.namespace or None, query.task or None)
    points = await _flow(call, query.interval, start, end, *filters)
    return reply(Analytics(query.interval, start, end, points, _sum(points)))


@routes.delete(
    "/api/v1/queues/{queue}/clear",
    scope=QUEUE_IN_PATH,
    role=Role.ADMIN,
    query=ClearQuery,
    answers={200: Cleared, 400: ErrorBody, 404: ErrorBody},
)
async def clear_queue(call: Call) -> Response:
    """Delete the messages of a queue, or of one partition; options, groups and dead letters stay."""
    queue = await find_queue(call)
    name: str | None = call.query.partition or None
    partition = None if name is None else await find_partition(call, queue, name)
    rows = await call.broker.database.admin("clear_queue", queue.id, partition)
    call.broker.changed(queue.name)
    return reply(Cleared(True, queue.name, rows[0]["deleted"]))
