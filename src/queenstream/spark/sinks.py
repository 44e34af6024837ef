"""How a batch's rows reach the sinks: on the driver, through the same writers as everywhere, under the
batch's id.

What a batch gives is stored in the checkpoint first (the outbox), if that is a folder of this machine.
After a crash the batch runs again, and what was stored is written again: writers know the id, so nothing is
there twice. Elsewhere the last batch is kept in memory, for a query that goes on in the same run.
"""

from __future__ import annotations

import asyncio
import os
import pickle
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark import cloudpickle

from queenstream.connectors import Context, Writer, writer_for
from queenstream.connectors.events import Events
from queenstream.connectors.letters import make_queues
from queenstream.errors import StepFailed
from queenstream.pipeline.endpoints import Sink
from queenstream.pipeline.failing import Along, give_up, letter, may_retry
from queenstream.pipeline.nodes import Write
from queenstream.pipeline.planning import Plan
from queenstream.pipeline.policies import DeadLetters
from queenstream.pipeline.running import RunOptions
from queenstream.pipeline.samples import Samples
from queenstream.pipeline.work import Work
from queenstream.spark import flow
from queenstream.spark.records import unpacked

Outbox = dict[str, list[Any]]
"""Rows by the names of ``sinks_of``."""


def sinks_of(plan: Plan) -> dict[str, Sink]:
    """All that a run writes to, by name: the plan's sinks, and where its dead letters go."""
    letters = {letters_name(sink): sink for sink in plan.dead_letters}
    return {**{write.name: write.sink for write in plan.sinks}, **letters}


def letters_name(sink: Sink) -> str:
    """What the outbox calls a sink of dead letters."""
    return f"dead-letters:{':'.join(sink.address)}"


@dataclass(slots=True)
class Told:
    """A batch as the driver sees it: rows for sinks, and what happened at the steps.

    ``examples``: of each step that failed on records, on how many, and the first one and why.
    """

    outbox: Outbox = field(default_factory=dict)
    counts: dict[str, dict[str, int]] = field(default_factory=dict)
    examples: dict[str, tuple[int, str]] = field(default_factory=dict)


def told_by(plan: Plan, table: pa.Table) -> Told:
    """What the rows of the last stage say."""
    told = Told()
    examples: dict[str, str] = {}
    places = sorted(zip(*(table.column(name).to_pylist() for name in flow.NAMES), strict=True), key=_place)
    for node, port, _, _, _, _, _, data in places:
        record, more = unpacked(data)
        if port == flow.FAILED:
            raise StepFailed(record)
        if port == flow.COUNTS:
            _add(told.counts, record)
            examples = {**(more or {}), **examples}
        elif port == flow.LETTER:
            letters = plan.node(node).policy.letters
            assert letters is not None, "only steps with dead letters give any"
            told.outbox.setdefault(letters_name(letters.sink), []).append(record)
        else:
            told.outbox.setdefault(node, []).append(record)
    told.examples = {step: (told.counts[step]["failed"], first) for step, first in examples.items()}
    _add(told.counts, {each.name: {"taken": len(told.outbox.get(each.name, ()))} for each in plan.sinks})
    return told


def _add(into: dict[str, dict[str, int]], counts: Mapping[str, Mapping[str, int]]) -> None:
    for step, numbers in counts.items():
        known = into.setdefault(step, {})
        for what, number in numbers.items():
            known[what] = known.get(what, 0) + number


def _place(row: tuple[Any, ...]) -> tuple[Any, ...]:
    """What came with the watermark, by time, then the records of the batch in their order."""
    node, port, _, seq, sub, time, due, _ = row
    return (port != flow.FAILED, node, port, not due, time if due and time is not None else 0, seq, sub)


class Deliverer:
    """The writers of a run. ``generation`` tells its batches from those of other runs."""

    def __init__(
        self,
        plan: Plan,
        told: RunOptions,
        generation: str,
        folder: Path | None,
        events: Events,
        work: Work,
    ) -> None:
        self._plan = plan
        self._context = Context(plan.name, "dead letters", told.url, token=told.token)
        self._generation = generation
        self._folder = folder
        self._events = events
        self._work = work
        self._writes: dict[str, Write] = {write.name: write for write in plan.sinks}
        self._writers: dict[str, Writer] = {
            name: writer_for(sink, Context(plan.name, name, told.url, token=told.token))
            for name, sink in sinks_of(plan).items()
        }
        self._opened: list[Writer] = []
        self._last: tuple[int, Outbox] | None = None
        self.samples = Samples()
        self.counts: dict[str, dict[str, int]] = {}
        self.written = dict.fromkeys(self._writers, 0)

    def open(self) -> None:
        """Connect to all sinks."""
        self._events.run(make_queues(self._plan, self._context))
        for writer in self._writers.values():
            self._events.run(writer.open())
            self._opened.append(writer)

    def deliver(self, batch_id: int, outbox: Outbox) -> None:
        """Write a batch; when it returns, its rows are in the sinks, or their steps' policies have them."""
        stored = self._stored(batch_id, outbox)
        self._events.run(self._deliver(f"{self._generation}-{batch_id:010}", stored))

    def close(self) -> None:
        """Let go of the sinks that were opened."""
        for writer in self._opened:
            self._events.run(writer.close())
        self._opened = []

    def _stored(self, batch_id: int, outbox: Outbox) -> Outbox:
        """The batch as it is stored: as it was the first time, if this is not the first time."""
        if self._folder is None:
            if self._last is None or self._last[0] != batch_id:
                self._last = (batch_id, outbox)
            return self._last[1]
        path = self._folder / f"{batch_id:010}.pickle"
        if path.exists():
            before: Outbox = pickle.loads(path.read_bytes())  # noqa: S301 - written below
            return before
        if not any(outbox.values()):  # nothing will be in a sink that could differ the next time
            return outbox
        for old in self._folder.glob("*.pickle"):
            old.unlink()
        hidden = path.with_suffix(".new")
        with hidden.open("wb") as file:
            file.write(cloudpickle.dumps(outbox))  # type: ignore[no-untyped-call]
            file.flush()
            os.fsync(file.fileno())
        hidden.rename(path)
        return outbox

    async def _deliver(self, epoch: str, outbox: Mapping[str, Sequence[Any]]) -> None:
        letters: Outbox = {}
        for name, rows in outbox.items():
            if rows and name in self._writers:
                self.samples.see(name, rows)
                with self._work.at(name):
                    await self._write(name, epoch, rows, letters)
        for name, rows in letters.items():
            refused = await self._writers[name].write(f"{epoch}-refused", rows)
            self.written[name] += len(rows) - len(refused)
            if refused:
                raise _undeliverable(name, refused[0][1])

    async def _write(self, name: str, epoch: str, rows: Sequence[Any], letters: Outbox) -> None:
        refused = await self._writers[name].write(epoch, rows)
        self.written[name] += len(rows) - len(refused)
        if not refused:
            return
        write = self._writes.get(name)
        if write is None:
            raise _undeliverable(name, refused[0][1])
        attempt = 1
        while refused:
            again = []
            for index, error in refused:
                if may_retry(write, rows[index], error, attempt):
                    again.append(rows[index])
                else:
                    self._refused(write, rows[index], error, attempt, letters)
            if not again:
                return
            await asyncio.sleep(write.policy.pause(attempt).total_seconds())
            rows = again
            refused = await self._writers[name].write(f"{epoch}-{attempt}", rows)
            self.written[name] += len(rows) - len(refused)
            attempt += 1

    def _refused(self, write: Write, row: Any, error: Exception, attempts: int, letters: Outbox) -> None:
        """A row that a sink does not take is an error of the step that writes."""
        counts = self.counts.setdefault(write.name, {})
        counts["failed"] = counts.get("failed", 0) + 1
        outcome = give_up(write, row, error)
        if isinstance(outcome, DeadLetters):
            counts["dead_letters"] = counts.get("dead_letters", 0) + 1
            told = letter(self._plan.name, write.name, row, error, attempts, datetime.now(UTC), Along())
            letters.setdefault(letters_name(outcome.sink), []).append(told)


def _undeliverable(name: str, error: Exception) -> StepFailed:
    return StepFailed(f"{name} refused a dead letter: {error}; mend the sink and start again")
