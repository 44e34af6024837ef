"""Limits how many expensive requests run at once, in all and for each caller.

Expensive reads (counts over all partitions, searches, lists) use the database's connections for reads. A
request that finds no place waits in line, and is refused with 503 and ``Retry-After`` if that takes too long.
A caller is the token's ``sub``, or the address where there is no token.
"""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from queenstream.errors import Unavailable

WAIT_SECONDS = 10.0
MOST_WAITING = 1_000


class Throttle:
    """At most ``places`` requests at once, and ``per_caller`` of one caller.

    >>> async with throttle.place("alice"):  # doctest: +SKIP
    ...     answer = await work()
    """

    def __init__(self, places: int, per_caller: int) -> None:
        self._places = places
        self._per_caller = per_caller
        self._running: Counter[str] = Counter()
        self._waiting: deque[tuple[str, asyncio.Future[None]]] = deque()

    @asynccontextmanager
    async def place(self, caller: str) -> AsyncIterator[None]:
        """Hold a place, as soon as there is one for this caller; Unavailable if that takes too long."""
        if self._has_place(caller):
            self._running[caller] += 1
        else:
            await self._wait(caller)
        try:
            yield
        finally:
            self._release(caller)

    def _has_place(self, caller: str) -> bool:
        return self._running.total() < self._places and self._running[caller] < self._per_caller

    async def _wait(self, caller: str) -> None:
        if len(self._waiting) >= MOST_WAITING:
            raise self._refusal(caller)
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        entry = (caller, turn)
        self._waiting.append(entry)
        try:
            async with asyncio.timeout(WAIT_SECONDS):
                await turn
        except BaseException as error:
            if entry in self._waiting:
                self._waiting.remove(entry)
            elif turn.done() and not turn.cancelled():
                self._release(caller)  # the place came too late
            if isinstance(error, TimeoutError):
                raise self._refusal(caller) from None
            raise

    def _refusal(self, caller: str) -> Unavailable:
        if self._running[caller] >= self._per_caller:
            return Unavailable(
                f"{self._per_caller} of your expensive requests run already; wait for their answers, or ask "
                "with Cache-Control: max-age=10"
            )
        return Unavailable("too many expensive requests run already; try again in a moment")

    def _release(self, caller: str) -> None:
        self._running[caller] -= 1
        if not self._running[caller]:
            del self._running[caller]
        for entry in list(self._waiting):
            if self._running.total() >= self._places:
                break
            waiting, turn = entry
            if turn.done():
                self._waiting.remove(entry)  # it was cancelled, and takes itself out in a moment
            elif self._has_place(waiting):
                self._waiting.remove(entry)
                self._running[waiting] += 1
                turn.set_result(None)
