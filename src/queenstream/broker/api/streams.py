"""Streams: define, poll, acknowledge, renew, seek."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator, Callable
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import Raw

from queenstream.broker.api.messages import parse_time
from queenstream.broker.auth.scope import (
    DEFINED_STREAM,
    LEASE_IN_BODY,
    STREAM_IN_BODY,
    WINDOW_IN_BODY,
)
from queenstream.broker.http.routing import Call, Response, Role, Routes, reply
from queenstream.broker.messaging.ack import lease_number
from queenstream.broker.messaging.catalog import Subscription
from queenstream.broker.messaging.encryption import message_identity
from queenstream.broker.messaging.pop import PAGE, Target, Waiter
from queenstream.broker.messaging.rejection import of_window
from queenstream.broker.schemas.messages import ErrorBody, WindowAck
from queenstream.broker.schemas.streams import (
    DefineBody,
    Defined,
    PollBody,
    Polled,
    RenewBody,
    Renewed,
    StreamAcked,
    StreamSeekBody,
    Success,
    Window,
    WindowMessage,
)
from queenstream.broker.storage import sql
from queenstream.broker.streams import acknowledge, define
from queenstream.broker.streams.acknowledge import LeaseEnded
from queenstream.broker.streams.model import OWN, Stream
from queenstream.core import windows
from queenstream.errors import InvalidRequest, NotFound, PayloadAltered, Unavailable

if TYPE_CHECKING:
    from queenstream.broker.app import Broker

routes = Routes("streams")

_NOTHING = Response(204)
_MORE = sql.bind(
    "select id, transaction_id, payload, key_id, created_at, queue_name, partition_name "
    "from queen.window_messages($1, $2, $3, $4, $5)"
)


async def stream_named(broker: Broker, name: str) -> Stream:
    """The stream, or 404."""
    stream = await broker.streams.find(name)
    if stream is None:
        raise NotFound(f"there is no stream {name[:200]!r}; define it first")
    return stream


@routes.post(
    "/api/v1/stream/define",
    scope=DEFINED_STREAM,
    role=Role.READ_WRITE,
    body=DefineBody,
    answers={201: Defined, 400: ErrorBody, 409: ErrorBody},
)
async def define_stream(call: Call) -> Response:
    """Define a stream, or take over what may change of one that exists."""
    body: DefineBody = call.body
    broker = call.broker
    since = _since(broker, body.subscription_from, "subscription_from")
    stream_id = await define.define(broker, body, since)
    broker.directory.drop(OWN + body.name)
    await broker.streams.load()
    broker.streams.wake_all()
    broker.notices.settings()
    return reply(Defined(True, str(stream_id), body.name), 201)


@routes.post(
    "/api/v1/stream/poll",
    scope=STREAM_IN_BODY,
    audited=False,
    role=Role.READ_WRITE,
    body=PollBody,
    answers={200: Polled, 204: None, 400: ErrorBody, 404: ErrorBody, 409: ErrorBody, 429: ErrorBody},
)
def poll_stream(call: Call) -> Any:
    """Take the next window of a stream for a group, or wait for one."""
    stream = call.broker.streams.get(call.body.stream_name)
    if stream is None:
        return _poll_unknown(call)
    _poll(call, stream)
    return None


async def _poll_unknown(call: Call) -> Response | None:
    stream = await stream_named(call.broker, call.body.stream_name)
    _poll(call, stream)
    return None


def _poll(call: Call, stream: Stream) -> None:
    body: PollBody = call.body
    broker = call.broker
    popper = broker.popper
    since = _since(broker, body.subscription_from, "subscriptionFrom") or stream.subscription_from
    caller = call.request.caller
    if since is None:
        subscription = Subscription(caller=caller)
    else:
        subscription = Subscription("from", aligned(stream, since), caller=caller)

    def done(row: Any, waiter: Waiter) -> None:
        if row is None:
            call.answer(_NOTHING)
        elif isinstance(row, BaseException):
            call.answer(row)
        else:
            try:
                response = window_response(broker, stream, row, waiter.lease, body.consumer_group)
            except PayloadAltered as error:
                broker.reject(of_window(row, body.consumer_group, waiter.lease, str(error)))
                call.answer(Unavailable(f"a window is among the dead letters: {error}"))
                return
            except Exception as error:  # noqa: BLE001 - it is the answer
                popper.release(waiter.lease)
                call.answer(error)
                return
            response.undelivered = lambda: popper.release(waiter.lease)
            call.answer(response)

    waiter = popper.pop(
        Target(body.consumer_group, stream.queue, stream=True),
        subscription,
        batch=1,
        partitions=1,
        auto_ack=False,
        wait_seconds=min(body.timeout / 1000, broker.settings.max_wait),
        answer=done,
    )
    call.request.on_gone = lambda: popper.cancel(waiter)
    if call.request.gone:
        popper.cancel(waiter)
    broker.streams.asked(stream.name)


def _since(broker: Broker, text: str | None, what: str) -> datetime | None:
    """Where a group starts: a time, or "now"; None: at the first message."""
    if not text:
        return None
    if text == "now":
        return broker.database.now() or datetime.now(UTC)
    return parse_time(text, what)


def aligned(stream: Stream, moment: datetime) -> datetime:
    """A time moved down to a window's start, where windows have fixed starts."""
    definition = stream.windows
    if isinstance(definition, windows.Tumbling | windows.Sliding):
        return windows.from_us(definition.aligned(windows.to_us(moment)))
    return moment


def window_response(broker: Broker, stream: Stream, row: Any, lease: uuid.UUID, group: str) -> Response:
    """A window with all its messages: at once, or page by page if it is large."""
    messages = [
        _message(broker, *columns)
        for columns in zip(
            row["content_ids"] or [],
            row["content_transactions"] or [],
            row["content_payloads"] or [],
            row["content_keys"] or [None] * len(row["content_ids"] or []),
            row["content_created"] or [],
            row["content_queues"] or [],
            row["content_partitions"] or [],
            strict=True,
        )
    ]
    if stream.window_type == "count":
        start, end = row["first_at"], row["last_at"] + timedelta(microseconds=1)
    else:
        start, end = windows.from_us(row["start_us"]), windows.from_us(row["end_us"])
    window = Window(
        stream.window_id(row["key"], row["start_us"], row["end_us"]),
        str(lease),
        row["key"],
        start,
        end,
        (row["tries"][0] if row["tries"] else 0) + 1,
        row["complete"],
        stream.lease_seconds,
        messages,
    )
    body = msgspec.json.encode(Polled(window))
    if not messages or len(messages) >= row["messages"]:
        return Response(200, body)
    last = (row["content_created"][-1], row["content_ids"][-1])

    def reject(error: PayloadAltered) -> None:
        broker.reject(of_window(row, group, lease, str(error)))

    return Response(200, chunks=_pages(broker, row["window_id"], body, last, reject))


async def _pages(
    broker: Broker,
    window_id: int,
    first: bytes,
    last: tuple[datetime, int],
    reject: Callable[[PayloadAltered], None],
) -> AsyncIterator[bytes]:
    """The answer in pieces: a page of messages is in memory, never the whole window."""
    yield first[:-3]  # without ]}}
    while True:
        rows = await broker.database.hot(_MORE, window_id, *last, PAGE, broker.settings.max_pop_bytes)
        if not rows:
            yield b"]}}"
            return
        last = rows[-1]["created_at"], rows[-1]["id"]
        try:
            messages = [
                _message(
                    broker, r["id"], r["transaction_id"], r["payload"], r["key_id"], r["created_at"],
                    r["queue_name"], r["partition_name"],
                )
                for r in rows
            ]  # fmt: skip
        except PayloadAltered as error:
            reject(error)
            raise
        yield b"," + msgspec.json.encode(messages)[1:-1]


def _message(
    broker: Broker,
    id: int,
    transaction: str,
    payload: bytes,
    key: str | None,
    created: datetime,
    queue: str,
    partition: str,
) -> WindowMessage:
    if key is not None:
        if broker.keyring is None:
            raise Unavailable("a payload is encrypted and this broker has no key; set QUEEN_ENCRYPTION_KEYS")
        payload = broker.keyring.decrypt(key, payload, message_identity(queue, partition, transaction))
    raw = Raw(payload)
    return WindowMessage(str(id), transaction, raw, raw, created, queue, partition)


@routes.post(
    "/api/v1/stream/ack",
    scope=WINDOW_IN_BODY,
    audited=False,
    role=Role.READ_WRITE,
    body=WindowAck,
    answers={200: StreamAcked, 400: ErrorBody},
)
async def ack_window(call: Call) -> Response:
    """Acknowledge a window, or give it back as failed: it comes again, or goes to the dead letters."""
    body: WindowAck = call.body
    broker = call.broker
    await acknowledge.load_streams(broker, [body.window_id])
    try:
        sent = await acknowledge.resolve(broker, broker.database.hot, body)
    except LeaseEnded as ended:
        raise InvalidRequest(str(ended)) from None
    [result] = await broker.acker.ask([sent], None)
    if not result.success:
        raise InvalidRequest(acknowledge.ENDED)
    return reply(StreamAcked(True, body.success))


@routes.post(
    "/api/v1/stream/renew-lease",
    scope=LEASE_IN_BODY,
    audited=False,
    role=Role.READ_WRITE,
    body=RenewBody,
    answers={200: Renewed, 400: ErrorBody, 404: ErrorBody},
)
async def renew_window(call: Call) -> Response:
    """Hold a window longer, counted from now."""
    body: RenewBody = call.body
    rows = await call.broker.database.hot(
        sql.bind("select queen.extend($1, $2, $3) as until"),
        lease_number(body.lease_id),
        body.extend_ms / 1000,
        call.broker.database.now(),
    )
    until = rows[0]["until"]
    if until is None:
        raise NotFound("the lease has ended or does not exist; poll again")
    return reply(Renewed(True, until))


@routes.post(
    "/api/v1/stream/seek",
    scope=STREAM_IN_BODY,
    role=Role.READ_WRITE,
    body=StreamSeekBody,
    answers={200: Success, 400: ErrorBody, 404: ErrorBody, 409: ErrorBody, 429: ErrorBody},
)
async def seek_stream(call: Call) -> Response:
    """Move a group to the windows from a time on; leases that are out become void."""
    body: StreamSeekBody = call.body
    broker = call.broker
    stream = await stream_named(broker, body.stream_name)
    now = broker.database.now()
    since = now or datetime.now(UTC) if body.timestamp == "now" else parse_time(body.timestamp, "timestamp")
    at = aligned(stream, since)
    queue = await broker.directory.queue(stream.queue)
    if queue is not None:  # a group that is new counts against the limits
        subscription = Subscription("from", at, caller=call.request.caller)
        await broker.directory.group(queue, body.consumer_group, subscription)
    await broker.database.admin("stream_seek", stream.queue_id, body.consumer_group, at, now)
    broker.changed(stream.queue)
    return reply(Success(True))
