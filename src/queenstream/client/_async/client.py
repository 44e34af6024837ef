"""``AsyncQueen``: the way into a broker."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Iterable
from datetime import datetime
from types import TracebackType
from typing import Any, Self, TypeVar, overload

from queenstream.client._async.admin.api import AsyncAdmin
from queenstream.client._async.dead_letters import AsyncDeadLetters
from queenstream.client._async.message import AsyncMessage, settle
from queenstream.client._async.queue import AsyncQueue
from queenstream.client._async.retry import Calls
from queenstream.client._async.stream import AsyncStream
from queenstream.client._async.transaction import AsyncTransaction
from queenstream.client._async.window import AsyncConsumer
from queenstream.client._base import addresses
from queenstream.client._base.chain import Duration, Settings, seconds, start_of
from queenstream.client._base.payloads import ANY, Codec, OnInvalid
from queenstream.client._base.responses.messages import AckResult
from queenstream.errors import PayloadInvalid

T = TypeVar("T")
InvalidHandler = Callable[[AsyncMessage[Any], PayloadInvalid], Any]


class AsyncQueen:
    """A client of one broker, or of several with the same database.

    Without an address, ``QUEEN_URL`` or this machine's is taken; without a token, ``QUEEN_TOKEN``.
    ``timeout`` is for each call, over all its attempts. Use it in a ``with`` block, or close it.

    >>> async with AsyncQueen() as queen:  # doctest: +SKIP
    ...     await queen.queue("orders").partition("ann").push({"amount": 5})
    ...     for message in await queen.queue("orders").batch(10).pop():
    ...         print(message.data)
    ...         await message.ack()
    """

    def __init__(
        self,
        urls: str | Iterable[str] | None = None,
        *,
        token: str | None = None,
        timeout: Duration = "30s",
    ) -> None:
        chosen = urls if urls is not None else os.environ.get("QUEEN_URL") or addresses.DEFAULT
        found = token if token is not None else os.environ.get("QUEEN_TOKEN")
        self._calls = Calls(chosen, found, seconds("timeout", timeout))

    # Queues

    @overload
    def queue(
        self, name: str | None = None, *, on_invalid: OnInvalid | InvalidHandler = ...
    ) -> AsyncQueue[Any]: ...
    @overload
    def queue(
        self, name: str | None = None, *, type: type[T], on_invalid: OnInvalid | InvalidHandler = ...
    ) -> AsyncQueue[T]: ...
    def queue(
        self,
        name: str | None = None,
        *,
        type: type[T] | None = None,
        on_invalid: OnInvalid | InvalidHandler = "dead_letter",
    ) -> AsyncQueue[Any]:
        """A queue by name; without one, ``.namespace(…)`` or ``.task(…)`` says which queues to pop from.

        ``type`` is what its payloads are: a dataclass, msgspec Struct, pydantic model, or any type that JSON
        can be read as. A popped payload that does not fit goes to the dead letters, is skipped, raises, or is
        given to a function of (message, error).

        >>> await queen.queue("orders", type=Order).push(Order("ann", 5))  # doctest: +SKIP
        """
        codec = ANY if type is None else Codec(type, on_invalid)
        return AsyncQueue(self._calls, codec, Settings(queue=name))

    async def ack(self, messages: AsyncMessage[Any] | Iterable[AsyncMessage[Any]]) -> list[AckResult]:
        """Messages are done: one result for each, refused ones included."""
        return await settle(self._calls, _several(messages), "completed")

    async def nack(
        self, messages: AsyncMessage[Any] | Iterable[AsyncMessage[Any]], error: str | BaseException = ""
    ) -> list[AckResult]:
        """Messages failed: one result for each, refused ones included."""
        return await settle(self._calls, _several(messages), "failed", error)

    def transaction(self) -> AsyncTransaction:
        """Acknowledge and push, all or nothing.

        >>> await queen.transaction().ack(message).queue("next").push([{"n": 1}]).commit()  # doctest: +SKIP
        """
        return AsyncTransaction(self._calls)

    def dlq(self, queue: str) -> AsyncDeadLetters:
        """The dead letters of a queue.

        >>> for letter in await queen.dlq("orders").list():  # doctest: +SKIP
        ...     print(letter.error_message, letter.data)
        """
        return AsyncDeadLetters(self._calls, queue)

    # Streams

    def stream(self, name: str, namespace: str | None = None) -> AsyncStream:
        """Windows over queues: define them, or move a group among them.

        >>> await queen.stream("activity").sources(["clicks"]).tumbling_time(60).define()  # doctest: +SKIP
        """
        return AsyncStream(self._calls, name, namespace)

    @overload
    def consumer(
        self, stream: str, group: str, *, subscription_from: datetime | str | None = None
    ) -> AsyncConsumer[Any]: ...
    @overload
    def consumer(
        self, stream: str, group: str, *, type: type[T], subscription_from: datetime | str | None = None
    ) -> AsyncConsumer[T]: ...
    def consumer(
        self,
        stream: str,
        group: str,
        *,
        type: type[T] | None = None,
        subscription_from: datetime | str | None = None,
    ) -> AsyncConsumer[Any]:
        """A group that consumes a stream's windows; a new one starts at ``subscription_from``.

        >>> await queen.consumer("activity", "dashboard").process(handle)  # doctest: +SKIP
        """
        codec = ANY if type is None else Codec(type, "raise")
        start = None if subscription_from is None else start_of(subscription_from)
        return AsyncConsumer(self._calls, codec, stream, group, start)

    # The rest

    @property
    def admin(self) -> AsyncAdmin:
        """Queues, groups, messages, streams and the broker itself: to look at, and to change.

        >>> [queue.name for queue in await queen.admin.queues()]  # doctest: +SKIP
        ['orders']
        """
        return AsyncAdmin(self._calls)

    async def close(self) -> None:
        """End loops over messages and windows, and close the connections.

        Consumers and producers end before, each on its own.
        """
        for loop in list(self._calls.loops):
            await loop.leave()
        self._calls.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    def __del__(self, warn: Callable[..., None] = warnings.warn) -> None:
        calls = getattr(self, "_calls", None)
        if calls is not None and not calls.closed and calls.used:
            warn(
                "a client was not closed; use it in a with block, or close it", ResourceWarning, stacklevel=2
            )
            calls.close()


def _several(messages: AsyncMessage[Any] | Iterable[AsyncMessage[Any]]) -> list[AsyncMessage[Any]]:
    return [messages] if isinstance(messages, AsyncMessage) else list(messages)
