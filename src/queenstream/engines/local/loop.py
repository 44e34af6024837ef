"""The loop of a run: read, work, commit, deliver, acknowledge; and again.

One epoch is everything between two commits. While it is delivered the next one is already worked on, but
not committed: so at most one is under way, and memory is bounded. After a crash the last committed epoch is
delivered again under the same id, and reading goes on after it.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from queenstream.connectors import Context, reader_for
from queenstream.connectors.provenance import Provenance, SinkGuard, place_of
from queenstream.core.batches import Batch
from queenstream.engines.local import tracing
from queenstream.engines.local.checkpoints.backend import holder_text
from queenstream.engines.local.checkpoints.savepoint import is_savepoint, restore
from queenstream.engines.local.checkpoints.store import (
    CheckpointStore,
    Epoch,
    Snapshot,
    epoch_id,
    new_generation,
    open_store,
)
from queenstream.engines.local.delivery import Deliverer, outbox_of, sinks_of
from queenstream.engines.local.engine import DELIVERY, Engine, Outputs
from queenstream.engines.local.intake import MOST_BYTES, Intake, Pressure, intake_for
from queenstream.pipeline.engine_api import RunOptions
from queenstream.pipeline.plan.lineage import in_order
from queenstream.pipeline.plan.nodes import EventTime, Read, Replay, Union
from queenstream.pipeline.plan.planner import Plan
from queenstream.runtime.metrics import Meter
from queenstream.runtime.missing_fields import MissingFields
from queenstream.runtime.phases import PhaseMeter

log = logging.getLogger("queenstream.local")

_PATIENT_SECONDS = 0.2  # to wait for a record, where that keeps nobody else waiting
_BRIEF_SECONDS = 0.02  # and where it does
_MOST_PENDING = 100_000  # rows that may come together before they are committed
_MOST_PENDING_BYTES = 2 * MOST_BYTES  # and bytes of the records that they are made of


@dataclass(slots=True)
class Pending:
    """What has come together since the last commit."""

    outputs: Outputs = field(default_factory=Outputs)
    arrivals: list[tuple[float, int]] = field(default_factory=list)  # when records were read, and how many
    bytes: int = 0  # of those records, about
    since: float = field(default_factory=time.monotonic)


class Source:
    """A source with what the loop knows of it."""

    def __init__(self, node: Read, intake: Intake) -> None:
        self.node = node
        self.intake = intake
        self.aside = isinstance(node, Replay)  # nobody waits for it, and the end comes without it
        self.ended = False
        self.caught_up = False
        self.taken = 0
        self.goal = intake.lag()  # what is there when the run starts
        self._quiet_since = time.monotonic()

    async def take(self, wait_seconds: float) -> Batch | None:
        """What came in the meantime; None, if there is nothing or never will be."""
        if self.ended:
            return None
        batch = await self.intake.take(wait_seconds)
        if batch is None:
            self.ended = self.caught_up = True
            return None
        if batch.empty and self.intake.drained():
            self.caught_up |= self.aside or wait_seconds >= _BRIEF_SECONDS
            return None
        self._quiet_since = time.monotonic()
        if batch.empty:
            return None
        self.taken += len(batch)
        if self.goal is not None and self.taken >= self.goal:
            self.caught_up = True
        return batch

    @property
    def over(self) -> bool:
        """Whether the run may end, as far as it is concerned."""
        return self.ended or (self.aside and self.caught_up)

    @property
    def idle(self) -> bool:
        """Whether it was quiet for so long that nobody waits for it."""
        limit = self.node.idle_timeout
        return limit is not None and time.monotonic() - self._quiet_since >= limit.total_seconds()


def clocks_in_step(plan: Plan) -> dict[str, str]:
    """The sources that a union takes in the order of event time, each with the step whose clock counts."""
    found: dict[str, str] = {}
    unions = [node for node in plan.nodes if isinstance(node, Union) and node.coordination == "timestamp"]
    pending = [before for union in unions for before in union.inputs]
    while pending:
        node = pending.pop()
        if isinstance(node, EventTime | Read):
            reads = [each for each in in_order([node]) if isinstance(each, Read)]
            found |= {each.name: node.name for each in reads}
        else:
            pending += node.inputs
    return found


class Loop:
    """One run of a plan, from its checkpoint to its end."""

    def __init__(self, plan: Plan, options: RunOptions, meter: Meter) -> None:
        self.plan = plan
        tracking = options.checkpoint is not None
        self.engine = Engine(plan, tracking=tracking, url=options.url, token=options.token)
        self.phases = PhaseMeter(("read", "compute", "commit"), sinks_of(plan), with_bytes=False)
        self.sources: list[Source] = []
        self._clocks = clocks_in_step(plan)
        self.pressures: list[Pressure] = []
        self.live = False
        self.stopping = asyncio.Event()
        self._options = options
        self._interval = 0.0 if options.interval is None else options.interval.total_seconds()
        self._meter = meter
        self._store: CheckpointStore | None = None
        self._deliverer: Deliverer | None = None
        self._number = 0
        self._committed = 0
        self._generation = ""
        self._pending = Pending()
        self._unclean = False  # the last checkpoint of this run is not that of a stop
        self._under_way: asyncio.Task[None] | None = None
        self._missing = MissingFields(plan)

    @property
    def _next(self) -> int:
        """The number of the epoch that comes together now."""
        return self._number + 1

    @property
    def checkpoint_id(self) -> str | None:
        """The id of the last checkpoint; None: there is none."""
        return epoch_id(self._generation, self._committed) if self._committed else None

    @property
    def counts(self) -> dict[str, dict[str, int]]:
        """What happened at each step so far, what sources dropped, and what was written to each sink."""
        found = self.engine.all_counts
        for source in self.sources:
            if source.intake.dropped:
                found[source.node.name]["dropped"] = source.intake.dropped
        written = dict.fromkeys((write.name for write in self.plan.sinks), 0)
        if self._deliverer is not None:
            written |= self._deliverer.written
        for name, number in written.items():
            found.setdefault(name, {})["written"] = number
        return found

    async def run(self) -> None:
        """Until all sources have ended, or it is to stop, or what was there has been worked on."""
        try:
            await self._open()
            await self._work()
        finally:
            await self._close()

    # Beginning and end

    async def _open(self) -> None:
        options = self._options
        snapshot = Snapshot(0, new_generation())
        if options.checkpoint is not None:
            older = options.from_checkpoint
            if older is not None and is_savepoint(older):
                restore(older, options.checkpoint, self.plan.name)
                older = None
            self._store = open_store(options.checkpoint, self.plan.name)
            await self._store.acquire(self.plan.state)
            snapshot = await self._store.load(older)
            self.engine.restore(snapshot.state, snapshot.watermarks or {})
            self._committed = snapshot.epoch
        self._number, self._generation = snapshot.epoch, snapshot.generation
        context = self._context(snapshot.rewound)
        self._deliverer = Deliverer(self.engine, context, await self._guard())
        await self._deliverer.open()
        for delivery in snapshot.outbox:
            outbox = {delivery.sink: delivery.rows}
            await self._write(self._deliverer, delivery.epoch, delivery.number, outbox)
        if snapshot.outbox:  # only now: an epoch is delivered when all its sinks have it
            self._delivered(max(delivery.number for delivery in snapshot.outbox))
        for node in self.plan.sources:
            reader = reader_for(node.source, context(node.name))
            await reader.open(snapshot.positions.get(node.name, {}))
            in_step = node.name in self._clocks
            intake = intake_for(
                node,
                reader,
                self.pressures.append,
                together=in_step,
                max_rows=options.max_batch_rows,
                max_bytes=options.max_batch_bytes,
            )
            self.sources.append(Source(node, intake))

    async def _guard(self) -> SinkGuard:
        """What refuses sinks that another checkpoint has written."""
        options = self._options
        if self._store is None or options.checkpoint is None:
            return SinkGuard(self.plan.name, None)
        own = Provenance(
            checkpoint_id=await self._store.identity(),
            place=place_of(options.checkpoint),
            run=holder_text(),
            began_at=datetime.now(UTC),
        )
        return SinkGuard(self.plan.name, own, start_over=options.start_over)

    def _context(self, rewound: bool) -> Callable[[str], Context]:
        exclusive = self._store is not None
        options = self._options
        return lambda node: Context(self.plan.name, node, options.url, exclusive, rewound, options.token)

    async def _close(self) -> None:
        if self._under_way is not None:
            self._under_way.cancel()
            await asyncio.gather(self._under_way, return_exceptions=True)
        for source in self.sources:
            await source.intake.close()
        if self._deliverer is not None:
            await self._deliverer.close()
        if self._store is not None:
            await self._store.close()
        self.engine.close()

    # The loop

    async def _work(self) -> None:
        while not self.stopping.is_set() and not self._is_done():
            begun = time.monotonic()
            batches = await self._gather()
            if batches:  # else it was idle
                self.phases.add_time(self._next, "read", time.monotonic() - begun)
            await self._process(batches)
            if self._is_time() or not (batches or self._all_drained()):
                await self._commit()
        if all(source.over for source in self.sources):
            with self.phases.timed(self._next, "compute"):
                self._pending.outputs.add(await self.engine.finish())
        await self._commit(clean=True)
        await self._settle()
        left = self.engine.take()  # dead letters of rows that a sink has just refused
        if len(left):
            self._pending.outputs.add(left)
            await self._commit(clean=True)
            await self._settle()

    def _is_done(self) -> bool:
        if all(source.caught_up for source in self.sources) and not self.live:
            self.live = True
            log.info("%s: caught up with its sources", self.plan.name)
        over = all(source.over for source in self.sources)
        return over or (self.live and self._options.until == "caught_up")

    async def _gather(self) -> dict[str, Batch]:
        """A batch from each source that has one; a short wait, if none has."""
        open_sources = [source for source in self.sources if not source.ended and not source.aside]
        aside = [source for source in self.sources if not source.ended and source.aside]
        if not open_sources:
            return await self._take(aside, _PATIENT_SECONDS)
        beside = await self._take(aside, 0)
        if len(open_sources) == 1:
            return beside | await self._take(open_sources, 0 if beside else _PATIENT_SECONDS)
        # One after the other would make a quiet source hold up the others.
        in_step = [source for source in open_sources if source.node.name in self._clocks]
        taken = beside | await self._take([each for each in open_sources if each not in in_step], 0)
        taken |= await self._take_in_step(in_step)
        return taken or await self._take(open_sources, _BRIEF_SECONDS)

    async def _take_in_step(self, sources: list[Source]) -> dict[str, Batch]:
        """Of those that go by event time, who is furthest behind; the others only if there is nothing."""
        times = {source: self.engine.latest(self._clocks[source.node.name]) for source in sources}
        least = min((time for time in times.values() if time is not None), default=None)
        first = None if None in times.values() else least  # nobody knows yet how far a new one is
        behind = [source for source, time in times.items() if time == first]
        taken = await self._take(behind, 0)
        return taken or await self._take([source for source in sources if source not in behind], 0)

    async def _take(self, sources: list[Source], wait_seconds: float) -> dict[str, Batch]:
        taken = await asyncio.gather(*(source.take(wait_seconds) for source in sources))
        return {
            source.node.name: batch for source, batch in zip(sources, taken, strict=True) if batch is not None
        }

    async def _process(self, batches: dict[str, Batch]) -> None:
        records = sum(map(len, batches.values()))
        if records:
            self._pending.arrivals.append((time.monotonic(), records))
            self._pending.bytes += sum(
                source.intake.bytes for source in self.sources if source.node.name in batches
            )
            self._meter.took(records)
        idle = [source.node.name for source in self.sources if source.idle]
        ended = [source.node.name for source in self.sources if source.ended]
        # The end of all is dealt with at the end.
        ended = [] if all(source.ended or source.aside for source in self.sources) else ended
        try:
            with self.phases.timed(self._next, "compute"):
                self._pending.outputs.add(await self.engine.process(batches, idle=idle, ended=ended))
        finally:
            self._warn_of_missing_fields()

    def _warn_of_missing_fields(self) -> None:
        """Once for each field that a step reads and that no record of its first batch had."""
        if not self.engine.field_counts:
            return
        for each in self._missing.take_new(self.engine.field_counts):
            log.warning("%s: %s", self.plan.name, each)

    def _all_drained(self) -> bool:
        """Whether no source keeps something back until what it gave is committed."""
        return all(source.ended or source.intake.drained() for source in self.sources)

    def _is_time(self) -> bool:
        pending = self._pending
        long_enough = time.monotonic() - pending.since >= self._interval
        too_much = len(pending.outputs) >= _MOST_PENDING or pending.bytes >= _MOST_PENDING_BYTES
        return long_enough or too_much

    # Commit and delivery

    async def _commit(self, *, clean: bool = False) -> None:
        """Make what is pending durable, and start to deliver it. Nothing happens if nothing has."""
        await self._settle()
        pending, self._pending = self._pending, Pending()
        outbox = outbox_of(self.plan, pending.outputs)
        moved = {source.node.name: source.intake.changes() for source in self.sources}
        moved = {name: positions for name, positions in moved.items() if positions}
        state = self.engine.changes() if self._store is not None else {}
        if not (moved or state or outbox or pending.arrivals or (clean and self._unclean)):
            await self._acknowledge()  # what came again after a crash, and was passed over
            return
        self._unclean = self._store is not None and not clean
        self._number += 1
        name = epoch_id(self._generation, self._number)
        if self._store is not None:
            marks = self.engine.watermarks()
            epoch = Epoch(self._number, moved, state, marks, outbox, clean)
            with self.phases.timed(self._number, "commit"):
                await self._store.commit(epoch)
            self._committed = self._number
        deliver = self._deliver(name, self._number, outbox, pending.arrivals)
        self._under_way = asyncio.get_running_loop().create_task(deliver)

    async def _deliver(
        self, name: str, number: int, outbox: dict[str, list[Any]], arrivals: list[tuple[float, int]]
    ) -> None:
        assert self._deliverer is not None, "it is open by now"
        with tracing.epoch(self.plan.name, name, arrivals, outbox):
            with self.phases.timed(number, "commit"):
                await self._write(self._deliverer, name, number, outbox)
            self._delivered(number)
            await self._acknowledge()
        self.phases.complete(number)
        now = time.monotonic()
        for read_at, records in arrivals:
            self._meter.delivered(records, now - read_at)

    async def _write(
        self, deliverer: Deliverer, name: str, number: int, outbox: dict[str, list[Any]]
    ) -> None:
        """Write the rows of an epoch, and count what the sinks have got and how long it took."""
        written, seconds = dict(deliverer.written), dict(deliverer.seconds)
        try:
            await deliverer.deliver(name, outbox)
        finally:
            for sink in written:
                self.phases.add_rows(number, sink, deliverer.written[sink] - written[sink])
                self.phases.add_commit(number, sink, deliverer.seconds[sink] - seconds[sink])

    async def _acknowledge(self) -> None:
        for source in self.sources:
            await source.intake.commit()

    def _delivered(self, number: int) -> None:
        if self._store is not None:
            self._store.delivered(number)

    async def _settle(self) -> None:
        """Wait until what is under way has been delivered."""
        if self._under_way is not None:
            under_way, self._under_way = self._under_way, None
            with self.engine.work.at(DELIVERY):
                await under_way
