# Generated from _async/pop.py by `python tools/async_to_sync.py`; do not edit.
"""Pops: the request, the answer as messages, and where payloads go that do not fit."""

from __future__ import annotations

import logging
from typing import Any, TypeVar

from msgspec import Raw, Struct

from queenstream.client._base.chain import Settings
from queenstream.client._base.http import Ahead, decoded
from queenstream.client._base.payloads import Codec
from queenstream.client._sync import transport
from queenstream.client._sync.message import Lease, Message, Messages, settle
from queenstream.client._sync.retry import Calls
from queenstream.errors import PayloadInvalid

T = TypeVar("T")
log = logging.getLogger("queenstream.client")


class _Head(Struct, rename="camel", kw_only=True):
    queue: str = ""
    partition: str = ""
    partition_id: str = ""
    consumer_group: str = ""
    lease_id: str | None = None
    lease_seconds: float | None = None


class _Popped(_Head, rename="camel"):
    messages: list[Message[Any]]


class _RawPopped(_Head, rename="camel"):
    messages: list[Message[Raw]]


def pop(
    calls: Calls,
    codec: Codec[T],
    settings: Settings,
    *,
    batch: int,
    wait_seconds: float,
    auto_ack: bool,
    stop: transport.Stop | None = None,
    ahead: Ahead | None = None,
) -> Messages[T]:
    """What there is, up to ``batch``; nothing after ``wait_seconds``."""
    path = settings.pop_path(batch=batch, wait_seconds=wait_seconds, auto_ack=auto_ack)
    # To ask again is safe: what was in an answer that got lost comes again when its lease ends. With autoAck
    # it would be gone, and the caller must know.
    answer = calls.send("GET", path, wait=wait_seconds, repeat=not auto_ack, stop=stop, ahead=ahead)
    if answer.status == 204:
        return Messages()
    popped = decoded(answer.body, _RawPopped if codec.typed else _Popped)
    lease = Lease(calls, popped.lease_id, popped.lease_seconds)
    messages: Messages[T] = Messages(popped.messages)
    for message in messages:
        message._lease = lease
    if messages and not messages[0].partition_id:
        _complete(messages, popped)
    if auto_ack:
        for message in messages:
            message._settled = True
    return _typed(codec, messages) if codec.typed else messages


def _complete(messages: Messages[Any], head: _Head) -> None:
    """Messages of one partition come without what they share; the head of the answer has it."""
    queue, partition, partition_id = head.queue, head.partition, head.partition_id
    group, lease_id = head.consumer_group, head.lease_id
    for message in messages:
        message.queue = queue
        message.partition = partition
        message.partition_id = partition_id
        message.consumer_group = group
        message.lease_id = lease_id


def _typed(codec: Codec[T], messages: Messages[Any]) -> Messages[T]:
    """Those that fit the type; the others go where ``on_invalid`` says."""
    good: Messages[T] = Messages()
    for message in messages:
        try:
            message.data = codec.decode(message.data)
        except PayloadInvalid as error:
            try:
                _invalid(codec, message, error)
            except Exception as raised:
                _give_back(messages, message, raised)
                raise
        else:
            good.append(message)
    return good


def _give_back(messages: Messages[Any], bad: Message[Any], error: Exception) -> None:
    """Before the error is raised: the bad one counts a try, the others come again."""
    if not bad._settled:
        settle(bad._lease.calls, [bad], "failed", error)
        settle(bad._lease.calls, messages.unsettled, "retry")


def _invalid(codec: Codec[Any], message: Message[Any], error: PayloadInvalid) -> None:
    if codec.on_invalid == "raise":
        raise error
    about = f"message {message.transaction_id} of {message.queue}"
    message.data = decoded(bytes(message.data), Any)
    if callable(codec.on_invalid):
        transport.call(codec.on_invalid, message, error)
    elif codec.on_invalid == "skip":
        log.warning("%s is skipped: %s", about, error)
    elif message._settled:
        log.warning("%s was acknowledged with its pop and is dropped: %s", about, error)
    else:
        log.warning("%s goes to the dead letters: %s", about, error)
        settle(message._lease.calls, [message], "dlq", error)
    if not message._settled:
        settle(message._lease.calls, [message], "completed")
