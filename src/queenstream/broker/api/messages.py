"""The routes that carry messages: configure, push, pop, ack, transaction, lease."""

from __future__ import annotations

import uuid
from collections.abc import Coroutine
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import asyncpg
import msgspec

from queenstream.broker.auth.scope import (
    ACKED_QUEUES,
    CONFIGURED_QUEUE,
    LEASE_IN_PATH,
    NAMESPACE,
    PUSHED_QUEUES,
    QUEUE_IN_PATH,
    TRANSACTION_QUEUES,
)
from queenstream.broker.http.routing import Call, Response, Role, Routes, reply
from queenstream.broker.messaging.ack import lease_number
from queenstream.broker.messaging.catalog import Subscription
from queenstream.broker.messaging.pop import Target, Waiter
from queenstream.broker.messaging.push import ATTEMPTS, StaleQueue
from queenstream.broker.schemas.messages import (
    QUEUE_MODE,
    Ack,
    AckBatchBody,
    AckResult,
    ConfigureBody,
    Configured,
    Deleted,
    ErrorBody,
    ExtendBody,
    ExtendResult,
    Options,
    PopAnyQuery,
    Popped,
    PopQuery,
    PushBody,
    PushOperation,
    PushResult,
    TransactionBody,
    TransactionResult,
    WindowOperation,
    WindowResult,
)
from queenstream.broker.storage import sql
from queenstream.broker.streams import acknowledge
from queenstream.broker.streams.acknowledge import LeaseEnded
from queenstream.broker.streams.model import refuse_own
from queenstream.errors import InvalidRequest, QueueFull, TooLarge, Unavailable

if TYPE_CHECKING:
    from queenstream.broker.app import Broker

routes = Routes("messages")

_NOTHING = Response(204)
_DEFAULTS = Options()


QUEUE_NAME = "the queue's name"


def check_name(value: str, what: str) -> str:
    """A name from the path, which the body's types have not checked."""
    if not 1 <= len(value) <= 255:
        raise InvalidRequest(f"{what} must have 1 to 255 characters, not {len(value)}")
    if what == QUEUE_NAME:
        refuse_own([value])
    return value


@routes.post(
    "/api/v1/configure",
    scope=CONFIGURED_QUEUE,
    role=Role.READ_WRITE,
    body=ConfigureBody,
    answers={200: Configured, 201: Configured, 400: ErrorBody, 409: ErrorBody, 429: ErrorBody},
)
async def configure(call: Call) -> Response:
    """Create a queue, or replace all the options of one that exists."""
    body: ConfigureBody = call.body
    refuse_own([body.queue])
    broker = call.broker
    options = body.options or _DEFAULTS
    if options.encryption_enabled and broker.keyring is None:
        raise InvalidRequest("encryptionEnabled needs a key: start the broker with QUEEN_ENCRYPTION_KEYS")
    await broker.directory.check_new_queue(body.queue, call.request.caller)
    rows = await broker.database.catalog(
        "configure", body.queue, body.namespace, body.task, *msgspec.structs.astuple(options)
    )
    row = rows[0]
    broker.directory.drop(body.queue)
    queue = await broker.directory.ensure(body.queue, ["Default"])
    await broker.database.upkeep("wake_cursors", row["id"], broker.database.now())
    broker.popper.changed([body.queue])
    broker.notices.changed(body.queue)
    answer = Configured(
        True,
        str(queue.id),
        str(queue.partitions["Default"]),
        body.queue,
        row["namespace"],
        row["task"],
        options,
    )
    return reply(answer, 201 if row["created"] else 200)


@routes.post(
    "/api/v1/push",
    scope=PUSHED_QUEUES,
    audited=False,
    role=Role.READ_WRITE,
    body=PushBody,
    answers={201: list[PushResult], 400: ErrorBody, 409: ErrorBody, 413: ErrorBody, 429: ErrorBody},
)
def push(call: Call) -> Coroutine[Any, Any, Response] | None:
    """Store messages; the answer comes when they are committed."""
    items, request = call.body.items, call.request
    if not items:
        call.reply([], 201)
        return None

    def done(results: list[PushResult] | BaseException) -> None:
        call.reply(results, 201)

    if call.broker.pusher.submit(items, request.subject, len(request.body), done):
        return None
    return _push_by_new_names(call)


async def _push_by_new_names(call: Call) -> Response:
    request = call.request
    pusher, size = call.broker.pusher, len(request.body)
    return reply(await pusher.push(call.body.items, request.subject, size, request.caller), 201)


def _pop(call: Call, target: Target) -> None:
    query: PopQuery = call.query
    refuse_own([target.group])
    settings = call.broker.settings
    if query.batch > settings.max_batch or query.partitions > settings.max_batch:
        raise InvalidRequest(f"batch and partitions must be at most {settings.max_batch}")
    wait_seconds = min(query.timeout / 1000, settings.max_wait) if query.wait else 0.0
    popper = call.broker.popper

    def done(popped: Popped | BaseException | None, waiter: Waiter) -> None:
        if popped is None:
            call.answer(_NOTHING)
        elif isinstance(popped, BaseException):
            call.answer(popped)
        else:
            response = reply(popped)
            if not query.auto_ack:
                response.undelivered = lambda: popper.release(waiter.lease)
            call.answer(response)

    waiter = popper.pop(
        target,
        subscription_of(query.subscription_mode, query.subscription_from, call.request.caller),
        batch=query.batch,
        partitions=query.partitions,
        auto_ack=query.auto_ack,
        wait_seconds=wait_seconds,
        answer=done,
        brief=query.brief,
    )
    call.request.on_gone = lambda: popper.cancel(waiter)
    if call.request.gone:
        popper.cancel(waiter)


def subscription_of(mode: str | None, since: str | None, caller: str) -> Subscription:
    """Where a new group starts: ``subscriptionFrom`` says it more exactly than ``subscriptionMode``."""
    if since is None or since == "":
        return Subscription("new" if mode in ("new", "new-only") else "all", caller=caller)
    if since == "now":
        return Subscription("new", caller=caller)
    return Subscription("from", parse_time(since, "subscriptionFrom"), caller=caller)


def parse_time(text: str, what: str) -> datetime:
    """An ISO 8601 timestamp; one without a zone is UTC."""
    try:
        moment = datetime.fromisoformat(text)
        if moment.tzinfo is None:
            moment = moment.replace(tzinfo=UTC)
        return moment.astimezone(UTC)
    except (ValueError, OverflowError):
        raise InvalidRequest(
            f"{what} {text[:80]!r} is no ISO 8601 timestamp; write it like 2026-01-31T12:00:00Z"
        ) from None


POP_ANSWERS: dict[int, Any] = {200: Popped, 204: None, 400: ErrorBody, 409: ErrorBody, 429: ErrorBody}
_POP: dict[str, Any] = {"role": Role.READ_WRITE, "audited": False, "answers": POP_ANSWERS}
_GET = _POP | {"changes_state": True}  # a pop leases messages; existing clients send it as GET
_POST = _POP | {"body_optional": True}


def _take_body(call: Call) -> None:
    """Use the options of a pop from its body, where a POST has one."""
    if call.request.body.strip() in (b"", b"{}"):
        return
    if call.request.query:
        raise InvalidRequest("put the options of a pop into the query string or into the body, not into both")
    call.query = call.body


@routes.get("/api/v1/pop/queue/{queue}", scope=QUEUE_IN_PATH, query=PopQuery, **_GET)
def pop_queue(call: Call) -> None:
    """Take messages from any partition of a queue."""
    queue = check_name(call.params["queue"], QUEUE_NAME)
    _pop(call, Target(call.query.consumer_group or QUEUE_MODE, queue))


@routes.post("/api/v1/pop/queue/{queue}", scope=QUEUE_IN_PATH, query=PopQuery, body=PopQuery, **_POST)
def post_pop_queue(call: Call) -> None:
    """Take messages from any partition of a queue, with options in the query string or in the body."""
    _take_body(call)
    pop_queue(call)


@routes.get("/api/v1/pop/queue/{queue}/partition/{partition}", scope=QUEUE_IN_PATH, query=PopQuery, **_GET)
def pop_partition(call: Call) -> None:
    """Take messages from one partition of a queue."""
    queue = check_name(call.params["queue"], QUEUE_NAME)
    partition = check_name(call.params["partition"], "the partition's name")
    _pop(call, Target(call.query.consumer_group or QUEUE_MODE, queue, partition))


@routes.post(
    "/api/v1/pop/queue/{queue}/partition/{partition}",
    scope=QUEUE_IN_PATH,
    query=PopQuery,
    body=PopQuery,
    **_POST,
)
def post_pop_partition(call: Call) -> None:
    """Take messages from one partition of a queue, with options in the query string or in the body."""
    _take_body(call)
    pop_partition(call)


@routes.get("/api/v1/pop", scope=NAMESPACE, query=PopAnyQuery, **_GET)
def pop_any(call: Call) -> None:
    """Take messages from any queue of a namespace and/or task, the higher priority first."""
    query: PopAnyQuery = call.query
    if not query.namespace and not query.task:
        raise InvalidRequest("name a namespace or a task, or pop from /api/v1/pop/queue/{queue}")
    target = Target(
        query.consumer_group or QUEUE_MODE, namespace=query.namespace or None, task=query.task or None
    )
    _pop(call, target)


@routes.post("/api/v1/pop", scope=NAMESPACE, query=PopAnyQuery, body=PopAnyQuery, **_POST)
def post_pop_any(call: Call) -> None:
    """Take messages from any queue of a namespace and/or task, with options in the query or the body."""
    _take_body(call)
    pop_any(call)


@routes.post(
    "/api/v1/ack",
    scope=ACKED_QUEUES,
    audited=False,
    role=Role.READ_WRITE,
    body=Ack,
    answers={200: list[AckResult], 400: ErrorBody},
)
def ack(call: Call) -> None:
    """Acknowledge one message."""
    call.broker.acker.submit([call.body], None, call.reply)


@routes.post(
    "/api/v1/ack/batch",
    scope=ACKED_QUEUES,
    audited=False,
    role=Role.READ_WRITE,
    body=AckBatchBody,
    answers={200: list[AckResult], 400: ErrorBody, 413: ErrorBody},
)
def ack_batch(call: Call) -> None:
    """Acknowledge several messages; with ``brief`` the answer has only those that were refused."""
    body: AckBatchBody = call.body
    if not body.acknowledgments:
        call.reply([])
        return

    def refused(results: list[AckResult] | BaseException) -> None:
        brief = results if isinstance(results, BaseException) else [r for r in results if not r.success]
        call.reply(brief)

    answer = refused if body.brief else call.reply
    call.broker.acker.submit(body.acknowledgments, body.consumer_group, answer)


@routes.post(
    "/api/v1/transaction",
    scope=TRANSACTION_QUEUES,
    audited=False,
    role=Role.READ_WRITE,
    body=TransactionBody,
    answers={200: TransactionResult, 400: ErrorBody, 413: ErrorBody, 429: ErrorBody},
)
async def transaction(call: Call) -> Response:
    """Push and acknowledge messages and windows, all or nothing."""
    body: TransactionBody = call.body
    broker = call.broker
    items = [item for each in body.operations if isinstance(each, PushOperation) for item in each.items]
    acks = [each for each in body.operations if not isinstance(each, PushOperation)]
    if len(items) + len(acks) > broker.settings.max_batch:
        raise TooLarge(f"a transaction takes at most {broker.settings.max_batch} messages and acks")
    refuse_own({item.queue for item in items})
    windows = [each.window_id for each in acks if isinstance(each, WindowOperation)]
    await acknowledge.load_streams(broker, windows)

    async def work(connection: Any) -> tuple[list[PushResult], list[Ack], list[AckResult], set[str]]:
        # The push first: it waits for locks, and nothing that waits may hold a cursor.
        pushed: list[PushResult] = []
        if items:
            pushed = (await broker.pusher.store([rows], connection.fetch))[0]
        await _require_leases(broker, connection, body.required_leases)
        sent: list[Ack] = [
            each
            if isinstance(each, Ack)
            else await acknowledge.resolve(broker, connection.fetch, each, repeat=True)
            for each in acks
        ]
        acked: list[AckResult] = []
        ready: set[str] = set()
        if sent:
            (acked,), ready = await broker.acker.apply([(sent, None)], connection.fetch, strict=True)
        return pushed, sent, acked, ready

    identity = str(uuid.uuid4())
    for _ in range(ATTEMPTS):
        rows = await broker.pusher.prepare(items, call.request.subject, call.request.caller)
        try:
            async with broker.pusher.apart(rows):
                pushed, sent, acked, ready = await broker.database.transaction(work)
            break
        except StaleQueue:
            broker.pusher.forget(rows)
        except QueueFull:
            raise
        except (LeaseEnded, asyncpg.PostgresError) as error:
            if isinstance(error, asyncpg.PostgresError) and error.sqlstate != "QS001":
                raise
            return reply(TransactionResult(identity, False, [], str(error)))
    else:
        raise Unavailable("a queue keeps changing; try again")
    if items:
        broker.pusher.announce([rows], [pushed])
    if sent:
        broker.acker.announce([(sent, None)], [acked], ready)
    return reply(TransactionResult(identity, True, _in_order(body, pushed, acked)))


async def _require_leases(broker: Broker, connection: Any, required: list[str]) -> None:
    """Check that leases hold; ``LeaseEnded`` if one does not."""
    leases = {lease_number(lease) for lease in required}
    if not leases:
        return
    held = await connection.fetchval(
        "select count(distinct lease_id) from queen.cursors where lease_id = any($1) "
        "and ready_at > coalesce($2, clock_timestamp())",
        list(leases),
        broker.database.now(),
    )
    if held < len(leases):
        raise LeaseEnded("a required lease has ended; pop again")


def _in_order(
    body: TransactionBody, pushed: list[PushResult], acked: list[AckResult]
) -> list[PushResult | AckResult | WindowResult]:
    """One result for each item and ack, in the order of the operations."""
    results: list[PushResult | AckResult | WindowResult] = []
    pushes, acks = iter(pushed), iter(acked)
    for operation in body.operations:
        if isinstance(operation, PushOperation):
            results.extend(next(pushes) for _ in operation.items)
            continue
        acknowledged = next(acks)
        if isinstance(operation, WindowOperation):
            results.append(WindowResult(0, operation.window_id, True, operation.success))
        else:
            results.append(acknowledged)
    for index, result in enumerate(results):
        result.index = index
    return results


@routes.post(
    "/api/v1/lease/{lease}/extend",
    scope=LEASE_IN_PATH,
    audited=False,
    role=Role.READ_WRITE,
    body=ExtendBody,
    body_optional=True,
    answers={200: list[ExtendResult], 400: ErrorBody},
)
async def extend(call: Call) -> Response:
    """Hold a lease longer, counted from now."""
    lease = call.params["lease"]
    rows = await call.broker.database.hot(
        sql.bind("select queen.extend($1, $2, $3) as until"),
        lease_number(lease),
        call.body.seconds,
        call.broker.database.now(),
    )
    until = rows[0]["until"]
    error = None if until else "the lease has ended or does not exist; pop again"
    return reply([ExtendResult(0, lease, until is not None, error, until)])


@routes.delete(
    "/api/v1/resources/queues/{queue}",
    scope=QUEUE_IN_PATH,
    role=Role.ADMIN,
    answers={200: Deleted, 400: ErrorBody},
)
async def delete_queue(call: Call) -> Response:
    """Delete a queue with its messages, groups and dead letters."""
    name = check_name(call.params["queue"], QUEUE_NAME)
    rows = await call.broker.database.admin("delete_queue", name)
    existed = rows[0]["existed"]
    call.broker.changed(name)
    return reply(Deleted(existed, name, existed))
