"""Starts a query that processes what is there and ends, in as many batches as that takes."""

from __future__ import annotations

import contextlib
import threading

from pyspark.errors import PySparkException
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamWriter

from queenstream.engines.spark.compile import clock_groups
from queenstream.engines.spark.versions import ADMISSION_CONTROL
from queenstream.engines.spark.watermarks.idle import has_idle
from queenstream.pipeline.endpoints import Cassandra, Postgres, Queue, Stream
from queenstream.pipeline.plan.planner import Plan


def start_available_now(writer: DataStreamWriter, plan: Plan) -> StreamingQuery:
    """Start the query of a plan that comes to an end.

    Spark 4.1 runs available-now as a single batch if a Python source takes part. So the query is an ordinary
    one there, and is stopped when it has nothing left to do: queues and streams are read up to what was
    there when it started (``endingOffsets``), and so are tables (``final``).
    """
    python = any(isinstance(read.source, Cassandra | Postgres | Queue | Stream) for read in plan.sources)
    if ADMISSION_CONTROL.is_available() or not (python or has_idle(clock_groups(plan))):
        return writer.trigger(availableNow=True).start()
    query = writer.trigger(processingTime="0 seconds").start()
    threading.Thread(target=_stop_when_done, args=(query,), name="spark-available-now", daemon=True).start()
    return query


def _stop_when_done(query: StreamingQuery) -> None:
    # What the query fails with is for whoever waits for it.
    with contextlib.suppress(PySparkException):
        query.processAllAvailable()
        query.stop()
