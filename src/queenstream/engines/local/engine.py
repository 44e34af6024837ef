"""The engine: a batch from each source goes in, rows for each sink come out. No I/O, no threads, no clock.

Time moves at the end of a batch: a record is late only by what the batches before it have shown. Then what
is due comes (windows, timers, records that found no partner), and flows on in the same batch.

    engine = Engine(plan)
    outputs = await engine.process({"memory": Batch([{"user": "a", "at": 1000}])})
    outputs.rows["function:print"]
"""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from typing import Any, NamedTuple

from queenstream.core.batches import Batch
from queenstream.engines.local.checkpoints.snapshots import StateKey
from queenstream.engines.local.compile import compile_plan
from queenstream.engines.local.failures import Address, Counts, Surroundings
from queenstream.engines.local.operators.base import FOREVER, Changes, Keeper, Operator, nothing, together
from queenstream.engines.local.operators.stateless import (
    Entrants,
    EventTimeOperator,
    LateOperator,
    ReadOperator,
    ReplayOperator,
    WriteOperator,
)
from queenstream.pipeline.plan.planner import Plan
from queenstream.runtime.failures import Along
from queenstream.runtime.missing_fields import FieldWatch, untyped_reads
from queenstream.runtime.samples import Samples
from queenstream.runtime.utilization import Work

DELIVERY = ""
"""Who holds up all steps while rows have to be in the sinks before anything goes on; no step is called so."""


@dataclass(slots=True)
class Outputs:
    """What is to be written: rows by the name of the step that writes, dead letters by their sink."""

    rows: dict[str, list[Any]] = field(default_factory=dict)
    dead_letters: dict[Address, list[dict[str, Any]]] = field(default_factory=dict)

    def __len__(self) -> int:
        return sum(map(len, self.rows.values())) + sum(map(len, self.dead_letters.values()))

    def add(self, other: Outputs) -> None:
        """Put another's after this one's."""
        for name, rows in other.rows.items():
            self.rows[name] = [*self.rows[name], *rows] if name in self.rows else rows
        for address, letters in other.dead_letters.items():
            self.dead_letters.setdefault(address, []).extend(letters)


class Mark(NamedTuple):
    """How far event time has come at a place of the plan. ``idle``: it holds nobody back."""

    time: int | None
    idle: bool


@contextmanager
def _without_collecting(operator: Operator[Any]) -> Iterator[None]:
    """A batch makes many objects that live on; to look for cycles among them meanwhile costs a third.

    Not while an operator may wait: others are at work then.
    """
    was_on = gc.isenabled() and not operator.may_wait
    if not was_on:
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


class Engine:
    """A plan at work.

    ``tracking``: changes of state are written down, for a checkpoint. ``now`` is for dead letters, ``sleep``
    for the pauses between tries; ``url`` and ``token`` are those of the run's broker, for look-ups.
    """

    def __init__(
        self,
        plan: Plan,
        *,
        tracking: bool = False,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        url: str | None = None,
        token: str | None = None,
    ) -> None:
        self.plan = plan
        self._around = Surroundings(plan.name, now, sleep, tracking, url, token)
        self._operators: list[Operator[Any]] = list(compile_plan(plan, self._around).values())
        self._by_name = {operator.node.name: operator for operator in self._operators}
        self.field_counts: dict[str, dict[str, int]] = {}
        self._fields = FieldWatch(untyped_reads(plan), self._count_field)
        self.samples = Samples()
        self.work = Work(plan, held_by={write.name: DELIVERY for write in plan.sinks})
        self._idle: set[str] = set()
        self._ended: set[str] = set()

    @property
    def counts(self) -> Mapping[str, Counts]:
        """What happened at each step so far."""
        return {name: operator.counts for name, operator in self._by_name.items()}

    @property
    def all_counts(self) -> dict[str, dict[str, int]]:
        """The same with what was found of the fields that steps read, for the summary."""
        return {
            name: asdict(counts) | self.field_counts.get(name, {}) for name, counts in self.counts.items()
        }

    @property
    def watermark(self) -> int | None:
        """The least of the plan's watermarks, in µs; None: there is none yet, or no step has use for one."""
        times = [operator.watermark for operator in self._operators if isinstance(operator, Keeper)]
        known = [time for time in times if time is not None]
        return min(known) if known and len(known) == len(times) else None

    @property
    def step_watermarks(self) -> dict[str, int]:
        """How far event time has come at the steps that go by it or set it, in µs; of others, nothing."""
        times = {each.node.name: each.watermark for each in self._operators if isinstance(each, Keeper)}
        times |= {each.node.name: each.highest for each in self._clocks_of()}
        return {name: time for name, time in times.items() if time is not None}

    def latest(self, clock: str) -> int | None:
        """The latest event time that a step which sets it, or a source, has seen, in µs."""
        operator = self._by_name[clock]
        assert isinstance(operator, ReadOperator | EventTimeOperator), "others have no clock"
        return operator.highest

    async def process(
        self, batches: Mapping[str, Batch], *, idle: Collection[str] = (), ended: Collection[str] = ()
    ) -> Outputs:
        """Take a batch from each source, by the name of the step that reads it.

        ``idle`` sources are quiet for too long to wait for, until their next record; those that ``ended``
        have no more. When all have, everything closes.
        """
        self._idle |= set(idle)
        self._ended |= set(ended)
        self._idle -= {name for name, batch in batches.items() if batch.records}
        await self._flow(batches)
        await self._let_in()
        await self._move()
        return self.take()

    async def advance(self, to_us: int) -> Outputs:
        """Event time is at ``to_us``, whatever the sources have shown: what is due by then comes."""
        for operator in self._clocks_of():
            operator.highest = to_us if operator.highest is None else max(operator.highest, to_us)
        await self._move()
        return self.take()

    async def finish(self) -> Outputs:
        """All sources have ended: everything closes."""
        return await self.process({}, ended=[read.name for read in self.plan.sources])

    def refused(self, step: str, row: Any, error: Exception, attempts: int) -> None:
        """A sink did not take a row that a step gave it; what the step's policy gives comes with ``take``."""
        self._by_name[step].guard.give_up(row, error, Along(), attempts)

    def take(self) -> Outputs:
        """What is to be written and was not given out yet, such as dead letters of refused rows."""
        outputs = Outputs(dead_letters=self._around.letters)
        self._around.letters = {}
        for operator in self._operators:
            if isinstance(operator, WriteOperator) and operator.rows:
                outputs.rows[operator.node.name] = operator.rows
                operator.rows = []
        return outputs

    def watermarks(self) -> dict[str, int]:
        """The clocks of the plan: the highest event time that each has seen, by step; for a checkpoint."""
        times = {operator.node.name: operator.highest for operator in self._clocks_of()}
        return {name: time for name, time in times.items() if time is not None}

    def changes(self) -> dict[str, Changes]:
        """What changed in the state of each step since the last call: entries by name, None for those gone.

        Nothing is copied: store it before the next batch.
        """
        found = {name: keeper.changes() for name, keeper in self._keepers().items()}
        return {name: changes for name, changes in found.items() if changes}

    def restore(self, state: Mapping[str, Mapping[StateKey, Any]], watermarks: Mapping[str, int]) -> None:
        """Go on from what ``changes`` and ``watermarks`` gave. What belongs to no step is passed over."""
        for name, keeper in self._keepers().items():
            keeper.restore(state.get(name, {}))
        for operator in self._clocks_of():
            operator.highest = watermarks.get(operator.node.name)

    def close(self) -> None:
        """Let go of threads."""
        for operator in self._operators:
            operator.close()

    def _keepers(self) -> dict[str, Keeper[Any]]:
        return {name: each for name, each in self._by_name.items() if isinstance(each, Keeper)}

    def _clocks_of(self) -> list[ReadOperator | EventTimeOperator]:
        clocks = [each for each in self._operators if isinstance(each, ReadOperator | EventTimeOperator)]
        return [each for each in clocks if not isinstance(each, ReplayOperator)]

    async def _flow(self, batches: Mapping[str, Batch], entrants: Entrants | None = None) -> None:
        """Let records through, without time moving; ``entrants`` join them on their way."""
        made: dict[str, Batch] = {}
        for operator in self._operators:
            node = operator.node
            if isinstance(operator, ReadOperator):
                inputs = [batches.get(node.name, nothing())]
            else:
                inputs = [made[each.name] for each in node.inputs]
            if entrants:
                joining = [entrants.get((node.name, port), nothing()) for port in range(len(inputs))]
                inputs = [together(pair) for pair in zip(inputs, joining, strict=True)]
            made[node.name] = await self._through(operator, inputs)
        self._forget_late()

    async def _let_in(self) -> None:
        """Let the records of dead letters that came back go on from where they failed; no clock moves."""
        entrants: Entrants = {}
        for operator in self._operators:
            if isinstance(operator, ReplayOperator):
                entering, refused = operator.take()
                entrants |= entering
                for step, record, along, error in refused:
                    if error is not None:
                        self._by_name[step].guard.give_up(record, error, along)
        if not entrants:
            return
        clocks = [(clock, clock.highest) for clock in self._clocks_of()]
        await self._flow({}, entrants)
        for clock, highest in clocks:
            clock.highest = highest

    async def _move(self) -> None:
        """Let time move from the clocks on; what comes due flows on."""
        made: dict[str, Batch] = {}
        marks: dict[str, Mark] = {}
        for operator in self._operators:
            node = operator.node
            inputs = [made[each.name] for each in node.inputs]
            out = nothing() if isinstance(operator, ReadOperator) else await self._through(operator, inputs)
            before = self._mark_of([marks[each.name] for each in node.inputs])
            if isinstance(operator, Keeper) and before.time is not None:
                with self.work.at(node.name), _without_collecting(operator):
                    due = await operator.advance(max(before.time, operator.watermark or before.time))
                operator.counts.given += len(due.records)
                if self.samples.on:
                    self.samples.see(node.name, due.records)
                out = together([out, due])
            made[node.name] = out
            marks[node.name] = self._mark_after(operator, before)
        self._forget_late()

    async def _through(self, operator: Operator[Any], inputs: list[Batch]) -> Batch:
        if not any(batch.records or batch.failures for batch in inputs) and not isinstance(
            operator, LateOperator
        ):
            return nothing()
        if operator.node.name in self._fields.wanted:
            for port, batch in enumerate(inputs):
                self._fields.look(operator.node.name, port, batch.records)
        operator.counts.taken += sum(len(batch.records) for batch in inputs)
        with self.work.at(operator.node.name), _without_collecting(operator):
            out = await operator.process(inputs)
        operator.counts.given += len(out.records)
        if self.samples.on:
            self.samples.see(operator.node.name, out.records)
        return out

    def _count_field(self, step: str, what: str, number: int) -> None:
        counts = self.field_counts.setdefault(step, {})
        counts[what] = counts.get(what, 0) + number

    def _mark_of(self, marks: list[Mark]) -> Mark:
        """Where branches meet: the least, but for those that are idle; if all are, the greatest."""
        awake = [mark.time for mark in marks if not mark.idle]
        if None in awake:
            return Mark(None, False)
        known = [time for time in awake if time is not None]
        if known:
            return Mark(min(known), False)
        return Mark(max((mark.time for mark in marks if mark.time is not None), default=None), True)

    def _mark_after(self, operator: Operator[Any], before: Mark) -> Mark:
        if isinstance(operator, ReadOperator):
            name = operator.node.name
            if name in self._ended:
                return Mark(FOREVER, False)
            return Mark(operator.highest, name in self._idle)
        if before.time == FOREVER:
            return before
        if isinstance(operator, EventTimeOperator):
            return Mark(operator.highest, before.idle)
        if before.time is None or not operator.delay_us:
            return before
        return Mark(before.time - operator.delay_us, before.idle)

    def _forget_late(self) -> None:
        for keeper in self._keepers().values():
            keeper.late = []
