"""Steps on one record, in the process of a task: a batch goes through all that follow one another."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import repeat
from typing import Any, NamedTuple, TypeAlias, cast

from queenstream.core import durations, paths
from queenstream.core.records import as_row, copied, event_time, hashable
from queenstream.engines.spark.tasks.failures import Guard, Troubles, along
from queenstream.engines.spark.tasks.graph import Graph, Step, Way, grouping
from queenstream.engines.spark.tasks.lookups import LookingUp
from queenstream.engines.spark.tasks.records import Item
from queenstream.pipeline.expr.expressions import Expr
from queenstream.pipeline.plan import nodes
from queenstream.runtime.failures import GONE
from queenstream.runtime.function_results import SETTLE
from queenstream.runtime.keys import key_text
from queenstream.runtime.missing_fields import FieldWatch


class Routed(NamedTuple):
    """An item for a step in another stage, or for a sink. ``group``: its key there, as text."""

    to: str
    port: int
    group: str
    item: Item


@dataclass(slots=True)
class Passage:
    """What came of a piece of work. ``highest``: the latest event time that a clock of the plan has seen."""

    routed: list[Routed] = field(default_factory=list)
    highest: int | None = None

    def saw(self, times: list[int]) -> None:
        """Event times that move the watermark."""
        if times:
            top = max(times)
            self.highest = top if self.highest is None else max(self.highest, top)


Waiting: TypeAlias = dict[str, list[tuple[int, list[Item]]]]
"""What has arrived at steps that were not called yet, with the number of the input."""


class Router:
    """Takes items at a step, and gives what comes out at the next steps with state and at the sinks."""

    def __init__(self, graph: Graph, troubles: Troubles) -> None:
        self._graph = graph
        self._troubles = troubles
        self._guards = {name: Guard(step.node, troubles) for name, step in graph.items()}
        self._fields = FieldWatch(
            {name: step.reads for name, step in graph.items() if step.reads}, troubles.count
        )
        self._calls: dict[str, Callable[[list[Item], Passage], list[Item]]] = {}
        self._groupings: dict[tuple[str, int], Callable[[Item], Any]] = {}

    def guard(self, name: str) -> Guard:
        """What stands behind a step."""
        return self._guards[name]

    def after(self, name: str, items: list[Item], passage: Passage) -> None:
        """Let through what a step has given."""
        waiting: Waiting = {}
        step = self._graph[name]
        if not step.has_state:
            self._count(step, given=len(items))
        self._hand_on(step.ways, items, waiting, passage)
        self._let_through(waiting, passage)

    def enter(self, entrants: Mapping[Way, list[Item]], passage: Passage) -> None:
        """Let in again what steps had failed on, each where it was. It shows nobody how far time has come."""
        waiting: Waiting = {}
        inside = Passage()
        for way, items in entrants.items():
            step = self._graph[way.to]
            if type(step.node) is nodes.Node and step.ways:  # a source: nothing is to be done there
                self._hand_on(step.ways, items, waiting, inside)
            else:
                self._hand_on((way,), items, waiting, inside)
        self._let_through(waiting, inside)
        passage.routed += inside.routed

    def _count(self, step: Step, **numbers: int) -> None:
        """Where records are many to a piece of work; behind a step with state each key is a piece."""
        if step.depth == step.has_state:
            for what, number in numbers.items():
                self._troubles.count(step.name, what, number)

    def _let_through(self, waiting: Waiting, passage: Passage) -> None:
        for step in self._graph.values():  # in the plan's order, so all inputs of a step come before it
            arrived = waiting.pop(step.name, None)
            if arrived is None:
                continue
            arrived.sort(key=lambda pair: pair[0])
            items = [item for _, part in arrived for item in part]
            made = self._call(step)(items, passage)
            self._count(step, taken=len(items), given=len(made))
            self._hand_on(step.ways, made, waiting, passage)

    def late(self, step: Step, rows: list[Item], passage: Passage) -> None:
        """Let through what a step got too late."""
        for name in step.late_to:
            self.after(name, rows, passage)

    def _hand_on(
        self,
        ways: Iterable[Way],
        items: list[Item],
        waiting: Waiting,
        passage: Passage,
    ) -> None:
        if not items:
            return
        for way in ways:
            to = self._graph[way.to]
            if way.to in self._fields.wanted:
                self._fields.look(way.to, way.port, [item.record for item in items])
            if to.has_state:
                self._count(to, taken=len(items))
                passage.routed += self._grouped(to, way.port, items)
            elif type(to.node) is nodes.Node:  # a sink
                parts = zip(repeat(to.name), repeat(0), repeat(""), items)
                passage.routed += cast(list[Routed], list(map(tuple.__new__, repeat(Routed), parts)))
            else:
                waiting.setdefault(to.name, []).append((way.port, items))

    def _grouped(self, to: Step, port: int, items: list[Item]) -> list[Routed]:
        """Beside its group; a record that has none is an error of the step that wants it."""
        group_of = self._groupings.get((to.name, port))
        if group_of is None:
            group_of = self._groupings[to.name, port] = grouping(to, port)
        found: list[Routed] = []
        for item in items:
            try:
                found.append(Routed(to.name, port, key_text(group_of(item)), item))
            except Exception as error:  # noqa: BLE001 - a value that is no key
                self._guards[to.name].give_up(item.record, error, along(item, port))
        return found

    def _call(self, step: Step) -> Callable[[list[Item], Passage], list[Item]]:
        call = self._calls.get(step.name)
        if call is None:
            call = self._calls[step.name] = _MAKERS[type(step.node)](step, self._guards[step.name])
        return call


Call = Callable[[list[Item], Passage], list[Item]]


def _filter(step: Step, guard: Guard) -> Call:
    assert isinstance(step.node, nodes.Filter)
    holds = step.node.predicate.compile()

    def call(items: list[Item], passage: Passage) -> list[Item]:  # noqa: ARG001 - all have this form
        flags = guard.each([item.record for item in items], holds, items)
        return [item for item, flag in zip(items, flags, strict=True) if flag is True]

    return call


def _project(step: Step, guard: Guard) -> Call:
    assert isinstance(step.node, nodes.Project)
    columns = [(name, expr.compile()) for name, expr in step.node.columns]
    keep = step.node.keep

    def row(record: Any) -> dict[str, Any]:
        made = {name: of(record) for name, of in columns}
        return {**as_row(record), **made} if keep else made

    def call(items: list[Item], passage: Passage) -> list[Item]:  # noqa: ARG001
        return _with_records(items, guard.each([item.record for item in items], row, items))

    return call


def _event_time(step: Step, guard: Guard) -> Call:
    assert isinstance(step.node, nodes.EventTime)
    read = paths.getter(step.node.path)

    def call(items: list[Item], passage: Passage) -> list[Item]:
        times = guard.each([item.record for item in items], lambda record: event_time(read(record)), items)
        made = [
            Item(item.record, time, item.key, item.seq, item.due)
            for item, time in zip(items, times, strict=True)
            if time is not GONE
        ]
        if step.is_clock:
            passage.saw([item.time for item in made if item.time is not None])
        return made

    return call


def _key_by(step: Step, guard: Guard) -> Call:
    assert isinstance(step.node, nodes.KeyBy)
    parts = [part.of.compile() if isinstance(part.of, Expr) else part.of for part in step.node.parts]

    def key(record: Any) -> Any:
        values = [part(record) for part in parts]
        return hashable(values[0] if len(values) == 1 else tuple(values))

    def call(items: list[Item], passage: Passage) -> list[Item]:  # noqa: ARG001
        keys = guard.each([item.record for item in items], key, items)
        return [
            Item(item.record, item.time, key, item.seq, item.due)
            for item, key in zip(items, keys, strict=True)
            if key is not GONE
        ]

    return call


def _union(step: Step, guard: Guard) -> Call:  # noqa: ARG001 - nothing fails
    assert isinstance(step.node, nodes.Union)
    by_time = step.node.coordination == "timestamp"

    def call(items: list[Item], passage: Passage) -> list[Item]:  # noqa: ARG001
        if not by_time:
            return items
        # What comes of other sources runs in other tasks: the place in the batch is the time.
        return sorted((item._replace(seq=item.time or 0) for item in items), key=lambda item: item.seq)

    return call


def _late(step: Step, guard: Guard) -> Call:  # noqa: ARG001 - nothing fails
    return lambda items, passage: items  # noqa: ARG005


def _apply(step: Step, guard: Guard) -> Call:
    return Applying(step, guard)


def _lookup(step: Step, guard: Guard) -> Call:
    look_up = LookingUp(step, guard)
    return lambda items, passage: look_up(items)  # noqa: ARG005 - all have this form


class Applying:
    """A user's function on each record: in a plain loop, in threads, or as many async calls at once."""

    def __init__(self, step: Step, guard: Guard) -> None:
        assert isinstance(step.node, nodes.Apply)
        self._node = step.node
        self._function = step.node.function
        self._shared = step.shared
        self._guard = guard
        self._timeout = None if step.node.timeout is None else step.node.timeout.total_seconds()
        self._settle = SETTLE[step.node.mode](step.node.name)

    def __call__(self, items: list[Item], passage: Passage) -> list[Item]:  # noqa: ARG002 - all have this form
        records = [copied(item.record) if self._shared else item.record for item in items]
        node = self._node
        if node.is_async or node.concurrency > 1 or self._timeout is not None:
            results = asyncio.run(self._at_once(records, items))
        else:
            results = self._guard.each(records, self._checked, items)
        if node.mode == "filter":
            return [item for item, flag in zip(items, results, strict=True) if flag]
        if node.mode == "map":
            return _with_records(items, results)
        return [
            item._replace(record=record)
            for item, made in zip(items, results, strict=True)
            if made is not GONE
            for record in made
        ]

    def _checked(self, record: Any) -> Any:
        return self._settle(self._function(record))

    async def _at_once(self, records: list[Any], items: list[Item]) -> list[Any]:
        """Several calls under way, results in the order of the records."""
        results: list[Any] = [GONE] * len(records)
        todo = iter(enumerate(records))
        pool = ThreadPoolExecutor(self._node.concurrency)

        async def call(record: Any) -> Any:
            return await self._in_time(record, pool)

        async def work() -> None:
            for index, record in todo:
                try:
                    results[index] = await call(record)
                except Exception as error:  # noqa: BLE001 - whatever a user's function raises
                    results[index] = await self._guard.recover_later(
                        record, error, call, asyncio.sleep, along(items[index])
                    )

        try:
            async with asyncio.TaskGroup() as tasks:
                for _ in range(min(self._node.concurrency, len(records))):
                    tasks.create_task(work())
        except ExceptionGroup as group:
            raise group.exceptions[0] from None
        finally:
            pool.shutdown(wait=False, cancel_futures=True)
        return results

    async def _in_time(self, record: Any, pool: ThreadPoolExecutor) -> Any:
        try:
            async with asyncio.timeout(self._timeout) as limit:
                if self._node.is_async:
                    return self._settle(await self._node.function(record))
                return await asyncio.get_running_loop().run_in_executor(pool, self._checked, record)
        except TimeoutError:
            if not limit.expired():
                raise  # the function's own
            told = durations.format(self._timeout or 0)
            raise TimeoutError(f"{self._node.name} took longer than {told}") from None


def _with_records(items: list[Item], records: list[Any]) -> list[Item]:
    new = tuple.__new__  # ``_replace`` takes several times as long
    return [
        new(Item, (record, time, key, seq, due))
        for record, (_, time, key, seq, due) in zip(records, items, strict=True)
        if record is not GONE
    ]


_MAKERS: dict[type[nodes.Node], Callable[[Step, Guard], Call]] = {
    nodes.Apply: _apply,
    nodes.Lookup: _lookup,
    nodes.Filter: _filter,
    nodes.Project: _project,
    nodes.EventTime: _event_time,
    nodes.KeyBy: _key_by,
    nodes.Union: _union,
    nodes.Late: _late,
}
