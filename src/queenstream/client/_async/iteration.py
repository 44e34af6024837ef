"""Loops over messages and windows: however one is left, what is in hand is put down, once."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import TypeVar

from queenstream.client._async import transport
from queenstream.client._async.acks import AWAY, Hand, give_back
from queenstream.client._async.consumer import Polling
from queenstream.client._async.message import AsyncMessage, AsyncMessages
from queenstream.client._async.pop import pop
from queenstream.client._async.retry import Calls
from queenstream.client._base.chain import Settings
from queenstream.client._base.payloads import Codec

T = TypeVar("T")


class Loop:
    """A loop that is under way, with the renewal of its leases.

    A loop that breaks off ends when its generator is collected; a traceback may keep that for long. So the
    client knows its loops, and ends them when it is closed.
    """

    def __init__(self, calls: Calls, polling: Polling, put_down: Callable[[], Awaitable[None]]) -> None:
        self._calls = calls
        self._polling = polling
        self._put_down = put_down
        self._lock = transport.Lock()
        self._left = False
        self._crew = transport.Crew()
        self._crew.start(polling.renewer.run)
        calls.loops.add(self)

    async def leave(self) -> None:
        """Put down what is in hand. The second who asks waits for the first."""
        async with self._lock:
            if self._left:
                return
            self._left = True
            self._polling.renewer.end()
            self._calls.loops.discard(self)
            try:
                await self._put_down()
            finally:
                await self._crew.join()


async def each_message(calls: Calls, codec: Codec[T], settings: Settings) -> AsyncIterator[AsyncMessage[T]]:
    """What ``queue.messages()`` gives."""
    # What is wrong with the chain shows before anything starts.
    settings.pop_path(batch=1, wait_seconds=0, auto_ack=False)
    acks = settings.auto_ack is not False
    polling = Polling(settings.limit, settings.idle_seconds, settings.wait_seconds)
    messages: AsyncMessages[T] = AsyncMessages()
    failures = 0

    async def put_down() -> None:
        if acks:
            await give_back(calls, messages)

    loop = Loop(calls, polling, put_down)
    try:
        while asked := await polling.room(settings.batch):
            try:
                messages = await pop(
                    calls, codec, settings, batch=asked, wait_seconds=polling.wait_seconds, auto_ack=False
                )
            except AWAY as error:
                failures += 1
                polling.got(asked, 0)
                await polling.away(error, failures)
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
                await hand.done(message)
            await hand.flush()
            polling.renewer.remove(lease)
            polling.done()
    finally:
        await loop.leave()
