"""Records that a step of a plan without Python fails on, by the step's policy.

``fail``: the task raises, so the batch fails before anything of it is written; the error's message holds the
step and the record. ``skip``: the record is left out, counted, and the first of a batch kept for the log.
Dead letters, and a policy that looks at the error: the record stays in its row, beside the column
``failure``; steps pass such rows on, and the task that stages the batch does what the policy says.
Where Spark keeps state between the source and the sinks, these rows go around it, in a second branch of the
same query that starts at the same source.

A further try of an expression gives what the first gave. So ``retry`` makes none, and what comes after its
last try happens at once, with the number of tries that the policy has.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from decimal import Decimal
from typing import Any, Literal, NamedTuple, TypeAlias

import msgspec
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as f

from queenstream.core import paths
from queenstream.core.records import event_time
from queenstream.core.schemas import Field, Schema
from queenstream.engines.spark.native.aggregates import SEQ, TIME
from queenstream.engines.spark.native.expressions import RECORD
from queenstream.engines.spark.tasks.graph import stripped
from queenstream.engines.spark.tasks.records import decode_misfit
from queenstream.errors import PayloadInvalid, StepFailed
from queenstream.pipeline.plan import nodes
from queenstream.pipeline.plan.nodes import Node
from queenstream.pipeline.plan.planner import Plan
from queenstream.runtime.failures import Along, letter, may_retry, the_end
from queenstream.runtime.replay import Entrant

FAILURE, MISFIT = "failure", "misfit"
FAILURE_TYPE = f"struct<step:int,{MISFIT}:binary,input:string>"

Part: TypeAlias = Literal["whole", "main", "aside"]
"""``whole``: records, and failures beside them. ``main``: records only. ``aside``: for the failures only."""

_MARK = "queenstream step failed"
_MARKED = re.compile(rf"{_MARK} (\d+) (misfit|input) ([A-Za-z0-9+/=\s]*)\.")
_KEYS = "keys"
_decoder = msgspec.json.Decoder(float_hook=Decimal)
_JSON = {"ignoreNullFields": "false", "timestampFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXX"}


def count_name(what: str, step: str, *, again: bool = False) -> str:
    """What Spark calls a count; ``again``: of records that came back."""
    return f"{what} again at {step}" if again else f"{what} at {step}"


def number_of(condition: Column) -> Column:
    """How many rows fulfil it. Not ``count_if``, for which Spark adds a step to the plan."""
    return f.count(f.when(condition, f.lit(1)))


def kept_by(node: Node) -> bool:
    """Whether a record that this step failed on stays in its row, for the task that stages the batch."""
    policy = node.policy
    return policy.outcomes not in (("skip",), ("fail",)) or policy.callback is not None


class Failed(NamedTuple):
    """A record that a step failed on. ``is_read``: the step is one that reads, which tries nothing again."""

    node: Node
    record: Any
    error: Exception
    along: Along
    is_read: bool = False

    def letter(self, pipeline: str, now: datetime) -> dict[str, Any]:
        """The dead letter, as the other plans and engines make it."""
        tries = 1
        while not self.is_read and may_retry(self.node, self.record, self.error, tries):
            tries += 1
        return letter(pipeline, self.node.name, self.record, self.error, tries, now, self.along)


@dataclass(frozen=True)
class Failures:
    """What becomes of the failures in one part of a plan. ``inputs``: what is known of a step's records.

    ``again``: of records that came back, which take the same steps beside the others.
    """

    plan: Plan
    part: Part = "whole"
    inputs: dict[int, tuple[Schema, tuple[Field, ...]]] = field(default_factory=dict)
    again: bool = False

    def of_part(self, part: Part) -> Failures:
        """The same for another part."""
        return replace(self, part=part)

    def of_replays(self) -> Failures:
        """The same for records that came back."""
        return replace(self, again=True)

    def keeps(self, node: Node) -> bool:
        """Whether records that a step failed on stay in their rows."""
        return self.part != "main" and kept_by(node)

    def ends(self, node: Node) -> bool:
        """Whether no record that a step failed on comes past it, since the batch ends there."""
        return self.part != "aside" and not kept_by(node) and node.policy.then == "fail"

    def end(self, rows: DataFrame, node: Node, bad: Column, failure: Column) -> DataFrame:
        """Rows of which the first bad one ends the batch, if that is the step's policy."""
        if not self.ends(node):
            return rows
        what = f.when(failure[MISFIT].isNotNull(), f.lit(MISFIT)).otherwise(f.lit("input"))
        held = f.base64(f.coalesce(failure[MISFIT], failure["input"].cast("binary")))
        told = f.concat_ws(
            " ", f.lit(_MARK), failure["step"].cast("string"), what, f.concat(held, f.lit("."))
        )
        return rows.where(f.when(bad, f.raise_error(told).cast("boolean")).otherwise(f.lit(True)))

    def count(
        self, rows: DataFrame, node: Node, bad: Column, failure: Column, taken: Column | None = None
    ) -> DataFrame:
        """Rows of which the bad ones are counted, and the first is kept if nobody else will see it.

        ``taken``: which rows are records that came to the step, to be counted too.

        Spark moves no filter past a count: so no later step hides a bad record from ``end``.
        """
        if self.part == "aside":
            return rows
        counts = [number_of(bad).alias("failed")]
        if taken is not None:
            counts.append(number_of(taken).alias("taken"))
        if node.policy.then == "skip" and not kept_by(node):
            counts.append(f.min_by(failure, f.when(bad, f.col(SEQ))).alias("first"))
        return rows.observe(count_name("failed", node.name, again=self.again), *counts)

    # What a row says of a failure

    def misfit(self, node: Node) -> Column:
        """Of a record that did not fit its schema: why, as who read it has packed it."""
        step = f.lit(self.plan.nodes.index(node))
        return f.struct(step.alias("step"), f.col(MISFIT), f.lit(None).cast("string").alias("input"))

    def input(self, node: Node, schema: Schema, keys: tuple[Field, ...]) -> Column:
        """Of a record that came to a step: the record, its time and its key."""
        step = self.plan.nodes.index(node)
        self.inputs[step] = (schema, keys)
        key = f.struct(*(f.col(f"key_{number}") for number in range(len(keys)))) if keys else f.lit(None)
        whole = f.struct(f.col(RECORD), f.unix_micros(f.col(TIME)).alias(TIME), key.alias(_KEYS))
        told = f.to_json(whole, _JSON)
        nothing = f.lit(None).cast("binary")
        return f.struct(f.lit(step).alias("step"), nothing.alias(MISFIT), told.alias("input"))

    @property
    def reader(self) -> FailureReader:
        """What makes records and errors of such rows, in the tasks too."""
        reads = {
            n: each.source.columns for n, each in enumerate(self.plan.nodes) if isinstance(each, nodes.Read)
        }
        writes = frozenset(n for n, each in enumerate(self.plan.nodes) if isinstance(each, nodes.Write))
        return FailureReader(tuple(map(stripped, self.plan.nodes)), reads, writes, self.inputs)

    def ended(self, messages: Iterable[str]) -> StepFailed | None:
        """The end of a batch that a step ended, by what Spark says of it; None: it was something else."""
        for message in messages:
            found = _MARKED.search(message)
            if found is not None:
                data = base64.b64decode(found[3])
                told = (data, None) if found[2] == MISFIT else (None, data.decode())
                failed = self.reader.failed(int(found[1]), *told)
                error = StepFailed(the_end(failed.node, failed.record, failed.error))
                error.__cause__ = failed.error
                return error
        return None


@dataclass(frozen=True)
class FailureReader:
    """Makes of the column ``failure`` which step failed on which record, and why. It travels to the tasks.

    ``reads``: the steps that read, with the schemas of their sources; ``writes``: those that write.
    ``inputs``: as ``Failures`` has them.
    """

    steps: tuple[Node, ...]
    reads: Mapping[int, Schema | None]
    writes: frozenset[int]
    inputs: Mapping[int, tuple[Schema, tuple[Field, ...]]]

    def failed(self, step: int, misfit: bytes | None, told: str | None) -> Failed:
        """The record, and why."""
        node, is_read = self.steps[step], step in self.reads
        if told is None:
            if misfit is None:  # a file that an older version has written does not say it
                error = PayloadInvalid("the record does not fit the schema")
                return Failed(node, None, error, Along(), is_read)
            found = decode_misfit(misfit)
            if isinstance(found, Entrant):
                assert found.error is not None, "it is a row for a sink"
                return Failed(node, found.record, found.error, found.along, is_read)
            return Failed(node, *found, Along(), is_read)
        schema, keys = self.inputs[step]
        values_of = _decoder.decode(told)
        if is_read:
            record = values_of[RECORD]
            return Failed(node, record, _unfit(self.reads[step], record), Along(), is_read)
        record = schema.coerce(values_of[RECORD])
        values = Schema(tuple(Field(f"key_{at}", each.type) for at, each in enumerate(keys)))
        key = tuple(values.coerce(values_of[_KEYS]).values()) if keys else None
        along = Along(values_of.get(TIME), key[0] if key is not None and len(key) == 1 else key)
        return Failed(node, record, _why(node, record), along, is_read)

    def row_for_sink(self, step: int, misfit: bytes | None) -> tuple[str, Any] | None:
        """A row that came back to a sink, with the name of its step; None: it is no such row."""
        if misfit is None or step not in self.writes:
            return None
        entrant = decode_misfit(misfit)
        if isinstance(entrant, Entrant) and entrant.error is None:
            return entrant.step, entrant.record
        return None


def _unfit(schema: Schema | None, record: Any) -> Exception:
    """Why a record does not fit a source's schema."""
    assert schema is not None, "it is typed"
    try:
        schema.coerce(record)
    except PayloadInvalid as error:
        return error
    return PayloadInvalid("the record does not fit the schema")


def _why(node: Node, record: Any) -> Exception:
    """Why a step failed on a record: what Python says, when it tries the same."""
    assert isinstance(node, nodes.EventTime), "no other expression fails"
    try:
        event_time(paths.getter(node.path)(record))
    except Exception as error:  # noqa: BLE001 - that is what is looked for
        return error
    return ValueError(f"{node.path} is no event time")
