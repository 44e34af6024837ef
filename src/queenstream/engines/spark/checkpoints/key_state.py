"""Somebody asks a run what it remembers of a key: read from its checkpoint, beside the query.

Spark needs a job for that, so it is done in a thread of its own, not more often than it costs little, and
within a limit of time. Who asks gets what is known so far, and asks again.
"""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass
from typing import Any

from pyspark.sql import SparkSession

from queenstream.engines.spark.checkpoints import inspection
from queenstream.runtime.state_view import prefixes

MOST_ENTRIES = 20  # of a step
LIMIT_SECONDS = 20.0
_CLOSE_SECONDS = 5.0
_PAUSES = 10  # how many times as long as an answer took it holds: a tenth of the time at most is for this


@dataclass(frozen=True)
class Answer:
    """What is known of a key since ``at``, and for how long that will do; ``error``: why it is not known."""

    key: str
    at: float
    holds_seconds: float
    entries: list[dict[str, Any]] | None
    error: str | None = None


class KeyState:
    """What a pipeline's checkpoint has of the key that somebody asks for.

    >>> asked = KeyState("state/", "totals")  # doctest: +SKIP
    >>> asked.look(spark, "ann")  # doctest: +SKIP
    {}
    >>> asked.look(spark, "ann")  # a moment later  # doctest: +SKIP
    {'state': {'key': 'ann', 'entries': [{'step': 'sum', 'key': 'ann', …}]}}
    """

    def __init__(self, checkpoint: str, pipeline: str) -> None:
        self._checkpoint = checkpoint
        self._pipeline = pipeline
        self._group = f"queenstream: state of {pipeline}"
        self._answer: Answer | None = None
        self._reading: threading.Thread | None = None

    def look(self, spark: SparkSession, key: str) -> dict[str, Any]:
        """The state of that key, or why there is none; nothing, while it is being read."""
        answer = self._answer
        known = answer is not None and answer.key == key
        if answer is None or not known or time.monotonic() > answer.at + answer.holds_seconds:
            self._read(spark, key)
        if answer is None or not known:
            return {}
        if answer.entries is None:
            return {"error": answer.error}
        return {"state": {"key": key, "entries": answer.entries}}

    def wait(self, timeout: float) -> None:
        """Until what is being read has been read, or for so many seconds."""
        if self._reading is not None:
            self._reading.join(timeout)

    def close(self, spark: SparkSession) -> None:
        """Read no more: the run has ended, and its session may, too."""
        if self._reading is not None and self._reading.is_alive():
            spark.sparkContext.cancelJobGroup(self._group)
            self.wait(_CLOSE_SECONDS)

    def _read(self, spark: SparkSession, key: str) -> None:
        if self._reading is not None and self._reading.is_alive():
            return  # one at a time; who asks for another key asks again
        self._reading = threading.Thread(
            target=self._work, args=(spark, key), name=f"queenstream state {self._pipeline}", daemon=True
        )
        self._reading.start()

    def _work(self, spark: SparkSession, key: str) -> None:
        begun = time.monotonic()
        context = spark.sparkContext
        over = threading.Timer(LIMIT_SECONDS, context.cancelJobGroup, [self._group])
        over.daemon = True
        over.start()
        entries, error = None, None
        try:
            context.setJobGroup(self._group, "what is remembered of a key", interruptOnCancel=True)
            keys = [each.removesuffix("\n") for each in prefixes(key)]
            entries = inspection.shown_entries(
                spark, self._checkpoint, self._pipeline, keys=keys, limit=MOST_ENTRIES
            )
        except Exception as failure:  # noqa: BLE001 - who asked sees it
            told = str(failure).partition("\n")[0]
            error = (
                f"it could not be read within {LIMIT_SECONDS:.0f} s; ask `queen pipeline state get`"
                if time.monotonic() - begun >= LIMIT_SECONDS
                else f"it cannot be read now ({type(failure).__name__}: {told}); it is tried again"
            )
        finally:
            over.cancel()
        took = time.monotonic() - begun
        self._answer = Answer(key, time.monotonic(), _PAUSES * took, entries, error)
