"""What crosses the wire: the requests, checked on arrival, and the answers.

These types check requests and make ``/openapi.json``. Field names are the contract's. ``gc=False``: there are
thousands of them at a time, and none can be part of a cycle.
"""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Literal

from msgspec import UNSET, Meta, Raw, Struct, UnsetType

# None of them holds NUL: the route looks for it in the body and in the query as a whole.
Name = Annotated[str, Meta(min_length=1, max_length=255)]
Text = Annotated[str, Meta(max_length=255)]
Long = Annotated[str, Meta(max_length=65536)]
Seconds = Annotated[int, Meta(ge=0, le=2_000_000_000)]
QUEUE_MODE = "__QUEUE_MODE__"


class Options(Struct, rename="camel", frozen=True):
    """How a queue behaves. A configure call replaces them all."""

    lease_time: Annotated[int, Meta(ge=1, le=2_000_000)] = 300
    retry_limit: Annotated[int, Meta(ge=0, le=2_000_000_000)] = 3
    retry_delay: Annotated[int, Meta(ge=0, le=2_000_000_000)] = 1000
    ttl: Seconds = 0
    max_size: Annotated[int, Meta(ge=0, le=2**62)] = 0
    priority: Annotated[int, Meta(ge=-1_000_000, le=1_000_000)] = 0
    delayed_processing: Seconds = 0
    window_buffer: Seconds = 0
    retention_enabled: bool = False
    retention_seconds: Seconds = 0
    completed_retention_seconds: Seconds = 0
    max_wait_time_seconds: Seconds = 0
    encryption_enabled: bool = False
    dead_letter_queue: bool = False
    dlq_after_max_retries: bool = False


class ConfigureBody(Struct):
    queue: Name
    namespace: Text | None = None
    task: Text | None = None
    options: Options | None = None


class Configured(Struct, rename="camel"):
    configured: bool
    queue_id: str
    partition_id: str
    queue: str
    namespace: str
    task: str
    options: Options


class PushItem(Struct, rename="camel", gc=False):
    queue: Name
    payload: Raw
    partition: Name = "Default"
    transaction_id: Name | None = None
    trace_id: Name | None = None


class PushBody(Struct):
    items: list[PushItem]


class PushResult(Struct, gc=False):
    index: int
    transaction_id: str
    message_id: str
    partition_id: str
    trace_id: str | None
    queueName: str  # noqa: N815 - the contract mixes both spellings here
    status: Literal["queued", "duplicate"]


class PopQuery(Struct, rename="camel"):
    batch: Annotated[int, Meta(ge=1)] = 1
    wait: bool = False
    timeout: Annotated[int, Meta(ge=0, le=2**53)] = 30_000
    consumer_group: Text | None = None
    auto_ack: bool = False
    subscription_mode: str | None = None  # `new` and `new-only`; any other word means from the first message
    subscription_from: Text | None = None
    partitions: Annotated[int, Meta(ge=1)] = 1
    brief: bool = False  # ours: messages without what the head of the answer says, and without nulls


class PopAnyQuery(PopQuery, rename="camel"):
    namespace: Text | None = None
    task: Text | None = None


class Message(Struct, rename="camel", gc=False):
    id: str
    transaction_id: str
    data: Raw
    created_at: datetime
    # A brief answer leaves these out.
    trace_id: str | UnsetType | None = UNSET
    producer_sub: str | UnsetType | None = UNSET
    partition_id: str | UnsetType = UNSET
    partition: str | UnsetType = UNSET
    lease_id: str | UnsetType | None = UNSET
    consumer_group: str | UnsetType = UNSET
    queue: str | UnsetType = UNSET
    retry_count: int | UnsetType = UNSET


class Popped(Struct, rename="camel"):
    success: bool
    queue: str
    partition: str
    partition_id: str
    lease_id: str | None
    consumer_group: str
    messages: list[Message]
    partitions_claimed: int
    lease_seconds: int | None = None  # ours: how long the lease holds, so that a client renews in time


AckStatus = Literal["completed", "failed", "dlq", "retry"]


class Ack(Struct, rename="camel", gc=False):
    transaction_id: Name
    partition_id: Name
    status: AckStatus = "completed"
    error: Long | None = None
    consumer_group: Text | None = None
    lease_id: Text | None = None


class AckBatchBody(Struct, rename="camel"):
    acknowledgments: list[Ack]
    consumer_group: Text | None = None
    brief: bool = False  # ours: only what was refused is answered


class AckResult(Struct, rename="camel", gc=False):
    index: int
    transaction_id: str
    success: bool
    error: str | None
    queue_name: str | None
    partition_name: str | None
    lease_released: bool
    dlq: bool
    redelivered: bool


class PushOperation(Struct, tag="push", tag_field="type"):
    items: list[PushItem]


class AckOperation(Ack, tag="ack", tag_field="type", rename="camel"):
    pass


class WindowAck(Struct, rename="camel"):
    window_id: Annotated[str, Meta(min_length=1, max_length=1000)]
    lease_id: Name
    success: bool = True
    error: Long | None = None


class WindowOperation(WindowAck, tag="ackWindow", tag_field="type", rename="camel"):
    pass


class WindowResult(Struct, rename="camel"):
    index: int
    window_id: str
    success: bool
    acked: bool


class TransactionBody(Struct, rename="camel"):
    operations: list[PushOperation | AckOperation | WindowOperation]
    required_leases: list[Text] = []


class TransactionResult(Struct, rename="camel"):
    transaction_id: str
    success: bool
    results: list[Any]
    error: str | UnsetType = UNSET


class ExtendBody(Struct):
    seconds: Annotated[int, Meta(ge=1, le=2_000_000)] = 60


class ExtendResult(Struct, rename="camel"):
    index: int
    lease_id: str
    success: bool
    error: str | None
    expires_at: datetime | None


class Deleted(Struct):
    deleted: bool
    queue: str
    existed: bool


class ErrorBody(Struct):
    error: str
