"""Keeps a streaming query running, whether or not anybody waits for it.

A thread waits for the end of the query. After a failure that may pass it starts the query again, which goes
on from its checkpoint; after any other end it closes the run.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any, Generic, Protocol, TypeVar

GENTLE_SECONDS = 30.0  # how long a stop waits for the batch under way
_LOOK_SECONDS = 0.05  # how often a stop looks whether that batch is done


class Query(Protocol):
    """What is supervised: a ``StreamingQuery``, or something like it."""

    @property
    def isActive(self) -> bool:  # noqa: N802 - Spark's name
        """Whether it has not ended."""
        ...

    @property
    def status(self) -> dict[str, Any]:
        """What it does: ``isTriggerActive`` while a batch is under way."""
        ...

    def awaitTermination(self) -> Any:  # noqa: N802 - Spark's name
        """Wait until it has ended; raises what made it fail."""
        ...

    def stop(self) -> None:
        """End it at once."""
        ...


Q = TypeVar("Q", bound=Query)


class Supervisor(Generic[Q]):
    """Supervises one query of a run.

    ``begin`` starts the query, at first and again. ``on_failure`` gets what a query failed with and gives the
    seconds to wait before the next start, or raises the error that ends the run. ``on_end`` closes the run.
    """

    def __init__(
        self,
        name: str,
        begin: Callable[[], Q],
        on_failure: Callable[[Exception], float],
        on_end: Callable[[BaseException | None], None],
    ) -> None:
        self._name = name
        self._begin = begin
        self._on_failure = on_failure
        self._on_end = on_end
        self._changing = threading.Lock()  # held while a query begins, so that a stop meets all or none of it
        self._stopping = threading.Event()
        self._ended = threading.Event()
        self._query: Q | None = None
        self._thread = threading.Thread(target=self._supervise, name=f"queenstream {name}", daemon=True)
        self.recovering = False
        self.error: BaseException | None = None

    @property
    def query(self) -> Q:
        """The query that runs now, or ran last."""
        if self._query is None:
            raise RuntimeError(f"{self._name} has not begun; call start()")
        return self._query

    @property
    def begun(self) -> bool:
        """Whether there has been a query yet."""
        return self._query is not None

    @property
    def stopping(self) -> bool:
        """Whether the run was told to end, or has ended."""
        return self._stopping.is_set()

    def start(self) -> None:
        """Start the query, and supervise it from then on."""
        self._query = self._begin()
        self._thread.start()

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until the run has ended and is closed; False if it is not after ``timeout`` seconds."""
        return self._ended.wait(timeout)

    def stop(self) -> None:
        """Let the batch under way come to its end, and end. A restart that is due is not made."""
        self._stopping.set()
        with self._changing:
            query = self.query
        end = time.monotonic() + GENTLE_SECONDS
        while query.isActive and query.status["isTriggerActive"] and time.monotonic() < end:
            self._ended.wait(_LOOK_SECONDS)
        query.stop()

    def fail(self, error: BaseException) -> None:
        """End the run with this error, at once and for good."""
        with self._changing:
            self.error = self.error or error
            self._stopping.set()
            query = self._query
        if query is not None:
            query.stop()

    def _supervise(self) -> None:
        try:
            while self._runs_on():
                pass
        except BaseException as error:  # noqa: BLE001 - whoever waits raises it
            self.error = self.error or error
        finally:
            self._stopping.set()
            self.recovering = False
            try:
                self._on_end(self.error)
            except BaseException as error:  # noqa: BLE001 - as above
                self.error = self.error or error
            finally:
                self._ended.set()

    def _runs_on(self) -> bool:
        """Wait for the end of the query; True if it was started again."""
        try:
            self.query.awaitTermination()
            return False
        except Exception as failure:  # noqa: BLE001 - whatever Spark raises
            self.recovering = True
            pause = self._on_failure(failure)
        self._stopping.wait(pause)
        with self._changing:
            if self._stopping.is_set():
                return False
            self._query = self._begin()
        self.recovering = False
        return True
