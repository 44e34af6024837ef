"""The task that stages a batch's rows: a function for ``mapInArrow`` that gives one receipt."""

from __future__ import annotations

import copy
import uuid
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import msgspec
import pyarrow as pa
from pyspark import TaskContext

from queenstream.errors import StepFailed
from queenstream.pipeline.samples import MOST_ROWS as MOST_SAMPLES
from queenstream.pipeline.samples import as_text
from queenstream.spark import flow
from queenstream.spark.failures import Troubles
from queenstream.spark.records import packed_by_task, unpacked
from queenstream.spark.sinks.staged import Place, StagedFile, StagedRowsWriter
from queenstream.spark.sinks.storage import Folder
from queenstream.spark.sinks.times import TaskClock, TaskTimes
from queenstream.spark.sinks.two_phase import StagedPart

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
    """Where a task stages rows. ``letters``: by step the sink of its dead letters; ``samples``: keep some."""

    pipeline: str
    storage: Folder
    folder: str
    letters: Mapping[str, str] = field(default_factory=dict)
    samples: bool = False


class TaskOutput:
    """The rows of one task on their way to the sinks. Its file is made when the first row comes."""

    def __init__(self, options: StageOptions) -> None:
        context = TaskContext.get()
        self._options = options
        self._samples: dict[str, list[bytes]] = {}
        self.receipt = Receipt(task=0 if context is None else context.partitionId())
        self.troubles = Troubles(options.pipeline)
        self.clock = TaskClock()
        self._letters = 0
        self._creating: Any = None
        self._writer: StagedRowsWriter | None = None
        self._path = ""

    def add(self, sink: str, place: Place, data: bytes) -> None:
        """A row for a sink: a packed record."""
        if self._writer is None:
            self._writer = self._begin()
        self._writer.add(sink, place, data)
        if self._options.samples:
            self._keep(sink, data)

    @property
    def keeps_samples(self) -> bool:
        """Whether somebody looks at rows of the sinks."""
        return self._options.samples

    def sample(self, sink: str, record: Any) -> None:
        """A row that goes to a sink by another way."""
        self._keep(sink, packed_by_task(record, None))

    def _keep(self, sink: str, data: bytes) -> None:
        kept = self._samples.setdefault(sink, [])
        kept.append(data)
        del kept[:-MOST_SAMPLES]

    @property
    def task(self) -> int:
        """The number of the task."""
        return self.receipt.task

    def letter(self, step: str, data: bytes) -> None:
        """A dead letter of a step, packed. Letters are in the order in which they come."""
        self.add(self._options.letters[step], (True, 0, self._letters, self.receipt.task), data)
        self._letters += 1

    def add_troubles(self) -> None:
        """The dead letters and counts of steps that were called here; forgotten after that."""
        troubles = self.troubles
        for step, letter in troubles.letters:
            self.letter(step, packed_by_task(letter, None))
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
                self.receipt.task, self._path, self._writer.rows, self._writer.bytes
            )
        self.receipt.samples = {
            sink: [as_text(unpacked(data)[0]) for data in kept] for sink, kept in self._samples.items()
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


class StageFlow(StageFunction):
    """Stages the rows of a plan with Python in it (``flow.ROW``)."""

    def _put(self, batches: Iterator[pa.RecordBatch], stage: TaskOutput) -> None:
        for batch in batches:
            columns = (batch.column(name).to_pylist() for name in flow.NAMES)
            for node, port, _, seq, sub, time, due, record in zip(*columns, strict=True):
                if port >= 0:
                    stage.add(node, (not due, (time or 0) if due else 0, seq, sub), record)
                elif port == flow.LETTER:
                    stage.letter(node, record)
                elif port == flow.COUNTS:
                    counts, examples = unpacked(record)
                    stage.count(counts, examples or {})
                elif port == flow.FAILED:
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
