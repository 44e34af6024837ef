"""Restarts the broker's long-lived tasks with backoff when they end with an error.

Every task that lives as long as the broker is started here, so that none ends unseen: the log has the error,
``queen_task_restarts_total{task}`` counts the restarts, and ``/health`` names a task that keeps failing.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from time import monotonic

from queenstream.broker.ops.metrics import Metrics
from queenstream.errors import QueenstreamError

log = logging.getLogger(__name__)

FIRST_BACKOFF_SECONDS = 0.25
LONGEST_BACKOFF_SECONDS = 5.0
STABLE_SECONDS = 30.0  # after so long without an error, a task counts as recovered


class SupervisedTask:
    """One task: it runs until its work returns or it is stopped."""

    def __init__(self, name: str, work: Callable[[], Awaitable[None]], metrics: Metrics) -> None:
        self.name = name
        self._work = work
        self._metrics = metrics
        self._failed_at: float | None = None
        self._task = asyncio.create_task(self._run(), name=name)

    @property
    def failing(self) -> bool:
        """Whether it ended with an error a moment ago."""
        return self._failed_at is not None and monotonic() - self._failed_at < STABLE_SECONDS

    def on_end(self, callback: Callable[[], None]) -> None:
        """Call this when it has ended for good."""
        self._task.add_done_callback(lambda _: callback())

    async def stop(self) -> None:
        """End it, whatever it does."""
        while not self._task.done():  # Python 3.11 may lose a cancellation: until it is heard
            self._task.cancel()
            await asyncio.wait([self._task], timeout=0.5)

    async def _run(self) -> None:
        backoff = FIRST_BACKOFF_SECONDS
        while True:
            started = monotonic()
            try:
                await self._work()
                return
            except asyncio.CancelledError as error:
                task = asyncio.current_task()
                if task is None or task.cancelling():
                    raise
                self._count(error)  # what it waited for was cancelled, not the task itself
            except Exception as error:  # noqa: BLE001 - it is logged, and the task restarted
                self._count(error)
            if monotonic() - started >= STABLE_SECONDS:
                backoff = FIRST_BACKOFF_SECONDS
            await asyncio.sleep(backoff)
            backoff = min(LONGEST_BACKOFF_SECONDS, backoff * 2)

    def _count(self, error: BaseException) -> None:
        self._failed_at = monotonic()
        self._metrics.task_restarted(self.name)
        if isinstance(error, QueenstreamError):
            log.warning("task %s failed and is restarted: %s", self.name, error)
        else:
            log.error("task %s failed and is restarted", self.name, exc_info=error)


class Supervisor:
    """The long-lived tasks of one broker.

    >>> task = supervisor.start("notices", listen)  # doctest: +SKIP
    >>> supervisor.failing  # doctest: +SKIP
    []
    >>> await task.stop()  # doctest: +SKIP
    """

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics
        self._tasks: set[SupervisedTask] = set()

    @property
    def failing(self) -> list[str]:
        """The names of the tasks that ended with an error a moment ago."""
        return sorted({task.name for task in self._tasks if task.failing})

    def start(self, name: str, work: Callable[[], Awaitable[None]]) -> SupervisedTask:
        """Run ``work`` until it returns, again after each error. Several tasks may share a name."""
        task = SupervisedTask(name, work, self._metrics)
        self._tasks.add(task)
        task.on_end(lambda: self._tasks.discard(task))
        return task

    async def close(self) -> None:
        """End all tasks that are left."""
        await asyncio.gather(*(task.stop() for task in list(self._tasks)))
