"""Receives the progress of a run's batches from Spark: each batch once, and in order.

A ``StreamingQueryListener`` receives it. Spark's listener bus is asynchronous, and drops events while its
queue is full. The query itself keeps the progress of its last batches (100, unless
``spark.sql.streaming.numRecentProgressUpdates`` says otherwise), so what the listener misses is read from
there: when a later batch arrives, and when the query has ended.
"""

from __future__ import annotations

import json
import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any

from pyspark import SparkContext
from pyspark.sql import SparkSession
from pyspark.sql.streaming.listener import (
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
    StreamingQueryListener,
    StreamingQueryProgress,
)
from pyspark.sql.streaming.query import StreamingQuery

log = logging.getLogger("queenstream.spark")

_END_SECONDS = 5.0  # how long to wait for events of what the query no longer keeps
_LOOK_SECONDS = 0.02
_KEPT = "spark.sql.streaming.numRecentProgressUpdates"

OnProgress = Callable[[StreamingQueryProgress], None]


class ProgressListener:
    """The listener of one run, whose query may be started several times. ``on_progress`` gets each batch.

    ``on_progress`` may take long, so it is not called in Spark's thread, which all listeners of the
    application share, but by whoever calls ``read`` or ``finish``: in one thread at a time.
    """

    def __init__(self, on_progress: OnProgress) -> None:
        self._on_progress = on_progress
        self._arrived: deque[str] = deque()
        self._terminated: deque[str] = deque(maxlen=10)  # the last runs of the query that have ended
        self._reading = threading.Lock()
        # Under the lock:
        self._last = -1  # the last batch that was given on
        self._spark: SparkSession | None = None
        self._listener: StreamingQueryListener | None = None

    def start(self, spark: SparkSession) -> None:
        """Listen to the queries of a session."""
        self._spark, self._listener = spark, _Listener(self._arrived.append, self._terminated.append)
        spark.streams.addListener(self._listener)

    def stop(self) -> None:
        """Listen no longer."""
        spark, listener = self._spark, self._listener
        self._spark = self._listener = None
        if spark is not None and listener is not None:
            try:
                spark.streams.removeListener(listener)
            except Exception as error:  # noqa: BLE001 - the session may be stopped, and the listener with it
                log.debug("the listener was not removed: %s", error)

    def read(self, query: StreamingQuery) -> None:
        """Give on what has arrived; what is missing before it is read from the query."""
        with self._reading:
            self._read(query)

    def finish(self, query: StreamingQuery) -> None:
        """The query has ended: give on the rest of its batches."""
        with self._reading:
            self._read(query)
            last = query.lastProgress
            if last is None or last.batchId <= self._last:
                return
            recent = [last] if last.batchId == self._last + 1 else query.recentProgress
            if recent[0].batchId > self._last + 1 and len(recent) >= self._kept():
                self._wait_for_end(query)
                self._read(query)
            for progress in recent:
                self._give(progress)

    def _kept(self) -> int:
        """The progress of how many batches a query keeps."""
        return 100 if self._spark is None else int(self._spark.conf.get(_KEPT) or 100)

    def _wait_for_end(self, query: StreamingQuery) -> None:
        """Wait for the event that comes after the progress of all batches."""
        end = time.monotonic() + _END_SECONDS
        while str(query.runId) not in self._terminated and time.monotonic() < end:
            time.sleep(_LOOK_SECONDS)

    def _read(self, query: StreamingQuery) -> None:
        while self._arrived:
            progress = StreamingQueryProgress.fromJson(json.loads(self._arrived.popleft()))
            if progress.batchId > self._last + 1:
                for missed in query.recentProgress:
                    if missed.batchId < progress.batchId:
                        self._give(missed)
            self._give(progress)

    def _give(self, progress: StreamingQueryProgress) -> None:
        if progress.batchId > self._last:
            self._last = progress.batchId
            try:
                self._on_progress(progress)
            except Exception:  # a figure is not worth a run
                log.exception("the progress of batch %d was not counted", progress.batchId)


class _Listener(StreamingQueryListener):
    """What PySpark adds to a session: a listener of Java's with ``_Callbacks`` behind it."""

    def __init__(self, on_progress: Callable[[str], None], on_terminated: Callable[[str], None]) -> None:
        self._callbacks = _Callbacks(on_progress, on_terminated)
        self._of_java: Any = None

    @property
    def _jlistener(self) -> Any:
        """Java's listener, made when it is added: Java can call Python then."""
        if self._of_java is None:
            java: Any = SparkContext._jvm
            wrapper = java.org.apache.spark.sql.streaming.PythonStreamingQueryListenerWrapper
            self._of_java = wrapper(self._callbacks)
        return self._of_java

    def onQueryStarted(self, event: QueryStartedEvent) -> None:  # noqa: N802 - Spark's names
        """Not called: ``_Callbacks`` is."""

    def onQueryProgress(self, event: QueryProgressEvent) -> None:  # noqa: N802
        """Not called: ``_Callbacks`` is."""

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:  # noqa: N802
        """Not called: ``_Callbacks`` is."""


class _Callbacks:
    """The methods that Java calls.

    PySpark's own would ask Java for each field of an event by itself; the JSON has all of them at once.
    """

    def __init__(self, on_progress: Callable[[str], None], on_terminated: Callable[[str], None]) -> None:
        self._on_progress = on_progress
        self._on_terminated = on_terminated

    def onQueryStarted(self, event: Any) -> None:  # noqa: N802 - Spark's names
        """A query has started, which we know."""

    def onQueryProgress(self, event: Any) -> None:  # noqa: N802
        """A batch is done. If this fails, the progress is read from the query."""
        try:
            self._on_progress(event.progress().json())
        except Exception as error:  # noqa: BLE001 - nothing that happens here is a matter of the query
            log.debug("the progress of a batch was not received: %s", error)

    def onQueryIdle(self, event: Any) -> None:  # noqa: N802
        """There was nothing to do, which changes no figure."""

    def onQueryTerminated(self, event: Any) -> None:  # noqa: N802
        """A query has ended; its progress came before this."""
        try:
            self._on_terminated(event.runId().toString())
        except Exception as error:  # noqa: BLE001 - as above
            log.debug("the end of a query was not received: %s", error)

    class Java:
        """The interface, for Py4J."""

        implements = ("org.apache.spark.sql.streaming.PythonStreamingQueryListener",)
