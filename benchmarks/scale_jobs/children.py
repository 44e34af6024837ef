"""Benchmark work in a process of its own: the master and the heap of a JVM cannot be changed once it runs."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import shutil
import tempfile
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

import psutil

from queenstream.testing.brokers import TemporaryBroker, TemporaryBrokers

T = TypeVar("T")
_SAMPLE_SECONDS = 0.1


@contextlib.contextmanager
def child(work: Callable[..., T], *arguments: Any) -> Iterator[Future[T]]:
    """Run a function in a new process, which ends with the block."""
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, mp_context=spawn) as pool:
        yield pool.submit(work, *arguments)


@contextlib.contextmanager
def fresh_broker(brokers: TemporaryBrokers) -> Iterator[tuple[TemporaryBroker, Path]]:
    """A broker on an empty database, which Spark's tasks find, and an empty folder."""
    base = Path(tempfile.mkdtemp(prefix="queenstream-scale-"))
    try:
        with brokers.start() as broker:
            os.environ["QUEEN_PG"] = broker.database_url
            yield broker, base
    finally:
        shutil.rmtree(base, ignore_errors=True)


class DriverMemory:
    """The highest resident memory of this process and its JVM, without PostgreSQL and the workers of tasks.

    On a local master the JVM runs the tasks too, so its memory is that of driver and executor.
    """

    def __init__(self) -> None:
        self.python = 0
        self.java = 0
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._sample, daemon=True)

    @property
    def bytes(self) -> int:
        """Both together."""
        return self.python + self.java

    def __enter__(self) -> DriverMemory:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._done.set()
        self._thread.join()

    def _sample(self) -> None:
        own = psutil.Process()
        while not self._done.wait(_SAMPLE_SECONDS):
            self.python = max(self.python, own.memory_info().rss)
            for each in own.children(recursive=True):
                with contextlib.suppress(psutil.NoSuchProcess):
                    if each.name() == "java":
                        self.java = max(self.java, each.memory_info().rss)
