"""The driver's part in a delivery: it lets tasks stage a batch, stores their receipts, lets tasks write it.

A batch that is computed again after a crash, and was prepared before it, is delivered as it was prepared: so
the sinks get the same rows, whatever the steps do.
"""

from __future__ import annotations

import contextlib
import dataclasses
import secrets
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Protocol
from urllib.parse import quote

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from queenstream.connectors import Context, Writer, writer_for
from queenstream.connectors.base import KeyedWriter, RowKey, SinkClaim, TimedWriter
from queenstream.connectors.dead_letters import make_queues
from queenstream.connectors.event_loop import Events
from queenstream.connectors.postgres.connection import url_of
from queenstream.connectors.provenance import TracedWriter
from queenstream.core.schemas import Schema
from queenstream.engines.spark.checkpoints.directory import Home
from queenstream.engines.spark.progress.metrics import STEPS
from queenstream.engines.spark.sinks.commit import (
    CommitPart,
    Committed,
    OpenWriters,
    Part,
    Target,
    commit,
    committed_of,
    parts_of,
    stage_records,
)
from queenstream.engines.spark.sinks.descriptions import batch_job, described, staging
from queenstream.engines.spark.sinks.files import FilesSink
from queenstream.engines.spark.sinks.frames import FrameOutput
from queenstream.engines.spark.sinks.guard import RemoteProvenance, sink_guard
from queenstream.engines.spark.sinks.names import addresses_of, letters_name, letters_of, sinks_of
from queenstream.engines.spark.sinks.owner import Owner, check_ownership
from queenstream.engines.spark.sinks.pieces import commit_pieces, read_pieces, with_files, write_pieces
from queenstream.engines.spark.sinks.prepared import PreparedBatch, PreparedBatches
from queenstream.engines.spark.sinks.queues import QueueTable, database_of
from queenstream.engines.spark.sinks.stage import (
    RECEIPT,
    Counts,
    Receipt,
    Stage,
    StageFunction,
    StageOptions,
    add_counts,
    receipts_of,
)
from queenstream.engines.spark.sinks.staged import chunks_of
from queenstream.engines.spark.sinks.storage import Folder, HadoopFolder, folder_at
from queenstream.engines.spark.sinks.tables.readback import readback_rows
from queenstream.engines.spark.sinks.tables.sink import PostgresTable
from queenstream.engines.spark.sinks.times import staging_seconds
from queenstream.engines.spark.sinks.two_phase import (
    ColumnStage,
    FrameStage,
    RecordStage,
    RowsRefused,
    StagedPart,
    StagingLost,
    TwoPhaseSink,
)
from queenstream.engines.spark.sinks.undelivered import check_undelivered
from queenstream.engines.spark.tasks.graph import stripped
from queenstream.errors import ConfigError, StepFailed, Unavailable
from queenstream.pipeline.endpoints import Cassandra, Files, Function, Postgres, Queue, Sink
from queenstream.pipeline.engine_api import RunOptions
from queenstream.pipeline.plan.planner import Plan
from queenstream.runtime.phases import PhaseMeter
from queenstream.runtime.samples import Samples
from queenstream.runtime.utilization import Work

_LAST_BATCH = 2**63 - 1  # that there can be

Outputs = Sequence[tuple[DataFrame, Stage | FrameOutput]]
"""The rows of a batch, with what stages them: a function for ``mapInArrow``, or a writer of Spark's."""


class Query(Protocol):
    """What computes the rows of a batch."""

    @property
    def has_state(self) -> bool:
        """Whether a batch changes what the query remembers, so that it must run to its end each time."""
        ...

    def outputs(
        self, rows: DataFrame, options: StageOptions, batch: SinkBatch
    ) -> AbstractContextManager[Outputs]:
        """The rows of a batch for its sinks."""
        ...


class SinkBatch(Protocol):
    """A batch on its way to the sinks."""

    @property
    def number(self) -> int:
        """Spark's number of it."""
        ...

    def column_stage(
        self, name: str, schema: Schema, columns: Callable[[], StructType]
    ) -> ColumnStage | None:
        """How tasks stage columns in the storage of a sink; None: they cannot."""
        ...

    def record_stage(self, name: str) -> RecordStage | None:
        """How tasks stage records in the storage of a sink; None: they cannot."""
        ...

    def frame_stage(self, name: str, schema: Schema) -> FrameStage | None:
        """How Spark itself stages rows in the storage of a sink; None: it cannot."""
        ...


@dataclasses.dataclass
class Delivered:
    """What happened at the steps in a batch.

    ``examples``: of each step that failed on records, on how many, and the first one and why.
    """

    counts: Counts = dataclasses.field(default_factory=dict)
    examples: dict[str, tuple[int, str]] = dataclasses.field(default_factory=dict)


class Delivery:
    """Delivers the batches of a run. ``owner`` is the run, which may lose the checkpoint to another one."""

    def __init__(
        self,
        plan: Plan,
        told: RunOptions,
        home: Home,
        owner: Owner,
        storage: Folder | HadoopFolder,
        events: Events,
        work: Work,
        phases: PhaseMeter,
        stopping: Callable[[], bool],
    ) -> None:
        self._plan = plan
        self._told = told
        self._generation = home.generation
        self._sinks_before = None if home.stored is None else home.stored.sinks
        self._owner = owner
        self._temporary = home.temporary
        self._storage = storage
        self._events = events
        self._work = work
        self._phases = phases
        self._stopping = stopping
        self._prepared = PreparedBatches(storage)
        self._guard = sink_guard(plan.name, told, home, owner)
        self._run = secrets.token_hex(8)
        self._targets = {name: self._target(name, sink) for name, sink in sinks_of(plan).items()}
        self._opened = OpenWriters()  # of what is called on the driver
        self._remote: dict[str, RemoteProvenance] = {}  # of folders that only Spark reaches
        self._keys: dict[str, RowKey] = {}  # of the sinks that several tasks may write in order
        self._two_phase: dict[str, TwoPhaseSink] = {}
        self._aside: dict[tuple[str, str], TwoPhaseSink | None] = {}
        self.samples = Samples()
        self.counts: Counts = {}
        self.written = dict.fromkeys(self._targets, 0)

    def open(self, spark: SparkSession) -> None:
        """Connect to all sinks once, and take over those that earlier runs of the checkpoint have written."""
        check_undelivered(self._prepared, self._sinks_before, addresses_of(self._plan))
        self._events.run(make_queues(self._plan, self._context("dead letters")))
        for name, target in self._targets.items():
            if isinstance(target.sink, Files) and target.sink.remote:  # Spark's writer connects there
                store = self._remote[name] = RemoteProvenance(folder_at(spark, str(target.sink.path)), name)
                self._events.run(self._guard.check(name, store))
            else:
                key = self._events.run(self._try(target))
                if key is not None:
                    self._keys[name] = key
        for name, target in self._targets.items():
            found = self._two_phase_sink(name, target.sink)
            if found is not None:
                self._two_phase[name] = found
        for sink in self._two_phase.values():
            sink.claim(self._owner, temporary=self._temporary)
        if not self._prepared.has_undelivered():
            self._clean(_LAST_BATCH)

    def deliver(self, query: Query, rows: DataFrame, batch: int) -> Delivered:
        """Deliver a batch: when it returns, its rows are in the sinks, or their steps' policies have them."""
        check_ownership(self._storage, self._owner)
        prepared = self._prepared.find(batch)
        if prepared is not None and query.has_state:  # what it remembers is to move on, too
            with self._described(rows, batch, "update the state"), self._phases.timed(batch, "compute"):
                rows.write.format("noop").mode("append").save()
        if prepared is None:
            prepared = self._stage(query, rows, batch)
        delivered = self._delivered(prepared.receipts)
        if not self._prepared.is_done(batch):
            done = self._prepared.delivered(batch)
            try:
                with self._phases.timed(batch, "commit"):
                    self._commit(rows, prepared, batch, done)
            except StagingLost:
                self._prepared.discard(batch, done)
                raise
        return delivered

    def close(self) -> None:
        """Let go of the sinks that were opened."""
        for sink in self._two_phase.values():
            sink.close()
        self._events.run(self._opened.close())

    # Stage

    def _stage(self, query: Query, rows: DataFrame, batch: int) -> PreparedBatch:
        self._prepared.begin(batch)
        self._clean(batch)
        options = self._stage_options(rows, batch, samples=self.samples.on)
        try:
            receipts = self._staged(query, rows, options, batch)
        except BaseException:
            with contextlib.suppress(Exception):  # what is left now is deleted before the next attempt
                self._clean(batch)
            raise
        prepared = PreparedBatch(receipts, self._stored(batch))
        if any(receipt.is_staged for receipt in receipts):
            # Else nothing will be in a sink that could differ the next time.
            with self._phases.timed(batch, "commit"):
                check_ownership(self._storage, self._owner)
                self._prepared.write(batch, prepared)
        return prepared

    def _stored(self, batch: int) -> list[str]:
        """The sinks whose rows go from files of the checkpoint into their own storage."""
        return [name for name, sink in self._two_phase.items() if sink.record_stage(batch) is not None]

    def _staged(self, query: Query, rows: DataFrame, options: StageOptions, batch: int) -> list[Receipt]:
        receipts: list[Receipt] = []
        with (
            self._work.at(STEPS),
            query.outputs(rows, options, _SinkBatch(batch, self._two_phase)) as outputs,
        ):
            for number, (output, stage) in enumerate(outputs):
                sink = stage.sink if isinstance(stage, FrameOutput | StageFunction) else None
                with self._described(rows, batch, self._staging_of(sink)), self._staging(batch) as received:
                    if isinstance(stage, FrameOutput):
                        received += stage.stage(output)
                    else:
                        received += self._run_stage(output, stage, f"{self._pieces(batch)}/{number}")
                receipts += received
        for receipt in receipts:
            if receipt.failed is not None:
                raise StepFailed(receipt.failed)
            for name, shown in receipt.samples.items():
                self.samples.keep(name, shown)
        return receipts

    def _staging_of(self, sink: str | None) -> str:
        """The description of the job that stages rows of one sink, or of all."""
        return staging(self._plan, [write.name for write in self._plan.sinks if sink in (None, write.name)])

    @contextlib.contextmanager
    def _staging(self, batch: int) -> Iterator[list[Receipt]]:
        """Count the time of a job whose tasks compute rows and stage them, by the receipts it gets."""
        begun, receipts = time.monotonic(), list[Receipt]()
        try:
            yield receipts
        finally:
            seconds = time.monotonic() - begun
            staged = staging_seconds(seconds, [each.times for each in receipts if each.times is not None])
            self._phases.add_time(batch, "compute", seconds - staged)
            self._phases.add_time(batch, "stage", staged)

    def _clean(self, batch: int) -> None:
        """Delete what attempts to stage this batch or earlier ones have left in the storage of sinks."""
        check_ownership(self._storage, self._owner)
        for sink in self._two_phase.values():
            sink.clean(batch)

    def _stage_options(self, rows: DataFrame, batch: int, *, samples: bool) -> StageOptions:
        return StageOptions(
            pipeline=self._plan.name,
            storage=Folder(self._storage.root),
            folder=self._prepared.folder(batch),
            letters=letters_of(self._plan),
            samples=samples,
            keys=self._keys,
            buckets=max(1, rows.sparkSession.sparkContext.defaultParallelism),  # as tasks can write at once
        )

    def _run_stage(self, output: DataFrame, stage: Stage, pieces: str) -> list[Receipt]:
        """Let tasks stage rows. ``pieces``: where Spark keeps them if tasks reach no common folder."""
        if isinstance(self._storage, Folder):
            return receipts_of(output.mapInArrow(stage, RECEIPT).collect())
        return receipts_of(write_pieces(output, stage, pieces))

    def _pieces(self, batch: int) -> str:
        """Where Spark keeps what tasks have staged, if they reach no common folder."""
        return f"{self._storage.root}/{self._prepared.folder(batch)}/pieces"

    def _delivered(self, receipts: Sequence[Receipt]) -> Delivered:
        found = Delivered()
        for receipt in receipts:
            add_counts(found.counts, receipt.counts)
        for step in dict.fromkeys(step for receipt in receipts for step in receipt.examples):
            first = next(each.examples[step] for each in receipts if step in each.examples)
            failed = sum(each.failures.get(step, 0) for each in receipts)
            found.examples[step] = (failed or found.counts[step]["failed"], first)
        taken = {
            write.name: {"taken": sum(_staged(receipt, write.name) for receipt in receipts)}
            for write in self._plan.sinks
        }
        add_counts(found.counts, taken)
        return found

    # Commit

    def _commit(self, rows: DataFrame, prepared: PreparedBatch, batch: int, done: set[str]) -> None:
        """Sink by sink, those of dead letters last: a step that writes may have some.

        ``done``: the sinks that have the batch, to which those are added that get it now.
        """
        for name, target in self._targets.items():
            receipts = prepared.receipts
            staged = [receipt.parts[name] for receipt in receipts if name in receipt.parts]
            if name in done or not any(_staged(receipt, name) for receipt in receipts):
                continue
            self._check_storage(prepared, target, batch)
            check_ownership(self._storage, self._owner)
            self._store_provenance(target)
            size = sum(each.staged_bytes(name) for each in receipts)
            with (
                self._work.at(name),
                self._described(rows, batch, f"write {name}"),
                self._measured(name, batch, size),
            ):
                if name in self._two_phase:
                    self._two_phase[name].begin(batch)
                if staged:
                    prepared = self._commit_staged(rows, name, staged, prepared, batch)
                self._commit_files(rows, target, prepared, batch, beside=bool(staged))
            done.add(name)
        if any(receipt.is_staged for receipt in prepared.receipts):
            self._prepared.finish(batch)

    def _check_storage(self, prepared: PreparedBatch, target: Target, batch: int) -> None:
        """Raise ``ConfigError`` if the batch was prepared for a storage that this run does not reach."""
        letters = [] if target.letters is None else [target.letters]
        for each in (target, *letters):
            staged = any(each.name in receipt.parts for receipt in prepared.receipts)
            if each.name not in self._two_phase and (staged or each.name in (prepared.stored or ())):
                raise ConfigError(
                    f"batch {batch} was prepared for the database of {each.sink.title}, and this run does "
                    "not reach it: set QUEEN_PG to its URL, as in the run before, until it is delivered"
                )

    def _commit_files(
        self, rows: DataFrame, target: Target, prepared: PreparedBatch, batch: int, *, beside: bool
    ) -> None:
        """Write the rows of a sink that are staged in files. ``beside``: others were in its own storage."""
        receipts, stored = prepared.receipts, prepared.stored
        name, epoch = target.name, f"{self._generation}-{batch:010}"
        files = [receipt.file for receipt in receipts if receipt.file is not None]
        in_order = target.step is not None and is_ordered(target.sink)  # dead letters need no order
        parts = list(parts_of(files, name, epoch, in_order=in_order))
        if not parts:
            return
        sink = letters = None
        if stored is None or name in stored:
            sink = self._storage_of_rest(target, alone=not beside)
        if stored is None or (target.letters is not None and target.letters.name in stored):
            letters = self._storage_of_refused(target)
        times = self._times(target, epoch, sum(_rows_of(each) for each in receipts))
        done = self._written(rows, target, parts, (sink, letters), times, batch)
        self._count(name, done)
        self._commit_again(name, sink, done.parts, batch)
        if target.letters is not None:
            self._commit_again(target.letters.name, letters, done.letters, batch)

    def _commit_staged(
        self,
        rows: DataFrame,
        name: str,
        staged: Sequence[StagedPart],
        prepared: PreparedBatch,
        batch: int,
    ) -> PreparedBatch:
        """Commit what is staged in a sink's own storage. Gives the batch with what is still to be written.

        If the sink refuses a row, the rows are brought into files, and the batch is prepared with those.
        """
        sink = self._two_phase[name]
        try:
            self.written[name] += sink.commit(staged, batch)
        except RowsRefused:
            assert isinstance(sink, PostgresTable), "no other sink refuses staged rows"
        else:
            return prepared
        readback, queries = sink.readback(self._stage_options(rows, batch, samples=False), staged)
        output = readback_rows(rows.sparkSession, queries)
        files = self._run_stage(output, readback, f"{self._pieces(batch)}/{quote(name, safe='')}")
        if sum(_staged(each, name) for each in files) != sum(each.rows for each in staged):
            raise StagingLost(
                f"{name}: staged rows are gone (did PostgreSQL crash?); the batch must run again"
            )
        for each in prepared.receipts:
            each.parts.pop(name, None)
        receipts = [*prepared.receipts, *files]
        prepared = PreparedBatch(receipts, prepared.stored)
        self._prepared.write(batch, prepared)
        sink.clean(batch)
        return prepared

    @contextlib.contextmanager
    def _measured(self, name: str, batch: int, size: int) -> Iterator[None]:
        """Count the rows that reach sinks meanwhile, and the time; ``size``: the bytes for this sink."""
        before, begun = dict(self.written), time.monotonic()
        yield
        self._phases.add_commit(batch, name, time.monotonic() - begun)
        for sink, rows in self.written.items():
            if sink == name or rows > before[sink]:
                self._phases.add_rows(batch, sink, rows - before[sink], size if sink == name else 0)

    def _written(
        self,
        rows: DataFrame,
        target: Target,
        parts: Sequence[Part],
        into: tuple[TwoPhaseSink | None, TwoPhaseSink | None],
        times: Mapping[str, int],
        batch: int,
    ) -> Committed:
        """Let tasks write staged rows.

        ``into``: the storage of the sink, and that of the dead letters of rows that it refuses. ``times``: by
        the key of a target, the time that its rows carry.
        """
        records, letters = (None if sink is None else sink.record_stage(batch) for sink in into)
        folder = Folder(self._storage.root)
        spark = rows.sparkSession
        here = isinstance(self._storage, Folder)
        pieces = None if here else read_pieces(spark, [f"{self._pieces(batch)}/*"])
        if _on_driver(target.sink):
            done = Committed()
            for part in parts:

                def call(folder: Folder, part: Part = part) -> None:
                    chunks = chunks_of(folder, part.files, target.name)
                    with stage_records(letters, done.letters) as stage:
                        work = commit(self._opened, target, part.epoch, chunks, done, stage, times)
                        self._events.run(work)

                if pieces is None:
                    call(folder)
                else:
                    with_files(pieces, part, target.name, call)
            return done
        write = CommitPart(target, folder, records, letters, times)
        if pieces is not None:
            return committed_of(commit_pieces(pieces, parts, write))
        return committed_of(spark.sparkContext.parallelize(parts, len(parts)).map(write).collect())

    def _commit_again(
        self, name: str, sink: TwoPhaseSink | None, parts: Sequence[StagedPart], batch: int
    ) -> None:
        """Commit what tasks have staged from files; if that is gone, they stage it again."""
        if not parts:
            return
        assert sink is not None, "the tasks staged it there"
        try:
            self.written[name] += sink.commit(parts, batch)
        except StagingLost as error:
            raise Unavailable(str(error)) from error

    def _storage_aside(self, name: str, note: str) -> TwoPhaseSink | None:
        """The storage of a sink for rows that are committed apart from the others of a batch."""
        if (name, note) not in self._aside:
            sink = self._two_phase.get(name)
            aside = self._aside[name, note] = None if sink is None else sink.aside(note)
            if aside is not None:
                aside.claim(self._owner, temporary=self._temporary)
        return self._aside[name, note]

    def _storage_of_rest(self, target: Target, *, alone: bool) -> TwoPhaseSink | None:
        """Where rows that are in files of the checkpoint are staged; None: they go by the sink's writer.

        A sink commits a batch once: rows beside those in its own storage are committed apart.
        """
        if isinstance(target.sink, Files):  # what its tasks did not take, and dead letters
            return None
        return self._two_phase.get(target.name) if alone else self._storage_aside(target.name, "rest")

    def _storage_of_refused(self, target: Target) -> TwoPhaseSink | None:
        """Where the dead letters of rows that a sink refuses are staged. Each step has its own."""
        if target.letters is None:
            return None
        return self._storage_aside(target.letters.name, f"refused:{target.name}")

    def _times(self, target: Target, epoch: str, rows: int) -> dict[str, int]:
        """The times of what tasks write into tables whose rows carry one: by the target's key."""
        found = {}
        for each in (target, target.letters):
            if each is not None and isinstance(each.sink, Cassandra):
                found[each.key] = self._events.run(self._time_of(each, epoch, rows))
        return found

    async def _time_of(self, target: Target, epoch: str, rows: int) -> int:
        writer = await self._opened.get(target)
        assert isinstance(writer, TimedWriter), "its rows carry a time"
        return await writer.time_of(epoch, rows)

    def _described(self, rows: DataFrame, batch: int, work: str) -> AbstractContextManager[None]:
        """Spark's own pages name the jobs of a piece of work."""
        return described(rows.sparkSession.sparkContext, batch_job(self._plan.name, batch, work))

    def _count(self, name: str, done: Committed) -> None:
        for sink, rows in done.written.items():
            self.written[sink] += rows
        if done.failed:
            counts = {"failed": done.failed}
            if done.dead_letters:
                counts["dead_letters"] = done.dead_letters
            add_counts(self.counts, {name: counts})

    # Sinks

    def _two_phase_sink(self, name: str, sink: Sink) -> TwoPhaseSink | None:
        """The sink, if tasks can stage rows in its own storage."""
        if isinstance(sink, Queue):
            url = database_of(sink, self._told)
            noted_as = f"{self._generation} {name}"
            return None if url is None else QueueTable(url, sink, noted_as, self._stopping)
        if isinstance(sink, Postgres):
            return PostgresTable(sink, self._context(name), self._generation, self._events, self._stopping)
        if isinstance(sink, Files):
            return FilesSink(sink, name, self._generation)
        return None

    def _context(self, name: str) -> Context:
        claim = SinkClaim(f"{self._generation} {name}", self._owner.token)
        return Context(self._plan.name, name, self._told.url, token=self._told.token, claim=claim)

    def _target(self, name: str, sink: Sink) -> Target:
        write = next((each for each in self._plan.sinks if each.name == name), None)
        letters = None if write is None else write.policy.letters
        if isinstance(sink, Postgres) and sink.url is None:  # which the environment of a task may not have
            sink = dataclasses.replace(sink, url=url_of(sink.url, sink.title))
        return Target(
            key=f"{self._run}:{name}",
            sink=sink,
            context=self._context(name),
            step=None if write is None else stripped(write),
            letters=None if letters is None else self._target(letters_name(letters.sink), letters.sink),
        )

    async def _try(self, target: Target) -> RowKey | None:
        """Open a sink; gives the key by which its rows are in order, if several tasks may write it."""
        async with self._writer(target) as writer:
            if isinstance(writer, TracedWriter):
                await self._guard.check(target.name, writer)
            return writer.row_key() if isinstance(writer, KeyedWriter) else None

    @contextlib.asynccontextmanager
    async def _writer(self, target: Target) -> AsyncIterator[Writer]:
        """The open writer of a sink. Those that the driver goes on to use stay open."""
        if _on_driver(target.sink) or isinstance(target.sink, Cassandra):
            yield await self._opened.get(target)
            return
        writer = writer_for(target.sink, target.context)
        await writer.open()
        try:
            yield writer
        finally:
            await writer.close()

    def _store_provenance(self, target: Target) -> None:
        """Note which checkpoint writes a sink, before the first batch of a run does."""
        letters = [] if target.letters is None else [target.letters]  # which may get what this sink refuses
        for each in (target, *letters):
            if self._guard.is_new(each.name):
                self._events.run(self._store_provenance_of(each))

    async def _store_provenance_of(self, target: Target) -> None:
        if target.name in self._remote:
            await self._guard.store(target.name, self._remote[target.name])
            return
        async with self._writer(target) as writer:
            if isinstance(writer, TracedWriter):
                await self._guard.store(target.name, writer)


@dataclasses.dataclass(frozen=True)
class _SinkBatch:
    number: int
    sinks: Mapping[str, TwoPhaseSink]

    def column_stage(
        self, name: str, schema: Schema, columns: Callable[[], StructType]
    ) -> ColumnStage | None:
        return self.sinks[name].column_stage(schema, columns) if name in self.sinks else None

    def record_stage(self, name: str) -> RecordStage | None:
        return self.sinks[name].record_stage(self.number) if name in self.sinks else None

    def frame_stage(self, name: str, schema: Schema) -> FrameStage | None:
        return self.sinks[name].frame_stage(schema, self.number) if name in self.sinks else None


def _on_driver(sink: Sink) -> bool:
    return isinstance(sink, Function) and sink.where == "driver"


def is_ordered(sink: Sink) -> bool:
    """Whether it matters in which order a sink gets its rows."""
    if isinstance(sink, Function):
        return sink.where == "driver"
    return not (isinstance(sink, Files) or (isinstance(sink, Postgres) and not sink.key))


def _rows_of(receipt: Receipt) -> int:
    return 0 if receipt.file is None else sum(receipt.file.rows.values())


def _staged(receipt: Receipt, name: str) -> int:
    in_file = 0 if receipt.file is None else receipt.file.rows.get(name, 0)
    return in_file + (receipt.parts[name].rows if name in receipt.parts else 0)
