"""Steps with a state for each key, with timers, and with an end to what nobody touches."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from itertools import repeat
from typing import Any

from queenstream import durations
from queenstream.batches import Batch
from queenstream.local.due import Due
from queenstream.local.failures import Surroundings
from queenstream.local.keys import entry_name
from queenstream.local.operators.base import FOREVER, Changes, Keeper
from queenstream.local.records import copied, event_time, moment
from queenstream.pipeline import nodes
from queenstream.windows import length_us

_USUAL_US = 60_000_000  # how far ahead a timer is set, if nothing else is known


class Kept:
    """What a step knows of one key: values, timers, and when it was last called for it."""

    __slots__ = ("timers", "touched", "values", "watched")

    def __init__(self, values: dict[str, Any], timers: dict[str, int], touched: int | None) -> None:
        self.values = values
        self.timers = timers
        self.touched = touched
        self.watched = False  # whether an entry waits for its end of life


class KeyState:
    """What the user's function sees (``pipeline.state.State``), for one call."""

    __slots__ = ("_at", "_before", "_has_timers", "_kept", "emitted")

    def __init__(self, kept: Kept, at: int | None, has_timers: bool) -> None:
        self._kept = kept
        self._at = at
        self._has_timers = has_timers
        self._before: tuple[dict[str, Any], dict[str, int]] | None = None
        self.emitted: list[Any] = []

    @property
    def time(self) -> datetime:
        """The event time of the record, or what the timer was set to."""
        if self._at is None:
            raise ValueError("there is no event time; say where it stands with .event_time('field')")
        return moment(self._at)

    def get(self, name: str, default: Any = None) -> Any:
        """The value of that name."""
        return self._kept.values.get(name, default)

    def set(self, name: str, value: Any) -> None:
        """Keep a value under a name."""
        self._remember()
        self._kept.values[name] = value

    def delete(self, name: str) -> None:
        """Forget one value; nothing happens if there is none."""
        self._remember()
        self._kept.values.pop(name, None)

    def clear(self) -> None:
        """Forget all values and timers of the key."""
        self._remember()
        self._kept.values, self._kept.timers = {}, {}

    def set_timer(
        self, name: str, *, at: datetime | None = None, after: str | float | timedelta | None = None
    ) -> None:
        """Call ``on_timer`` once the watermark is at ``at``, or ``after`` from ``time``."""
        if not self._has_timers:
            raise ValueError("a timer needs somebody to call; write .stateful(…, on_timer=function)")
        if (at is None) == (after is None):
            raise ValueError(f"timer {name!r}: write either at=… or after=…")
        self._remember()
        if at is not None:
            self._kept.timers[name] = event_time(at)
        else:
            self._kept.timers[name] = event_time(self.time + durations.parse(after or 0))

    def cancel_timer(self, name: str) -> None:
        """Forget a timer; nothing happens if there is none."""
        self._remember()
        self._kept.timers.pop(name, None)

    def emit(self, record: Any) -> None:
        """Give a record besides the one that is returned, before it."""
        self.emitted.append(record)

    def undo(self) -> None:
        """As if the call had not been: it failed."""
        if self._before is not None:
            self._kept.values, self._kept.timers = self._before

    def moved_timers(self) -> list[tuple[str, int]]:
        """The timers that this call has set, and their times."""
        if self._before is None:
            return []
        before = self._before[1]
        return [(name, at) for name, at in self._kept.timers.items() if before.get(name) != at]

    def _remember(self) -> None:
        if self._before is None:
            self._before = dict(self._kept.values), dict(self._kept.timers)


class StatefulOperator(Keeper[nodes.Stateful]):
    """Calls the user's function record by record, and ``on_timer`` with the watermark.

    ``_due`` has an entry for every timer, and one for the end of life of each key; an entry that is no
    longer true is passed over when its time comes.
    """

    def __init__(self, node: nodes.Stateful, around: Surroundings, *, shared: bool) -> None:
        super().__init__(node, around)
        self._ttl = None if node.ttl is None else length_us(node.ttl)
        self._shared = shared
        self._kept: dict[Any, Kept] = {}
        self._due: Due[tuple[Any, str | None]] = Due(self._ttl or _USUAL_US)
        self._changed: set[Any] = set()

    async def process(self, inputs: Sequence[Batch]) -> Batch:
        [batch] = inputs
        out = Batch([], None if batch.times is None else [], [])
        function, attempt = self.node.function, self._attempt
        records = map(copied, batch.records) if self._shared else batch.records
        times = batch.times or repeat(None, len(batch.records))
        keys = batch.keys or repeat(None, len(batch.records))
        for record, time, key in zip(records, times, keys, strict=True):
            try:
                made = attempt(function, key, record, time)
            except Exception as error:  # noqa: BLE001 - whatever a user's function raises
                made = await self._recover(error, record, function, key, record, time)
            if made:
                _give(out, made, key, time)
        return out

    async def advance(self, watermark: int) -> Batch:
        out = Batch([], [], [])
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
                made = await self._recover(error, {"key": key, "timer": timer}, *call)
            _give(out, made, key, at)
            self._settle(key, kept)

    async def _recover(
        self,
        error: Exception,
        told: Any,
        function: Callable[..., Any],
        key: Any,
        argument: Any,
        time: int | None,
    ) -> list[Any]:
        """What further tries give; ``told`` is what failed, for those who are told of it."""
        made: list[Any] = await self.guard.recover(
            told, error, lambda _: self._attempt(function, key, argument, time)
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
        state = KeyState(kept, time, self.node.on_timer is not None)
        try:
            made = function(key, argument, state)
        except BaseException:
            state.undo()
            raise
        if time is not None and (kept.touched is None or time > kept.touched):
            kept.touched = time
        for name, at in state.moved_timers():
            self._due.add(at, (key, name))
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


def _give(out: Batch, made: list[Any], key: Any, time: int | None) -> None:
    for record in made:
        out.records.append(record)
        if out.times is not None and time is not None:
            out.times.append(time)
        if out.keys is not None:
            out.keys.append(key)
