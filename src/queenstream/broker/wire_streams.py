"""What crosses the wire for streams. Requests are snake_case and camelCase as the contract has them."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Literal

from msgspec import Meta, Raw, Struct

from queenstream.broker.wire import Long, Name, Text

Milliseconds = Annotated[int, Meta(ge=0, le=3_155_760_000_000)]  # up to a hundred years
Positive = Annotated[int, Meta(ge=1, le=3_155_760_000_000)]
WindowType = Literal["tumbling", "sliding", "session", "count"]


class DefineBody(Struct):
    name: Annotated[str, Meta(min_length=1, max_length=200)]
    source_queue_names: Annotated[list[Name], Meta(min_length=1, max_length=100)]
    namespace: Text | None = None
    partitioned: bool = False
    window_type: WindowType = "tumbling"
    window_duration_ms: int | None = None
    window_slide_ms: int | None = None
    window_session_gap_ms: int | None = None
    window_size_count: int | None = None
    window_slide_count: int | None = None
    window_grace_period_ms: Milliseconds = 30_000
    window_lease_timeout_ms: Positive = 60_000
    event_time_path: Annotated[str, Meta(min_length=1, max_length=255)] | None = None
    idle_timeout_ms: Positive | None = None
    retry_limit: Annotated[int, Meta(ge=0, le=2_000_000_000)] = 10
    max_in_flight: Annotated[int, Meta(ge=1, le=1000)] = 1
    emit_empty: bool = False
    subscription_from: Text | None = None
    reset: bool = False


class Defined(Struct):
    success: bool
    stream_id: str
    name: str


class PollBody(Struct, rename="camel"):
    stream_name: Name
    consumer_group: Name
    timeout: Annotated[int, Meta(ge=0, le=2**53)] = 30_000
    subscription_from: Text | None = None


class WindowMessage(Struct, rename={"transaction_id": "transactionId"}, gc=False):
    id: str
    transaction_id: str
    data: Raw
    payload: Raw
    created_at: datetime
    queue: str
    partition: str


class Window(Struct, rename={"lease_id": "leaseId"}):
    id: str
    lease_id: str
    key: str
    start: datetime
    end: datetime
    attempt: int
    complete: bool
    messages: list[WindowMessage]


class Polled(Struct):
    window: Window


class StreamAckBody(Struct, rename="camel"):
    window_id: Annotated[str, Meta(min_length=1, max_length=1000)]
    lease_id: Name
    success: bool = True
    error: Long | None = None


class StreamAcked(Struct):
    success: bool
    acked: bool


class RenewBody(Struct, rename={"lease_id": "leaseId"}):
    lease_id: Name
    extend_ms: Positive = 30_000


class Renewed(Struct):
    success: bool
    lease_expires_at: datetime


class StreamSeekBody(Struct, rename="camel"):
    stream_name: Name
    consumer_group: Name
    timestamp: Text


class Success(Struct):
    success: bool
