"""Session windows: a key mostly has one open session, and the next record mostly lies in it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from queenstream.core.batches import Batch
from queenstream.core.windows import Session, Span, length_us
from queenstream.engines.local.failures import Surroundings
from queenstream.engines.local.operators.base import Changes, nothing
from queenstream.engines.local.operators.fold import States
from queenstream.engines.local.operators.window_base import Closing, Placed, WindowedOperator, in_parts
from queenstream.engines.local.timers import Due
from queenstream.pipeline.plan import nodes
from queenstream.runtime.keys import entry_name


class Open:
    """An open session. ``states`` of one that another took in are the other's."""

    __slots__ = ("alive", "end", "id", "key", "start", "states")

    def __init__(self, number: int, key: Any, start: int, end: int, states: States) -> None:
        self.id = number
        self.key = key
        self.start = start
        self.end = end
        self.states = states
        self.alive = True

    def closing(self) -> Closing:
        """To be given as a row."""
        return (self.key, self.start, self.end, self.states)


class SessionOperator(WindowedOperator):
    """``_latest`` has each key's last session; the few that a key has before it are in ``_earlier``."""

    def __init__(self, node: nodes.Aggregation, around: Surroundings, definition: Session) -> None:
        super().__init__(node, around)
        self._gap = length_us(definition.gap)
        self._latest: dict[Any, Open] = {}
        self._earlier: dict[Any, list[Open]] = {}
        self._due: Due[Open] = Due(self._gap + self.grace_us)
        self._made = 0
        self._changed: dict[int, Open] = {}
        self._gone: list[Open] = []
        # Of this part of a batch, by who took them in: their records are still to be folded.
        self._taken_in: dict[Open, list[Open]] = {}

    async def process(self, inputs: Sequence[Batch]) -> Batch:
        [batch] = inputs
        touched: dict[int, Open] = {}
        for part, times in in_parts(batch):
            placed = self._place(part, times)
            await self.fold([each.states for each in placed.windows], placed.records, placed.times, part)
            if self.tracking or self.updates:
                touched |= {each.id: each for each in (*placed.windows, *self._taken_in)}
            self._taken_in = {}
        touched = {number: each for number, each in touched.items() if each.alive}
        if self.tracking:
            self._changed |= touched
        return await self.rows(each.closing() for each in touched.values()) if self.updates else nothing()

    def _place(self, batch: Batch, times: list[int]) -> Placed[Open]:
        latest, gap = self._latest, self._gap
        windows: list[Open] = []
        append = windows.append
        late: list[int] = []
        for time, key in zip(times, self.keys_of(batch), strict=True):
            session = latest.get(key)
            if session is not None and session.start <= time < session.end:
                if time + gap > session.end:
                    session.end = time + gap
                append(session)
                continue
            found = self._find(key, time)
            if found is None:
                late.append(len(windows) + len(late))
            else:
                append(found)
        if not late:
            return Placed(windows, batch.records, times)
        for at in late:
            self.too_late(batch.records[at], times[at], Span(times[at], times[at] + gap))
        missed = set(late)
        kept = [at for at in range(len(times)) if at not in missed]
        return Placed(windows, [batch.records[at] for at in kept], [times[at] for at in kept])

    def _find(self, key: Any, time: int) -> Open | None:
        """The session that takes the record, maybe a new one, maybe made of several; None: it is late."""
        end = time + self._gap
        sessions = self._sessions(key)
        taking = [each for each in sessions if each.start < end and time < each.end] if sessions else ()
        if not taking:
            if self.watermark is not None and end + self.grace_us <= self.watermark:
                return None
            return self._begin(key, time, end, sessions)
        first, *others = taking
        first.start = min(first.start, time)
        first.end = max(end, *(each.end for each in taking))
        for other in others:
            self._take_in(first, other)
        self._keep(key, [each for each in sessions if each not in others])
        return first

    def _take_in(self, into: Open, other: Open) -> None:
        self.folds.merge(into.states, other.states)
        other.alive = False
        taken = self._taken_in.setdefault(into, [])
        taken += [other, *self._taken_in.pop(other, ())]
        for each in taken:
            each.states = into.states
        if self.tracking:
            self._gone.append(other)

    def _begin(self, key: Any, start: int, end: int, others: list[Open]) -> Open:
        self._made += 1
        session = Open(self._made, key, start, end, self.folds.new())
        self._due.add(end + self.grace_us, session)
        if others:
            self._keep(key, [*others, session])
        else:
            self._latest[key] = session
        return session

    def _sessions(self, key: Any) -> list[Open]:
        latest = self._latest.get(key)
        return [] if latest is None else [*self._earlier.get(key, ()), latest]

    def _keep(self, key: Any, sessions: list[Open]) -> None:
        sessions.sort(key=lambda each: each.start)
        self._earlier.pop(key, None)
        if not sessions:
            del self._latest[key]
            return
        self._latest[key] = sessions.pop()
        if sessions:
            self._earlier[key] = sessions

    async def advance(self, watermark: int) -> Batch:
        closing: list[Closing] = []
        last = None
        while (found := self._due.pop(watermark)) is not None:
            _, session = found
            if not session.alive:
                continue
            ripe = session.end + self.grace_us
            if ripe > watermark:  # it has grown since
                self._due.add(ripe, session)
                continue
            last = ripe if last is None else max(last, ripe)
            self._close(session)
            closing.append(session.closing())
        self.reach(watermark, last)
        return await self.rows(closing) if closing and not self.updates else nothing()

    def _close(self, session: Open) -> None:
        session.alive = False
        if session.key in self._earlier:
            self._keep(session.key, [each for each in self._sessions(session.key) if each is not session])
        else:
            del self._latest[session.key]
        if self.tracking:
            self._gone.append(session)

    def meta(self) -> dict[str, Any]:
        return {**super().meta(), "made": self._made}

    def restore_meta(self, meta: Any) -> None:
        super().restore_meta(meta)
        self._made = meta["made"]

    def changed_entries(self) -> Changes:
        found: Changes = {entry_name(each.key, each.id): None for each in self._gone}
        for each in self._changed.values():
            if each.alive:
                found[entry_name(each.key, each.id)] = [each.key, each.id, each.start, each.end, each.states]
        self._changed, self._gone = {}, []
        return found

    def restore_entry(self, value: Any) -> None:
        key, number, start, end, states = value
        session = Open(number, key, start, end, self.folds.restored(states))
        self._due.add(end + self.grace_us, session)
        self._keep(key, [*self._sessions(key), session])
