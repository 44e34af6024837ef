"""What crosses the wire for streams. Requests are snake_case and camelCase as the contract has them."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Literal

from msgspec import UNSET, Meta, Raw, Struct, UnsetType, field

from queenstream.broker.schemas.admin import Limit, Moment
from queenstream.broker.schemas.messages import Name, Text

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


class Window(Struct, rename={"lease_id": "leaseId", "lease_seconds": "leaseSeconds"}):
    id: str
    lease_id: str
    key: str
    start: datetime
    end: datetime
    attempt: int
    complete: bool
    lease_seconds: float
    messages: list[WindowMessage]


class Polled(Struct):
    window: Window


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


# What there is. A definition's fields are named as ``define`` takes them.


class StreamSource(Struct, rename="camel"):
    """``highest_event_time`` and ``idle`` (it holds the watermark no longer) are for event time."""

    queue: str
    highest_event_time: datetime | None
    idle: bool
    quiet_since: datetime | None


class WindowCounts(Struct):
    """``open`` still take messages, ``ripe`` will be closed in a moment."""

    open: int
    ripe: int
    closed: int


class StreamInfo(Struct, rename={"created_at": "createdAt", "updated_at": "updatedAt"}):
    """``late``: how many messages no window took."""

    id: str
    name: str
    namespace: str
    partitioned: bool
    window_type: WindowType
    window_duration_ms: int | None
    window_slide_ms: int | None
    window_session_gap_ms: int | None
    window_size_count: int | None
    window_slide_count: int | None
    window_grace_period_ms: int
    window_lease_timeout_ms: int
    event_time_path: str | None
    idle_timeout_ms: int | None
    retry_limit: int
    max_in_flight: int
    emit_empty: bool
    subscription_from: datetime | None
    watermark: datetime | None
    sources: list[StreamSource]
    windows: WindowCounts
    late: int
    created_at: datetime
    updated_at: datetime


class StreamList(Struct):
    streams: list[StreamInfo]


class AllWindows(Struct):
    """Over all streams. ``open``: not closed yet; ``leased``: out, to any group; ``late``: messages."""

    open: int
    closed: int
    leased: int
    late: int


class StreamStats(Struct):
    """``messages``: those in windows, once for each window that holds them."""

    streams: int
    windows: AllWindows
    messages: int


class StreamGroup(Struct, rename="camel"):
    """``lag``: closed windows not acknowledged yet, ``leased`` included; ``done``: those that it is past."""

    consumer_group: str
    lag: int
    leased: int
    done: int
    dead: int
    last_ack_at: datetime | None


class StreamDetail(StreamInfo, rename={"created_at": "createdAt", "updated_at": "updatedAt"}):
    groups: list[StreamGroup]


class StreamGroupList(Struct):
    consumers: list[StreamGroup]


class WindowsQuery(Struct, rename="camel"):
    """``ripe`` includes ``waiting`` when a group is named; ``closed`` is every window that is."""

    consumer_group: Text | None = None
    key: Text | None = None
    state: Literal["open", "ripe", "closed", "waiting", "leased", "done", "dead"] | None = None
    from_: Moment | None = field(default=None, name="from")
    to: Moment | None = None
    limit: Limit = 100


class WindowInfo(Struct, rename="camel"):
    """``start`` and ``end`` of a count window are those of its messages; null while it has none.

    ``state`` is ``open`` (takes messages), ``ripe`` (its end and the grace have passed, it will be closed in
    a moment), or, once closed: ``waiting``, ``leased``, ``done`` or ``dead`` for a group, ``closed`` without
    one. ``attempt``: how often it was delivered to the group, as far as is known; ``error``: of the last.
    """

    id: str
    key: str
    start: datetime | None
    end: datetime | None
    state: Literal["open", "ripe", "closed", "waiting", "leased", "done", "dead"]
    messages: int
    closed_at: datetime | None
    attempt: int | None
    leased_until: datetime | None
    complete: bool
    error: str | None


class WindowList(Struct):
    windows: list[WindowInfo]


class TimelineQuery(Struct, rename="camel"):
    """One ``key``, or a page of ``keys`` of them whose names begin with ``prefix`` and come ``after`` one."""

    consumer_group: Text | None = None
    key: Text | None = None
    prefix: Text | None = None
    after: Text | None = None
    keys: Annotated[int, Meta(ge=1, le=100)] = 20
    from_: Moment | None = field(default=None, name="from")
    to: Moment | None = None
    limit: Annotated[int, Meta(ge=1, le=5000)] = 1000


class LateWindow(Struct):
    """A window for which messages came too late, and how many."""

    start: datetime
    end: datetime
    messages: int


class KeyTimeline(Struct):
    """The windows of a key, those made last first."""

    key: str
    windows: list[WindowInfo]
    late: list[LateWindow]


class Timeline(Struct):
    """``complete``: whether all windows are there; if not, ask for fewer keys or less time.

    ``next``: what ``after`` has to be for the keys behind these; None: there are none.
    """

    stream: str
    now: datetime
    watermark: datetime | None
    keys: list[KeyTimeline]
    complete: bool
    next: str | None


class WindowQuery(Struct, rename="camel"):
    """``after``: where the last page of its messages ended."""

    consumer_group: Text | None = None
    after: Annotated[str, Meta(pattern="^[0-9]{1,18}-[0-9]{1,18}$")] | None = None
    limit: Annotated[int, Meta(ge=1, le=200)] = 50


class WindowContent(Struct, rename="camel"):
    """One message of a window. ``left_out``: ``data`` is null, being too large for a list."""

    id: str
    transaction_id: str
    partition_id: str
    queue: str
    partition: str
    created_at: datetime
    data: Raw
    size: int
    left_out: bool
    encrypted: bool | UnsetType = UNSET


class LateQuery(Struct, rename="camel"):
    key: Text | None = None
    limit: Limit = 100


class MissedWindow(Struct):
    start: datetime
    end: datetime


class LateInfo(Struct, rename="camel"):
    """``window``: the last that it missed; ``transactionId`` is null when the message is gone."""

    message_id: str
    transaction_id: str | None
    queue: str | None
    partition: str | None
    key: str
    event_time: datetime | None
    window: MissedWindow | None
    lateness_ms: float | None
    reason: str
    noted_at: datetime


class LateList(Struct):
    late: list[LateInfo]
    total: int


class ExplainQuery(Struct, rename="camel"):
    consumer_group: Text | None = None
    key: Text | None = None


class Reason(Struct):
    code: str
    message: str
    remedy: str


class WindowDetail(Struct):
    """A window, what is in it, and why it has not come yet or comes again (as ``/explain`` says it).

    ``next``: what ``after`` has to be for the messages behind these; None: there are none.
    """

    window: WindowInfo
    content: list[WindowContent]
    next: str | None
    reasons: list[Reason]


class Explained(Struct, rename={"consumer_group": "consumerGroup"}):
    """What holds the group up comes first. ``assigned_up_to``: everything stored before is in its windows."""

    stream: str
    consumer_group: str | None
    key: str | None
    reasons: list[Reason]
    now: datetime
    watermark: datetime | None
    assigned_up_to: datetime


class StreamDeleted(Struct):
    deleted: bool
    stream: str
    existed: bool
