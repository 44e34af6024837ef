# Generated from _async/acks.py by `python tools/async_to_sync.py`; do not edit.
"""Saying what became of messages: patiently, several together, and never past one that comes again."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from typing import Any, Generic, TypeVar

from queenstream.client._base.brokers import backoff
from queenstream.client._base.http import Ahead, Answer
from queenstream.client._base.responses.messages import AckResult, AckStatus
from queenstream.client._sync import transport
from queenstream.client._sync.message import (
    ACK_PATH,
    MOST_ACKS,
    Message,
    Messages,
    ack_body,
    note,
    settle,
)
from queenstream.client._sync.retry import Calls
from queenstream.errors import BrokerUnreachable, QueenstreamError, ServerFailed, Unavailable

T = TypeVar("T")
AWAY = (BrokerUnreachable, Unavailable, ServerFailed)  # it passes: a consumer waits
ACK_SECONDS = 0.1  # acknowledgements of single messages are sent together this often
GIVE_BACK_SECONDS = 5.0
log = logging.getLogger("queenstream.client")


def settle_surely(messages: list[Message[Any]], status: AckStatus, error: str | BaseException = "") -> int:
    """Try for as long as the lease can last: after that the broker has taken it. How many were too late."""
    lease = messages[0]._lease
    ends = time.monotonic() + lease.seconds
    failures = 0
    while True:
        try:
            refused = settle(lease.calls, messages, status, error, only_refused=True)
            break
        except AWAY as away:
            failures += 1
            if time.monotonic() > ends:
                for message in messages:
                    message._settled = message._again = True
                log.warning("%d messages could not be acknowledged and come again: %s", len(messages), away)
                return len(messages)
            transport.sleep(backoff(failures))
    return _too_late(refused)


def _too_late(refused: list[AckResult]) -> int:
    if refused:
        log.warning(
            "the lease of %d messages was over and they come again: %s", len(refused), refused[0].error
        )
    return len(refused)


class Acknowledgement(Generic[T]):
    """That messages are done, said with the next pop: one wait for both.

    ``over`` is called as soon as it is said.
    """

    def __init__(self, messages: list[Message[T]], over: Callable[[], None]) -> None:
        self._messages = messages
        self._lease = messages[0]._lease
        self._over = over
        self._refused: list[AckResult] | None = None  # None: there is no answer yet
        self._lease.done = messages
        self.ahead: Ahead | None = None
        if len(messages) <= MOST_ACKS:
            self.ahead = Ahead(ACK_PATH, ack_body(messages, "completed", brief=True), self._answered)

    def _answered(self, answer: Answer) -> None:
        if answer.status == 200:
            self._lease.done = []
            self._refused = note(self._messages, "completed", answer.body, only_refused=True)
            self._over()

    def said(self) -> int:
        """See to it that it was said; how many were too late."""
        if self._refused is not None:
            return _too_late(self._refused)
        self._lease.done = []
        lost = settle_surely(self._messages, "completed")
        self._refused = []
        self._over()
        return lost

    def broken_off(self) -> None:
        """The consumer failed, or was cancelled: say it if that can be done soon."""
        if self._refused is None:
            self._over()
            self._lease.done = [message for message in self._messages if not message._settled]
            give_back(self._lease.calls, Messages(self._lease.done))


def give_back(calls: Calls, messages: Messages[Any]) -> None:
    """What nobody will handle now comes again at once; if that cannot be said, when the lease ends."""
    if not messages:
        return
    lease = messages[0]._lease
    done, lease.done = lease.done, []
    try:
        if done:
            settle(calls, done, "completed", timeout=GIVE_BACK_SECONDS)
        if left := messages.unsettled:
            settle(calls, left, "retry", timeout=GIVE_BACK_SECONDS)
    except QueenstreamError as error:
        log.warning("messages come again when their lease ends: %s", error)


class Hand(Generic[T]):
    """The messages of one pop, taken one by one.

    Those behind one that comes again, in its partition, are left out: they come again with it. So are all
    once the lease is lost. Acknowledgements are put together.
    """

    def __init__(self, messages: Messages[T], *, acks: bool) -> None:
        self._messages = messages
        self._acks = acks
        self._lease = messages[0]._lease
        self._broken: set[str] = set()  # partitions
        self._taken = 0
        self._acked_at = time.monotonic()
        self.lost = 0  # how many come again though they were handled, or before they could be

    def __iter__(self) -> Iterator[Message[T]]:
        for message in self._messages:
            self._taken += 1
            if self._lease.lost:
                message._settled = True
                self.lost += 1
            elif message.partition_id in self._broken:
                message._settled = True
            else:
                yield message
                if message._again:
                    self._broken.add(message.partition_id)

    def done(self, message: Message[T]) -> None:
        """It is handled: that is said by now and then, with others, unless it was said by hand."""
        if self._acks and not message._settled:
            self._lease.done.append(message)
        if time.monotonic() - self._acked_at >= ACK_SECONDS:
            self.flush()

    def flush(self) -> None:
        """Say it now."""
        done, self._lease.done = self._lease.done, []
        if done:
            self.lost += settle_surely(done, "completed")
        self._acked_at = time.monotonic()

    @property
    def unsaid(self) -> list[Message[T]]:
        """Handled, and not yet acknowledged."""
        return list(self._lease.done)

    def put_down(self) -> None:
        """Nobody takes the rest."""
        self.flush()
        give_back(self._lease.calls, Messages(self._messages[self._taken :]))
