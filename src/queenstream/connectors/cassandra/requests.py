"""Many requests at once, but never more than so many."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from cassandra.cluster import Session
from cassandra.query import Statement

from queenstream.connectors.cassandra.connection import AWAY, REQUEST_SECONDS
from queenstream.errors import RunFailed

_PATIENCE_SECONDS = 3 * REQUEST_SECONDS  # the driver ends a request by then, whatever happens
_LOOK_SECONDS = 0.2  # how often one that waits looks whether it is to stop


@dataclass(frozen=True, slots=True)
class Request:
    """A statement, and the rows that it writes: the index of each, and its values."""

    rows: Sequence[tuple[int, list[Any]]]
    statement: Statement


@dataclass(slots=True)
class Outcome:
    """What was not done: ``away``, since no node was there for it; ``failed``, for other reasons."""

    away: list[tuple[Request, Exception]] = field(default_factory=list)
    failed: list[tuple[Request, Exception]] = field(default_factory=list)


class Sender:
    """Sends requests, ``concurrency`` of them at once. Its calls block."""

    def __init__(self, session: Session, concurrency: int) -> None:
        self._execute = session.execute_async
        self._concurrency = concurrency

    def send(self, requests: Iterator[Request], stopping: threading.Event) -> Outcome:
        """Send until there are no more, or one finds no node, or it is to stop: ``requests`` has the rest."""
        outcome = Outcome()
        slots = threading.Semaphore(self._concurrency)
        execute, release = self._execute, slots.release

        def done(_: object) -> None:
            release()

        def failed(error: Exception, request: Request) -> None:
            (outcome.away if isinstance(error, AWAY) else outcome.failed).append((request, error))
            release()

        for request in requests:
            if not _taken(slots, stopping):
                return outcome
            future = execute(request.statement)
            future.add_callbacks(done, failed, errback_args=(request,))
            if outcome.away:
                break
        for _ in range(self._concurrency):  # all that is under way
            if not _taken(slots, stopping):
                break
        return outcome


def _taken(slots: threading.Semaphore, stopping: threading.Event) -> bool:
    """Wait for a slot; not taken: it is to stop."""
    ends = time.monotonic() + _PATIENCE_SECONDS
    while not slots.acquire(timeout=_LOOK_SECONDS):
        if stopping.is_set():
            return False
        if time.monotonic() > ends:
            raise RunFailed(
                f"the driver of Cassandra gave no answer in {_PATIENCE_SECONDS:.0f} s, which it should have; "
                "start the pipeline again, which loses nothing"
            )
    return not stopping.is_set()
