# Generated from _async/transaction.py by `python tools/async_to_sync.py`; do not edit.
"""Transactions: acknowledge and push, all or nothing."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from queenstream.client._base import telemetry
from queenstream.client._base.http import decoded
from queenstream.client._base.ids import new_ids
from queenstream.client._base.payloads import encode
from queenstream.client._base.responses.messages import (
    AckOperation,
    AckStatus,
    PushItem,
    PushOperation,
    TransactionBody,
    TransactionResult,
    WindowOperation,
)
from queenstream.client._sync.message import AGAIN, Message, say_first
from queenstream.client._sync.retry import Calls
from queenstream.client._sync.window import Window
from queenstream.errors import ConfigError, TransactionFailed

Operation = PushOperation | AckOperation | WindowOperation
Delivered = Message[Any] | Window[Any]


class Transaction:
    """What will be done together. Every word gives a new one; ``commit`` does it.

    >>> (  # doctest: +SKIP
    ...     queen.transaction()
    ...     .ack(message)
    ...     .queue("translations").partition(message.partition).push([{"text": "hola"}])
    ...     .commit()
    ... )

    A window is acknowledged in the same way, in a handler or after a poll:

    >>> queen.transaction().ack(window).queue("totals").push({"n": 3}).commit()  # doctest: +SKIP
    """

    def __init__(
        self,
        calls: Calls,
        operations: tuple[Operation, ...] = (),
        acknowledged: tuple[tuple[Delivered, AckStatus], ...] = (),
    ) -> None:
        self._calls = calls
        self._operations = operations
        self._acknowledged = acknowledged

    def ack(
        self,
        delivered: Delivered | Iterable[Delivered],
        status: AckStatus = "completed",
        error: str | None = None,
    ) -> Transaction:
        """Acknowledge a message or a window, or several. A window is ``completed`` or ``failed``."""
        wanted = (delivered,) if isinstance(delivered, Message | Window) else tuple(delivered)
        acks = tuple(_operation(each, status, error) for each in wanted)
        said = tuple((each, status) for each in wanted)
        return Transaction(self._calls, self._operations + acks, self._acknowledged + said)

    def queue(self, name: str) -> TransactionQueue:
        """The queue that the next ``push`` goes to."""
        return TransactionQueue(self, name)

    def commit(self) -> TransactionResult:
        """Do all of it; ``TransactionFailed`` if a part is refused, and then nothing is done.

        It is safe to repeat, and is repeated when no answer comes: pushes carry their ids, and an
        acknowledgement that was done is done.
        """
        if not self._operations:
            raise ConfigError("the transaction is empty; add .ack(message) or .queue(name).push([…])")
        body = encode(TransactionBody(list(self._operations)))
        messages = [each for each, _ in self._acknowledged if isinstance(each, Message)]
        say_first(self._calls, messages)
        answer = self._calls.send("POST", "/api/v1/transaction", body)
        result: TransactionResult = decoded(answer.body, TransactionResult)
        if not result.success:
            raise TransactionFailed(f"nothing of the transaction was done: {result.error}")
        for each, status in self._acknowledged:
            if isinstance(each, Message):
                each._settled = True
                each._again = status in AGAIN
            else:
                each.settled = True
        return result


def _operation(delivered: Delivered, status: AckStatus, error: str | None) -> AckOperation | WindowOperation:
    if isinstance(delivered, Message):
        return AckOperation(
            delivered.transaction_id,
            delivered.partition_id,
            status,
            delivered.lease_id,
            error,
            delivered.consumer_group,
        )
    if status not in ("completed", "failed"):
        raise ConfigError(f"a window cannot be {status!r}; acknowledge it as 'completed' or 'failed'")
    return WindowOperation(delivered.id, delivered.lease_id, status == "completed", error)


class TransactionQueue:
    """Where a transaction pushes to."""

    def __init__(self, transaction: Transaction, name: str, partition: str = "Default") -> None:
        self._transaction = transaction
        self._name = name
        self._partition = partition

    def partition(self, name: str) -> TransactionQueue:
        """The partition that the next ``push`` goes to."""
        return TransactionQueue(self._transaction, self._name, name)

    def push(self, payload: Any, *, transaction_ids: Iterable[str] | None = None) -> Transaction:
        """Push one message, or a list of them."""
        payloads = payload if isinstance(payload, list) else [payload]
        ids = new_ids(len(payloads)) if transaction_ids is None else list(transaction_ids)
        if len(ids) != len(payloads):
            raise ConfigError(f"{len(payloads)} messages and {len(ids)} transaction_ids; give one for each")
        trace = telemetry.context() if telemetry.available() else None
        items = [
            PushItem(self._name, one, self._partition, id, trace)
            for one, id in zip(payloads, ids, strict=True)
        ]
        before = self._transaction
        operations = (*before._operations, *([PushOperation(items)] if items else []))
        return Transaction(before._calls, operations, before._acknowledged)
