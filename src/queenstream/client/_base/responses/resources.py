"""What a broker answers about queues and consumer groups, as values with typed fields.

Ids are strings, times are in UTC, ``lag_seconds`` is the age of the first message that a group has not
completed. A field that we do not know is passed over, so that a newer broker does no harm.

>>> Counts(total=3, pending=1, processing=0, completed=2, dead_letter=0).pending
1
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from typing import Generic, Literal, TypeVar

from msgspec import Struct, field

T = TypeVar("T")

Interval = Literal["minute", "hour", "day"]
GroupState = Literal["Stable", "Lagging", "Dead"]


class Page(list[T], Generic[T]):
    """Part of a longer list. ``total``: how many there are in all, where the broker counts them.

    >>> page = Page(["a", "b"], limit=2, offset=0, total=3)
    >>> page[0], page.total, page.more
    ('a', 3, True)
    """

    def __init__(self, items: Iterable[T], *, limit: int, offset: int, total: int | None = None) -> None:
        super().__init__(items)
        self.limit = limit
        self.offset = offset
        self.total = total

    @property
    def more(self) -> bool:
        """Whether there may be something after this page; the next starts at ``offset + len(page)``."""
        return len(self) >= self.limit if self.total is None else self.offset + len(self) < self.total


class Reply(Struct, rename="camel"):
    """What they have in common: fields in snake_case here, in camelCase on the wire."""


class Pagination(Reply):
    """Where a list was cut."""

    limit: int
    offset: int
    total: int | None = None


# Queues, namespaces, tasks, partitions


class Counts(Reply):
    """Messages; ``pending`` + ``processing`` + ``completed`` = ``total``, the dead letters are beside it."""

    total: int
    pending: int
    processing: int
    completed: int
    dead_letter: int


class Flow(Reply):
    """What went through."""

    pushed: int
    popped: int
    acked: int
    failed: int
    dead: int


class FlowPoint(Flow):
    """What went through in the interval that starts at ``timestamp``."""

    expired: int
    timestamp: datetime


class QueueOptions(Reply):
    """How a queue behaves."""

    lease_time: int = 300
    retry_limit: int = 3
    retry_delay: int = 1000
    ttl: int = 0
    max_size: int = 0
    priority: int = 0
    delayed_processing: int = 0
    window_buffer: int = 0
    retention_enabled: bool = False
    retention_seconds: int = 0
    completed_retention_seconds: int = 0
    max_wait_time_seconds: int = 0
    encryption_enabled: bool = False
    dead_letter_queue: bool = False
    dlq_after_max_retries: bool = False


class QueueInfo(Reply):
    """A queue in a list. ``partitions`` and ``consumer_groups`` are numbers."""

    id: str
    name: str
    namespace: str
    task: str
    created_at: datetime
    partitions: int
    priority: int
    consumer_groups: int
    messages: Counts
    options: QueueOptions


class QueueList(Reply):
    queues: list[QueueInfo]
    pagination: Pagination


class PartitionInfo(Reply):
    """A partition. ``depth``: what the slowest group has yet to complete, ``processing`` included."""

    id: str
    queue: str
    name: str
    created_at: datetime
    total: int
    depth: int
    processing: int
    oldest: datetime | None = None
    newest: datetime | None = None


class PartitionList(Reply):
    partitions: list[PartitionInfo]
    pagination: Pagination
    next: str | None = None


class QueueGroup(Reply, kw_only=True):
    """A group in one queue. ``members``: how many leases it has out."""

    name: str
    queue: str
    partitions: int
    lag: int
    lag_seconds: float
    last_consumed_at: datetime | None = None
    members: int
    active: bool
    subscription_mode: str
    subscription_timestamp: datetime | None = None


class QueueDetail(Reply):
    """One queue, with its first 1000 partitions and all its groups."""

    id: str
    name: str
    namespace: str
    task: str
    created_at: datetime
    priority: int
    partition_count: int
    messages: Counts
    options: QueueOptions
    partitions: list[PartitionInfo]
    groups: list[QueueGroup]


class NamespaceInfo(Reply):
    """A namespace, with the sums of its queues."""

    namespace: str
    queues: int
    partitions: int
    messages: Counts


class NamespaceList(Reply):
    namespaces: list[NamespaceInfo]


class TaskInfo(Reply):
    """A task, with the sums of its queues."""

    task: str
    queues: int
    partitions: int
    messages: Counts


class TaskList(Reply):
    tasks: list[TaskInfo]


class Cleared(Reply):
    """``deleted``: how many messages are gone."""

    queue: str
    deleted: int


class QueueDeleted(Reply):
    """``existed``: there was such a queue."""

    deleted: bool
    queue: str
    existed: bool


class Overview(Reply):
    """What there is in all. ``throughput``: the minute under way."""

    queues: int
    partitions: int
    consumer_groups: int
    namespaces: int
    tasks: int
    messages: Counts
    leases: int
    throughput: Flow
    timestamp: datetime


# Status


class Errors(Reply):
    """Over the last hour."""

    failed: int
    dead: int
    expired: int


class Leases(Reply):
    """What is out: leases, and how many partitions they hold."""

    active: int
    partitions: int


class DeadLetterCounts(Reply):
    total: int
    last_hour: int


class Status(Reply):
    """How the broker does. ``throughput``: the last hour, by minute."""

    timestamp: datetime
    queues: int
    partitions: int
    messages: Counts
    throughput: list[FlowPoint]
    errors: Errors
    leases: Leases
    dead_letters: DeadLetterCounts


class QueueStatus(Reply):
    """How a queue does. ``throughput``: the minute under way."""

    id: str
    name: str
    namespace: str
    task: str
    partitions: int
    consumer_groups: int
    messages: Counts
    throughput: Flow
    oldest: datetime | None = None
    newest: datetime | None = None


class QueueStatusList(Reply):
    queues: list[QueueStatus]
    pagination: Pagination


class PartitionGroup(Reply):
    """Where a group stands in a partition."""

    consumer_group: str
    lag: int
    lag_seconds: float
    last_consumed_at: datetime | None = None
    leased_until: datetime | None = None


class PartitionStatus(PartitionInfo, kw_only=True):
    """A partition, with its groups."""

    groups: list[PartitionGroup]


class QueueStatusDetail(Reply):
    """How one queue does, partition by partition."""

    queue: QueueStatus
    partitions: list[PartitionStatus]
    pagination: Pagination


class Analytics(Reply):
    """What went through, interval by interval."""

    interval: Interval
    from_: datetime = field(name="from")
    to: datetime
    series: list[FlowPoint]
    totals: Flow


# Consumer groups


class Group(Reply):
    """A consumer group. ``topics`` are the names of ``queues``; ``max_time_lag`` is in seconds.

    ``state``: Dead, when its progress is deleted or messages wait and nobody has taken any for an hour;
    Lagging, when one has waited for a minute; else Stable.
    """

    name: str
    topics: list[str]
    members: int
    total_lag: int
    max_time_lag: float
    state: GroupState
    queues: list[QueueGroup]


class GroupPartition(Reply):
    """Where the group stands in one partition."""

    partition_id: str
    partition: str
    lag: int
    lag_seconds: float
    last_consumed_at: datetime | None = None
    leased_until: datetime | None = None


class GroupQueue(QueueGroup, kw_only=True):
    """``partition_details``: at most 1000, those furthest behind first."""

    partition_details: list[GroupPartition]


class GroupDetail(Reply):
    """One consumer group; ``queues`` by name."""

    name: str
    topics: list[str]
    members: int
    total_lag: int
    max_time_lag: float
    state: GroupState
    queues: dict[str, GroupQueue]


class LaggingPartition(Reply):
    """A partition in which a group is late."""

    consumer_group: str
    queue: str
    partition: str
    lag: int
    lag_seconds: float
    last_consumed_at: datetime | None = None


class GroupDeleted(Reply):
    """``queues``: those in which the group had progress."""

    consumer_group: str
    queues: list[str]
    deleted_partitions: int


class SubscriptionUpdated(Reply):
    """``rows_updated``: in how many queues."""

    consumer_group: str
    new_timestamp: datetime
    rows_updated: int


class Sought(Reply):
    """Where a seek led. ``affected``: after a dry run, how many messages lie between there and here."""

    consumer_group: str
    queue: str
    partitions_updated: int
    target_timestamp: datetime | None = None
    target_message_id: str | None = None
    to_end: bool = False
    dry_run: bool = False
    affected: int | None = None
