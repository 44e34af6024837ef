"""What a buffered producer has taken and not answered for yet, one by one and in lanes."""

from __future__ import annotations

import threading
from collections import deque

from msgspec import Struct

from queenstream.client._async import transport
from queenstream.client._base.http import decoded
from queenstream.client._base.responses.messages import PushResult
from queenstream.errors import BadAnswer, BrokerUnreachable

_RESULTS = list[PushResult]
_QUEUED = b'"status":"queued"'  # cannot stand in a name: quotes are escaped there


class Stored:
    """What the broker answered to a batch. It is read when somebody asks: most results nobody asks for."""

    __slots__ = ("_body", "_results", "duplicates")

    def __init__(self, body: bytes, count: int) -> None:
        self._body = body
        self._results: list[PushResult] | None = None
        self.duplicates = 0
        if body.count(_QUEUED) != count:  # seldom: some were there already, or this is no answer to the batch
            results = self.results
            if len(results) != count:
                raise BadAnswer(
                    f"the answer has {len(results)} results for {count} messages; is the address right?"
                )
            self.duplicates = sum(result.status == "duplicate" for result in results)

    def tell(self, batch: list[AsyncPushed]) -> None:
        """Tell the messages that they are stored. Under the mutex."""
        for index, pushed in enumerate(batch):
            pushed._stored = self
            pushed._index = index
            pushed._item = b""
            if pushed._waits is not None:
                pushed._waits.set()

    @property
    def results(self) -> list[PushResult]:
        """One for each message, in the order of the batch."""
        if self._results is None:
            self._results, self._body = decoded(self._body, _RESULTS), b""
        return self._results


# A Struct, out of the garbage collector's sight: one is made for every push, and thousands wait at a time.
class AsyncPushed(Struct, eq=False, gc=False):
    """A message that a producer has taken; ``result()`` waits until it is stored.

    >>> pushed = await producer.push({"cpu": 0.7})  # doctest: +SKIP
    >>> (await pushed.result()).status  # doctest: +SKIP
    'queued'
    """

    _mutex: threading.Lock
    _item: bytes  # as it is sent
    _came: float = 0.0  # when, if somebody will ask
    _stored: Stored | None = None
    _index: int = 0  # in its batch
    _error: Exception | None = None
    _waits: transport.Event | None = None

    def __repr__(self) -> str:
        state = "failed" if self._error is not None else "pending" if self._stored is None else "stored"
        return f"<{type(self).__name__} {state}>"

    async def result(self, timeout: float | None = None) -> PushResult:
        """What became of it; an error if it was refused, dropped, or late by ``timeout`` seconds."""
        with self._mutex:
            if self._waits is None:
                self._waits = transport.Event()
                if self._stored is not None or self._error is not None:
                    self._waits.set()
        if not await self._waits.wait(timeout):
            raise BrokerUnreachable(f"the push was not answered within {timeout:g} s; it is tried further")
        if self._error is not None:
            raise self._error
        assert self._stored is not None
        return self._stored.results[self._index]

    def _failed(self, error: Exception) -> None:
        """It will not be stored. Under the mutex."""
        self._error = error
        self._item = b""
        if self._waits is not None:
            self._waits.set()


class Lane:
    """The messages of some partitions, sent one batch after the other, so that their order is kept."""

    def __init__(self) -> None:
        self.pending: deque[AsyncPushed] = deque()
        self.wake = transport.Event()
        self.started = False
        self.entered = 0  # how many messages came so far: the number of the last one
        self.sending: int | None = None  # the number of the first of those under way

    def take(self, most: int, most_bytes: int) -> list[AsyncPushed]:
        """The next batch, under the mutex: so many, or less if they are large."""
        pending = self.pending
        self.sending = self.entered - len(pending) + 1
        taken: list[AsyncPushed] = []
        size = 0
        while pending and len(taken) < most and size < most_bytes:
            pushed = pending.popleft()
            taken.append(pushed)
            size += len(pushed._item)
        return taken

    def is_past(self, number: int) -> bool:
        """Whether no message up to that number is left: each is answered, or was dropped."""
        waits = self.entered - len(self.pending) < number
        return not waits and (self.sending is None or self.sending > number)
