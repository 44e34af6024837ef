"""Steps with a state for each key, with timers, and with an end to what nobody touches."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from queenstream.core.records import copied
from queenstream.core.windows import length_us
from queenstream.engines.spark.keyed.base import FOREVER, Held, Keyed, Turn
from queenstream.engines.spark.tasks.failures import Guard, Troubles
from queenstream.engines.spark.tasks.graph import Step
from queenstream.engines.spark.tasks.records import Item
from queenstream.pipeline.plan import nodes
from queenstream.pipeline.state import Entry, Gatherer, State
from queenstream.runtime.failures import GONE


class StatefulStep(Keyed[nodes.Stateful]):
    """Calls the user's function record by record, and ``on_timer`` with the watermark.

    A key's state: its values, its timers, and when it was last touched; ``reached``, if it was ahead of the
    query's watermark.
    """

    def __init__(self, node: nodes.Stateful, step: Step, guard: Guard, troubles: Troubles) -> None:
        super().__init__(node, step, guard, troubles)
        self._ttl = None if node.ttl is None else length_us(node.ttl)
        self._grace = None if node.grace is None else length_us(node.grace)
        self._reached: int | None = None  # how far the watermark is
        function: Any = node.function
        self._gatherer: Gatherer | None = function if isinstance(function, Gatherer) else None

    def begin(self) -> Held:
        return {"values": {}, "timers": {}, "touched": None}

    def take(self, held: Held, items: list[Item], turn: Turn) -> None:
        self._reached = turn.watermark
        for item in items:
            if self._is_too_late(held, item, turn):
                continue
            if item.time is not None and self._is_over(held, item.time):
                held |= self.begin()
            record = copied(item.record) if self.step.shared else item.record
            made = self._call(held, turn.key, self.node.function, record, record, item.time)
            turn.items += [Item(each, item.time, turn.key, item.seq, item.due) for each in made]

    def take_together(self, held: Held, items: list[Item], turn: Turn) -> bool:
        """Take all records of a turn at once; False: they are to be taken one by one, nothing was done."""
        function = self._gatherer
        times = [item.time for item in items if item.time is not None]
        if function is None or len(times) < len(items) or self._is_over(held, max(times)):
            return False
        self._reached = turn.watermark
        taken = [item for item in items if not self._is_too_late(held, item, turn)]
        records = [copied(item.record) if self.step.shared else item.record for item in taken]
        kept = self.guard.each(records, function.prepared, taken)
        entries = [[item.time, each] for item, each in zip(taken, kept, strict=True) if each is not GONE]
        if entries:
            self._gather(held, entries, function, turn)
        return True

    def _gather(self, held: Held, entries: list[Entry], function: Gatherer, turn: Turn) -> None:
        last = max(time for time, _ in entries)
        state = self._state(held, last)
        function.gather(entries, state)
        self._keep(held, state, last)
        if self.step.alone:
            # The watermark is there after this batch, and a record before it is late: there is nothing to
            # wait for. Otherwise each key would need a timer for each batch, and be read and written twice.
            held["reached"] = last if turn.watermark is None else max(last, turn.watermark)
            self.guard.serves = ((), 0)  # a timer that fails is no record that came
            self.close(held, held["reached"], turn)

    def _is_too_late(self, held: Held, item: Item, turn: Turn) -> bool:
        if self._grace is None or turn.watermark is None or item.time is None:
            return False
        # The query's has milliseconds only: it may be behind what was looked at by a part of one.
        if max(turn.watermark, held.get("reached", turn.watermark)) <= item.time + self._grace:
            return False
        self.too_late(item, turn)
        return True

    def close(self, held: Held, watermark: int, turn: Turn) -> None:
        self._reached = watermark
        if watermark == FOREVER:
            # Only what is set by now: a timer that sets itself again would never come to an end.
            for name, at in sorted(held["timers"].items(), key=lambda pair: pair[1]):
                self._fire(held, name, at, turn)
            return
        while not self._forgotten(held, watermark):
            ripe = [(at, name) for name, at in held["timers"].items() if at <= watermark]
            if not ripe:
                return
            at, name = min(ripe)
            self._fire(held, name, at, turn)

    def due(self, held: Held) -> int | None:
        times: list[int] = list(held["timers"].values())
        if self._ttl is not None and held["touched"] is not None:
            times.append(held["touched"] + self._ttl)
        return min(times, default=None)

    def is_empty(self, held: Held) -> bool:
        return not held["values"] and not held["timers"]

    def _fire(self, held: Held, name: str, at: int, turn: Turn) -> None:
        if held["timers"].get(name) != at or self._is_over(held, at):
            return  # over: at the end of all input, where in time the key would have been forgotten before
        del held["timers"][name]
        held["touched"] = at if held["touched"] is None else max(at, held["touched"])
        told = {"key": turn.key, "timer": name}
        made = self._call(held, turn.key, self.node.on_timer, name, told, at)
        turn.items += [Item(each, at, turn.key, len(turn.items), True) for each in made]

    def _call(
        self,
        held: Held,
        key: Any,
        function: Callable[..., Any] | None,
        argument: Any,
        record: Any,
        time: int | None,
    ) -> list[Any]:
        """What a call gives; nothing, if it failed for good, and then the state is as before."""
        if function is None:
            return []

        def attempt(_: Any) -> list[Any]:
            state = self._state(held, time)
            made = function(key, argument, state)
            self._keep(held, state, time)
            return state.emitted if made is None else [*state.emitted, made]

        [made] = self.guard.each([record], attempt)
        return made or []

    def _state(self, held: Held, time: int | None) -> State:
        has_timers = self.node.on_timer is not None
        return State(held["values"], held["timers"], time, has_timers=has_timers, watermark_us=self._reached)

    def _keep(self, held: Held, state: State, time: int | None) -> None:
        held["values"], held["timers"] = state.values, state.timers
        if time is not None:
            held["touched"] = time if held["touched"] is None else max(held["touched"], time)
        if self.is_empty(held):
            held["touched"] = None

    def _forgotten(self, held: Held, watermark: int) -> bool:
        if not self._is_over(held, watermark):
            return False
        held |= self.begin()
        return True

    def _is_over(self, held: Held, time: int) -> bool:
        """Whether nobody touched it for too long; a timer that is set to the end, or before it, will."""
        if self._ttl is None or held["touched"] is None or self.is_empty(held):
            return False
        end = held["touched"] + self._ttl
        return bool(time >= end and all(at > end for at in held["timers"].values()))
