"""What a broker answers about what was sent: messages, dead letters, traces. ``data`` is what was pushed."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Literal

from queenstream.client._base.responses.resources import Pagination, Reply

MessageState = Literal["pending", "processing", "completed", "dead"]

# Messages


class MessageInfo(Reply, kw_only=True):
    """A stored message. ``encrypted``: the broker has no key that reads it, and ``data`` is None."""

    id: str
    transaction_id: str
    partition_id: str
    queue: str
    partition: str
    namespace: str
    task: str
    status: MessageState
    trace_id: str | None = None
    producer_sub: str | None = None
    created_at: datetime
    data: Any = None
    retry_count: int
    lease_expires_at: datetime | None = None
    encrypted: bool = False


class MessageList(Reply):
    messages: list[MessageInfo]
    pagination: Pagination


class MessageGroup(Reply):
    """What a message is to one group. ``ahead``: what it has to complete before; None: it is past it."""

    consumer_group: str
    state: MessageState
    tries: int
    error: str | None = None
    leased_until: datetime | None = None
    ahead: int | None = None


class MessageDetail(MessageInfo, kw_only=True):
    """A stored message, and what it is to each group."""

    groups: list[MessageGroup]


class MessageDeleted(Reply):
    deleted: bool
    partition_id: str
    transaction_id: str


class Replayed(Reply):
    """A dead letter that is a message again, at the end of its partition and for its group alone."""

    transaction_id: str
    message_id: str
    consumer_group: str


class Retried(Reply):
    retried: int
    messages: list[Replayed]


class Moved(Reply):
    """``consumer_groups``: those for which the message is dead now."""

    moved: int
    consumer_groups: list[str]


# Dead letters


class DeadLetter(Reply, kw_only=True):
    """A copy of a message that a group gave up on. ``encrypted``: ``data`` cannot be read by the broker."""

    id: str
    transaction_id: str
    partition_id: str
    queue: str
    partition: str
    consumer_group: str
    error_message: str | None = None
    retry_count: int
    data: Any = None
    producer_sub: str | None = None
    created_at: datetime
    failed_at: datetime
    encrypted: bool = False


class DeadLetterDetail(DeadLetter, kw_only=True):
    """``cause``: exhausted (its tries), rejected (by a consumer), waited (too long), moved (by hand)."""

    cause: str
    trace_id: str | None = None


class DeadLetterList(Reply):
    messages: list[DeadLetter]
    pagination: Pagination
    total: int


class LetterError(Reply, kw_only=True):
    """Dead letters of a queue whose errors are alike; ``pattern`` has # for the numbers and ids in them."""

    queue: str
    pattern: str
    letters: int
    consumer_groups: list[str]
    first_failed_at: datetime
    last_failed_at: datetime
    example: str | None = None
    example_id: str


class LetterErrorList(Reply):
    """``letters``: how many were looked at, the newest; ``complete``: whether those were all."""

    errors: list[LetterError]
    letters: int
    complete: bool


class LettersRetried(Reply):
    retried: int


class LettersDeleted(Reply):
    deleted: int


# Traces


class Trace(Reply, kw_only=True):
    """What a consumer noted about a message."""

    id: str
    transaction_id: str
    partition_id: str
    consumer_group: str | None = None
    event_type: str
    trace_names: list[str]
    data: Any = None
    created_at: datetime


class MessageTraces(Reply):
    traces: list[Trace]


class TraceList(Reply):
    traces: list[Trace]
    total: int


class TraceName(Reply):
    """A name that traces bear: how many, on how many messages."""

    name: str
    traces: int
    messages: int
    last_seen: datetime


class TraceNameList(Reply):
    names: list[TraceName]
    total: int
