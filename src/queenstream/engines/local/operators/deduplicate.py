"""Only the first of records that are the same."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from queenstream.core import paths
from queenstream.core.batches import Batch
from queenstream.core.records import hashable
from queenstream.core.windows import length_us
from queenstream.engines.local.failures import Surroundings
from queenstream.engines.local.operators.base import FOREVER, Changes, Keeper, chosen, nothing
from queenstream.engines.local.timers import Due
from queenstream.pipeline.plan import nodes
from queenstream.runtime.failures import GONE
from queenstream.runtime.keys import entry_name


class DeduplicateOperator(Keeper[nodes.Deduplicate]):
    """Remembers when it let a record with certain values pass, for as long as another may come.

    A record is late once the watermark is past its time + grace; so one in order never is.
    """

    def __init__(self, node: nodes.Deduplicate, around: Surroundings) -> None:
        super().__init__(node, around)
        readers = [paths.getter(path) for path in node.fields]
        self._values = lambda record: hashable(tuple([read(record) for read in readers]))
        assert node.within is not None, "a plan has a bound for it"
        self._within = length_us(node.within)
        self._grace = self.delay_us = length_us(node.grace)
        self._passed: dict[Any, list[int]] = {}
        self._due: Due[Any] = Due(self._within + self._grace)
        self._changed: set[Any] = set()

    async def process(self, inputs: Sequence[Batch]) -> Batch:
        [batch] = inputs
        if batch.times is None:
            return nothing()
        values = await self.each_pure(batch, self._values)
        flags = [
            value is not GONE and self._passes(record, value, time)
            for record, value, time in zip(batch.records, values, batch.times, strict=True)
        ]
        return chosen(batch, flags)

    def _passes(self, record: Any, value: Any, time: int) -> bool:
        if self.watermark is not None and self.watermark > time + self._grace:
            self.too_late(record, time)
            return False
        passed = self._passed.setdefault(value, [])
        if any(abs(time - other) <= self._within for other in passed):
            return False
        passed.append(time)
        self._due.add(time + self._within + self._grace, value)
        if self.tracking:
            self._changed.add(value)
        return True

    async def advance(self, watermark: int) -> Batch:
        self.reach(watermark, None)
        if watermark == FOREVER:  # nothing waits for the end, and what passed stays known
            return nothing()
        while (found := self._due.pop(watermark - 1)) is not None:
            _, value = found
            # By now nothing equal and near enough can come that would not be late.
            passed = self._passed.get(value, ())
            kept = [each for each in passed if each + self._within + self._grace >= watermark]
            if kept:
                self._passed[value] = kept
            else:
                self._passed.pop(value, None)
            if self.tracking:
                self._changed.add(value)
        return nothing()

    def changed_entries(self) -> Changes:
        found: Changes = {}
        for value in self._changed:
            passed = self._passed.get(value)
            found[entry_name(value)] = None if passed is None else [value, passed]
        self._changed = set()
        return found

    def restore_entry(self, value: Any) -> None:
        values, passed = value
        self._passed[values] = passed
        for time in passed:
            self._due.add(time + self._within + self._grace, values)
