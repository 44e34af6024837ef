"""The routes for consumer groups: where they stand, and moving, subscribing and deleting them."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any, Literal

from queenstream.broker.api.messages import check_name, parse_time
from queenstream.broker.api.queues import find_partition, find_queue, pick, unknown_queue
from queenstream.broker.auth.scope import FILTERED, QUEUE_IN_PATH, visible
from queenstream.broker.http.routing import Call, Response, Role, Routes, reply
from queenstream.broker.messaging.catalog import Subscription
from queenstream.broker.schemas.admin import (
    DeleteGroupQuery,
    Group,
    GroupDeleted,
    GroupDetail,
    GroupPartition,
    GroupQueue,
    LaggingPartition,
    LaggingQuery,
    QueueGroup,
    SeekBody,
    Sought,
    SubscriptionBody,
    SubscriptionUpdated,
)
from queenstream.broker.schemas.messages import ErrorBody
from queenstream.broker.streams.model import refuse_own
from queenstream.errors import InvalidRequest, NotFound

routes = Routes("consumer groups")

MOST_PARTITIONS = 1000  # of each queue, in the answer about one group
LAGGING_SECONDS = 60
DEAD_SECONDS = 3600

GroupState = Literal["Stable", "Lagging", "Dead"]


def _name(call: Call) -> str:
    name = check_name(call.params["group"], "the consumer group's name")
    refuse_own([name])
    return name


def _unknown(name: str) -> NotFound:
    return NotFound(f"there is no consumer group {name}; a group is made by its first pop")


def _state(rows: Sequence[Any]) -> GroupState:
    """Dead: nobody takes what waits. Lagging: somebody does, but late."""
    live = [row for row in rows if row["active"]]
    if not live:
        return "Dead"
    late = max(row["lag_seconds"] for row in live)
    idle = min((row["idle_seconds"] for row in live if row["idle_seconds"] is not None), default=late)
    if late >= DEAD_SECONDS and idle >= DEAD_SECONDS and not any(row["members"] for row in live):
        return "Dead"
    return "Lagging" if late >= LAGGING_SECONDS else "Stable"


def _sums(rows: Sequence[Any]) -> tuple[list[str], int, int, float, GroupState]:
    """What all queues of a group come to: topics, members, totalLag, maxTimeLag, state."""
    return (
        [row["queue"] for row in rows],
        sum(row["members"] for row in rows),
        sum(row["lag"] for row in rows),
        max(row["lag_seconds"] for row in rows),
        _state(rows),
    )


@routes.get(
    "/api/v1/consumer-groups", scope=FILTERED, costly=True, role=Role.READ_ONLY, answers={200: list[Group]}
)
async def list_groups(call: Call) -> Response:
    """List the consumer groups, with how far behind they are."""
    database = call.broker.database
    by_name: dict[str, list[Any]] = {}
    for row in await visible(call, await database.admin("list_groups", None, database.now(), None)):
        by_name.setdefault(row["name"], []).append(row)
    return reply(
        [Group(name, *_sums(rows), [pick(QueueGroup, row) for row in rows]) for name, rows in by_name.items()]
    )


@routes.get(
    "/api/v1/consumer-groups/lagging",
    costly=True,
    role=Role.READ_ONLY,
    query=LaggingQuery,
    answers={200: list[LaggingPartition], 400: ErrorBody},
)
async def list_lagging(call: Call) -> Response:
    """List the partitions in which a group is late, the latest first."""
    query: LaggingQuery = call.query
    database = call.broker.database
    rows = await database.admin("lagging_groups", query.min_lag_seconds, database.now(), query.limit)
    return reply([pick(LaggingPartition, row) for row in rows])


@routes.get(
    "/api/v1/consumer-groups/{group}",
    scope=FILTERED,
    costly=True,
    role=Role.READ_ONLY,
    answers={200: GroupDetail, 404: ErrorBody},
)
async def show_group(call: Call) -> Response:
    """Show one consumer group, by queue and partition."""
    name = _name(call)
    database = call.broker.database
    rows = await visible(call, await database.admin("list_groups", name, database.now(), None))
    if not rows:
        raise _unknown(name)
    details: dict[str, list[GroupPartition]] = {}
    for row in await database.admin("group_partitions", name, database.now(), MOST_PARTITIONS):
        details.setdefault(row["queue"], []).append(pick(GroupPartition, row))
    queues = {
        row["queue"]: pick(GroupQueue, row, partition_details=details.get(row["queue"], [])) for row in rows
    }
    return reply(GroupDetail(name, *_sums(rows), queues))


async def _delete(call: Call, queue: int | None) -> Response:
    name = _name(call)
    rows = await call.broker.database.admin("delete_group", name, queue, call.query.delete_metadata)
    if not rows:
        raise _unknown(name)
    names = [row["queue_name"] for row in rows]
    for changed in names:
        call.broker.changed(changed)
    return reply(GroupDeleted(True, name, names, sum(row["deleted"] for row in rows)))


@routes.delete(
    "/api/v1/consumer-groups/{group}",
    role=Role.ADMIN,
    query=DeleteGroupQuery,
    answers={200: GroupDeleted, 400: ErrorBody, 404: ErrorBody},
)
async def delete_group(call: Call) -> Response:
    """Delete a group's progress in all queues, and its subscription unless deleteMetadata=false."""
    return await _delete(call, None)


@routes.delete(
    "/api/v1/consumer-groups/{group}/queues/{queue}",
    scope=QUEUE_IN_PATH,
    role=Role.ADMIN,
    query=DeleteGroupQuery,
    answers={200: GroupDeleted, 400: ErrorBody, 404: ErrorBody},
)
async def delete_group_of_queue(call: Call) -> Response:
    """Delete a group's progress in one queue, and its subscription unless deleteMetadata=false."""
    return await _delete(call, (await find_queue(call)).id)


@routes.post(
    "/api/v1/consumer-groups/{group}/subscription",
    role=Role.READ_WRITE,
    body=SubscriptionBody,
    answers={200: SubscriptionUpdated, 400: ErrorBody, 404: ErrorBody},
)
async def subscribe(call: Call) -> Response:
    """Deliver nothing older than a time to a group, in any of its queues."""
    name = _name(call)
    start = parse_time(call.body.subscription_timestamp, "subscriptionTimestamp")
    rows = await call.broker.database.admin("subscribe_from", name, start)
    if not rows:
        raise _unknown(name)
    for row in rows:
        call.broker.changed(row["queue"])
    return reply(SubscriptionUpdated(True, name, start, len(rows)))


async def _seek(call: Call, partition_name: str | None) -> Response:
    body: SeekBody = call.body
    name = _name(call)
    _check_target(body, partition_name)
    target = None if body.timestamp is None else parse_time(body.timestamp, "timestamp")
    queue = await find_queue(call)
    partition = None
    if partition_name is not None:
        partition = await find_partition(call, queue, partition_name)
    database = call.broker.database
    answer = Sought(True, name, queue.name, 0)
    message = None if body.message_id is None else int(body.message_id)
    if message is not None:
        target = await _time_of(call, partition, message)
        answer.target_message_id = str(message)
    if target is None:
        answer.to_end = True
    else:
        answer.target_timestamp = target
    if body.dry_run:
        row = (await database.admin("preview_seek", queue.id, name, partition, target, message))[0]
        answer.dry_run = True
        answer.affected = row["affected"]
        return reply(answer)
    group = await call.broker.directory.group(queue, name, Subscription(caller=call.request.caller))
    if group is None:
        raise unknown_queue(queue.name)
    rows = await database.admin("seek", group, partition, target, database.now(), message)
    answer.partitions_updated = rows[0]["moved"]
    call.broker.changed(queue.name)
    return reply(answer)


def _check_target(body: SeekBody, partition_name: str | None) -> None:
    if sum((body.to_end, body.timestamp is not None, body.message_id is not None)) != 1:
        raise InvalidRequest(
            'say where to: {"toEnd": true}, {"timestamp": "2026-01-31T12:00:00Z"}, or in one partition '
            '{"messageId": "…"}'
        )
    if body.message_id is not None and partition_name is None:
        raise InvalidRequest(
            "a message is in one partition: POST …/queues/{queue}/partitions/{partition}/seek, or give its "
            "createdAt as timestamp"
        )


async def _time_of(call: Call, partition: int | None, message: int) -> datetime:
    rows = await call.broker.database.admin("message_time", partition, message)
    if not rows:
        raise NotFound(f"no message {message} is in this partition; it may have expired, or been deleted")
    at: datetime = rows[0]["created_at"]
    return at


SEEK_ANSWERS: dict[int, Any] = {
    200: Sought, 400: ErrorBody, 404: ErrorBody, 409: ErrorBody, 429: ErrorBody
}  # fmt: skip


@routes.post(
    "/api/v1/consumer-groups/{group}/queues/{queue}/seek",
    scope=QUEUE_IN_PATH,
    role=Role.READ_WRITE,
    body=SeekBody,
    answers=SEEK_ANSWERS,
)
async def seek_queue(call: Call) -> Response:
    """Move a group in a queue, to its end or to a time; a group that is new starts there."""
    return await _seek(call, None)


@routes.post(
    "/api/v1/consumer-groups/{group}/queues/{queue}/partitions/{partition}/seek",
    scope=QUEUE_IN_PATH,
    role=Role.READ_WRITE,
    body=SeekBody,
    answers=SEEK_ANSWERS,
)
async def seek_partition(call: Call) -> Response:
    """Move a group in one partition, to its end, to a time, or so that a message comes next."""
    return await _seek(call, check_name(call.params["partition"], "the partition's name"))
