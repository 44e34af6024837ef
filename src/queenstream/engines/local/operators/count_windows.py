"""Count windows: so many records of a key in a row. Nothing is late for them, and only records close them."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import repeat
from typing import Any

from queenstream.core.batches import Batch
from queenstream.core.windows import Count
from queenstream.engines.local.failures import Surroundings
from queenstream.engines.local.operators.base import Changes, nothing
from queenstream.engines.local.operators.fold import States
from queenstream.engines.local.operators.window_base import Closing, Placed, WindowedOperator
from queenstream.pipeline.plan import nodes
from queenstream.runtime.keys import entry_name


class Filling:
    """A window that is not full yet: how many records it has, from when to when."""

    __slots__ = ("first", "last", "number", "states")

    def __init__(self, number: int, first: int | None, last: int | None, states: States) -> None:
        self.number = number
        self.first = first
        self.last = last
        self.states = states

    def add(self, time: int | None) -> None:
        """One more record."""
        self.number += 1
        if time is not None:
            self.first = time if self.first is None else min(self.first, time)
            self.last = time if self.last is None else max(self.last, time)

    def closing(self, key: Any) -> Closing:
        """To be given as a row."""
        return (key, self.first, None if self.last is None else self.last + 1, self.states)


class Lane:
    """A key's records so far, and its windows that are not full."""

    __slots__ = ("position", "windows")

    def __init__(self, position: int, windows: list[Filling]) -> None:
        self.position = position
        self.windows = windows


class CountOperator(WindowedOperator):
    """Windows by the position of a record among those of its key."""

    def __init__(self, node: nodes.Aggregation, around: Surroundings, definition: Count) -> None:
        super().__init__(node, around)
        self.delay_us = 0
        self._size, self._step = definition.size, definition.step
        self._lanes: dict[Any, Lane] = {}
        self._changed: set[Any] = set()

    async def process(self, inputs: Sequence[Batch]) -> Batch:
        [batch] = inputs
        full: list[tuple[Any, Filling]] = []
        placed = self._place(batch, full)
        await self.fold([each.states for each in placed.windows], placed.records, placed.times, batch)
        keys = set(self.keys_of(batch)) if self.tracking or self.updates else set()
        self._changed |= keys
        closing = [window.closing(key) for key, window in full]
        if self.updates:
            closing += [window.closing(key) for key in keys for window in self._lanes[key].windows]
        return await self.rows(closing) if closing else nothing()

    def _place(self, batch: Batch, full: list[tuple[Any, Filling]]) -> Placed[Filling]:
        """Each record in all windows of its key that are open; those it fills go to ``full``."""
        windows: list[Filling] = []
        records: list[Any] = []
        times: list[int] = []
        lanes, size, step = self._lanes, self._size, self._step
        given = batch.times or repeat(None, len(batch.records))
        for record, time, key in zip(batch.records, given, self.keys_of(batch), strict=True):
            lane = lanes.get(key)
            if lane is None:
                lane = lanes[key] = Lane(0, [])
            if lane.position % step == 0:
                lane.windows.append(Filling(0, None, None, self.folds.new()))
            lane.position += 1
            for window in lane.windows:
                window.add(time)
                windows.append(window)
                records.append(record)
                times.append(time or 0)
            if lane.windows and lane.windows[0].number == size:
                full.append((key, lane.windows.pop(0)))
        return Placed(windows, records, times)

    async def advance(self, watermark: int) -> Batch:
        self.reach(watermark, None)
        return nothing()

    def changed_entries(self) -> Changes:
        found: Changes = {}
        for key in self._changed:
            lane = self._lanes[key]
            windows = [[each.number, each.first, each.last, each.states] for each in lane.windows]
            found[entry_name(key)] = [key, lane.position, windows]
        self._changed = set()
        return found

    def restore_entry(self, value: Any) -> None:
        key, position, windows = value
        self._lanes[key] = Lane(
            position,
            [
                Filling(number, first, last, self.folds.restored(states))
                for number, first, last, states in windows
            ],
        )
