"""Dead letters that come back to a plan without Python: each record goes on where it had failed.

Letters are opened in Python, by the tasks, and there are few of them; from there on the records are typed
columns like those of a source. They take the same steps beside the source's own records and join these last,
behind the watermark: so they move no clock. A row that a sink had refused goes straight to the driver, for a
step with state may stand before that sink.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeAlias

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as f

from queenstream.core.schemas import Field, Schema, types
from queenstream.engines.spark.native.aggregates import SEQ, TIME
from queenstream.engines.spark.native.expressions import RECORD, NotNative
from queenstream.engines.spark.native.failures import FAILURE, MISFIT, Failures, count_name, number_of
from queenstream.engines.spark.native.frames import Frame
from queenstream.engines.spark.native.pruning import needed
from queenstream.engines.spark.native.steps import through
from queenstream.engines.spark.sources.sources import QueueDecoder
from queenstream.engines.spark.tasks.records import encode_entrant
from queenstream.engines.spark.types import arrow_type, spark_type
from queenstream.errors import PayloadInvalid
from queenstream.pipeline.endpoints import Queue
from queenstream.pipeline.plan import nodes
from queenstream.pipeline.plan.nodes import Node
from queenstream.pipeline.plan.planner import Plan
from queenstream.runtime.failures import Along
from queenstream.runtime.replay import Doors, Entrant

Input: TypeAlias = tuple[Schema, Schema]
"""The fields of the records that come to a step, and the values of their key."""

_CAN_FAIL = (nodes.Read, nodes.EventTime, nodes.Write)  # no other step of these plans ever has a letter
_FAILED = "failed"


class Replays:
    """The letters of a plan that come back. ``load`` gives the rows of their queues, with payloads as text.

    ``see`` it what comes to each step of a source's own chain before asking for what comes back there.
    """

    def __init__(self, plan: Plan, load: Callable[[nodes.Replay], DataFrame]) -> None:
        self._plan = plan
        self._load = load
        self._inputs: dict[str, Input] = {}
        self._replays = {
            each: number for number, each in enumerate(plan.sources) if isinstance(each, nodes.Replay)
        }
        if not all(isinstance(each.source, Queue) for each in self._replays):
            raise NotNative("letters that come back from something else than a queue")

    @property
    def counted(self) -> dict[str, dict[str, tuple[str, str]]]:
        """What Spark counts of letters, by its names: for each column the step, and what of it."""
        found: dict[str, dict[str, tuple[str, str]]] = {}
        for each in self._replays:
            refused = {_refused(name): (name, "failed") for name in (each.name, *each.steps)}
            found[count_name("letters", each.name)] = {"taken": (each.name, "taken"), **refused}
        return found

    def see(self, node: Node, schema: Schema, keys: tuple[Field, ...] = ()) -> None:
        """What the records are that come to a step."""
        values = tuple(Field(f"key_{number}", each.type) for number, each in enumerate(keys))
        self._inputs[node.name] = (schema, Schema(values))

    def after(self, node: Node, failures: Failures) -> Frame | None:
        """The records that came back, as a step gives them on; None: none can have come to it."""
        if isinstance(node, nodes.Read):
            self.see(node, needed(self._plan, node))
            return self._at(node, failures)
        before = self.after(node.inputs[0], failures)
        here = self._at(node, failures) if isinstance(node, nodes.EventTime) else None
        found = [each for each in (before, here) if each is not None]
        return through(node, found[0].together(found[1:])) if found else None

    def _at(self, node: Node, failures: Failures) -> Frame | None:
        """The records that are let in at a step."""
        replay = next((each for each in self._replays if node.name in each.steps), None)
        if replay is None:
            return None
        schema, values = inside = self._inputs[node.name]
        columns = [f"{RECORD} {spark_type(types.Struct(schema.fields))}", f"{TIME} LONG", f"{SEQ} LONG"]
        columns += [f"{each.name} {spark_type(each.type)}" for each in values.fields]
        let_in = LetIn(self._opener(replay), node.name, inside)
        rows = self._load(replay).mapInArrow(let_in, ", ".join(columns))
        rows = rows.withColumn(TIME, f.timestamp_micros(TIME))
        return Frame(rows, schema, failures, keys=values.fields)

    def others(self, schema: Schema, failures: Failures) -> list[Frame]:
        """What comes back to no step: letters that cannot be let in, and rows for sinks. Counted here."""
        return [self._others(replay, schema, failures) for replay in self._replays]

    def _others(self, replay: nodes.Replay, schema: Schema, failures: Failures) -> Frame:
        steps = {each.name: number for number, each in enumerate(self._plan.nodes)}
        others = Others(self._opener(replay), steps)
        rows = self._load(replay).mapInArrow(
            others, f"step INT, {MISFIT} BINARY, {SEQ} LONG, {_FAILED} BOOLEAN"
        )
        counts = [f.count(f.lit(1)).alias("taken")]
        for name in (replay.name, *replay.steps):
            refused = f.col(_FAILED) & (f.col("step") == f.lit(steps[name]))
            counts.append(number_of(refused).alias(_refused(name)))
        rows = rows.observe(count_name("letters", replay.name), *counts).where(f.col("step").isNotNull())
        told = f.struct("step", MISFIT, f.lit(None).cast("string").alias("input"))
        rows = rows.select(
            f.lit(None).cast(spark_type(types.Struct(schema.fields))).alias(RECORD),
            f.lit(None).cast("timestamp").alias(TIME),
            SEQ,
            told.alias(FAILURE),
        )
        return Frame(rows, schema, failures, fails=True)

    def _opener(self, replay: nodes.Replay) -> Opener:
        source = replay.source
        assert isinstance(source, Queue), "all are"
        schema = None if source.schema is None else Schema.of(source.schema)
        decoder = QueueDecoder(self._replays[replay], schema, envelope=source.envelope)
        doors = Doors.of(self._plan, replay, _CAN_FAIL)
        return Opener(replay.name, decoder, doors, self._inputs)


class Opener:
    """Opens letters: it travels to the tasks."""

    def __init__(self, replay: str, decoder: QueueDecoder, doors: Doors, inputs: Mapping[str, Input]) -> None:
        self._replay = replay
        self._decoder = decoder
        self._doors = doors
        self._inputs = dict(inputs)

    def types(self, step: str) -> bool:
        """Whether what comes to a step is in typed columns; what does not is a sink's."""
        return step in self._inputs

    def open(self, batch: pa.RecordBatch) -> Iterator[tuple[int, Entrant | None]]:
        """The records of some letters, each with its place; None: the letter is another pipeline's."""
        decoded = self._decoder.decode(batch)
        for record, error in decoded.failures:
            yield 0, Entrant(self._replay, record, Along(), error)
        for item in decoded.items:
            try:
                entrant = self._doors.open(item.record)
            except Exception as error:  # noqa: BLE001 - whatever somebody has put there
                entrant = Entrant(self._replay, item.record, Along(), error)
            yield item.seq, None if entrant is None else self._typed(entrant)

    def _typed(self, entrant: Entrant) -> Entrant:
        """With values that fit the columns of its step; what does not is an error of the step."""
        if entrant.error is not None or not self.types(entrant.step):
            return entrant
        schema, values = self._inputs[entrant.step]
        try:
            record = schema.coerce(entrant.record)
            key = _values(entrant.along.key, values)
        except (PayloadInvalid, TypeError, ValueError, ArithmeticError) as error:
            return entrant._replace(error=error)
        return entrant._replace(record=record, along=entrant.along._replace(key=key))


def _refused(step: str) -> str:
    return f"refused at {step}"


def _values(key: Any, values: Schema) -> tuple[Any, ...]:
    """The parts of a key: one that has a single part is that part."""
    names = values.names
    parts = (key,) if len(names) == 1 else key or ()
    if not isinstance(parts, tuple) or len(parts) != len(names):
        raise PayloadInvalid(f"the key {key!r} must have {len(names)} parts there; edit the letter's key")
    return tuple(values.coerce(dict(zip(names, parts, strict=True))).values())


class LetIn:
    """The records that are let in at one step: a function for ``mapInArrow``."""

    def __init__(self, opener: Opener, step: str, inside: Input) -> None:
        self._opener = opener
        self._step = step
        self._inside = inside

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        schema, values = self._inside
        for batch in batches:
            found = [
                (seq, each)
                for seq, each in self._opener.open(batch)
                if each is not None and each.step == self._step and each.error is None
            ]
            kind = arrow_type(types.Struct(schema.fields))
            columns = {
                RECORD: pa.array([each.record for _, each in found], kind),
                TIME: pa.array([each.along.time for _, each in found], pa.int64()),
                SEQ: pa.array([seq for seq, _ in found], pa.int64()),
            }
            for number, part in enumerate(values.fields):
                parts = [each.along.key[number] for _, each in found]
                columns[part.name] = pa.array(parts, arrow_type(part.type))
            yield pa.RecordBatch.from_pydict(columns)


class Others:
    """A row for each letter, and in it what is let in at no step: a function for ``mapInArrow``."""

    def __init__(self, opener: Opener, steps: Mapping[str, int]) -> None:
        self._opener = opener
        self._steps = steps

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            rows = [(*self._told(each), seq) for seq, each in self._opener.open(batch)]
            columns = [*zip(*rows, strict=True)] or [()] * 4
            steps, misfits, failed, seqs = columns
            yield pa.RecordBatch.from_pydict(
                {
                    "step": pa.array(steps, pa.int32()),
                    MISFIT: pa.array(misfits, pa.binary()),
                    SEQ: pa.array(seqs, pa.int64()),
                    _FAILED: pa.array(failed, pa.bool_()),
                }
            )

    def _told(self, entrant: Entrant | None) -> tuple[int | None, bytes | None, bool]:
        if entrant is None or (entrant.error is None and self._opener.types(entrant.step)):
            return None, None, False
        return self._steps[entrant.step], encode_entrant(entrant), entrant.error is not None
