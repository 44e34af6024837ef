"""What a client sends and gets, beside messages and windows. Field names are the contract's."""

from __future__ import annotations

from typing import Any, Literal

from msgspec import Raw, Struct

AckStatus = Literal["completed", "failed", "dlq", "retry"]


class PushItem(Struct, rename="camel", gc=False, omit_defaults=True):
    queue: str
    payload: Any
    partition: str = "Default"
    transaction_id: str | None = None
    trace_id: str | None = None


class PushBody(Struct):
    items: list[PushItem]


class PushResult(Struct, rename={"queue": "queueName"}, gc=False):
    """What became of one push: ``queued``, or ``duplicate`` when its transaction id was there already.

    >>> result = queen.queue("orders").push({"n": 1})  # doctest: +SKIP
    >>> result.status  # doctest: +SKIP
    'queued'
    """

    index: int
    transaction_id: str
    message_id: str
    partition_id: str
    trace_id: str | None
    queue: str
    status: Literal["queued", "duplicate"]


class Ack(Struct, rename="camel", gc=False, omit_defaults=True):
    transaction_id: str
    partition_id: str
    status: AckStatus
    lease_id: str | None = None
    error: str | None = None
    consumer_group: str | None = None


class AckBody(Struct, rename="camel"):
    consumer_group: str | None
    acknowledgments: list[Ack]
    brief: bool  # answer only with those that are refused


class AckResult(Struct, rename="camel", gc=False):
    """What became of one acknowledgement. ``redelivered``: the message will come again."""

    index: int
    transaction_id: str
    success: bool
    error: str | None = None
    queue_name: str | None = None
    partition_name: str | None = None
    lease_released: bool = False
    dlq: bool = False
    redelivered: bool = False


class PushOperation(Struct, tag="push", tag_field="type"):
    items: list[PushItem]


class AckOperation(Struct, tag="ack", tag_field="type", rename="camel", omit_defaults=True):
    transaction_id: str
    partition_id: str
    status: AckStatus
    lease_id: str | None = None
    error: str | None = None
    consumer_group: str | None = None


class WindowOperation(Struct, tag="ackWindow", tag_field="type", rename="camel", omit_defaults=True):
    window_id: str
    lease_id: str
    success: bool = True
    error: str | None = None


class TransactionBody(Struct, rename="camel"):
    operations: list[PushOperation | AckOperation | WindowOperation]


class TransactionResult(Struct, rename="camel"):
    """What a transaction did: one entry in ``results`` for each push and acknowledgement, in order."""

    transaction_id: str
    success: bool
    results: list[dict[str, Any]]
    error: str | None = None


class Extended(Struct, rename="camel"):
    success: bool
    error: str | None = None
    expires_at: str | None = None


class ErrorBody(Struct):
    error: str


RawJson = Raw
