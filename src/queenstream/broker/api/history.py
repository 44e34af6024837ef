"""The routes for what was sent: messages, and the traces that consumers leave on them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import asyncpg
from msgspec import UNSET, Raw, UnsetType

from queenstream.broker.api.messages import check_name
from queenstream.broker.api.queues import find_queue, moment_or_none, pick
from queenstream.broker.auth.scope import (
    PARTITION_IN_BODY,
    PARTITION_IN_PATH,
    QUEUE_IN_PATH,
    QUEUE_IN_QUERY,
)
from queenstream.broker.http.routing import Call, Response, Role, Routes, reply
from queenstream.broker.messaging.ack import partition_number
from queenstream.broker.messaging.encryption import message_identity
from queenstream.broker.schemas.admin import Page
from queenstream.broker.schemas.history import (
    MessageDeleted,
    MessageDetail,
    MessageFilter,
    MessageGroup,
    MessageInfo,
    MessageList,
    MessagesQuery,
    MessageTraces,
    MessageTracesQuery,
    MoveBody,
    Moved,
    Replayed,
    Retried,
    RetryBody,
    Trace,
    TraceBody,
    TraceList,
    TraceName,
    TraceNameList,
    TraceNamesQuery,
    TracesQuery,
    TraceStored,
)
from queenstream.broker.schemas.messages import ErrorBody
from queenstream.errors import Conflict, NotFound, TooLarge, Unavailable

if TYPE_CHECKING:
    from queenstream.broker.app import Broker

routes = Routes("history")

MOST_TRACE_BYTES = 65_536
_DEAD = ("dead", "dead_letter", "failed")
_NULL = Raw(b"null")


def readable(broker: Broker, row: Any) -> tuple[Raw, bool | UnsetType]:
    """What goes into ``data`` and ``encrypted``."""
    payload = broker.reveal(
        row["key_id"], row["payload"], row["queue"], row["partition"], row["transaction_id"]
    )
    return (_NULL, True) if payload is None else (Raw(payload), UNSET)


# Messages


async def _list_messages(call: Call, query: MessageFilter, *names: str | None) -> Response:
    """``names``: of the queue, the namespace and the task."""
    queue, namespace, task = (name or None for name in names)
    database = call.broker.database
    wanted = (queue, query.partition or None, namespace, task)
    start, end = moment_or_none(query.from_, "from"), moment_or_none(query.to, "to")
    if query.status in _DEAD:
        rows = await database.admin("list_dead_messages", *wanted, start, end, query.limit, query.offset)
    else:
        rows = await database.admin(
            "list_messages", *wanted, query.status or None, start, end, query.limit, query.offset,
            database.now(),
        )  # fmt: skip
    messages = []
    for row in rows:
        data, encrypted = readable(call.broker, row)
        messages.append(pick(MessageInfo, row, data=data, encrypted=encrypted))
    return reply(MessageList(messages, Page(query.limit, query.offset, count=len(messages))))


@routes.get(
    "/api/v1/messages",
    expensive=True,
    scope=QUEUE_IN_QUERY,
    role=Role.READ_ONLY,
    query=MessagesQuery,
    answers={200: MessageList, 400: ErrorBody},
)
async def list_messages(call: Call) -> Response:
    """List messages, the newest first."""
    query: MessagesQuery = call.query
    return await _list_messages(call, query, query.queue, query.namespace, query.task)


@routes.get(
    "/api/v1/status/queues/{queue}/messages",
    expensive=True,
    scope=QUEUE_IN_PATH,
    role=Role.READ_ONLY,
    query=MessageFilter,
    answers={200: MessageList, 400: ErrorBody, 404: ErrorBody},
)
async def list_queue_messages(call: Call) -> Response:
    """List the messages of a queue, the newest first."""
    queue = await find_queue(call)
    return await _list_messages(call, call.query, queue.name, None, None)


def _place(call: Call) -> tuple[int, str]:
    return partition_number(call.params["partitionId"]), call.params["transactionId"]


def _no_message(call: Call) -> NotFound:
    partition, transaction = call.params["partitionId"], call.params["transactionId"]
    return NotFound(
        f"no message {transaction[:255]} in partition {partition[:20]}; it may have expired. "
        "Send the partitionId and transactionId of the push or pop."
    )


@routes.get(
    "/api/v1/messages/{partitionId}/{transactionId}",
    scope=PARTITION_IN_PATH,
    role=Role.READ_ONLY,
    answers={200: MessageDetail, 404: ErrorBody},
)
async def show_message(call: Call) -> Response:
    """Show one message, alive or dead, and what it is to each group."""
    database = call.broker.database
    place = _place(call)
    rows = await database.admin("one_message", *place, database.now())
    if not rows:
        raise _no_message(call)
    data, encrypted = readable(call.broker, rows[0])
    groups: list[MessageGroup] = [
        pick(MessageGroup, row) for row in await database.admin("message_groups", *place, database.now())
    ]
    given = {**rows[0], "payload": data}
    detail = pick(
        MessageDetail, given, data=data, encrypted=encrypted, groups=groups,
        retry_count=max((group.tries for group in groups), default=0),
        lease_expires_at=max((g.leased_until for g in groups if g.leased_until), default=None),
    )  # fmt: skip
    return reply(detail)


@routes.delete(
    "/api/v1/messages/{partitionId}/{transactionId}",
    scope=PARTITION_IN_PATH,
    role=Role.READ_WRITE,
    answers={200: MessageDeleted, 404: ErrorBody},
)
async def delete_message(call: Call) -> Response:
    """Delete one message, for all groups, even while it is out; its dead letters stay."""
    rows = await call.broker.database.admin("delete_message", *_place(call))
    if not rows[0]["deleted"]:
        raise _no_message(call)
    return reply(MessageDeleted(True, True, call.params["partitionId"], call.params["transactionId"]))


@routes.post(
    "/api/v1/messages/{partitionId}/{transactionId}/retry",
    scope=PARTITION_IN_PATH,
    role=Role.READ_WRITE,
    body=RetryBody,
    body_optional=True,
    answers={200: Retried, 400: ErrorBody, 404: ErrorBody, 409: ErrorBody},
)
async def retry_message(call: Call) -> Response:
    """Replay the dead letters of a message, as they are or with another payload."""
    body: RetryBody = call.body
    rows = await call.broker.database.admin("letters_of_message", *_place(call), body.consumer_group or None)
    replayed = await replay(call.broker, [row["id"] for row in rows], rows, body.payload)
    if not replayed:
        raise NotFound(
            "only a dead letter can be retried, and this message has none; to deliver others again, "
            "POST /api/v1/consumer-groups/{group}/queues/{queue}/seek"
        )
    return reply(Retried(True, len(replayed), replayed))


async def replay(
    broker: Broker, letters: list[int], rows: Any, payload: Raw | UnsetType = UNSET
) -> list[Replayed]:
    """Replay dead letters; an edited payload is for the queue of the first of ``rows``."""
    if not letters:
        return []
    edited: bytes | None = None
    key: str | None = None
    if payload is not UNSET:
        edited = bytes(payload)
        queue = await broker.directory.queue(rows[0]["queue"])
        if queue is not None and queue.options.encryption_enabled:
            if broker.keyring is None:
                raise Unavailable(
                    f"queue {queue.name} is encrypted and this broker has no key; set QUEEN_ENCRYPTION_KEYS"
                )
            first = rows[0]
            identity = message_identity(first["queue"], first["partition"], first["transaction_id"])
            key, edited = broker.keyring.encrypt(edited, identity)
    try:
        stored = await broker.database.admin("replay", letters, edited, key, broker.database.now())
    except asyncpg.UniqueViolationError:
        raise Conflict(
            "somebody has pushed a message under the id of this retry (…~retry-<id>); delete that one first"
        ) from None
    broker.freed({row["queue_name"] for row in stored})
    return [Replayed(row["transaction_id"], row["message_id"], row["group_name"]) for row in stored]


@routes.post(
    "/api/v1/messages/{partitionId}/{transactionId}/dlq",
    scope=PARTITION_IN_PATH,
    role=Role.READ_WRITE,
    body=MoveBody,
    body_optional=True,
    answers={200: Moved, 400: ErrorBody, 404: ErrorBody, 409: ErrorBody},
)
async def move_message(call: Call) -> Response:
    """Move a message to the dead letters, of one group or of all that have not completed it."""
    body: MoveBody = call.body
    group = body.consumer_group or None
    error = (body.error or "moved to the dead letters by hand").replace("\0", "")
    database = call.broker.database
    rows = await database.admin("move_message", *_place(call), group, error, database.now())
    outcome = rows[0]["outcome"]
    if outcome == "missing":
        raise _no_message(call)
    if outcome == "no group":
        raise NotFound(f"no group {group} consumes this partition; leave consumerGroup out for all")
    if outcome == "passed":
        raise Conflict("every group asked for has completed this message or has it among its dead letters")
    groups: list[str] = rows[0]["groups"]
    return reply(Moved(True, len(groups), groups))


# Traces


@routes.post(
    "/api/v1/traces",
    scope=PARTITION_IN_BODY,
    audited=False,
    role=Role.READ_WRITE,
    body=TraceBody,
    answers={201: TraceStored, 400: ErrorBody, 404: ErrorBody, 413: ErrorBody},
)
async def add_trace(call: Call) -> Response:
    """Leave a trace on a message."""
    body: TraceBody = call.body
    data = bytes(body.data)
    if len(data) > MOST_TRACE_BYTES:
        raise TooLarge(f"the trace's data has {len(data)} bytes; send at most {MOST_TRACE_BYTES}")
    rows = await call.broker.database.admin(
        "add_trace", partition_number(body.partition_id), body.transaction_id,
        body.consumer_group or None, body.event_type or "info", data, body.trace_names or [],
        call.broker.database.now(),
    )  # fmt: skip
    if not rows:
        raise NotFound(
            f"no message {body.transaction_id} in partition {body.partition_id[:20]} to trace; "
            "send the partitionId and transactionId of the pop"
        )
    return reply(TraceStored(True, rows[0]["id"]), 201)


def _trace(row: Any) -> Trace:
    made: Trace = pick(Trace, {**row, "data": Raw(row["data"])})
    return made


@routes.get(
    "/api/v1/traces/{partitionId}/{transactionId}",
    scope=PARTITION_IN_PATH,
    role=Role.READ_ONLY,
    query=MessageTracesQuery,
    answers={200: MessageTraces, 400: ErrorBody},
)
async def list_message_traces(call: Call) -> Response:
    """List the traces of a message, the oldest first."""
    query: MessageTracesQuery = call.query
    rows = await call.broker.database.admin("traces_of_message", *_place(call), query.limit, query.offset)
    return reply(MessageTraces([_trace(row) for row in rows]))


@routes.get(
    "/api/v1/traces/by-name/{name}",
    expensive=True,
    role=Role.READ_ONLY,
    query=TracesQuery,
    answers={200: TraceList, 400: ErrorBody},
)
async def list_named_traces(call: Call) -> Response:
    """List the traces under a name, the newest first."""
    query: TracesQuery = call.query
    wanted = (
        check_name(call.params["name"], "the trace's name"),
        moment_or_none(query.from_, "from"),
        moment_or_none(query.to, "to"),
    )
    database = call.broker.database
    rows = await database.admin("traces_by_name", *wanted, query.limit, query.offset)
    total = (await database.admin("count_traces_by_name", *wanted))[0]["total"]
    return reply(TraceList([_trace(row) for row in rows], total))


@routes.get(
    "/api/v1/traces/names",
    expensive=True,
    role=Role.READ_ONLY,
    query=TraceNamesQuery,
    answers={200: TraceNameList, 400: ErrorBody},
)
async def list_trace_names(call: Call) -> Response:
    """List the names of traces, the one seen last first."""
    query: TraceNamesQuery = call.query
    search = query.search or None
    database = call.broker.database
    rows = await database.admin("trace_name_list", search, query.limit, query.offset)
    total = (await database.admin("count_trace_names", search))[0]["total"]
    return reply(TraceNameList([pick(TraceName, row) for row in rows], total))
