"""How long the tasks of a staging job computed, and how long they staged.

Both happen in the same tasks, while rows flow from one to the other. So a task measures how long it waits for
rows (``TaskClock``), and the driver divides the time of the job in the same proportion (``staging_seconds``).
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from typing import TypeVar

import msgspec

T = TypeVar("T")


class TaskTimes(msgspec.Struct, frozen=True):
    """When a task began and ended, in seconds since 1970, and for how much of that it waited for rows."""

    began: float
    ended: float
    computing_seconds: float


class TaskClock:
    """Measures how long a task waits for its rows: so long, rows are read and steps computed.

    >>> clock = TaskClock()
    >>> list(clock.computing(range(3)))
    [0, 1, 2]
    >>> clock.stop().computing_seconds < 1
    True
    """

    def __init__(self) -> None:
        self._began = time.time()
        self._started = time.perf_counter()
        self._computing = 0.0
        self._is_computing = False

    def computing(self, rows: Iterable[T]) -> Iterator[T]:
        """The same rows; the time to get them counts as computing. One may be made of another."""
        iterator = iter(rows)
        while True:
            is_inner, self._is_computing = self._is_computing, True
            begun = time.perf_counter()
            try:
                row = next(iterator)
            except StopIteration:
                return
            finally:
                self._is_computing = is_inner
                if not is_inner:
                    self._computing += time.perf_counter() - begun
            yield row

    def stop(self) -> TaskTimes:
        """The task is done."""
        seconds = time.perf_counter() - self._started
        return TaskTimes(self._began, self._began + seconds, min(self._computing, seconds))


def staging_seconds(job_seconds: float, tasks: Sequence[TaskTimes]) -> float:
    """How much of a job's time its tasks staged.

    Of the time from the first task's begin to the last one's end, the share that tasks did not wait for rows.
    The rest of the job computed, too: stages before the last one, and the planning of the job.

    >>> staging_seconds(10.0, [TaskTimes(100.0, 104.0, 3.0), TaskTimes(102.0, 106.0, 1.0)])
    3.0
    """
    busy = sum(each.ended - each.began for each in tasks)
    if busy <= 0:
        return 0.0
    span = max(each.ended for each in tasks) - min(each.began for each in tasks)
    computing = sum(each.computing_seconds for each in tasks)
    return max(0.0, min(span, job_seconds)) * (1 - computing / busy)
