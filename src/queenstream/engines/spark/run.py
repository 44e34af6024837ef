"""A run of a pipeline on Spark: one streaming query, in this process' session or a new one.

run = Pipeline("totals").source(…) … .start(checkpoint="state/")
run.get_stats()["messages_per_second"]
run.stop()
run.wait()
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from queenstream.connectors import Context, Reader, reader_for, writer_for
from queenstream.connectors.event_loop import Events
from queenstream.connectors.reporter import reporter_for, without_secrets
from queenstream.connectors.rules import with_rules
from queenstream.core.batches import Batch
from queenstream.core.schemas.types import Struct
from queenstream.engines.spark.available_now import start_available_now
from queenstream.engines.spark.checkpoints.directory import home_for
from queenstream.engines.spark.checkpoints.inspection import batches
from queenstream.engines.spark.checkpoints.key_state import KeyState
from queenstream.engines.spark.checkpoints.partitions import check_partitions, check_rescaled
from queenstream.engines.spark.compile import Compiler, check, clock_groups
from queenstream.engines.spark.maintenance.changes import refuse
from queenstream.engines.spark.maintenance.check import layouts_of
from queenstream.engines.spark.maintenance.state_columns import change_of_columns, note_state_columns
from queenstream.engines.spark.native.planner import Native, native, native_or_reason
from queenstream.engines.spark.progress.late_records import LateRecords
from queenstream.engines.spark.progress.listener import ProgressListener
from queenstream.engines.spark.progress.metrics import RunMeter
from queenstream.engines.spark.restarts import Restarts
from queenstream.engines.spark.session.active import activated
from queenstream.engines.spark.session.factory import query_session
from queenstream.engines.spark.sinks.delivery import Delivery, Query
from queenstream.engines.spark.sinks.files import refuse_remote
from queenstream.engines.spark.sinks.names import sinks_of
from queenstream.engines.spark.sinks.owner import check_ownership, take_ownership
from queenstream.engines.spark.sinks.storage import folder_at
from queenstream.engines.spark.sources.files import FileSource
from queenstream.engines.spark.sources.load import Sources
from queenstream.engines.spark.sources.sources import BATCH_RECORDS, Feed, feed, is_fed, marks_end
from queenstream.engines.spark.supervisor import Supervisor
from queenstream.engines.spark.tasks.failures import FailureLog, cause_of, messages_of
from queenstream.engines.spark.types import arrow_type
from queenstream.engines.spark.watermarks.idle import IdleSources, check_sources, has_idle
from queenstream.engines.spark.watermarks.log import plan_due_batch
from queenstream.errors import CheckpointError, ConfigError, OwnershipLost, QueenstreamError, RunFailed
from queenstream.pipeline.endpoints import Files
from queenstream.pipeline.engine_api import RunOptions
from queenstream.pipeline.plan.nodes import Read
from queenstream.pipeline.plan.planner import Plan
from queenstream.runtime.metrics import prometheus_text, serve_prometheus
from queenstream.runtime.missing_fields import MissingFields
from queenstream.runtime.progress import Phase, ProgressDisplay, shows_figures
from queenstream.runtime.summary import (
    Checkpoint,
    State,
    Summarized,
    Summary,
    make_summary,
    print_summary,
)

__all__ = ["SparkRun", "start"]

log = logging.getLogger("queenstream.spark")

_FILES_AHEAD = 16  # how many batches may be fed that the query has not taken
_CLOSE_SECONDS = 10.0  # how long a stop waits until everything is closed
_MOST_SHOWN = 20  # checkpoints
_BRIEF_SECONDS = 0.01
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
        if marks_end(read.source):
            reader_for(read.source, Context(plan.name, read.name, options.url, token=options.token))
    for name, sink in sinks_of(plan).items():
        if isinstance(sink, Files) and sink.remote:  # Spark writes there, if that turns out to be possible
            continue
        writer_for(sink, Context(plan.name, name, options.url, token=options.token))
    run = SparkRun(with_rules(plan, options), options)
    run.start()
    return run


class SparkRun(Summarized):
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
        self._failure_log = FailureLog(plan.name)
        self._meter = RunMeter(plan, self._failure_log)
        self._listener = ProgressListener(self._meter.progress)
        self._feeds: dict[str, Feed] = {}
        self._readers: dict[str, Reader] = {}  # those that feed now
        self._feeding: list[threading.Thread] = []
        self._failed_batch: BaseException | None = None  # what the last batch has raised
        self._live = False
        self._idle: IdleSources | None = None  # of a plan that has sources which may be idle
        self._in_batch = False
        self._restarts = Restarts()
        self._rows: DataFrame
        self._query: Query
        self._supervisor: Supervisor[StreamingQuery] = Supervisor(
            plan.name, self._begin, self._after_failure, self._finish
        )
        self._began = time.monotonic()
        self._ended: float | None = None
        self._told_to_stop = False
        self._missing = MissingFields(plan)
        self._display: ProgressDisplay | None = None
        if options.summary and options.progress is None:
            figures = shows_figures(plan, comes_to_an_end=self._once)
            self._display = ProgressDisplay(plan.name, self.get_stats, shows_figures=figures)
        self._progress = options.progress or self._display
        self._phase: Phase | None = None
        where = options.checkpoint
        self._asked = None if where is None else KeyState(where, plan.name)
        self._reporter = reporter_for(plan, "spark", options, self.get_stats, self._failure, self.look)

    def start(self) -> None:
        """Begin; ``start(plan, options)`` does."""
        if self._display is not None:
            self._display.start()
        try:
            self._start()
        except BaseException:
            if self._display is not None:
                self._display.end()
            raise

    def _start(self) -> None:
        try:
            self._enter("session")
            spark = query_session(self.plan.name, self._options.master, self._options.partitions)
        except BaseException:
            self._events.close()
            raise
        with activated(spark):
            self._start_in(spark)

    def _start_in(self, spark: SparkSession) -> None:
        try:
            self._enter("plan")
            self._sources = Sources(spark, self.plan, self._options)
            found = native_or_reason(self.plan, self._sources.rows)
            self._native = found if isinstance(found, Native) else None
            refuse_remote(self.plan, {} if self._native is None else self._native.columns)
            self._home = self._sources.home = home_for(
                spark,
                self.plan,
                self._options.checkpoint,
                self._options.from_checkpoint,
                layouts=layouts_of(self.plan, found),
                clock=None if self._native is None else self._native.clock,
            )
        except BaseException:
            self._events.close()
            raise
        self._storage = folder_at(spark, self._home.root)
        try:
            if self._native is not None and not self._home.native:  # the checkpoint is of a plan in Python
                self._native = None
                refuse_remote(self.plan, {})
            self._owner = take_ownership(self._storage)
        except BaseException:
            self._events.close()
            self._home.leave()
            raise
        self._deliverer = Delivery(
            self.plan,
            self._options,
            self._home,
            self._owner,
            self._storage,
            self._events,
            self._meter.work,
            self._meter.phases,
            lambda: self._supervisor.stopping,
        )
        try:
            self._deliverer.open(spark)
            groups = clock_groups(self.plan)
            check_sources(self._storage, groups)
            self._home.accept()
            if has_idle(groups):
                self._idle = IdleSources(groups, self._storage)
            self._open_feeds()
            self._rows = self._compiled(spark)
            check_rescaled(self._storage)
            self._check_state()
            if self._options.partitions is not None and self._query.has_state:
                check_partitions(self._storage, self._options.partitions)
            for name, value in self._wanted().items():
                spark.conf.set(name, value)
            self._enter("first batch")
            self._listener.start(spark)
            self._supervisor.start()
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
            ended = self._supervisor.wait(timeout)
        except KeyboardInterrupt:
            self.stop()
            self._supervisor.wait(_CLOSE_SECONDS)
            raise
        if ended and self._supervisor.error is not None:
            raise self._supervisor.error
        return ended

    def stop(self) -> None:
        """Let the batch under way come to its end, and end."""
        self._told_to_stop = True
        self._supervisor.stop()
        self._supervisor.wait(_CLOSE_SECONDS)

    def get_stats(self) -> dict[str, float]:
        """Its figures; those of a step are ``steps.<name>.taken`` and so on (``core.metric_names``)."""
        query = self._supervisor.query
        self._listener.read(query)
        behind = sum(into.behind(self._meter.files_taken(into.folder)) for into in self._feeds.values())
        unread = sum(reader.lag() or 0.0 for reader in list(self._readers.values()))
        return {
            **self._meter.stats(live=self._is_live(query), fed_behind=behind + unread),
            "restarts": float(self._restarts.total),
            "recovering": float(self._supervisor.recovering),
        }

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

    def summary(self) -> Summary:
        """What it has done so far, or did in all: also its ``repr``, and its HTML in a notebook."""
        counts = self._meter.counts
        driver = self._deliverer.written if self._supervisor.begun else {}
        for name in {*driver, *(write.name for write in self.plan.sinks)}:
            own = counts.setdefault(name, {})
            own["written"] = own.get("written", 0) + driver.get(name, 0)
            own["bytes"] = self._meter.phases.size(name)
        return make_summary(
            self.plan,
            counts,
            state=self._state(),
            seconds=(time.monotonic() if self._ended is None else self._ended) - self._began,
            checkpoint=self._checkpoint(),
            error=self._failure(),
            phases=self._meter.phases.seconds,
        )

    def _state(self) -> State:
        if self._ended is None:
            return "running"
        if self._failure() is not None:
            return "failed"
        return "stopped" if self._told_to_stop else "ended"

    def _checkpoint(self) -> Checkpoint | None:
        where = self._options.checkpoint
        if where is None:
            return None
        last: int | None = self._meter.last_batch
        if self._supervisor.begun and self._home.folder is not None:
            with contextlib.suppress(CheckpointError, OSError, ValueError):  # it is only shown
                last = next((each.id for each in batches(where, self.plan.name)), None)
        return Checkpoint(None if last is None else str(last), without_secrets(where))

    def metrics(self) -> bytes:
        """The figures as text for Prometheus."""
        return prometheus_text(self.plan.name, self.get_stats)

    def serve_metrics(self, port: int = 0, host: str = "127.0.0.1", path: str = "/metrics") -> int:
        """Serve them over HTTP while the process lives; gives the port, which is a free one for 0."""
        return serve_prometheus(self.plan.name, self.get_stats, port, host, path)

    @property
    def query(self) -> StreamingQuery:
        """Spark's query. It runs in a session of its own, so ``spark.streams`` does not have it."""
        return self._supervisor.query

    def explain(self) -> str:
        """The physical plan of the last batch, as Spark writes it."""
        return str(self._supervisor.query._jsq.explainInternal(False))

    def _enter(self, phase: Phase) -> None:
        if self._progress is not None and phase != self._phase:
            self._phase = phase
            self._progress(phase)

    def _failure(self) -> BaseException | None:
        return self._supervisor.error

    def _is_live(self, query: StreamingQuery) -> bool:
        """Whether it has caught up once: it waits for more, or had an end and has come there."""
        if not self._live:
            if query.isActive:
                now = query.status
                self._live = not now["isDataAvailable"] and now["message"].startswith("Waiting")
            else:
                self._live = self._failure() is None and not self._supervisor.recovering
        return self._live

    # How it is put together

    def _check_state(self) -> None:
        """Refuse a plan for whose state Spark would keep other columns than the checkpoint has."""
        if self._native is None or not self._native.has_state or self._home.temporary:
            return
        change = change_of_columns(self._storage, self._native)
        if change is not None:
            refuse([change], self._home.root, self.plan)
        note_state_columns(self._storage, self._native)

    def _compiled(self, spark: SparkSession) -> DataFrame:
        files = self._sources.files
        watermarks = None if self._idle is None else self._idle.rows(spark)
        begins = self._feeds or files or watermarks is not None or self._home.positions
        if self._native is not None and begins:  # now that there is something to read, or a place to begin
            self._native = native(self.plan, self._sources.rows, watermarks)
        if self._native is None:
            decoders = {
                read.name: self._sources.decoder(number, read)
                for number, read in enumerate(self.plan.sources)
            }
            rows = {read.name: self._sources.plain(read) for read in self.plan.sources}
            compiler = Compiler(self.plan, decoders, self._options)
            self._meter.begin(compiler.counted)
            self._query = compiler
            return compiler.compile(rows, watermarks)
        self._query = self._native
        self._meter.told = self._native.observed
        self._meter.begin({write.name: ["taken"] for write in self.plan.sinks})
        clock = self._native.clock
        if clock is not None:
            where = (spark, self._feeds, self._options)
            self._meter.late_in = LateRecords(self.plan, *where, clock, self._native.order, files)
        return self._native.rows

    def _open_feeds(self) -> None:
        """For what the tasks do not read; a run that comes to an end is fed before it begins."""
        if self._given is None:
            self._sources.open_files(self._home)
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
                    most=min(BATCH_RECORDS, told.max_batch_rows or BATCH_RECORDS),
                    until_quiet=self._once,
                    stopping=lambda: self._supervisor.stopping,
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
                self._supervisor.fail(error)

        for source in self._sources.files.values():
            if source.manifest.grows:
                thread = threading.Thread(target=self._look_for_files, args=(source,), daemon=True)
                self._feeding.append(thread)
                thread.start()
        if self._idle is not None:
            thread = threading.Thread(target=self._look_for_idle, args=(self._idle,), daemon=True)
            self._feeding.append(thread)
            thread.start()
        for read in self.plan.sources:
            if read.name in self._feeds:
                into = self._feeds[read.name]
                thread = threading.Thread(target=work, args=(read, into, into.written), daemon=True)
                self._feeding.append(thread)
                thread.start()

    def _look_for_files(self, source: FileSource) -> None:
        """Let the query know of files that come while it runs."""
        try:
            while not self._supervisor.stopping:
                source.look()
                self._supervisor.wait(source.look_seconds)
        except BaseException as error:  # noqa: BLE001 - wait() raises it
            self._supervisor.fail(error)

    def _look_for_idle(self, idle: IdleSources) -> None:
        """Find sources that are idle while there is nothing to read; a batch looks for itself."""
        try:
            while not self._supervisor.wait(idle.look_seconds) and not self._supervisor.stopping:
                query = self._supervisor.query
                if not self._in_batch and query.isActive and not query.status["isDataAvailable"]:
                    idle.look()
        except BaseException as error:  # noqa: BLE001 - wait() raises it
            self._supervisor.fail(error)

    def _record_type(self, read: Read) -> pa.DataType | None:
        schema = read.source.columns
        return arrow_type(Struct(schema.fields)) if self._native is not None and schema is not None else None

    def _begin(self) -> StreamingQuery:
        self._failed_batch = None
        for source in self._sources.files.values():
            source.manifest.begin()
        if self._query.has_state:
            plan_due_batch(self._storage)
        if self._idle is not None:
            self._idle.begin()
        writer = (
            self._rows.writeStream.foreachBatch(self._batch)
            .outputMode("append" if self._native is None else self._native.output_mode)
            .queryName(self._home.query_name(self.plan.name))
        )
        writer = writer.option("checkpointLocation", self._home.spark)
        if self._once:
            return start_available_now(writer, self.plan)
        interval = self._options.interval
        seconds = 0.0 if interval is None else interval.total_seconds()
        return writer.trigger(processingTime=f"{seconds:.3f} seconds").start()

    def _wanted(self) -> dict[str, str]:
        """What the query needs of the settings of its session."""
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
        begun = time.monotonic()
        self._in_batch = True
        try:
            if self._supervisor.begun:  # it may begin before we know it
                self._listener.read(self._supervisor.query)
            told = self._deliverer.deliver(self._query, rows, batch_id)
            if self._idle is not None:
                self._idle.after_batch(batch_id, self._running_query(), begun)
            self._meter.count(batch_id, told.counts, self._deliverer.counts)
            for missing in self._missing.take_new(told.counts):
                log.warning("%s: %s", self.plan.name, missing)
            for step, (number, first) in told.examples.items():
                self._failure_log(step, number, first)
            self._enter("running")
        except BaseException as error:
            self._failed_batch = error
            raise
        finally:
            self._in_batch = False

    def _running_query(self) -> StreamingQuery:
        """The query that runs a batch now, which may have begun before its start returned."""
        while not (self._supervisor.begun and self._supervisor.query.isActive):
            if self._supervisor.stopping:
                raise RunFailed(f"{self.plan.name} was stopped before its first batch was done")
            time.sleep(_BRIEF_SECONDS)
        return self._supervisor.query

    def _after_failure(self, failure: Exception) -> float:
        """How long to wait before the query goes on; raises what ends the run."""
        with contextlib.suppress(Exception):  # the JVM may be gone; what has failed is known
            self._listener.finish(self._supervisor.query)
        batch = self._failed_batch
        if isinstance(batch, RunFailed | OwnershipLost):
            raise batch
        check_ownership(self._storage, self._owner)  # else what failed may be the new owner's work
        if self._native is not None:
            ended = self._native.failure([*messages_of(batch), *messages_of(failure)])
            if ended is not None:
                raise ended
        cause = cause_of(str(failure))
        if self._restarts.allows(f"{failure} {batch or ''}", self._meter.batches):
            log.warning("%s goes on from its last batch: %s", self.plan.name, cause)
            return self._restarts.pause_seconds
        if isinstance(batch, QueenstreamError) and self._restarts.exhausted is None:
            raise batch
        after = f" {self._restarts.exhausted}" if self._restarts.exhausted else ""
        raise RunFailed(
            f"{self.plan.name} failed{after}: {cause}; the session's log has the rest"
        ) from failure

    def _finish(self, error: BaseException | None) -> None:
        for thread in self._feeding:
            thread.join()
        self._enter("running")
        try:
            self._listener.finish(self._supervisor.query)  # while what it tells of is still there
        finally:
            self._ended = time.monotonic()
            if self._display is not None:
                self._display.end()
            if self._options.summary:
                print_summary(self.summary())
            if self._reporter is not None:
                self._reporter.end(error)
            if self._asked is not None:
                self._asked.close(self._rows.sparkSession)
            self._close()

    def _close(self) -> None:
        self._listener.stop()
        self._deliverer.close()
        if self._idle is not None:
            self._idle.close()
        self._events.close()
        self._home.leave()
