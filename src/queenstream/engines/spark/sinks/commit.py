"""The task that writes staged rows to a sink, by the sink's own writer and by the policy of the step.

A writer stays open in the process of a task for the batches that follow, and is closed when none has come
for a while: to connect costs more than most batches do.
"""

from __future__ import annotations

import asyncio
import contextlib
import pickle
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from operator import itemgetter
from typing import Any

import msgspec
from pyspark import cloudpickle

from queenstream.connectors import Context, Writer, writer_for
from queenstream.connectors.base import Refusal, TimedWriter
from queenstream.connectors.event_loop import Events
from queenstream.engines.spark.sinks.staged import StagedFile, chunks_of
from queenstream.engines.spark.sinks.storage import Folder
from queenstream.engines.spark.sinks.two_phase import OpenRecordStage, RecordStage, StagedPart
from queenstream.errors import PayloadInvalid, QueenstreamError, StepFailed
from queenstream.pipeline.endpoints import Files, Sink
from queenstream.pipeline.plan.nodes import Node
from queenstream.pipeline.policies import DeadLetters
from queenstream.runtime.encoding import Unkept
from queenstream.runtime.failures import Along, give_up, letter, may_retry

_FILE = (100_000, 64 << 20)  # rows and bytes of one
_PART_ROWS = 1_000  # fewer rows are not worth another task
_IDLE_SECONDS = 20.0  # after which a process of tasks closes its writers


@dataclass(frozen=True)
class Target:
    """A sink as tasks need it. ``key`` tells it from those of other runs.

    ``step``: the step that writes it, without its surroundings; None: it is a sink of dead letters.
    ``letters``: where what it refuses goes, if that is the step's policy.
    """

    key: str
    sink: Sink
    context: Context
    step: Node | None = None
    letters: Target | None = None

    @property
    def name(self) -> str:
        """The name of the step, or of the sink of dead letters."""
        return self.context.node


class Committed(msgspec.Struct):
    """What a task has written. ``error``: the exception that it ended with, pickled.

    ``parts``: what it has staged in the sink's own storage, for the driver to commit; ``letters``: the dead
    letters of rows that the sink refused, staged in the storage of their sink.
    """

    written: dict[str, int] = {}
    parts: list[StagedPart] = []
    letters: list[StagedPart] = []
    failed: int = 0
    dead_letters: int = 0
    error: bytes | None = None

    def add(self, other: Committed) -> None:
        """And what another one has."""
        for name, rows in other.written.items():
            self.wrote(name, rows)
        self.parts += other.parts
        self.letters += other.letters
        self.failed += other.failed
        self.dead_letters += other.dead_letters

    def wrote(self, name: str, rows: int) -> None:
        """So many more rows are in a sink."""
        self.written[name] = self.written.get(name, 0) + rows


@dataclass(frozen=True)
class Part:
    """What one task writes: the rows of some files, under a name that a repeat has, too.

    ``buckets``: only the rows of these.
    """

    epoch: str
    files: tuple[StagedFile, ...]
    buckets: tuple[int, ...] | None = None


@dataclass(frozen=True)
class CommitPart:
    """A function for the tasks of a batch: writes a part, and gives what became of it.

    ``records``: how to stage them in the sink's own storage; None: they go by the sink's writer. ``letters``:
    the same for the dead letters of rows that the sink refuses. ``times``: by the key of a target, the time
    that its rows carry.
    """

    target: Target
    storage: Folder
    records: RecordStage | None = None
    letters: RecordStage | None = None
    times: Mapping[str, int] = field(default_factory=dict)

    def __call__(self, part: Part) -> bytes:
        """The result as JSON of ``Committed``. An error is a result, too: Spark would repeat it in vain."""
        done = Committed()
        chunks = chunks_of(self.storage, part.files, self.target.name, self._most, part.buckets)
        try:
            with (
                stage_records(self.records, done.parts) as rows,
                stage_records(self.letters, done.letters) as letters,
            ):
                left = chunks if rows is None else _refused(rows, chunks)
                writers.run(
                    self.target,
                    lambda opened: commit(opened, self.target, part.epoch, left, done, letters, self.times),
                )
        except QueenstreamError as error:
            done.error = cloudpickle.dumps(error)  # type: ignore[no-untyped-call]
        return msgspec.json.encode(done)

    @property
    def _most(self) -> tuple[int, int] | None:
        return _FILE if isinstance(self.target.sink, Files) else None


def committed_of(results: Sequence[bytes]) -> Committed:
    """What all tasks have written together; raises what one of them ended with."""
    total = Committed()
    for result in results:
        found = msgspec.json.decode(result, type=Committed)
        total.add(found)
        if found.error is not None:
            error: QueenstreamError = pickle.loads(found.error)  # noqa: S301 - pickled above
            raise error
    return total


@contextlib.contextmanager
def stage_records(records: RecordStage | None, parts: list[StagedPart]) -> Iterator[OpenRecordStage | None]:
    """Stage records in the storage of a sink, and add what was staged to ``parts``; None: it has none."""
    if records is None:
        yield None
        return
    with records.open() as rows:
        yield rows
        part = rows.finish()
        if part is not None:
            parts.append(part)


def _refused(rows: OpenRecordStage, chunks: Iterable[list[Any]]) -> Iterator[list[Any]]:
    """Stage chunks of rows; gives those that the stage does not take, for the sink's writer."""
    for chunk in chunks:
        refused = rows.add_all(chunk)
        if refused:
            yield [chunk[index] for index in refused]


async def commit(
    opened: OpenWriters,
    target: Target,
    name: str,
    chunks: Iterable[list[Any]],
    done: Committed,
    stage: OpenRecordStage | None,
    times: Mapping[str, int],
) -> None:
    """Write chunks of rows, each under a name of its own, by which the sink knows it again.

    ``stage`` takes the dead letters of rows that the sink refuses; the writer of their sink gets the others.
    """
    begun = 0
    for number, rows in enumerate(chunks):
        epoch = name if number == 0 else f"{name}.{number}"
        time = times[target.key] + begun if target.key in times else None
        begun += len(rows)
        letters = await _write(await opened.get(target), target, epoch, rows, done, time)
        if stage is not None:
            letters = [each for each in letters if not stage.add(each)]
        if letters:
            assert target.letters is not None, "the step's policy names it"
            # Several steps may have one sink of dead letters, and their batches one name.
            refused = f"{epoch}-refused:{target.name}"
            await _write_letters(opened, target.letters, refused, letters, done, times)


async def _write(
    writer: Writer, target: Target, epoch: str, rows: Sequence[Any], done: Committed, time: int | None
) -> list[dict[str, Any]]:
    """Write rows, those that are refused again by the step's policy; gives the dead letters of the others."""
    letters: list[dict[str, Any]] = []
    attempt, name = 1, epoch
    while True:
        refused = await _write_once(writer, name, rows, time)
        done.wrote(target.name, len(rows) - len(refused))
        again = []
        for index, error in refused:
            if target.step is None:
                raise _undeliverable(target.name, error)
            if may_retry(target.step, rows[index], error, attempt):
                again.append(rows[index])
            else:
                letters += _refuse(target, rows[index], error, attempt, done)
        if not again:
            return letters
        assert target.step is not None, "only a step has a policy"
        await asyncio.sleep(target.step.policy.pause(attempt).total_seconds())
        rows, name = again, f"{epoch}-{attempt}"
        attempt += 1


async def _write_once(writer: Writer, epoch: str, rows: Sequence[Any], time: int | None) -> list[Refusal]:
    """Write rows; gives those that the sink refuses, and those that could not even be kept."""
    unkept = [(index, PayloadInvalid(row.why)) for index, row in enumerate(rows) if type(row) is Unkept]
    if not unkept:
        return await _write_kept(writer, epoch, rows, time)
    kept = [index for index, row in enumerate(rows) if type(row) is not Unkept]
    refused = await _write_kept(writer, epoch, [rows[index] for index in kept], time)
    return sorted([*unkept, *((kept[index], error) for index, error in refused)], key=itemgetter(0))


async def _write_kept(writer: Writer, epoch: str, rows: Sequence[Any], time: int | None) -> list[Refusal]:
    if time is not None and isinstance(writer, TimedWriter):
        return await writer.write_at(time, rows)
    return await writer.write(epoch, rows)


async def _write_letters(
    opened: OpenWriters,
    target: Target,
    epoch: str,
    letters: Sequence[Any],
    done: Committed,
    times: Mapping[str, int],
) -> None:
    refused = await _write_once(await opened.get(target), epoch, letters, times.get(target.key))
    done.wrote(target.name, len(letters) - len(refused))
    if refused:
        raise _undeliverable(target.name, refused[0][1])


def _refuse(
    target: Target, row: Any, error: Exception, attempts: int, done: Committed
) -> list[dict[str, Any]]:
    """A row that a sink does not take is an error of the step that writes."""
    step = target.step
    assert step is not None, "a refused letter ends the run"
    done.failed += 1
    if not isinstance(give_up(step, row, error), DeadLetters):
        return []
    done.dead_letters += 1
    return [letter(target.context.pipeline, step.name, row, error, attempts, datetime.now(UTC), Along())]


def _undeliverable(name: str, error: Exception) -> StepFailed:
    return StepFailed(f"{name} refused a dead letter: {error}; mend the sink and start again")


class OpenWriters:
    """The writers of a process, each opened when it is first needed."""

    def __init__(self) -> None:
        self._writers: dict[str, Writer] = {}

    async def get(self, target: Target) -> Writer:
        """The writer of a sink, open."""
        writer = self._writers.get(target.key)
        if writer is None:
            writer = writer_for(target.sink, target.context)
            await writer.open()
            self._writers[target.key] = writer
        return writer

    async def close(self) -> None:
        """Close all of them."""
        opened, self._writers = self._writers, {}
        for writer in opened.values():
            with contextlib.suppress(Exception):  # nothing is open that was not answered
                await writer.close()


@dataclass
class _Process:
    """The writers of a process of tasks, and the event loop on which they work."""

    _lock: threading.Lock = field(default_factory=threading.Lock)
    _events: Events | None = None
    _opened: OpenWriters = field(default_factory=OpenWriters)
    _timer: threading.Timer | None = None

    def run(self, target: Target, work: Any) -> None:
        """Do some work with them; after an error they are opened anew."""
        with self._lock:
            if self._timer is not None:
                self._timer.cancel()
            if self._events is None:
                self._events = Events(f"sink {target.name}")
            try:
                self._events.run(work(self._opened))
            except BaseException:
                self._close()
                raise
            self._timer = threading.Timer(_IDLE_SECONDS, self.close)
            self._timer.daemon = True
            self._timer.start()

    def close(self) -> None:
        """Close the writers; those that are needed again are opened again."""
        with self._lock:
            self._close()

    def _close(self) -> None:
        if self._events is not None:
            self._events.run(self._opened.close())
            self._events.close()
            self._events = None


writers = _Process()


def parts_of(files: Sequence[StagedFile], name: str, epoch: str, *, in_order: bool) -> Iterator[Part]:
    """What the tasks write of a sink's rows: all of them in order, those of some buckets, or of one file."""
    found = [each for each in files if each.rows.get(name)]
    if in_order:
        buckets = max((each.buckets.get(name, 1) for each in found), default=1)
        number = min(buckets, 1 + sum(each.rows[name] for each in found) // _PART_ROWS)
        for at in range(number) if number > 1 else ():
            yield Part(f"{epoch}-{at:05}", tuple(found), tuple(range(at, buckets, number)))
        if found and number == 1:
            yield Part(epoch, tuple(found))
        return
    for number, each in enumerate(found):  # not by task: two jobs of a batch have tasks of one number
        yield Part(f"{epoch}-{number:05}", (each,))
