"""Steps on one record, by expressions; the ends of a plan; where branches meet."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

from queenstream.core import paths
from queenstream.core.batches import Batch
from queenstream.core.records import EARLIEST, LATEST, as_row, event_time, hashable
from queenstream.core.windows import to_us
from queenstream.engines.local.failures import Surroundings
from queenstream.engines.local.operators.base import Keeper, Operator, chosen, nothing, survivors, together
from queenstream.pipeline.expr.expressions import Expr
from queenstream.pipeline.plan import nodes
from queenstream.runtime.failures import Along
from queenstream.runtime.replay import Doors, Entrant

_KEYS = {str, int, float, bool, type(None)}  # types that can be keys, without asking each value


class ReadOperator(Operator[nodes.Read]):
    """Passes on what a source gave; what it could not make a record of is an error of this step."""

    def __init__(self, node: nodes.Read, around: Surroundings) -> None:
        super().__init__(node, around)
        self.highest: int | None = None

    async def process(self, inputs: Sequence[Batch]) -> Batch:
        [batch] = inputs
        for record, error in batch.failures:
            self.guard.give_up(record, error, Along())
        if batch.times:
            top = max(batch.times)
            self.highest = top if self.highest is None else max(self.highest, top)
        return batch


Entrants: TypeAlias = dict[tuple[str, int], Batch]
"""Records that are let in again, by the step and which of its inputs."""


class ReplayOperator(ReadOperator):
    """Opens the letters that came back; ``take`` gives what is to be let in, and what cannot be."""

    node: nodes.Replay

    def __init__(self, node: nodes.Replay, around: Surroundings, doors: Doors) -> None:
        super().__init__(node, around)
        self._doors = doors
        self._opened: list[Entrant] = []

    async def process(self, inputs: Sequence[Batch]) -> Batch:
        [batch] = inputs
        for record, error in batch.failures:
            self.guard.give_up(record, error, Along())
        before = len(self._opened)
        for letter in batch.records:
            try:
                entrant = self._doors.open(letter)
            except Exception as error:  # noqa: BLE001 - whatever somebody has put there
                self.guard.give_up(letter, error, Along())
            else:
                self._opened += [] if entrant is None else [entrant]
        return Batch([entrant.record for entrant in self._opened[before:]])

    def take(self) -> tuple[Entrants, list[Entrant]]:
        """What was opened since the last time."""
        opened, self._opened = self._opened, []
        by_door: dict[tuple[str, int], list[Entrant]] = {}
        for entrant in opened:
            if entrant.error is None:
                by_door.setdefault((entrant.step, entrant.along.port), []).append(entrant)
        entering = {door: _entering(entrants) for door, entrants in by_door.items()}
        return entering, [entrant for entrant in opened if entrant.error is not None]


def _entering(entrants: list[Entrant]) -> Batch:
    """Those of one door; all have a time, or none."""
    times = [entrant.along.time for entrant in entrants if entrant.along.time is not None]
    keys = [entrant.along.key for entrant in entrants]
    return Batch([entrant.record for entrant in entrants], times or None, keys)


class FilterOperator(Operator[nodes.Filter]):
    """Keeps records by an expression."""

    def __init__(self, node: nodes.Filter, around: Surroundings) -> None:
        super().__init__(node, around)
        self._holds = node.predicate.compile()

    async def process(self, inputs: Sequence[Batch]) -> Batch:
        results = await self.each_pure(inputs[0], self._holds)
        return chosen(inputs[0], [result is True for result in results])


class ProjectOperator(Operator[nodes.Project]):
    """Makes rows by expressions."""

    def __init__(self, node: nodes.Project, around: Surroundings) -> None:
        super().__init__(node, around)
        columns = [(name, expr.compile()) for name, expr in node.columns]

        def only(record: Any) -> dict[str, Any]:
            return {name: of(record) for name, of in columns}

        def beside(record: Any) -> dict[str, Any]:
            return {**as_row(record), **{name: of(record) for name, of in columns}}

        self._row: Callable[[Any], dict[str, Any]] = beside if node.keep else only

    async def process(self, inputs: Sequence[Batch]) -> Batch:
        failed = self.counts.failed
        results = await self.each_pure(inputs[0], self._row)
        batch = inputs[0]
        if self.counts.failed > failed:
            batch, results = survivors(batch, results)
        return Batch(results, batch.times, batch.keys)


class EventTimeOperator(Operator[nodes.EventTime]):
    """Sets the event time, and so is a clock for what comes after it."""

    def __init__(self, node: nodes.EventTime, around: Surroundings) -> None:
        super().__init__(node, around)
        self.highest: int | None = None
        self._read = paths.getter(node.path)

    async def process(self, inputs: Sequence[Batch]) -> Batch:
        failed = self.counts.failed
        batch = inputs[0]
        times = _from_whole_milliseconds(list(map(self._read, batch.records)))
        if times is None:
            times = await self.each_pure(batch, self._time)
        if self.counts.failed > failed:
            batch, times = survivors(batch, times)
        if times:
            top = max(times)
            self.highest = top if self.highest is None else max(self.highest, top)
        return Batch(batch.records, times, batch.keys)

    def _time(self, record: Any) -> int:
        return event_time(self._read(record))


def _from_whole_milliseconds(values: list[Any]) -> list[int] | None:
    """The event times, if all values are what most are; else None, and each is looked at for itself."""
    if set(map(type, values)) != {int}:
        return None
    times = [value * 1_000 for value in values]
    return times if min(times) >= EARLIEST and max(times) <= LATEST else None


class KeyByOperator(Operator[nodes.KeyBy]):
    """Sets the key: one value, or a tuple of several."""

    def __init__(self, node: nodes.KeyBy, around: Surroundings) -> None:
        super().__init__(node, around)
        parts = [part.of.compile() if isinstance(part.of, Expr) else part.of for part in node.parts]
        self._parts = parts
        self._pure = all(isinstance(part.of, Expr) for part in node.parts)

    async def process(self, inputs: Sequence[Batch]) -> Batch:
        failed = self.counts.failed
        batch = inputs[0]
        if self._pure:
            keys = await self._columns(batch)
        else:
            keys = await self.each(batch.records, self._key, batch)
        if self.counts.failed > failed:
            batch, keys = survivors(batch, keys)
        return Batch(batch.records, batch.times, keys)

    async def _columns(self, batch: Batch) -> list[Any]:
        """Keys of expressions, part by part; if something in them may be no key, each for itself."""
        try:
            columns = [list(map(part, batch.records)) for part in self._parts]
        except Exception:  # noqa: BLE001 - found again, for the record that it belongs to
            return await self.each(batch.records, self._key, batch)
        if not all(set(map(type, column)) <= _KEYS for column in columns):
            return await self.each(batch.records, self._key, batch)
        return columns[0] if len(columns) == 1 else list(zip(*columns, strict=True))

    def _key(self, record: Any) -> Any:
        values = [part(record) for part in self._parts]
        return hashable(values[0] if len(values) == 1 else tuple(values))


class UnionOperator(Operator[nodes.Union]):
    """Brings branches together."""

    async def process(self, inputs: Sequence[Batch]) -> Batch:
        merged = together(inputs)
        if self.node.coordination == "arrival" or not merged.times:
            return merged
        times = merged.times
        order = sorted(range(len(times)), key=times.__getitem__)
        return Batch(
            [merged.records[at] for at in order],
            [times[at] for at in order],
            None if merged.keys is None else [merged.keys[at] for at in order],
        )


class LateOperator(Operator[nodes.Late]):
    """What a step before got too late."""

    def __init__(self, node: nodes.Late, around: Surroundings, origin: Keeper[Any]) -> None:
        super().__init__(node, around)
        origin.wants_late = True
        self._origin = origin

    async def process(self, inputs: Sequence[Batch]) -> Batch:  # noqa: ARG002 - it is another output it takes
        rows = self._origin.late
        return Batch(list(rows), [to_us(row["event_time"]) for row in rows])


class WriteOperator(Operator[nodes.Write]):
    """Gathers what is to be written."""

    def __init__(self, node: nodes.Write, around: Surroundings) -> None:
        super().__init__(node, around)
        self.rows: list[Any] = []

    async def process(self, inputs: Sequence[Batch]) -> Batch:
        # Not added to in place: the list may be another branch's too.
        self.rows = [*self.rows, *inputs[0].records] if self.rows else inputs[0].records
        return nothing()
