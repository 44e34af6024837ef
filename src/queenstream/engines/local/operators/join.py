"""Joins in event time: two sides, each with an index by key in which a key's records stand by time."""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Callable, Sequence
from typing import Any

from queenstream.core import paths
from queenstream.core.batches import Batch
from queenstream.core.records import as_row, hashable
from queenstream.core.schemas import Schema
from queenstream.core.windows import length_us
from queenstream.engines.local.failures import Surroundings
from queenstream.engines.local.operators.base import FOREVER, Changes, Keeper, nothing
from queenstream.engines.local.timers import Due
from queenstream.pipeline.plan import nodes
from queenstream.runtime.failures import GONE
from queenstream.runtime.join_rows import LEFT, Rows
from queenstream.runtime.keys import entry_name


class Held:
    """A record that waits for partners. They sort by time, then by arrival."""

    __slots__ = ("key", "matched", "number", "row", "side", "time")

    def __init__(
        self, side: int, key: Any, time: int, number: int, row: dict[str, Any], matched: bool
    ) -> None:
        self.side = side
        self.key = key
        self.time = time
        self.number = number
        self.row = row
        self.matched = matched

    @property
    def name(self) -> str:
        """What its entry in a checkpoint is called."""
        return entry_name(self.key, self.number)


class JoinOperator(Keeper[nodes.Join]):
    """Keeps each record until no partner can come that would not be late.

    A record is late once the watermark is past its time + grace; so one in order never is.
    """

    def __init__(
        self, node: nodes.Join, around: Surroundings, schemas: tuple[Schema | None, Schema | None]
    ) -> None:
        super().__init__(node, around)
        assert node.within is not None, "a plan has a bound for it"
        self._within = length_us(node.within)
        self._grace = length_us(node.grace)
        self.delay_us = self._within + self._grace
        self._keys = (_key_of([ours for ours, _ in node.on]), _key_of([theirs for _, theirs in node.on]))
        self._alone = (node.how in ("left", "full"), node.how in ("right", "full"))
        self._rows = Rows(node, tuple(() if schema is None else schema.names for schema in schemas))
        self._index: tuple[dict[Any, list[Held]], dict[Any, list[Held]]] = ({}, {})
        self._due: Due[Held] = Due(self.delay_us)
        self._arrived = 0
        self._changed: dict[int, Held] = {}
        self._gone: list[str] = []

    async def process(self, inputs: Sequence[Batch]) -> Batch:
        records: list[Any] = []
        times: list[int] = []
        for side, batch in enumerate(inputs):
            keys = await self.each_pure(batch, self._keys[side], side)
            for record, time, key in zip(batch.records, batch.times or (), keys, strict=False):
                if key is GONE:
                    continue
                if self.watermark is not None and self.watermark > time + self._grace:
                    self.too_late(record, time)
                    continue
                self._take(side, key, time, record, records, times)
        return Batch(records, times)

    def _take(
        self, side: int, key: Any, time: int, record: Any, records: list[Any], times: list[int]
    ) -> None:
        """Pair a record with its partners, and keep it for those that are still to come."""
        self._arrived += 1
        held = Held(side, key, time, self._arrived, as_row(record), False)
        for other in self._partners(held):
            left, right = (held, other) if side == LEFT else (other, held)
            records.append(self._rows.pair(left.row, right.row))
            times.append(max(held.time, other.time))
            held.matched = True
            if not other.matched:
                other.matched = True
                self._note(other)
        if _is_null(key) and not self._alone[side]:
            return
        insort(self._index[side].setdefault(key, []), held, key=_by_time)
        self._due.add(time + self._within + self._grace, held)
        self._note(held)

    def _partners(self, held: Held) -> list[Held]:
        if _is_null(held.key):
            return []
        others = self._index[1 - held.side].get(held.key, [])
        first = bisect_left(others, held.time - self._within, key=_by_time)
        return others[first : bisect_right(others, held.time + self._within, key=_by_time)]

    async def advance(self, watermark: int) -> Batch:
        self.reach(watermark, None)
        ended = watermark == FOREVER
        records: list[Any] = []
        times: list[int] = []
        kept: list[tuple[int, Held]] = []
        while (found := self._due.pop(watermark - 1)) is not None:
            due, held = found
            lonely = not held.matched and self._alone[held.side]
            if lonely:
                records.append(self._rows.alone(held.side, held.row))
                times.append(held.time)
            if ended and not lonely:
                kept.append((due, held))  # should there be more in another run
            else:
                self._drop(held)
        for due, held in kept:
            self._due.add(due, held)
        return Batch(records, times) if records else nothing()

    def _drop(self, held: Held) -> None:
        index = self._index[held.side]
        waiting = index[held.key]
        at = bisect_left(waiting, held.time, key=_by_time)
        while waiting[at] is not held:
            at += 1
        del waiting[at]
        if not waiting:
            del index[held.key]
        if self.tracking:
            self._changed.pop(held.number, None)
            self._gone.append(held.name)

    def _note(self, held: Held) -> None:
        if self.tracking:
            self._changed[held.number] = held

    def meta(self) -> dict[str, Any]:
        return {"watermark": self.watermark, "arrived": self._arrived}

    def restore_meta(self, meta: Any) -> None:
        super().restore_meta(meta)
        self._arrived = meta["arrived"]

    def changed_entries(self) -> Changes:
        found: Changes = dict.fromkeys(self._gone)
        for held in self._changed.values():
            found[held.name] = [held.side, held.key, held.time, held.number, held.row, held.matched]
        self._changed, self._gone = {}, []
        return found

    def restore_entry(self, value: Any) -> None:
        held = Held(*value)
        insort(self._index[held.side].setdefault(held.key, []), held, key=_by_time)
        self._due.add(held.time + self._within + self._grace, held)


def _key_of(fields: list[str]) -> Callable[[Any], Any]:
    readers = [paths.getter(path) for path in fields]
    if len(readers) == 1:
        [read] = readers
        return lambda record: hashable(read(record))
    return lambda record: hashable(tuple([read(record) for read in readers]))


def _is_null(key: Any) -> bool:
    return key is None or (type(key) is tuple and None in key)


def _by_time(held: Held) -> int:
    return held.time
