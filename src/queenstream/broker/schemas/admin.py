"""What crosses the wire for administration: resources, status and consumer groups.

Like ``wire``, these types check requests and make ``/openapi.json``. Ids are strings, times are ISO 8601 in
UTC, ``lagSeconds`` is the age of the first message that a group has not completed.
"""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Literal

from msgspec import UNSET, Meta, Struct, UnsetType, field

from queenstream.broker.schemas.messages import Options, Text

Limit = Annotated[int, Meta(ge=1, le=1000)]
Offset = Annotated[int, Meta(ge=0, le=100_000)]  # PostgreSQL reads all that an offset skips
Moment = Annotated[str, Meta(max_length=64)]


class Page(Struct):
    """Where a list was cut. ``total``: all that match; ``count``: what is in this answer."""

    limit: int
    offset: int
    total: int | UnsetType = UNSET
    count: int | UnsetType = UNSET


class PageQuery(Struct, rename="camel"):
    limit: Limit = 100
    offset: Offset = 0


# Queues, namespaces, tasks, partitions


class Counts(Struct, rename="camel"):
    """``pending`` + ``processing`` + ``completed`` = ``total``; the dead letters are beside it."""

    total: int
    pending: int
    processing: int
    completed: int
    dead_letter: int


class Flow(Struct):
    """What went through."""

    pushed: int
    popped: int
    acked: int
    failed: int
    dead: int


class FlowPoint(Flow):
    expired: int
    timestamp: datetime


class QueuesQuery(PageQuery, rename="camel"):
    namespace: Text | None = None
    task: Text | None = None
    search: Text | None = None


class QueueInfo(Struct, rename="camel"):
    id: str
    name: str
    namespace: str
    task: str
    created_at: datetime
    partitions: int
    priority: int
    consumer_groups: int
    messages: Counts
    options: Options


class QueueList(Struct):
    queues: list[QueueInfo]
    pagination: Page


class PartitionsQuery(PageQuery, rename="camel"):
    """``prefix`` and ``after`` (a name: the page behind it) are for the partitions of one ``queue``.

    ``order=waiting``: those of a ``consumerGroup`` that have waited longest come first. ``groups``: with
    where each group stands.
    """

    queue: Text | None = None
    prefix: Text | None = None
    after: Text | None = None
    order: Literal["name", "waiting"] = "name"
    consumer_group: Text | None = None
    groups: bool = False


class PartitionInfo(Struct, rename="camel"):
    """``depth``: what the slowest group has yet to complete, ``processing`` included."""

    id: str
    queue: str
    name: str
    created_at: datetime
    total: int
    depth: int
    processing: int
    oldest: datetime | None
    newest: datetime | None


class PartitionGroup(Struct, rename="camel"):
    consumer_group: str
    lag: int
    lag_seconds: float
    last_consumed_at: datetime | None
    leased_until: datetime | None


class PartitionStatus(PartitionInfo, rename="camel"):
    groups: list[PartitionGroup]


class PartitionRow(PartitionInfo, rename="camel"):
    """``groups``: if they were asked for."""

    groups: list[PartitionGroup] | UnsetType = UNSET


class PartitionList(Struct):
    """``next``: what ``after`` has to be for the page behind this one, if there may be one."""

    partitions: list[PartitionRow]
    pagination: Page
    next: str | UnsetType = UNSET


class QueueGroup(Struct, rename="camel"):
    """A group in one queue. ``members``: how many leases it has out."""

    name: str
    queue: str
    partitions: int
    lag: int
    lag_seconds: float
    last_consumed_at: datetime | None
    members: int
    active: bool
    subscription_mode: str
    subscription_timestamp: datetime | None


class QueueDetailQuery(Struct, rename="camel"):
    """How many partitions to list; 0 is for who only wants the rest."""

    partitions: Annotated[int, Meta(ge=0, le=1000)] = 1000


class QueueDetail(Struct, rename="camel"):
    """``partitions`` holds the first 1000; page on with /resources/partitions."""

    id: str
    name: str
    namespace: str
    task: str
    created_at: datetime
    priority: int
    partition_count: int
    messages: Counts
    options: Options
    partitions: list[PartitionInfo]
    groups: list[QueueGroup]


class NamespaceInfo(Struct):
    namespace: str
    queues: int
    partitions: int
    messages: Counts


class NamespaceList(Struct):
    namespaces: list[NamespaceInfo]


class TaskInfo(Struct):
    task: str
    queues: int
    partitions: int
    messages: Counts


class TaskList(Struct):
    tasks: list[TaskInfo]


class Overview(Struct, rename="camel"):
    """``throughput``: the minute under way."""

    queues: int
    partitions: int
    consumer_groups: int
    namespaces: int
    tasks: int
    messages: Counts
    leases: int
    throughput: Flow
    timestamp: datetime


class ClearQuery(Struct):
    partition: Text | None = None


class Cleared(Struct):
    success: bool
    queue: str
    deleted: int


# Status


class Errors(Struct):
    """Over the last hour."""

    failed: int
    dead: int
    expired: int


class Leases(Struct):
    active: int
    partitions: int


class DeadLetterCounts(Struct, rename="camel"):
    total: int
    last_hour: int


class Status(Struct, rename="camel"):
    """``throughput``: the last hour, by minute."""

    timestamp: datetime
    queues: int
    partitions: int
    messages: Counts
    throughput: list[FlowPoint]
    errors: Errors
    leases: Leases
    dead_letters: DeadLetterCounts


class QueueStatus(Struct, rename="camel"):
    """``throughput``: the minute under way."""

    id: str
    name: str
    namespace: str
    task: str
    partitions: int
    consumer_groups: int
    messages: Counts
    throughput: Flow
    oldest: datetime | None
    newest: datetime | None


class QueueStatusList(Struct):
    queues: list[QueueStatus]
    pagination: Page


class QueueStatusDetail(Struct):
    queue: QueueStatus
    partitions: list[PartitionStatus]
    pagination: Page


class AnalyticsQuery(Struct, rename="camel"):
    interval: Literal["minute", "hour", "day"] = "minute"
    from_: Moment | None = field(default=None, name="from")
    to: Moment | None = None
    queue: Text | None = None
    namespace: Text | None = None
    task: Text | None = None


class Analytics(Struct, rename="camel"):
    interval: str
    from_: datetime = field(name="from")
    to: datetime
    series: list[FlowPoint]
    totals: Flow


# Consumer groups


class Group(Struct, rename="camel"):
    """``topics`` are the names of ``queues``; ``maxTimeLag`` is in seconds.

    ``state``: Dead, when its progress is deleted or messages wait and nobody has taken any for an hour;
    Lagging, when one has waited for a minute; else Stable.
    """

    name: str
    topics: list[str]
    members: int
    total_lag: int
    max_time_lag: float
    state: Literal["Stable", "Lagging", "Dead"]
    queues: list[QueueGroup]


class GroupPartition(Struct, rename="camel"):
    partition_id: str
    partition: str
    lag: int
    lag_seconds: float
    last_consumed_at: datetime | None
    leased_until: datetime | None


class GroupQueue(QueueGroup, rename="camel"):
    """``partition_details``: at most 1000, those furthest behind first."""

    partition_details: list[GroupPartition]


class GroupDetail(Struct, rename="camel"):
    name: str
    topics: list[str]
    members: int
    total_lag: int
    max_time_lag: float
    state: Literal["Stable", "Lagging", "Dead"]
    queues: dict[str, GroupQueue]


class LaggingQuery(Struct, rename="camel"):
    min_lag_seconds: Annotated[float, Meta(ge=0, le=2_000_000_000)] = 60
    limit: Limit = 1000


class LaggingPartition(Struct, rename="camel"):
    consumer_group: str
    queue: str
    partition: str
    lag: int
    lag_seconds: float
    last_consumed_at: datetime | None


class DeleteGroupQuery(Struct, rename="camel"):
    delete_metadata: bool = True


class GroupDeleted(Struct, rename="camel"):
    success: bool
    consumer_group: str
    queues: list[str]
    deleted_partitions: int


class SubscriptionBody(Struct, rename="camel"):
    subscription_timestamp: Moment


class SubscriptionUpdated(Struct, rename="camel"):
    success: bool
    consumer_group: str
    new_timestamp: datetime
    rows_updated: int


class SeekBody(Struct, rename="camel"):
    """``message_id``: the message that comes next, in one partition."""

    to_end: bool = False
    timestamp: Moment | None = None
    message_id: Annotated[str, Meta(pattern="^[0-9]{1,18}$")] | None = None
    dry_run: bool = False


class Sought(Struct, rename="camel"):
    """``affected``: with ``dryRun``, how many messages lie between the old place and the new."""

    success: bool
    consumer_group: str
    queue: str
    partitions_updated: int
    target_timestamp: datetime | UnsetType = UNSET
    target_message_id: str | UnsetType = UNSET
    to_end: bool | UnsetType = UNSET
    dry_run: bool | UnsetType = UNSET
    affected: int | UnsetType = UNSET
