"""Messages as they are popped, and what can be said about them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, Generic, TypeVar

from msgspec import Struct

from queenstream.client._async.retry import Calls
from queenstream.client._base.http import decoded, path_of
from queenstream.client._base.payloads import encode
from queenstream.client._base.responses.messages import Ack, AckBody, AckResult, AckStatus, Extended
from queenstream.errors import LeaseLost, QueenstreamError

T = TypeVar("T")
MOST_ACKS = 10_000  # in one request
ACK_PATH = "/api/v1/ack/batch"
ASSUMED_SECONDS = 60.0  # the lease of a broker that does not say
AGAIN = ("failed", "retry")  # with one of these a message comes again
_RESULTS = list[AckResult]
_EXTENDED = list[Extended]


class AsyncLease:
    """What one pop has out: all its messages share it."""

    __slots__ = ("calls", "done", "id", "lost", "seconds")

    def __init__(self, calls: Calls, id: str | None, seconds: float | None) -> None:
        self.calls = calls
        self.id = id
        self.seconds = seconds or ASSUMED_SECONDS
        self.lost = False
        self.done: list[AsyncMessage[Any]] = []  # handled, and about to be acknowledged together

    async def hold(self, timeout: float | None = None) -> bool:
        """Hold it as long again, from now on; False: it is over."""
        if self.id is None:
            return True
        body = encode({"seconds": max(1, round(self.seconds))})
        path = path_of("api", "v1", "lease", self.id, "extend")
        answer = await self.calls.send("POST", path, body, timeout=timeout)
        renewed: bool = decoded(answer.body, _EXTENDED)[0].success
        self.lost = self.lost or not renewed
        return renewed


# The garbage collector need not look at messages: what comes from JSON has no cycles, and a lease lets go of
# what it held (``done``) when that is said.
class AsyncMessage(Struct, Generic[T], rename="camel", gc=False):
    """A message under a lease: acknowledge it, or it comes again.

    >>> for message in await queen.queue("orders").batch(10).pop():  # doctest: +SKIP
    ...     print(message.data["amount"])
    ...     await message.ack()
    """

    id: str
    transaction_id: str
    data: T
    created_at: datetime
    partition_id: str = ""
    partition: str = ""
    queue: str = ""
    consumer_group: str = ""
    trace_id: str | None = None
    producer_sub: str | None = None
    lease_id: str | None = None
    retry_count: int = 0
    _lease: Any = None
    _settled: bool = False
    _again: bool = False  # settled so that it comes again, and all after it in its partition

    @property
    def lost(self) -> bool:
        """The lease could not be renewed: somebody else may have the message by now."""
        return self._lease is not None and self._lease.lost

    @property
    def settled(self) -> bool:
        """It was acknowledged, given back or sent to the dead letters."""
        return self._settled

    async def ack(self) -> None:
        """It is done. ``LeaseLost`` if that comes too late."""
        await _must(self._lease.calls, [self], "completed")

    async def nack(self, error: str | BaseException = "") -> None:
        """It failed: it comes again after the queue's delay, or goes to the dead letters past its limit."""
        await _must(self._lease.calls, [self], "failed", error)

    async def retry(self) -> None:
        """Give it back: it comes again at once, and no try is counted."""
        await _must(self._lease.calls, [self], "retry")

    async def dead_letter(self, error: str | BaseException = "") -> None:
        """Send it to the dead letters at once."""
        await _must(self._lease.calls, [self], "dlq", error)

    async def renew(self) -> None:
        """Hold the lease as long again, from now on. A consumer does this by itself."""
        if not await self._lease.hold():
            raise LeaseLost(f"the lease on message {self.transaction_id} is over; it will come again")

    async def trace(
        self, data: Mapping[str, Any], *, names: Sequence[str] = (), event_type: str | None = None
    ) -> None:
        """Note what happened to it, to be found later by its ids or by ``names``.

        >>> await message.trace({"step": "charged"}, names=["order-7"])  # doctest: +SKIP
        """
        await self._lease.calls.call(
            "POST",
            "/api/v1/traces",
            body={
                "transactionId": self.transaction_id,
                "partitionId": self.partition_id,
                "consumerGroup": self.consumer_group,
                "data": dict(data),
                **({"traceNames": list(names)} if names else {}),
                **({"eventType": event_type} if event_type else {}),
            },
            repeat=False,
        )


class AsyncMessages(list[AsyncMessage[T]]):
    """The messages of one pop, in order. They can be settled together.

    >>> messages = await queen.queue("orders").batch(100).pop()  # doctest: +SKIP
    >>> await messages.ack()  # doctest: +SKIP
    """

    @property
    def lost(self) -> bool:
        """The lease could not be renewed: somebody else may have them by now."""
        return any(message.lost for message in self)

    @property
    def unsettled(self) -> list[AsyncMessage[T]]:
        """Those about which nothing was said yet."""
        return [message for message in self if not message._settled]

    async def ack(self) -> None:
        """All that are not settled yet are done. ``LeaseLost`` if that comes too late for one."""
        await self._settle("completed")

    async def nack(self, error: str | BaseException = "") -> None:
        """All that are not settled yet failed."""
        await self._settle("failed", error)

    async def retry(self) -> None:
        """Give those back that are not settled yet."""
        await self._settle("retry")

    async def _settle(self, status: AckStatus, error: str | BaseException = "") -> None:
        left = self.unsettled
        if left:
            await _must(left[0]._lease.calls, left, status, error)


async def settle(
    calls: Calls,
    messages: Iterable[AsyncMessage[Any]],
    status: AckStatus,
    error: str | BaseException = "",
    *,
    timeout: float | None = None,
    only_refused: bool = False,
) -> list[AckResult]:
    """Say what became of messages; one result for each, or only for those that came too late."""
    wanted = list(messages)
    await say_first(calls, wanted, timeout)
    said = _said(error) if error else None
    results: list[AckResult] = []
    for first in range(0, len(wanted), MOST_ACKS):
        some = wanted[first : first + MOST_ACKS]
        body = ack_body(some, status, said, brief=only_refused)
        answer = await calls.send("POST", ACK_PATH, body, timeout=timeout)
        results += note(some, status, answer.body, only_refused)
    return results


def ack_body(
    messages: Sequence[AsyncMessage[Any]], status: AckStatus, said: str | None = None, *, brief: bool
) -> bytes:
    """What is sent to ``ACK_PATH``. ``brief``: the answer will have only what was refused."""
    groups = {message.consumer_group for message in messages}
    shared = groups.pop() if len(groups) == 1 else None
    if shared is not None:
        acks = [Ack(m.transaction_id, m.partition_id, status, m.lease_id, said) for m in messages]
    else:
        acks = [
            Ack(m.transaction_id, m.partition_id, status, m.lease_id, said, m.consumer_group)
            for m in messages
        ]
    return encode(AckBody(shared, acks, brief))


def note(
    messages: Sequence[AsyncMessage[Any]], status: AckStatus, answer: bytes, only_refused: bool
) -> list[AckResult]:
    """Note what the broker answered."""
    found: list[AckResult] = decoded(answer, _RESULTS)
    refused = [result for result in found if not result.success]
    for message in messages:
        message._settled = True
    for message in messages if status in AGAIN else (messages[result.index] for result in refused):
        message._again = True
    return refused if only_refused else found


async def say_first(calls: Calls, messages: list[AsyncMessage[Any]], timeout: float | None = None) -> None:
    """What was handled before them under the same lease must not come again with one that failed."""
    for lease in {message._lease for message in messages}:
        if lease.done:
            done, lease.done = lease.done, []
            try:
                await settle(calls, done, "completed", timeout=timeout)
            except BaseException:
                lease.done = done + lease.done
                raise


def _said(error: str | BaseException) -> str:
    """An error as the dead letters keep it: what it is and what it says."""
    if isinstance(error, QueenstreamError | str):
        return str(error)[:60_000]
    return f"{type(error).__name__}: {error}"[:60_000]


async def _must(
    calls: Calls, messages: list[AsyncMessage[Any]], status: AckStatus, error: str | BaseException = ""
) -> None:
    refused = await settle(calls, messages, status, error, only_refused=True)
    if refused:
        raise LeaseLost(
            f"{len(refused)} of {len(messages)} acknowledgements came too late ({refused[0].error}); "
            "the messages will come again"
        )
