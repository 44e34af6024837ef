"""How rows reach the sinks, under the id of their epoch; what a sink refuses is an error of its step."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from queenstream.connectors import Context, Writer, writer_for
from queenstream.connectors.dead_letters import make_queues
from queenstream.connectors.provenance import SinkGuard, TracedWriter
from queenstream.engines.local.engine import Engine, Outputs
from queenstream.errors import StepFailed
from queenstream.pipeline.endpoints import Sink
from queenstream.pipeline.plan.nodes import Write
from queenstream.pipeline.plan.planner import Plan
from queenstream.runtime.failures import may_retry


def sinks_of(plan: Plan) -> dict[str, Sink]:
    """All that a run writes to, by name: the plan's sinks, and where its dead letters go."""
    letters = {_letters_name(sink): sink for sink in plan.dead_letters}
    return {**{write.name: write.sink for write in plan.sinks}, **letters}


def outbox_of(plan: Plan, outputs: Outputs) -> dict[str, list[Any]]:
    """An epoch's rows by the names of ``sinks_of``."""
    letters = {
        _letters_name(sink): outputs.dead_letters[sink.address]
        for sink in plan.dead_letters
        if sink.address in outputs.dead_letters
    }
    return {**outputs.rows, **letters}


def _letters_name(sink: Sink) -> str:
    return f"dead-letters:{':'.join(sink.address)}"


class Deliverer:
    """The writers of a run."""

    def __init__(self, engine: Engine, context: Callable[[str], Context], guard: SinkGuard) -> None:
        self._engine = engine
        self._guard = guard
        self._context = context("dead letters")
        self._writes: dict[str, Write] = {write.name: write for write in engine.plan.sinks}
        self._writers: dict[str, Writer] = {
            name: writer_for(sink, context(name)) for name, sink in sinks_of(engine.plan).items()
        }
        self.written = dict.fromkeys(self._writers, 0)
        self.seconds = dict.fromkeys(self._writers, 0.0)  # that the sinks took for it

    async def open(self) -> None:
        """Connect to all sinks."""
        await make_queues(self._engine.plan, self._context)
        for name, writer in self._writers.items():
            await writer.open()
            if isinstance(writer, TracedWriter):
                await self._guard.check(name, writer)

    async def deliver(self, epoch: str, outbox: Mapping[str, Sequence[Any]]) -> None:
        """Write an epoch's rows; when it returns, they are in the sinks, or their steps' policies have them.

        Rows for sinks that the plan has no longer are nobody's.
        """
        try:
            async with asyncio.TaskGroup() as tasks:
                for name, rows in outbox.items():
                    if rows and name in self._writers:
                        tasks.create_task(self._write(name, epoch, rows))
        except ExceptionGroup as group:
            raise group.exceptions[0] from None

    async def _write(self, name: str, epoch: str, rows: Sequence[Any]) -> None:
        begun = time.monotonic()
        try:
            with self._engine.work.at(name):
                await self._write_all(name, epoch, rows)
        finally:
            self.seconds[name] += time.monotonic() - begun

    async def _write_all(self, name: str, epoch: str, rows: Sequence[Any]) -> None:
        writer = self._writers[name]
        if self._guard.is_new(name) and isinstance(writer, TracedWriter):
            await self._guard.store(name, writer)
        refused = await writer.write(epoch, rows)
        self.written[name] += len(rows) - len(refused)
        if not refused:
            return
        write = self._writes.get(name)
        if write is None:
            raise StepFailed(
                f"{name} refused a dead letter: {refused[0][1]}; mend the sink and start again"
            ) from refused[0][1]
        attempt = 1
        while refused:
            again = []
            for index, error in refused:
                if may_retry(write, rows[index], error, attempt):
                    again.append(rows[index])
                else:
                    self._engine.refused(name, rows[index], error, attempt)
            if not again:
                return
            await asyncio.sleep(write.policy.pause(attempt).total_seconds())
            rows = again
            refused = await self._writers[name].write(f"{epoch}-{attempt}", rows)
            self.written[name] += len(rows) - len(refused)
            attempt += 1

    async def close(self) -> None:
        """Let go of all sinks."""
        await asyncio.gather(*(writer.close() for writer in self._writers.values()), return_exceptions=True)
