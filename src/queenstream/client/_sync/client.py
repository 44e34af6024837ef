# Generated from _async/client.py by `python tools/async_to_sync.py`; do not edit.
"""``Queen``: the way into a broker."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Iterable
from datetime import datetime
from types import TracebackType
from typing import Any, Self, TypeVar, overload

from queenstream.client._base import addresses
from queenstream.client._base.chain import Duration, Settings, seconds, start_of
from queenstream.client._base.payloads import ANY, Codec, OnInvalid
from queenstream.client._base.responses.messages import AckResult
from queenstream.client._sync.admin.api import Admin
from queenstream.client._sync.dead_letters import DeadLetters
from queenstream.client._sync.message import Message, settle
from queenstream.client._sync.queue import Queue
from queenstream.client._sync.retry import Calls
from queenstream.client._sync.stream import Stream
from queenstream.client._sync.transaction import Transaction
from queenstream.client._sync.window import Consumer
from queenstream.errors import PayloadInvalid

T = TypeVar("T")
InvalidHandler = Callable[[Message[Any], PayloadInvalid], Any]


class Queen:
    """A client of one broker, or of several with the same database.

    Without an address, ``QUEEN_URL`` or this machine's is taken; without a token, ``QUEEN_TOKEN``.
    ``timeout`` is for each call, over all its attempts. Use it in a ``with`` block, or close it.

    >>> with Queen() as queen:  # doctest: +SKIP
    ...     queen.queue("orders").partition("ann").push({"amount": 5})
    ...     for message in queen.queue("orders").batch(10).pop():
    ...         print(message.data)
    ...         message.ack()
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
    ) -> Queue[Any]: ...
    @overload
    def queue(
        self, name: str | None = None, *, type: type[T], on_invalid: OnInvalid | InvalidHandler = ...
    ) -> Queue[T]: ...
    def queue(
        self,
        name: str | None = None,
        *,
        type: type[T] | None = None,
        on_invalid: OnInvalid | InvalidHandler = "dead_letter",
    ) -> Queue[Any]:
        """A queue by name; without one, ``.namespace(…)`` or ``.task(…)`` says which queues to pop from.

        ``type`` is what its payloads are: a dataclass, msgspec Struct, pydantic model, or any type that JSON
        can be read as. A popped payload that does not fit goes to the dead letters, is skipped, raises, or is
        given to a function of (message, error).

        >>> queen.queue("orders", type=Order).push(Order("ann", 5))  # doctest: +SKIP
        """
        codec = ANY if type is None else Codec(type, on_invalid)
        return Queue(self._calls, codec, Settings(queue=name))

    def ack(self, messages: Message[Any] | Iterable[Message[Any]]) -> list[AckResult]:
        """Messages are done: one result for each, refused ones included."""
        return settle(self._calls, _several(messages), "completed")

    def nack(
        self, messages: Message[Any] | Iterable[Message[Any]], error: str | BaseException = ""
    ) -> list[AckResult]:
        """Messages failed: one result for each, refused ones included."""
        return settle(self._calls, _several(messages), "failed", error)

    def transaction(self) -> Transaction:
        """Acknowledge and push, all or nothing.

        >>> queen.transaction().ack(message).queue("next").push([{"n": 1}]).commit()  # doctest: +SKIP
        """
        return Transaction(self._calls)

    def dlq(self, queue: str) -> DeadLetters:
        """The dead letters of a queue.

        >>> for letter in queen.dlq("orders").list():  # doctest: +SKIP
        ...     print(letter.error_message, letter.data)
        """
        return DeadLetters(self._calls, queue)

    # Streams

    def stream(self, name: str, namespace: str | None = None) -> Stream:
        """Windows over queues: define them, or move a group among them.

        >>> queen.stream("activity").sources(["clicks"]).tumbling_time(60).define()  # doctest: +SKIP
        """
        return Stream(self._calls, name, namespace)

    @overload
    def consumer(
        self, stream: str, group: str, *, subscription_from: datetime | str | None = None
    ) -> Consumer[Any]: ...
    @overload
    def consumer(
        self, stream: str, group: str, *, type: type[T], subscription_from: datetime | str | None = None
    ) -> Consumer[T]: ...
    def consumer(
        self,
        stream: str,
        group: str,
        *,
        type: type[T] | None = None,
        subscription_from: datetime | str | None = None,
    ) -> Consumer[Any]:
        """A group that consumes a stream's windows; a new one starts at ``subscription_from``.

        >>> queen.consumer("activity", "dashboard").process(handle)  # doctest: +SKIP
        """
        codec = ANY if type is None else Codec(type, "raise")
        start = None if subscription_from is None else start_of(subscription_from)
        return Consumer(self._calls, codec, stream, group, start)

    # The rest

    @property
    def admin(self) -> Admin:
        """Queues, groups, messages, streams and the broker itself: to look at, and to change.

        >>> [queue.name for queue in queen.admin.queues()]  # doctest: +SKIP
        ['orders']
        """
        return Admin(self._calls)

    def close(self) -> None:
        """End loops over messages and windows, and close the connections.

        Consumers and producers end before, each on its own.
        """
        for loop in list(self._calls.loops):
            loop.leave()
        self._calls.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __del__(self, warn: Callable[..., None] = warnings.warn) -> None:
        calls = getattr(self, "_calls", None)
        if calls is not None and not calls.closed and calls.used:
            warn(
                "a client was not closed; use it in a with block, or close it", ResourceWarning, stacklevel=2
            )
            calls.close()


def _several(messages: Message[Any] | Iterable[Message[Any]]) -> list[Message[Any]]:
    return [messages] if isinstance(messages, Message) else list(messages)
