"""Transactions: acknowledge and push, all or nothing."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from queenstream.client._async.message import AGAIN, AsyncMessage, say_first
from queenstream.client._async.retry import Calls
from queenstream.client._async.window import AsyncWindow
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
from queenstream.errors import ConfigError, TransactionFailed

Operation = PushOperation | AckOperation | WindowOperation
Delivered = AsyncMessage[Any] | AsyncWindow[Any]


class AsyncTransaction:
    """What will be done together. Every word gives a new one; ``commit`` does it.

    >>> await (  # doctest: +SKIP
    ...     queen.transaction()
    ...     .ack(message)
    ...     .queue("translations").partition(message.partition).push([{"text": "hola"}])
    ...     .commit()
    ... )

    A window is acknowledged in the same way, in a handler or after a poll:

    >>> await queen.transaction().ack(window).queue("totals").push({"n": 3}).commit()  # doctest: +SKIP
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
    ) -> AsyncTransaction:
        """Acknowledge a message or a window, or several. A window is ``completed`` or ``failed``."""
        wanted = (delivered,) if isinstance(delivered, AsyncMessage | AsyncWindow) else tuple(delivered)
        acks = tuple(_operation(each, status, error) for each in wanted)
        said = tuple((each, status) for each in wanted)
        return AsyncTransaction(self._calls, self._operations + acks, self._acknowledged + said)

    def queue(self, name: str) -> AsyncTransactionQueue:
        """The queue that the next ``push`` goes to."""
        return AsyncTransactionQueue(self, name)

    async def commit(self) -> TransactionResult:
        """Do all of it; ``TransactionFailed`` if a part is refused, and then nothing is done.

        It is safe to repeat, and is repeated when no answer comes: pushes carry their ids, and an
        acknowledgement that was done is done.
        """
        if not self._operations:
            raise ConfigError("the transaction is empty; add .ack(message) or .queue(name).push([…])")
        body = encode(TransactionBody(list(self._operations)))
        messages = [each for each, _ in self._acknowledged if isinstance(each, AsyncMessage)]
        await say_first(self._calls, messages)
        answer = await self._calls.send("POST", "/api/v1/transaction", body)
        result: TransactionResult = decoded(answer.body, TransactionResult)
        if not result.success:
            raise TransactionFailed(f"nothing of the transaction was done: {result.error}")
        for each, status in self._acknowledged:
            if isinstance(each, AsyncMessage):
                each._settled = True
                each._again = status in AGAIN
            else:
                each.settled = True
        return result


def _operation(delivered: Delivered, status: AckStatus, error: str | None) -> AckOperation | WindowOperation:
    if isinstance(delivered, AsyncMessage):
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


class AsyncTransactionQueue:
    """Where a transaction pushes to."""

    def __init__(self, transaction: AsyncTransaction, name: str, partition: str = "Default") -> None:
        self._transaction = transaction
        self._name = name
        self._partition = partition

    def partition(self, name: str) -> AsyncTransactionQueue:
        """The partition that the next ``push`` goes to."""
        return AsyncTransactionQueue(self._transaction, self._name, name)

    def push(self, payload: Any, *, transaction_ids: Iterable[str] | None = None) -> AsyncTransaction:
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
        return AsyncTransaction(before._calls, operations, before._acknowledged)
