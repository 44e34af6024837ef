"""Steps with a state for each key, with timers, and with an end to what nobody touches."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import repeat
from operator import itemgetter
from typing import Any

from queenstream.core.batches import Batch
from queenstream.core.records import copied
from queenstream.core.windows import length_us
from queenstream.engines.local.failures import Surroundings
from queenstream.engines.local.operators.base import FOREVER, Changes, Keeper, chosen
from queenstream.engines.local.timers import Due
from queenstream.pipeline.plan import nodes
from queenstream.pipeline.state import Entry, Gatherer, State
from queenstream.runtime.failures import GONE, Along
from queenstream.runtime.keys import entry_name

_USUAL_US = 60_000_000  # how far ahead a timer is set, if nothing else is known


class Kept:
    """What a step knows of one key: values, timers, and when it was last called for it."""

    __slots__ = ("timers", "touched", "values", "watched")

    def __init__(self, values: dict[str, Any], timers: dict[str, int], touched: int | None) -> None:
        self.values = values
        self.timers = timers
        self.touched = touched
        self.watched = False  # whether an entry waits for its end of life


class StatefulOperator(Keeper[nodes.Stateful]):
    """Calls the user's function record by record, and ``on_timer`` with the watermark.

    ``_due`` has an entry for every timer, and one for the end of life of each key; an entry that is no
    longer true is passed over when its time comes.
    """

    def __init__(self, node: nodes.Stateful, around: Surroundings, *, shared: bool) -> None:
        super().__init__(node, around)
        self._ttl = None if node.ttl is None else length_us(node.ttl)
        self._grace = None if node.grace is None else length_us(node.grace)
        self._reached: int | None = None  # how far the watermark is, also while timers are called
        self._shared = shared
        self._kept: dict[Any, Kept] = {}
        self._due: Due[tuple[Any, str | None]] = Due(self._ttl or _USUAL_US)
        self._changed: set[Any] = set()
        function: Any = node.function
        self._gatherer: Gatherer | None = function if isinstance(function, Gatherer) else None

    async def process(self, inputs: Sequence[Batch]) -> Batch:
        [batch] = inputs
        if self._gatherer is not None and batch.times is not None:
            await self._gather(batch, batch.times, self._gatherer)
            return Batch([], [], [])
        out = Batch([], None if batch.times is None else [], [])
        function, attempt = self.node.function, self._attempt
        records = map(copied, batch.records) if self._shared else batch.records
        times = batch.times or repeat(None, len(batch.records))
        keys = batch.keys or repeat(None, len(batch.records))
        for record, time, key in zip(records, times, keys, strict=True):
            if self._grace is not None and time is not None and self._is_late(time, self._grace):
                self.too_late(record, time)
                continue
            try:
                made = attempt(function, key, record, time)
            except Exception as error:  # noqa: BLE001 - whatever a user's function raises
                made = await self._recover(error, record, Along(time, key), function, key, record, time)
            if made:
                _give(out, made, key, time)
        return out

    async def _gather(self, batch: Batch, times: list[int], function: Gatherer) -> None:
        """Take the records of each key together."""
        grace = self._grace
        if grace is not None and times and self._is_late(min(times), grace):
            flags = [not self._is_late(time, grace) for time in times]
            for record, time, flag in zip(batch.records, times, flags, strict=True):
                if not flag:
                    self.too_late(record, time)
            batch = chosen(batch, flags)
            times = batch.times or []
        if self._shared:
            batch = Batch([copied(record) for record in batch.records], times, batch.keys)
        found = await self.each_pure(batch, function.prepared)
        groups: dict[Any, list[Entry]] = {}
        for key, time, each in zip(batch.keys or repeat(None, len(times)), times, found, strict=True):
            if each is not GONE:
                groups.setdefault(key, []).append([time, each])
        gather = _gathering(function)
        for key, entries in groups.items():
            kept = self._kept.get(key)
            last = max(map(itemgetter(0), entries))
            if kept is None or not self._is_over(kept, last):
                self._attempt(gather, key, entries, last)
            else:  # some may come before its end, and some after it
                for entry in entries:
                    self._attempt(gather, key, [entry], entry[0])

    def _is_late(self, time: int, grace: int) -> bool:
        return self.watermark is not None and self.watermark > time + grace

    async def advance(self, watermark: int) -> Batch:
        out = Batch([], [], [])
        self._reached = watermark
        if watermark == FOREVER:
            # Only what is set by now: a timer that sets itself again would never come to an end.
            for at, entry in self._drained():
                await self._happen(at, *entry, watermark, out)
        else:
            while (found := self._due.pop(watermark)) is not None:
                await self._happen(found[0], *found[1], watermark, out)
        self.reach(watermark, None)
        return out

    def _drained(self) -> list[tuple[int, tuple[Any, str | None]]]:
        entries = []
        while (found := self._due.pop(FOREVER)) is not None:
            entries.append(found)
        return entries

    async def _happen(self, at: int, key: Any, timer: str | None, watermark: int, out: Batch) -> None:
        """A timer, or a key's end of life, if it is still true."""
        kept = self._kept.get(key)
        if kept is None:
            return
        if timer is None:
            if watermark != FOREVER and self._is_over(kept, watermark):
                self._forget(key)
            else:
                kept.watched = False
                self._watch(key, kept)
        elif kept.timers.get(timer) == at and self.node.on_timer is not None:
            if self._is_over(kept, at):
                return  # at the end of all input: in time, the key would have been forgotten before
            del kept.timers[timer]
            kept.touched = at if kept.touched is None else max(at, kept.touched)
            call = (self.node.on_timer, key, timer, at)
            try:
                made = self._attempt(*call)
            except Exception as error:  # noqa: BLE001 - whatever a user's function raises
                made = await self._recover(error, {"key": key, "timer": timer}, None, *call)
            _give(out, made, key, at)
            self._settle(key, kept)

    async def _recover(
        self,
        error: Exception,
        told: Any,
        along: Along | None,
        function: Callable[..., Any],
        key: Any,
        argument: Any,
        time: int | None,
    ) -> list[Any]:
        """What further tries give; ``told`` is what failed, for those who are told of it."""
        made: list[Any] = await self.guard.recover(
            told, error, lambda _: self._attempt(function, key, argument, time), along
        )
        return made or []

    def _attempt(self, function: Callable[..., Any], key: Any, argument: Any, time: int | None) -> list[Any]:
        """What a call gives. If it fails, the state is as before."""
        kept = self._kept.get(key)
        if kept is not None and time is not None and self._is_over(kept, time):
            self._forget(key)
            kept = None
        if kept is None:
            kept = Kept({}, {}, None)
        state = State(
            kept.values,
            kept.timers,
            time,
            has_timers=self.node.on_timer is not None,
            watermark_us=self._reached,
        )
        made = function(key, argument, state)
        if time is not None and (kept.touched is None or time > kept.touched):
            kept.touched = time
        if state.timers is not kept.timers:
            for name, at in state.timers.items():
                if kept.timers.get(name) != at:
                    self._due.add(at, (key, name))
        kept.values, kept.timers = state.values, state.timers
        self._settle(key, kept)
        return state.emitted if made is None else [*state.emitted, made]

    def _settle(self, key: Any, kept: Kept) -> None:
        """Keep what there is to keep of a key."""
        if kept.values or kept.timers:
            self._kept[key] = kept
            self._watch(key, kept)
        else:
            self._kept.pop(key, None)
        if self.tracking:
            self._changed.add(key)

    def _watch(self, key: Any, kept: Kept) -> None:
        if self._ttl is not None and kept.touched is not None and not kept.watched:
            kept.watched = True
            self._due.add(kept.touched + self._ttl, (key, None))

    def _is_over(self, kept: Kept, time: int) -> bool:
        """Whether nobody touched it for too long; a timer that is set to the end, or before it, will."""
        if self._ttl is None or kept.touched is None:
            return False
        end = kept.touched + self._ttl
        return time >= end and all(at > end for at in kept.timers.values())

    def _forget(self, key: Any) -> None:
        del self._kept[key]
        if self.tracking:
            self._changed.add(key)

    def changed_entries(self) -> Changes:
        found: Changes = {}
        for key in self._changed:
            kept = self._kept.get(key)
            found[entry_name(key)] = None if kept is None else [key, kept.values, kept.timers, kept.touched]
        self._changed = set()
        return found

    def restore_entry(self, value: Any) -> None:
        key, values, timers, touched = value
        kept = self._kept[key] = Kept(values, timers, touched)
        for timer, at in timers.items():
            self._due.add(at, (key, timer))
        self._watch(key, kept)


def _gathering(function: Gatherer) -> Callable[..., None]:
    """As a function of a step."""
    return lambda _, entries, state: function.gather(entries, state)


def _give(out: Batch, made: list[Any], key: Any, time: int | None) -> None:
    for record in made:
        out.records.append(record)
        if out.times is not None and time is not None:
            out.times.append(time)
        if out.keys is not None:
            out.keys.append(key)
