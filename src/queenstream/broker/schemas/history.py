"""What crosses the wire about what was sent: messages, dead letters, traces.

``data`` is JSON as it was pushed: it is handed on, never read.
"""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Literal

from msgspec import UNSET, Meta, Raw, Struct, UnsetType, field

from queenstream.broker.schemas.admin import Limit, Moment, Page, PageQuery
from queenstream.broker.schemas.messages import Long, Name, Text

Pattern = Annotated[str, Meta(max_length=1000)]  # what queen.fold_error makes of an error
State = Literal["pending", "processing", "completed", "dead"]

# Messages


class MessageFilter(Struct, rename="camel"):
    status: Literal["pending", "processing", "completed", "dead", "dead_letter", "failed", ""] | None = None
    partition: Text | None = None
    from_: Moment | None = field(default=None, name="from")
    to: Moment | None = None
    limit: Limit = 200
    offset: Annotated[int, Meta(ge=0, le=10_000)] = 0


class MessagesQuery(MessageFilter, rename="camel"):
    queue: Text | None = None
    namespace: Text | None = None
    task: Text | None = None


class MessageInfo(Struct, rename="camel"):
    """``encrypted`` is there, and ``data`` null, when this broker has no key that reads it."""

    id: str
    transaction_id: str
    partition_id: str
    queue: str
    partition: str
    namespace: str
    task: str
    status: State
    trace_id: str | None
    producer_sub: str | None
    created_at: datetime
    data: Raw
    retry_count: int
    lease_expires_at: datetime | None
    encrypted: bool | UnsetType = UNSET


class MessageList(Struct):
    messages: list[MessageInfo]
    pagination: Page


class MessageGroup(Struct, rename="camel"):
    """``ahead``: how many messages the group has yet to complete before it; None: it is past this one."""

    consumer_group: str
    state: State
    tries: int
    error: str | None
    leased_until: datetime | None
    ahead: int | None


class MessageDetail(MessageInfo, rename="camel", kw_only=True):
    """``payload`` is ``data`` under the name it was pushed with."""

    payload: Raw
    groups: list[MessageGroup]


class MessageDeleted(Struct, rename="camel"):
    success: bool
    deleted: bool
    partition_id: str
    transaction_id: str


class RetryBody(Struct, rename="camel"):
    consumer_group: Text | None = None
    payload: Raw | UnsetType = UNSET


class Replayed(Struct, rename="camel"):
    transaction_id: str
    message_id: str
    consumer_group: str


class Retried(Struct):
    success: bool
    retried: int
    messages: list[Replayed]


class MoveBody(Struct, rename="camel"):
    consumer_group: Text | None = None
    error: Long | None = None


class Moved(Struct, rename="camel"):
    success: bool
    moved: int
    consumer_groups: list[str]


# Dead letters


class DeadLettersQuery(PageQuery, rename="camel"):
    queue: Text | None = None
    consumer_group: Text | None = None
    partition: Text | None = None
    from_: Moment | None = field(default=None, name="from")
    to: Moment | None = None
    error_pattern: Pattern | None = None


class DeadLetter(Struct, rename="camel"):
    id: str
    transaction_id: str
    partition_id: str
    queue: str
    partition: str
    consumer_group: str
    error_message: str | None
    retry_count: int
    data: Raw
    producer_sub: str | None
    created_at: datetime
    failed_at: datetime
    encrypted: bool | UnsetType = UNSET


class DeadLetterDetail(DeadLetter, rename="camel", kw_only=True):
    """``cause``: exhausted (its tries), rejected (by a consumer), waited (too long), moved (by hand)."""

    cause: str
    trace_id: str | None


class DeadLetterList(Struct):
    messages: list[DeadLetter]
    pagination: Page
    total: int


class LetterRetryBody(Struct):
    payload: Raw | UnsetType = UNSET


class LetterFilter(Struct, rename="camel"):
    queue: Name
    consumer_group: Text | None = None
    partition: Text | None = None
    error_contains: Text | None = None
    error_pattern: Pattern | None = None
    limit: Annotated[int, Meta(ge=1, le=10_000)] = 1000


class ErrorsQuery(Struct, rename="camel"):
    queue: Text | None = None
    consumer_group: Text | None = None
    from_: Moment | None = field(default=None, name="from")
    to: Moment | None = None
    limit: Limit = 100


class LetterError(Struct, rename="camel"):
    """Dead letters of a queue whose errors are alike; ``pattern`` has # for the numbers and ids in them.

    ``example`` is the error of the last one, whose id is ``exampleId``.
    """

    queue: str
    pattern: str
    letters: int
    consumer_groups: list[str]
    first_failed_at: datetime
    last_failed_at: datetime
    example: str | None
    example_id: str


class LetterErrorList(Struct):
    """``letters``: how many were looked at, the newest; ``complete``: whether those were all."""

    errors: list[LetterError]
    letters: int
    complete: bool


class LettersRetried(Struct):
    success: bool
    retried: int


class LettersDeleted(Struct):
    success: bool
    deleted: int


# Traces


class TraceBody(Struct, rename="camel"):
    transaction_id: Name
    partition_id: Name
    data: Raw
    consumer_group: Text | None = None
    trace_names: Annotated[list[Name], Meta(max_length=50)] | None = None
    event_type: Text | None = None


class TraceStored(Struct, rename="camel"):
    success: bool
    trace_id: str


class TracesQuery(PageQuery, rename="camel"):
    from_: Moment | None = field(default=None, name="from")
    to: Moment | None = None


class Trace(Struct, rename="camel"):
    id: str
    transaction_id: str
    partition_id: str
    consumer_group: str | None
    event_type: str
    trace_names: list[str]
    data: Raw
    created_at: datetime


class MessageTracesQuery(PageQuery, rename="camel"):
    limit: Limit = 1000


class MessageTraces(Struct):
    traces: list[Trace]


class TraceList(Struct):
    traces: list[Trace]
    total: int


class TraceNamesQuery(PageQuery, rename="camel"):
    search: Text | None = None


class TraceName(Struct, rename="camel"):
    name: str
    traces: int
    messages: int
    last_seen: datetime


class TraceNameList(Struct):
    names: list[TraceName]
    total: int
