"""A run of a pipeline on Spark: one streaming query, in this process' session or a new one.

run = Pipeline("totals").source(…) … .start(checkpoint="state/")
run.get_stats()["messages_per_second"]
run.stop()
run.wait()
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from queenstream.batches import Batch
from queenstream.connectors import Context, Reader, reader_for, writer_for
from queenstream.connectors.events import Events
from queenstream.connectors.reporting import reporter_for
from queenstream.connectors.rules import with_rules
from queenstream.errors import ConfigError, RunFailed
from queenstream.pipeline.metrics import prometheus_text, serve_prometheus
from queenstream.pipeline.nodes import Read
from queenstream.pipeline.planning import Plan
from queenstream.pipeline.running import RunOptions
from queenstream.schemas.types import Struct
from queenstream.spark import session
from queenstream.spark.asking import KeyState
from queenstream.spark.checkpoints import batches
from queenstream.spark.compile import Compiler, check
from queenstream.spark.failures import cause_of
from queenstream.spark.homes import home_for
from queenstream.spark.kinds import arrow_type
from queenstream.spark.lateness import LateRecords
from queenstream.spark.loading import Sources, decoder
from queenstream.spark.metrics import STEPS, RunMeter
from queenstream.spark.native import native
from queenstream.spark.restarts import Restarts
from queenstream.spark.sinks import Deliverer, Told, sinks_of, told_by
from queenstream.spark.sources import Feed, feed, is_fed

__all__ = ["SparkRun", "start"]

log = logging.getLogger("queenstream.spark")

_FILES_AHEAD = 16  # how many batches may be fed that the query has not taken
_GENTLE_SECONDS = 30.0  # how long a stop waits for the batch under way
_MOST_SHOWN = 20  # checkpoints
_IDLE = (
    "50ms"  # how often a query that has nothing to do looks for more; Spark's 10 ms keep the database busy
)
_FILE_MANAGER = "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"

Fed = Mapping[str, Sequence[Batch]]
"""Batches by the steps that read them, instead of their sources: for tests."""


def start(plan: Plan, options: RunOptions) -> SparkRun:
    """Start a plan in the background. What Spark cannot do is said here, before anything runs."""
    check(plan)
    if options.from_checkpoint is not None and options.checkpoint is None:
        raise ConfigError("from_checkpoint needs to know where it is; add checkpoint='folder'")
    for read in plan.sources:
        if is_fed(read.source):
            reader_for(read.source, Context(plan.name, read.name, options.url, token=options.token))
    for name, sink in sinks_of(plan).items():
        writer_for(sink, Context(plan.name, name, options.url, token=options.token))
    run = SparkRun(with_rules(plan, options), options)
    run.start()
    return run


class SparkRun:
    """A run. Its methods may be called from any thread."""

    def __init__(
        self, plan: Plan, options: RunOptions, batches: Fed | None = None, *, end: bool = True
    ) -> None:
        self.plan = plan
        self._options = options
        self._given = batches
        self._end = end
        self._once = options.until == "caught_up" or plan.bounded or batches is not None
        self._events = Events(plan.name)
        self._meter = RunMeter(plan)
        self._feeds: dict[str, Feed] = {}
        self._readers: dict[str, Reader] = {}  # those that feed now
        self._stopping = threading.Event()
        self._feeding: list[threading.Thread] = []
        self._error: BaseException | None = None
        self._finished = threading.Lock()
        self._over = False
        self._live = False
        self._restarts = Restarts()
        self._rows: DataFrame
        self._query: StreamingQuery | None = None
        where = options.checkpoint
        self._asked = None if where is None else KeyState(where, plan.name)
        self._reporter = reporter_for(plan, "spark", options, self.get_stats, self._failure, self.look)

    def start(self) -> None:
        """Begin; ``start(plan, options)`` does."""
        try:
            spark = session(self.plan.name, self._options.master)
            self._sources = Sources(spark, self.plan, self._options)
            self._native = native(self.plan, self._sources.typed)
            self._home = self._sources.home = home_for(
                spark,
                self.plan,
                self._options.checkpoint,
                self._options.from_checkpoint,
                native=self._native is not None,
                clock=None if self._native is None else self._native.clock,
            )
        except BaseException:
            self._events.close()
            raise
        self._deliverer = Deliverer(
            self.plan,
            self._options,
            self._home.generation,
            self._home.outbox,
            self._events,
            self._meter.work,
        )
        try:
            self._deliverer.open()
            self._open_feeds()
            self._rows = self._compiled(spark)
            self._query = self._begin(spark, self._rows)
        except BaseException:
            self._close()
            raise
        if self._reporter is not None:
            self._reporter.start()
        if not self._once:
            self._feed_live()

    def wait(self, timeout: float | None = None) -> bool:
        """Until it has ended; False if it had not after ``timeout`` seconds. Raises what made it fail."""
        try:
            ended = self._await(timeout)
        except KeyboardInterrupt:
            self.stop()
            self._await(None)
            raise
        if not ended:
            return False
        self._finish()
        if self._error is not None:
            raise self._error
        return True

    def stop(self) -> None:
        """Let the batch under way come to its end, and end."""
        self._stopping.set()
        query = self._running()
        end = time.monotonic() + _GENTLE_SECONDS
        while query.isActive and query.status["isTriggerActive"] and time.monotonic() < end:
            time.sleep(0.05)
        query.stop()
        if self._reporter is not None:
            self._reporter.end(self._error)

    def get_stats(self) -> dict[str, float]:
        """Its figures; those of a step are ``steps.<name>.taken`` and so on (``queenstream.figures``)."""
        query = self._running()
        self._meter.progress(query.lastProgress)
        behind = sum(into.behind(self._meter.files_taken(into.folder)) for into in self._feeds.values())
        unread = sum(reader.lag() or 0.0 for reader in list(self._readers.values()))
        return self._meter.stats(live=self._is_live(query), fed_behind=behind + unread)

    def look(self, key: str | None = None) -> dict[str, Any]:
        """What can be seen inside: batches, samples of the sinks' rows, checkpoints, what a key's state is.

        The latter is read from the checkpoint in the background: it comes with a later look.
        """
        samples, where = self._deliverer.samples, self._options.checkpoint
        samples.ask()
        stored = [] if where is None else batches(where, self.plan.name)[:_MOST_SHOWN]
        state: dict[str, Any] = {}
        if key is not None and self._asked is not None:
            state = self._asked.look(self._rows.sparkSession, key)
        return {
            "batches": self._meter.shown_batches(),
            "samples": samples.rows(),
            "checkpoints": [{"id": str(each.id), "committedAt": each.at, "clean": None} for each in stored],
            **state,
        }

    def metrics(self) -> bytes:
        """The same as text for Prometheus."""
        return prometheus_text(self.plan.name, self.get_stats)

    def serve_metrics(self, port: int = 0, host: str = "127.0.0.1") -> int:
        """Serve them over HTTP while the process lives; gives the port, which is a free one for 0."""
        return serve_prometheus(self.plan.name, self.get_stats, port, host)

    def explain(self) -> str:
        """The physical plan of the last batch, as Spark writes it."""
        return str(self._running()._jsq.explainInternal(False))

    def _running(self) -> StreamingQuery:
        if self._query is None:
            raise RuntimeError(f"{self.plan.name} has not begun; call start()")
        return self._query

    def _failure(self) -> BaseException | None:
        return self._error or self._running().exception()

    def _is_live(self, query: StreamingQuery) -> bool:
        """Whether it has caught up once: it waits for more, or had an end and has come there."""
        if not self._live:
            if query.isActive:
                now = query.status
                self._live = not now["isDataAvailable"] and now["message"].startswith("Waiting")
            else:
                self._live = self._failure() is None
        return self._live

    # How it is put together

    def _compiled(self, spark: SparkSession) -> DataFrame:
        if self._feeds and self._native is not None:  # now that there is something to feed from
            self._native = native(self.plan, self._sources.typed)
        if self._native is None:
            decoders = {read.name: decoder(number, read) for number, read in enumerate(self.plan.sources)}
            rows = {read.name: self._sources.plain(read) for read in self.plan.sources}
            return Compiler(self.plan, decoders, self._options).compile(rows)
        self._meter.told = self._native.observed
        clock = self._native.clock
        if clock is not None:
            where = (spark, self._feeds, self._options)
            self._meter.late_in = LateRecords(self.plan, *where, clock)
        return self._native.rows

    def _open_feeds(self) -> None:
        """For what the tasks do not read; a run that comes to an end is fed before it begins."""
        for read in self.plan.sources:
            if self._given is None and not is_fed(read.source):
                continue
            into = self._feeds[read.name] = Feed(self._home.feed(read.name), self._record_type(read))
            if self._given is not None:
                self._feed_given(read, into)
            elif self._once:
                self._feed(read, into, into.written)

    def _feed_given(self, read: Read, into: Feed) -> None:
        assert self._given is not None
        for batch in self._given[read.name][into.written :]:
            into.write(batch)
        if self._end and not into.ended:
            into.write(Batch([]), end=True)

    def _feed(self, read: Read, into: Feed, before: int) -> None:
        told = self._options
        context = Context(self.plan.name, read.name, told.url, token=told.token)
        reader = reader_for(read.source, context)
        ahead = None if self._once else _FILES_AHEAD
        self._readers[read.name] = reader
        try:
            self._events.run(
                feed(
                    reader,
                    into,
                    until_quiet=self._once,
                    stopping=self._stopping.is_set,
                    may_read=lambda: ahead is None or into.written - before - self._meter.batches < ahead,
                )
            )
        finally:
            del self._readers[read.name]

    def _feed_live(self) -> None:
        """Feed beside the query, each source in a thread of its own."""

        def work(read: Read, into: Feed, before: int) -> None:
            try:
                self._feed(read, into, before)
            except BaseException as error:  # noqa: BLE001 - wait() raises it
                self._error = error
                self._running().stop()

        for read in self.plan.sources:
            if read.name in self._feeds:
                into = self._feeds[read.name]
                thread = threading.Thread(target=work, args=(read, into, into.written), daemon=True)
                self._feeding.append(thread)
                thread.start()

    def _record_type(self, read: Read) -> pa.DataType | None:
        schema = read.source.columns
        return arrow_type(Struct(schema.fields)) if self._native is not None and schema is not None else None

    def _begin(self, spark: SparkSession, rows: DataFrame) -> StreamingQuery:
        writer = (
            rows.writeStream.foreachBatch(self._batch)
            .outputMode("append" if self._native is None else self._native.output_mode)
            .queryName(self._home.query_name(self.plan.name))
        )
        writer = writer.option("checkpointLocation", self._home.spark)
        if self._once:
            writer = writer.trigger(availableNow=True)
        else:
            interval = self._options.interval
            seconds = 0.0 if interval is None else interval.total_seconds()
            writer = writer.trigger(processingTime=f"{seconds:.3f} seconds")
        with Settings(spark, self._wanted()):
            return writer.start()

    def _wanted(self) -> dict[str, str]:
        """What the query needs of the session's settings."""
        # With one step that has state, a record is late by what the batch before it has shown: as it is here.
        wanted = (
            {
                "spark.sql.streaming.statefulOperator.allowMultiple": "false",
                "spark.sql.exchange.reuse": "false",  # no two are alike, and looking for some takes time
            }
            if self._native is not None
            else {
                # Spark's check does not know that the stages look after late records themselves.
                "spark.sql.streaming.unsupportedOperationCheck": "false"
            }
        )
        if self._home.folder is not None:
            # On a local folder the usual one forks a process for each file. This one survives a kill at any
            # point as well (tests/faults/test_spark_kills.py). Neither flushes to the disk: after a power cut
            # the last batches of a local folder may be gone or torn.
            wanted["spark.sql.streaming.checkpointFileManagerClass"] = _FILE_MANAGER
        wanted["spark.sql.streaming.pollingDelay"] = _IDLE
        return wanted

    def _batch(self, rows: DataFrame, batch_id: int) -> None:
        """A batch is computed here, and written."""
        try:
            if self._query is not None:  # it may begin before we know it
                self._meter.progress(self._query.lastProgress)
            with self._meter.work.at(STEPS):
                told = self._told(rows, batch_id)
            self._deliverer.deliver(batch_id, told.outbox)
            self._meter.count(batch_id, told.counts, self._deliverer.counts)
        except BaseException as error:
            self._error = error
            raise

    def _told(self, rows: DataFrame, batch_id: int) -> Told:
        if self._native is not None:
            before = self._meter.state_rows_after(batch_id - 1)
            return self._native.told(rows, batch_id, self._home.generation, before)
        return told_by(self.plan, rows.toArrow())

    def _await(self, timeout: float | None) -> bool:
        try:
            if timeout is None:
                self._running().awaitTermination()
                return True
            seconds = max(timeout, 0.001)  # Spark takes no 0
            return bool(self._running().awaitTermination(seconds))  # type: ignore[arg-type]
        except StreamingQueryException as error:
            told = cause_of(str(error))
            if self._may_go_on(error):
                log.warning("%s goes on from its last batch: %s", self.plan.name, told)
                self._stopping.wait(self._restarts.pause_seconds)
                self._error = None
                self._query = self._begin(self._rows.sparkSession, self._rows)
                return self._await(timeout)
            if self._error is None:
                self._error = RunFailed(f"{self.plan.name} failed: {told}; the session's log has the rest")
                self._error.__cause__ = error
            return True

    def _may_go_on(self, error: StreamingQueryException) -> bool:
        if self._stopping.is_set() or isinstance(self._error, RunFailed):
            return False
        return self._restarts.allows(f"{error} {self._error}", self._meter.batches)

    def _finish(self) -> None:
        with self._finished:
            if self._over:
                return
            self._over = True
            self._stopping.set()
            for thread in self._feeding:
                thread.join()
            self._meter.progress(self._running().lastProgress)  # while what it tells of is still there
            if self._reporter is not None:
                self._reporter.end(self._error)
            if self._asked is not None:
                self._asked.close(self._rows.sparkSession)
            self._close()

    def _close(self) -> None:
        self._deliverer.close()
        self._events.close()
        self._home.leave()


class Settings:
    """Settings of the session that a query takes with it when it starts, and that nobody else is to have."""

    _one_at_a_time = threading.RLock()

    def __init__(self, spark: SparkSession, wanted: Mapping[str, str]) -> None:
        self._spark = spark
        self._wanted = wanted
        self._before: dict[str, str | None] = {}

    def __enter__(self) -> None:
        self._one_at_a_time.acquire()
        for name, value in self._wanted.items():
            self._before[name] = self._spark.conf.get(name, None)
            self._spark.conf.set(name, value)

    def __exit__(self, *_: object) -> None:
        for name, value in self._before.items():
            if value is None:
                self._spark.conf.unset(name)
            else:
                self._spark.conf.set(name, value)
        self._one_at_a_time.release()
