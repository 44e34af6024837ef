"""CPU seconds and memory of the broker and of PostgreSQL."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field

import psutil


def tree_seconds(pid: int) -> float:
    """CPU seconds of a process and of all its children, also of those that have ended."""
    try:
        root = psutil.Process(pid)
        times = root.cpu_times()
        total = times.user + times.system + times.children_user + times.children_system
        for child in root.children(recursive=True):
            with contextlib.suppress(psutil.Error):
                spent = child.cpu_times()
                total += spent.user + spent.system
    except psutil.NoSuchProcess:
        return 0.0
    return total


@dataclass
class Spent:
    """CPU seconds spent in a stretch of time."""

    broker: float = 0.0
    postgres: float = 0.0

    @property
    def total(self) -> float:
        return self.broker + self.postgres


@contextlib.contextmanager
def measured(broker_pid: int, postmaster_pid: int) -> Iterator[Spent]:
    """What the broker and PostgreSQL spend inside the block.

    >>> with measured(broker.pid, server.pid) as spent:  # doctest: +SKIP
    ...     push()
    >>> spent.total  # doctest: +SKIP
    1.25
    """
    spent = Spent()
    before = tree_seconds(broker_pid), tree_seconds(postmaster_pid)
    try:
        yield spent
    finally:
        spent.broker = tree_seconds(broker_pid) - before[0]
        spent.postgres = tree_seconds(postmaster_pid) - before[1]


@dataclass
class Memory:
    """Resident memory of a process over time, in MB."""

    samples: list[float] = field(default_factory=list)

    @property
    def peak(self) -> float:
        return max(self.samples, default=0.0)


@contextlib.contextmanager
def memory(pid: int, every_seconds: float = 0.1) -> Iterator[Memory]:
    """Sample the resident memory of a process inside the block."""
    found = Memory()
    process = psutil.Process(pid)
    done = threading.Event()

    def sample() -> None:
        while not done.wait(every_seconds):
            with contextlib.suppress(psutil.Error):
                found.samples.append(process.memory_info().rss / 1e6)

    thread = threading.Thread(target=sample, daemon=True)
    thread.start()
    try:
        yield found
    finally:
        done.set()
        thread.join()
