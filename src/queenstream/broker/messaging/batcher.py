"""Micro-batching without a timer.

Requests that wait together are carried out together: a free lane takes everything that is pending (to a
bound) as one statement. So the batch grows with the load, and a lone request waits for nobody.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

from queenstream.errors import Unavailable

log = logging.getLogger(__name__)

R = TypeVar("R")
A = TypeVar("A")

ROW_BYTES = 256  # what a row costs beside its payload


class Batcher(Generic[R, A]):
    """Collects requests and runs them in batches on a few lanes.

    A second lane starts only when ``lane_bytes`` are pending: below that, one batch is cheaper than two.
    ``run`` takes the requests of a batch, and whether no other batch will run beside it; it gives one answer
    each. An exception among the answers goes to that request, an exception raised goes to all of them.
    """

    def __init__(
        self,
        run: Callable[[list[R], bool], Awaitable[list[A | BaseException]]],
        *,
        lanes: int = 2,
        lane_bytes: int = 256 * 1024,
        batch_bytes: int = 4 * 1024 * 1024,
        pending_bytes: int = 256 * 1024 * 1024,
    ) -> None:
        self._run = run
        self._most_lanes = lanes
        self._lane_bytes = lane_bytes
        self._batch_bytes = batch_bytes
        self._most_pending = pending_bytes
        self._pending: deque[tuple[R, int, Callable[[A | BaseException], None]]] = deque()
        self._pending_bytes = 0
        self._lanes: set[asyncio.Task[None]] = set()
        self._running = 0  # not len(_lanes): a task leaves that a moment after its last look
        self._alone = False  # a batch is under way that was promised to be the only one

    def __len__(self) -> int:
        return len(self._pending)

    def submit(self, request: R, size: int, done: Callable[[A | BaseException], None]) -> None:
        """Queue a request; ``done`` is called with its answer.

        A callback, not a future: a future's way to who waits for it costs as much as all the rest here.
        """
        if self._pending_bytes + size > self._most_pending:
            raise Unavailable("too many requests wait for the database; try again in a moment")
        self._pending.append((request, size, done))
        self._pending_bytes += size
        if self._running == 0 or (
            self._running < self._most_lanes and not self._alone and self._pending_bytes >= self._lane_bytes
        ):
            self._running += 1
            lane = asyncio.create_task(self._lane())
            self._lanes.add(lane)
            lane.add_done_callback(self._lanes.discard)

    def ask(self, request: R, size: int) -> asyncio.Future[A]:
        """Queue a request, for a coroutine that awaits its answer."""
        future: asyncio.Future[A] = asyncio.get_running_loop().create_future()

        def done(answer: A | BaseException) -> None:
            if future.done():
                return  # who asked has gone
            if isinstance(answer, BaseException):
                future.set_exception(answer)
            else:
                future.set_result(answer)

        self.submit(request, size, done)
        return future

    async def _lane(self) -> None:
        while self._pending:
            alone = self._alone = self._running == 1 and self._pending_bytes < self._lane_bytes
            requests: list[R] = []
            waiting: list[Callable[[A | BaseException], None]] = []
            total = 0
            while self._pending and (not requests or total + self._pending[0][1] <= self._batch_bytes):
                request, size, done = self._pending.popleft()
                requests.append(request)
                waiting.append(done)
                total += size
            self._pending_bytes -= total
            answers: list[A | BaseException]
            try:
                answers = await self._run(requests, alone)
                if len(answers) != len(requests):
                    raise RuntimeError(f"{len(answers)} answers to {len(requests)} requests")
            except BaseException as error:  # noqa: BLE001 - every request must get its answer
                answers = [error] * len(requests)
            if alone:
                self._alone = False
            for done, answer in zip(waiting, answers, strict=True):
                try:
                    done(answer)
                except Exception:
                    log.exception("an answer could not be given")
        self._running -= 1

    async def drain(self) -> None:
        """Wait until nothing is pending."""
        while self._lanes:
            await asyncio.wait(self._lanes)
