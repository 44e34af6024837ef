"""Windows of one key: tumbling and sliding, sessions, counts."""

from __future__ import annotations

from typing import Any, TypeAlias

from queenstream.core import windows
from queenstream.core.records import moment
from queenstream.core.windows import Span, length_us
from queenstream.engines.spark.keyed.base import Held, Keyed, Turn
from queenstream.engines.spark.keyed.pages import TimeMap
from queenstream.engines.spark.tasks.failures import Guard, Troubles
from queenstream.engines.spark.tasks.graph import Step
from queenstream.engines.spark.tasks.records import Item
from queenstream.pipeline.plan import nodes
from queenstream.pipeline.plan.nodes import WINDOW_END, WINDOW_START
from queenstream.runtime.failures import GONE

States: TypeAlias = list[Any]
"""One window's accumulators, in the order of the aggregates."""


class Windowed(Keyed[nodes.Aggregation]):
    """Folds records into windows, and makes rows of windows. Where a record goes, the subclasses say."""

    def __init__(self, node: nodes.Aggregation, step: Step, guard: Guard, troubles: Troubles) -> None:
        super().__init__(node, step, guard, troubles)
        self.grace_us = length_us(node.grace)
        self.updates = node.emit == "update"
        self._aggregates = [(aggregate, aggregate.reader()) for _, aggregate in node.aggregates]
        # Users' own first: a record on which one fails is not for the others either.
        order = sorted(range(len(self._aggregates)), key=lambda at: self._aggregates[at][0].kind != "custom")
        self._order = order
        self._custom = any(aggregate.kind == "custom" for aggregate, _ in self._aggregates)
        self._names = (WINDOW_START, WINDOW_END, *node.keys, *(name for name, _ in node.aggregates))

    def new(self) -> States:
        """Accumulators of nothing."""
        return [aggregate.init() for aggregate, _ in self._aggregates]

    def complete(self, states: States) -> None:
        """Add accumulators of aggregates that the pipeline did not have when these were stored."""
        if len(states) < len(self._aggregates):
            states += self.new()[len(states) :]

    def fold(self, states: States, item: Item, arrival: int) -> None:
        """Add a record."""
        self.complete(states)

        def add(record: Any) -> None:
            for at in self._order:
                aggregate, read = self._aggregates[at]
                states[at] = aggregate.add(states[at], read(record), (item.time or 0, arrival))

        if self._custom:
            self.guard.each([item.record], add)
        else:
            add(item.record)

    def merge(self, into: States, other: States) -> None:
        """Take the other's in."""
        self.complete(into)
        self.complete(other)
        for at, (aggregate, _) in enumerate(self._aggregates):
            into[at] = aggregate.merge(into[at], other[at])

    def give(
        self, start: int | None, end: int | None, states: States, turn: Turn, at: tuple[int, bool]
    ) -> None:
        """A row for a window, at its last instant. ``at``: the row's place in the batch, and ``due``."""
        self.complete(states)

        key = turn.key

        def finished(_: Any) -> list[Any]:
            return [
                aggregate.finish(held) for (aggregate, _), held in zip(self._aggregates, states, strict=True)
            ]

        [values] = (
            self.guard.each([(key, start, end, states)], finished) if self._custom else [finished(None)]
        )
        if values is GONE:
            return
        parts = key if len(self.node.keys) > 1 else (key,) if self.node.keys else ()
        shown = (None if start is None else moment(start), None if end is None else moment(end))
        row = dict(zip(self._names, (*shown, *parts, *values), strict=True))
        seq, due = at
        time = None if end is None else end - 1
        turn.items.append(Item(row, time, key if self.node.keys else None, seq, due))


class Grid(Windowed):
    """Windows at every slide; tumbling ones are those whose slide is their size.

    A key's state: how many records were folded, and the accumulators of its open windows by their start.
    """

    def __init__(self, node: nodes.Aggregation, step: Step, guard: Guard, troubles: Troubles) -> None:
        super().__init__(node, step, guard, troubles)
        assert isinstance(node.window, windows.Tumbling | windows.Sliding)
        self._size, self._slide = node.window.size_us, node.window.slide_us

    def begin(self) -> Held:
        return {"arrived": 0, "windows": TimeMap()}

    def take(self, held: Held, items: list[Item], turn: Turn) -> None:
        limit = None if turn.watermark is None else turn.watermark - self.grace_us
        open_windows: TimeMap = held["windows"]
        touched: dict[int, Item] = {}
        for item in items:
            if item.time is None:
                continue
            start = last = item.time - item.time % self._slide
            while start > item.time - self._size and (limit is None or start + self._size > limit):
                self.fold(open_windows.change(start, self.new), item, held["arrived"])
                held["arrived"] += 1
                touched[start] = item
                start -= self._slide
            if start == last and turn.watermark is not None:
                self.too_late(item, turn, Span(last, last + self._size))
        if self.updates:
            for start in sorted(touched):
                item = touched[start]
                at = (item.seq, item.due)
                states = open_windows.change(start, self.new)
                self.give(start, start + self._size, states, turn, at)

    def close(self, held: Held, watermark: int, turn: Turn) -> None:
        ripe = held["windows"].pop_until(watermark - self._size - self.grace_us + 1)
        for number, (start, states) in enumerate(ripe):
            if not self.updates:
                self.give(start, start + self._size, states, turn, (number, True))

    def due(self, held: Held) -> int | None:
        first: int | None = held["windows"].first
        return None if first is None else first + self._size + self.grace_us

    def is_empty(self, held: Held) -> bool:
        return not held["windows"]


class Sessions(Windowed):
    """From a key's first record to its last plus the gap.

    A key's state: how many records were folded, its open sessions by their start, each with its end and the
    accumulators, and the end of the first one. Sessions of a key never overlap.
    """

    def __init__(self, node: nodes.Aggregation, step: Step, guard: Guard, troubles: Troubles) -> None:
        super().__init__(node, step, guard, troubles)
        assert isinstance(node.window, windows.Session)
        self._gap = length_us(node.window.gap)

    def begin(self) -> Held:
        return {"arrived": 0, "end": None, "sessions": TimeMap()}

    def take(self, held: Held, items: list[Item], turn: Turn) -> None:
        sessions: TimeMap = held["sessions"]
        taken: list[Item] = []
        for item in items:
            if item.time is None:
                continue
            session = self._find(sessions, item.time, turn.watermark)
            if session is None:
                self.too_late(item, turn, Span(item.time, item.time + self._gap))
                continue
            self.fold(session[1], item, held["arrived"])
            held["arrived"] += 1
            taken.append(item)
        _note_first(held)
        if self.updates:
            last: dict[int, tuple[list[Any], Item]] = {}
            for item in taken:
                found = sessions.floor(item.time or 0)
                assert found is not None, "it has taken the record"
                last[found[0]] = (found[1], item)
            for start, ((end, states), item) in sorted(last.items(), key=lambda each: each[0]):
                self.give(start, end, states, turn, (item.seq, item.due))

    def _find(self, sessions: TimeMap, time: int, watermark: int | None) -> list[Any] | None:
        """The session that takes the record, maybe a new one, maybe made of several; None: it is late."""
        end = time + self._gap
        before = sessions.floor(time)
        low = time if before is None else before[0]
        taking = [(start, session) for start, session in sessions.items(low, end) if session[0] > time]
        if not taking and watermark is not None and end + self.grace_us <= watermark:
            return None
        start = min([time, *(start for start, _ in taking)])
        states = self._merged([session for _, session in taking])
        end = max([end, *(session[0] for _, session in taking)])
        for other, _ in taking:
            if other != start:
                sessions.remove(other)
        session: list[Any] = sessions.change(start, list)
        session[:] = end, states
        return session

    def _merged(self, sessions: list[list[Any]]) -> States:
        """The accumulators of all of them, the first one's with the others' in it."""
        if not sessions:
            return self.new()
        first: States = sessions[0][1]
        for _, other in sessions[1:]:
            self.merge(first, other)
        return first

    def close(self, held: Held, watermark: int, turn: Turn) -> None:
        sessions: TimeMap = held["sessions"]
        number = 0
        while held["end"] is not None and held["end"] + self.grace_us <= watermark:
            assert sessions.first is not None, "the first one has an end"
            [(start, (end, states))] = sessions.pop_until(sessions.first + 1)
            if not self.updates:
                self.give(start, end, states, turn, (number, True))
            number += 1
            upcoming = next(sessions.items(), None)
            held["end"] = None if upcoming is None else upcoming[1][0]

    def due(self, held: Held) -> int | None:
        return None if held["end"] is None else int(held["end"]) + self.grace_us

    def is_empty(self, held: Held) -> bool:
        return not held["sessions"]


def _note_first(held: Held) -> None:
    """Note the end of the first session, if it may have changed."""
    first = held["sessions"].first_read()
    if first is not None:
        held["end"] = first[1][0]


class Counts(Windowed):
    """So many records of a key in a row. Nothing is late for them, and only records close them.

    A key's state: how many records it has had, and of each window that is not full how many it has, the
    first and last time of these, and the accumulators.
    """

    def __init__(self, node: nodes.Aggregation, step: Step, guard: Guard, troubles: Troubles) -> None:
        super().__init__(node, step, guard, troubles)
        assert isinstance(node.window, windows.Count)
        self._size, self._step = node.window.size, node.window.step

    def begin(self) -> Held:
        return {"position": 0, "windows": []}

    def take(self, held: Held, items: list[Item], turn: Turn) -> None:
        filling: list[list[Any]] = held["windows"]
        for item in items:
            if held["position"] % self._step == 0:
                filling.append([0, None, None, self.new()])
            held["position"] += 1
            for window in filling:
                self._add(window, item, held["position"])
            if filling and filling[0][0] == self._size:
                self._give(filling.pop(0), turn, item)
        if self.updates and items:
            for window in filling:
                self._give(window, turn, items[-1])

    def _add(self, window: list[Any], item: Item, arrival: int) -> None:
        number, first, last, states = window
        if item.time is not None:
            first = item.time if first is None else min(first, item.time)
            last = item.time if last is None else max(last, item.time)
        window[:] = number + 1, first, last, states
        self.fold(states, item, arrival)

    def _give(self, window: list[Any], turn: Turn, item: Item) -> None:
        _, first, last, states = window
        end = None if last is None else last + 1
        self.give(first, end, states, turn, (item.seq, item.due))

    def close(self, held: Held, watermark: int, turn: Turn) -> None:
        """Time closes none."""

    def due(self, held: Held) -> int | None:  # noqa: ARG002 - never
        return None

    def is_empty(self, held: Held) -> bool:  # noqa: ARG002 - the position counts
        return False


def windowed(node: nodes.Aggregation) -> type[Windowed]:
    """What does a node's windows."""
    if isinstance(node.window, windows.Session):
        return Sessions
    return Counts if isinstance(node.window, windows.Count) else Grid
