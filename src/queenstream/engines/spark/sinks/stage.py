"""The task that stages a batch's rows: a function for ``mapInArrow`` that gives one receipt."""

from __future__ import annotations

import contextlib
import copy
import uuid
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import msgspec
import pyarrow as pa
from pyspark import TaskContext

from queenstream.connectors.base import RowKey
from queenstream.engines.spark.sinks.buckets import Buckets
from queenstream.engines.spark.sinks.staged import Place, StagedFile, StagedRowsWriter
from queenstream.engines.spark.sinks.storage import Folder
from queenstream.engines.spark.sinks.times import TaskClock, TaskTimes
from queenstream.engines.spark.sinks.two_phase import OpenRecordStage, RecordStage, StagedPart
from queenstream.engines.spark.tasks import rows as flow
from queenstream.engines.spark.tasks.failures import Troubles
from queenstream.engines.spark.tasks.records import unpacked
from queenstream.errors import StepFailed
from queenstream.runtime.encoding import decode, encode_row
from queenstream.runtime.samples import MOST_ROWS as MOST_SAMPLES
from queenstream.runtime.samples import as_text

RECEIPT = "receipt BINARY"

Counts = dict[str, dict[str, int]]


class Receipt(msgspec.Struct):
    """What a task tells the driver of its part of a batch.

    ``parts``: by sink, what was staged in its own storage. ``examples``: of each step that failed on records,
    the first one and why; ``failures``: on how many, where that is not among the counts. ``failed``: the
    message of the step that ended the pipeline. ``samples``: some rows of each sink, as text, if somebody
    looks. ``times``: how long the task took.
    """

    task: int = 0
    file: StagedFile | None = None
    parts: dict[str, StagedPart] = {}
    counts: Counts = {}
    examples: dict[str, str] = {}
    failures: dict[str, int] = {}
    failed: str | None = None
    samples: dict[str, list[str]] = {}
    times: TaskTimes | None = None

    @property
    def is_staged(self) -> bool:
        """Whether there is anything for a sink."""
        return self.file is not None or bool(self.parts)

    def staged_bytes(self, sink: str) -> int:
        """How many bytes are staged for a sink."""
        in_file = 0 if self.file is None else self.file.bytes.get(sink, 0)
        return in_file + (self.parts[sink].bytes if sink in self.parts else 0)


@dataclass(frozen=True)
class StageOptions:
    """Where a task stages rows. ``letters``: by step the sink of its dead letters; ``samples``: keep some.

    ``keys``: the keys of the sinks whose rows are to be in so many ``buckets``.
    """

    pipeline: str
    storage: Folder
    folder: str
    letters: Mapping[str, str] = field(default_factory=dict)
    samples: bool = False
    keys: Mapping[str, RowKey] = field(default_factory=dict)
    buckets: int = 1


class TaskOutput:
    """The rows of one task on their way to the sinks. Its file is made when the first row comes."""

    def __init__(self, options: StageOptions) -> None:
        context = TaskContext.get()
        self._options = options
        self._samples: dict[str, list[bytes]] = {}
        self.receipt = Receipt(task=0 if context is None else context.partitionId())
        self.troubles = Troubles(options.pipeline)
        self._buckets = Buckets(options.keys, options.buckets, self.receipt.task)
        self.clock = TaskClock()
        self._letters = 0
        self._creating: Any = None
        self._writer: StagedRowsWriter | None = None
        self._path = ""

    def add(self, sink: str, place: Place, data: bytes, record: Any = None) -> None:
        """A row for a sink: an encoded record, and the record itself if it is at hand."""
        if self._writer is None:
            self._writer = self._begin()
        self._writer.add(sink, place, data, self._buckets.bucket_of(sink, record, data))
        if self._options.samples:
            self.keep(sink, data)

    @property
    def keeps_samples(self) -> bool:
        """Whether somebody looks at rows of the sinks."""
        return self._options.samples

    def sample(self, sink: str, record: Any) -> None:
        """A row that goes to a sink by another way."""
        self.keep(sink, encode_row(record))

    def keep(self, sink: str, data: bytes) -> None:
        """The same of an encoded record."""
        kept = self._samples.setdefault(sink, [])
        kept.append(data)
        del kept[:-MOST_SAMPLES]

    @property
    def task(self) -> int:
        """The number of the task."""
        return self.receipt.task

    def letter(self, step: str, data: bytes) -> None:
        """A dead letter of a step, encoded. Letters are in the order in which they come."""
        self.add(self._options.letters[step], (True, 0, self._letters, self.receipt.task), data)
        self._letters += 1

    def add_troubles(self) -> None:
        """The dead letters and counts of steps that were called here; forgotten after that."""
        troubles = self.troubles
        for step, letter in troubles.letters:
            self.letter(step, encode_row(letter))
        self.count(troubles.counts, troubles.examples)
        troubles.letters, troubles.counts, troubles.examples = [], {}, {}

    def count(self, counts: Mapping[str, Mapping[str, int]], examples: Mapping[str, str]) -> None:
        """What happened at the steps."""
        add_counts(self.receipt.counts, counts)
        self.receipt.examples = {**examples, **self.receipt.examples}

    def fail(self, step: str, example: str) -> None:
        """A step has failed on a record, which is counted elsewhere."""
        self.receipt.failures[step] = self.receipt.failures.get(step, 0) + 1
        self.receipt.examples.setdefault(step, example)

    def finish(self) -> pa.RecordBatch:
        """The receipt, when all that it tells of is durable."""
        self.add_troubles()
        if self._writer is not None:
            self._writer.finish()
            self._creating.__exit__(None, None, None)
            self.receipt.file = StagedFile(
                self.receipt.task, self._path, self._writer.rows, self._writer.bytes, self._buckets.numbers()
            )
        self.receipt.samples = {
            sink: [as_text(decode(data)) for data in kept] for sink, kept in self._samples.items()
        }
        self.receipt.times = self.clock.stop()
        return pa.RecordBatch.from_pydict({"receipt": [msgspec.json.encode(self.receipt)]})

    def give_up(self, error: BaseException) -> None:
        """Leave nothing behind."""
        if self._writer is not None:
            self._creating.__exit__(type(error), error, error.__traceback__)

    def _begin(self) -> StagedRowsWriter:
        self._path = f"{self._options.folder}/{self.receipt.task:05}-{uuid.uuid4().hex}.rows"
        self._creating = self._options.storage.create(self._path)
        return StagedRowsWriter(self._creating.__enter__())


class StageFunction(ABC):
    """A function for ``mapInArrow``. Subclasses put the rows of a task onto its stage."""

    def __init__(self, options: StageOptions) -> None:
        self._options = options

    @property
    def sink(self) -> str | None:
        """The sink whose rows it stages; None: those of all sinks."""
        return None

    def into(self, folder: Folder) -> StageFunction:
        """The same with the files of tasks in another folder."""
        other = copy.copy(self)
        other._options = replace(self._options, storage=folder)
        return other

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        stage = TaskOutput(self._options)
        try:
            try:
                self._put(stage.clock.computing(batches), stage)
            except StepFailed as ended:
                stage.receipt.failed = str(ended)
            receipt = stage.finish()
        except BaseException as error:
            stage.give_up(error)
            raise
        yield receipt

    @abstractmethod
    def _put(self, batches: Iterator[pa.RecordBatch], stage: TaskOutput) -> None: ...


class RecordStages:
    """The sinks in whose own storage a task stages its records. What they refuse goes to the task's file."""

    def __init__(self, stages: Mapping[str, RecordStage], output: TaskOutput) -> None:
        self._stages = stages
        self._output = output
        self._opened: dict[str, OpenRecordStage] = {}
        self._refused = 0

    @contextlib.contextmanager
    def open(self) -> Iterator[None]:
        """Begin; when this ends, everything is staged."""
        with contextlib.ExitStack() as opened:
            for sink, stage in self._stages.items():
                self._opened[sink] = opened.enter_context(stage.open())
            yield
            for sink, records in self._opened.items():
                staged = records.finish()
                if staged is not None:
                    self._output.receipt.parts[sink] = staged
            self.pass_on()

    def __contains__(self, sink: str) -> bool:
        return sink in self._stages

    def add(self, sink: str, record: Any) -> bool:
        """Take a record; False: this sink is none of these, or does not take it."""
        records = self._opened.get(sink)
        return records is not None and records.add(record)

    def add_all(self, sink: str, records: Sequence[Any]) -> Sequence[int]:
        """Take several records of a sink; gives the indexes of those that it does not take."""
        stage = self._opened.get(sink)
        return range(len(records)) if stage is None else stage.add_all(records)

    def pass_on(self) -> None:
        """Give what was refused later to the task's file."""
        for sink, records in self._opened.items():
            for record in records.take_refused():
                place = (True, 0, self._refused, self._output.task)
                self._output.add(sink, place, encode_row(record))
                self._refused += 1


class StageFlow(StageFunction):
    """Stages the rows of a plan with Python in it (``flow.ROW``).

    ``records``: by sink, how its records are staged in its own storage.
    """

    def __init__(self, options: StageOptions, records: Mapping[str, RecordStage] | None = None) -> None:
        super().__init__(options)
        self._records = dict(records or {})

    def _put(self, batches: Iterator[pa.RecordBatch], stage: TaskOutput) -> None:
        records = RecordStages(self._records, stage)
        with records.open():
            for batch in batches:
                for data in batch.column("data"):
                    self._put_rows(data.as_py(), stage, records)
                records.pass_on()

    def _put_rows(self, data: bytes, stage: TaskOutput, records: RecordStages) -> None:
        for name, kind, place, record in flow.outputs_of(data):
            if kind == flow.RECORD:
                if name in records and records.add(name, decode(record)):
                    if stage.keeps_samples:
                        stage.keep(name, record)
                else:
                    stage.add(name, place, record)
            elif kind == flow.LETTER:
                stage.letter(name, record)
            elif kind == flow.COUNTS:
                counts, examples = unpacked(record)
                stage.count(counts, examples or {})
            else:
                raise StepFailed(unpacked(record)[0])


def add_counts(into: Counts, counts: Mapping[str, Mapping[str, int]]) -> None:
    """Add counts by step to others."""
    for step, numbers in counts.items():
        known = into.setdefault(step, {})
        for what, number in numbers.items():
            known[what] = known.get(what, 0) + number


Stage = Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]


def receipts_of(rows: Sequence[Any]) -> list[Receipt]:
    """What the tasks have told, in the order of the tasks."""
    found = [msgspec.json.decode(row[0], type=Receipt) for row in rows]
    return sorted(found, key=lambda receipt: receipt.task)
