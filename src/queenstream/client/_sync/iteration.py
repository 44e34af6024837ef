# Generated from _async/iteration.py by `python tools/async_to_sync.py`; do not edit.
"""Loops over messages and windows: however one is left, what is in hand is put down, once."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TypeVar

from queenstream.client._base.chain import Settings
from queenstream.client._base.payloads import Codec
from queenstream.client._sync import transport
from queenstream.client._sync.acks import AWAY, Hand, give_back
from queenstream.client._sync.consumer import Polling
from queenstream.client._sync.message import Message, Messages
from queenstream.client._sync.pop import pop
from queenstream.client._sync.retry import Calls

T = TypeVar("T")


class Loop:
    """A loop that is under way, with the renewal of its leases.

    A loop that breaks off ends when its generator is collected; a traceback may keep that for long. So the
    client knows its loops, and ends them when it is closed.
    """

    def __init__(self, calls: Calls, polling: Polling, put_down: Callable[[], None]) -> None:
        self._calls = calls
        self._polling = polling
        self._put_down = put_down
        self._lock = transport.Lock()
        self._left = False
        self._crew = transport.Crew()
        self._crew.start(polling.renewer.run)
        calls.loops.add(self)

    def leave(self) -> None:
        """Put down what is in hand. The second who asks waits for the first."""
        with self._lock:
            if self._left:
                return
            self._left = True
            self._polling.renewer.end()
            self._calls.loops.discard(self)
            try:
                self._put_down()
            finally:
                self._crew.join()


def each_message(calls: Calls, codec: Codec[T], settings: Settings) -> Iterator[Message[T]]:
    """What ``queue.messages()`` gives."""
    # What is wrong with the chain shows before anything starts.
    settings.pop_path(batch=1, wait_seconds=0, auto_ack=False)
    acks = settings.auto_ack is not False
    polling = Polling(settings.limit, settings.idle_seconds, settings.wait_seconds)
    messages: Messages[T] = Messages()
    failures = 0

    def put_down() -> None:
        if acks:
            give_back(calls, messages)

    loop = Loop(calls, polling, put_down)
    try:
        while asked := polling.room(settings.batch):
            try:
                messages = pop(
                    calls, codec, settings, batch=asked, wait_seconds=polling.wait_seconds, auto_ack=False
                )
            except AWAY as error:
                failures += 1
                polling.got(asked, 0)
                polling.away(error, failures)
                continue
            failures = 0
            polling.got(asked, len(messages))
            if not messages:
                polling.nothing()
                continue
            lease = messages[0]._lease
            polling.renewer.add(lease)
            hand = Hand(messages, acks=acks)
            for message in hand:
                yield message
                hand.done(message)
            hand.flush()
            polling.renewer.remove(lease)
            polling.done()
    finally:
        loop.leave()
