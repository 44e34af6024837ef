"""What a broker answers about streams and their windows. A definition's fields are named as it takes them."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Literal

from msgspec import Struct

from queenstream.client._base.responses.resources import Reply

WindowType = Literal["tumbling", "sliding", "session", "count"]
WindowState = Literal["open", "ripe", "closed", "waiting", "leased", "done", "dead"]


class StreamSource(Reply):
    """A queue that a stream reads. ``idle``: it holds the watermark no longer."""

    queue: str
    highest_event_time: datetime | None = None
    idle: bool = False
    quiet_since: datetime | None = None


class WindowCounts(Reply):
    """``open`` still take messages, ``ripe`` will be closed in a moment."""

    open: int
    ripe: int
    closed: int


class StreamInfo(Struct, rename={"created_at": "createdAt", "updated_at": "updatedAt"}, kw_only=True):
    """A stream: its definition, and how many windows it has. ``late``: messages that no window took."""

    id: str
    name: str
    namespace: str
    partitioned: bool
    window_type: WindowType
    window_duration_ms: int | None = None
    window_slide_ms: int | None = None
    window_session_gap_ms: int | None = None
    window_size_count: int | None = None
    window_slide_count: int | None = None
    window_grace_period_ms: int
    window_lease_timeout_ms: int
    event_time_path: str | None = None
    idle_timeout_ms: int | None = None
    retry_limit: int
    max_in_flight: int
    emit_empty: bool
    subscription_from: datetime | None = None
    watermark: datetime | None = None
    sources: list[StreamSource]
    windows: WindowCounts
    late: int
    created_at: datetime
    updated_at: datetime


class StreamList(Reply):
    streams: list[StreamInfo]


class AllWindows(Reply):
    """Over all streams. ``open``: not closed yet; ``leased``: out, to any group; ``late``: messages."""

    open: int
    closed: int
    leased: int
    late: int


class StreamStats(Reply):
    """``messages``: those in windows, once for each window that holds them."""

    streams: int
    windows: AllWindows
    messages: int


class StreamGroup(Reply):
    """``lag``: closed windows not acknowledged yet, ``leased`` included; ``done``: those that it is past."""

    consumer_group: str
    lag: int
    leased: int
    done: int
    dead: int
    last_ack_at: datetime | None = None


class StreamDetail(StreamInfo, kw_only=True):
    """One stream, with its groups."""

    groups: list[StreamGroup]


class StreamGroupList(Reply):
    consumers: list[StreamGroup]


class WindowInfo(Reply, kw_only=True):
    """A window, without its messages.

    ``state`` is ``open`` (takes messages), ``ripe`` (will be closed in a moment) or, once closed:
    ``waiting``, ``leased``, ``done`` or ``dead`` for a group, ``closed`` without one. ``start`` and ``end``
    of a count window are those of its messages; None while it has none.
    """

    id: str
    key: str
    start: datetime | None = None
    end: datetime | None = None
    state: WindowState
    messages: int
    closed_at: datetime | None = None
    attempt: int | None = None
    leased_until: datetime | None = None
    complete: bool
    error: str | None = None


class WindowList(Reply):
    windows: list[WindowInfo]


class LateWindow(Reply):
    """A window for which messages came too late, and how many."""

    start: datetime
    end: datetime
    messages: int


class KeyTimeline(Reply):
    """The windows of a key, those made last first."""

    key: str
    windows: list[WindowInfo]
    late: list[LateWindow]


class Timeline(Reply, kw_only=True):
    """``complete``: whether all windows are there. ``next``: ``after`` for the keys behind these, if any."""

    stream: str
    now: datetime
    watermark: datetime | None = None
    keys: list[KeyTimeline]
    complete: bool
    next: str | None = None


class WindowContent(Reply, kw_only=True):
    """One message of a window. ``left_out``: ``data`` is None, being too large for a list."""

    id: str
    transaction_id: str
    partition_id: str
    queue: str
    partition: str
    created_at: datetime
    data: Any = None
    size: int
    left_out: bool
    encrypted: bool = False


class MissedWindow(Reply):
    start: datetime
    end: datetime


class LateInfo(Reply, kw_only=True):
    """A message that no window took. ``window``: the last that it missed.

    ``transaction_id`` is None when the message is gone.
    """

    message_id: str
    transaction_id: str | None = None
    queue: str | None = None
    partition: str | None = None
    key: str
    event_time: datetime | None = None
    window: MissedWindow | None = None
    lateness_ms: float | None = None
    reason: str
    noted_at: datetime


class LateList(Reply):
    late: list[LateInfo]
    total: int


class Reason(Reply):
    """Why, and what to do."""

    code: str
    message: str
    remedy: str


class WindowDetail(Reply, kw_only=True):
    """A window, a page of what is in it, and why it has not come yet or comes again."""

    window: WindowInfo
    content: list[WindowContent]
    next: str | None = None
    reasons: list[Reason]


class Explained(Struct, rename={"consumer_group": "consumerGroup"}, kw_only=True):
    """Why a group gets no window; what holds it up comes first.

    ``assigned_up_to``: everything stored before that time is in its windows.
    """

    stream: str
    consumer_group: str | None = None
    key: str | None = None
    reasons: list[Reason]
    now: datetime
    watermark: datetime | None = None
    assigned_up_to: datetime


class StreamDeleted(Reply):
    """``existed``: there was such a stream."""

    deleted: bool
    stream: str
    existed: bool
