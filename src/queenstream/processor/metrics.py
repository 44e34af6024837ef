"""The figures of a stream processor, and how it tells of what went wrong."""

from __future__ import annotations

import logging
from collections import Counter
from typing import TypedDict

from queenstream.processor.events import LateEvent
from queenstream.processor.steps import Failure, Fate

log = logging.getLogger("queenstream.processor")


class ProcessorMetrics(TypedDict):
    """What ``StreamProcessor.get_metrics()`` gives.

    ``events_received`` is always the sum of processed, filtered and failed. ``events_late`` are in no window,
    ``events_evicted`` no longer kept; both were processed. ``errors`` counts what steps raised, sinks
    included.

    >>> from queenstream import StreamProcessor
    >>> stream = StreamProcessor("clicks").filter(lambda event: event.data["value"] > 100)
    >>> _ = stream.emit("e1", {"value": 150}), stream.emit("e2", {"value": 50})
    >>> metrics = stream.get_metrics()
    >>> metrics["events_received"], metrics["events_processed"], metrics["events_filtered"]
    (2, 1, 1)
    """

    events_received: int
    events_processed: int
    events_filtered: int
    events_failed: int
    events_late: int
    events_evicted: int
    events_kept: int
    windows_created: int
    windows_cleared: int
    windows_evicted: int
    windows_kept: int
    errors: int
    errors_by_step: dict[str, int]
    last_error: str | None


class Tally:
    """What is counted. The caller holds the processor's lock, but for ``report`` and ``report_late``."""

    __slots__ = (
        "errors_by_step",
        "fates",
        "last_error",
        "late",
        "windows_cleared",
        "windows_created",
        "windows_evicted",
    )

    def __init__(self) -> None:
        self.fates: Counter[Fate] = Counter()
        self.errors_by_step: Counter[str] = Counter()
        self.last_error: str | None = None
        self.late = 0
        self.windows_created = 0
        self.windows_cleared = 0
        self.windows_evicted = 0

    def failed(self, failure: Failure) -> int:
        """Count what a step raised; how often it has."""
        self.errors_by_step[failure.step] += 1
        self.last_error = failure.text
        return self.errors_by_step[failure.step]


def report(stream: str, failure: Failure, times: int) -> None:
    """Log a failure: the first of a step, the tenth, the hundredth …, so that no log is flooded."""
    if _is_power_of_ten(times):
        log.warning("stream %r: %s (%d so far)", stream, failure.text, times, exc_info=failure.error)


def report_late(stream: str, late: LateEvent, times: int) -> None:
    """Log a late event, as seldom."""
    if _is_power_of_ten(times):
        log.warning(
            "stream %r: event %r came %g s too late for its window, which was cleared (%d so far)",
            stream,
            late.event.id,
            late.lateness,
            times,
        )


def _is_power_of_ten(number: int) -> bool:
    return str(number).strip("0") == "1"
