"""Joins in event time: the records of one key that wait for partners, on two sides."""

from __future__ import annotations

from typing import Any

from queenstream.core.records import as_row
from queenstream.core.windows import length_us
from queenstream.engines.spark.keyed.base import FOREVER, Held, Keyed, Turn
from queenstream.engines.spark.keyed.pages import TimeMap
from queenstream.engines.spark.tasks.failures import Guard, Troubles
from queenstream.engines.spark.tasks.graph import Step
from queenstream.engines.spark.tasks.records import Item
from queenstream.pipeline.plan import nodes
from queenstream.runtime.join_rows import LEFT, RIGHT, Rows

SIDES = ("left", "right")
ROW, MATCHED = 0, 1  # of a record that waits


class Joining(Keyed[nodes.Join]):
    """Keeps each record until no partner can come that would not be late.

    A record is late once the watermark is past its time + grace; so one in order never is. A key's state: on
    each side the records that wait, by time: the fields of each, and whether it has found a partner.
    """

    def __init__(self, node: nodes.Join, step: Step, guard: Guard, troubles: Troubles) -> None:
        super().__init__(node, step, guard, troubles)
        assert node.within is not None, "a plan has a bound for it"
        self._within = length_us(node.within)
        self._grace = length_us(node.grace)
        self._alone = (node.how in ("left", "full"), node.how in ("right", "full"))
        self._rows = Rows(node, step.known)

    def begin(self) -> Held:
        return {side: TimeMap() for side in SIDES}

    def take(self, held: Held, items: list[Item], turn: Turn) -> None:
        key, port = turn.key, turn.port
        null = key is None or (type(key) is tuple and None in key)
        for item in items:
            if item.time is None:
                continue
            if turn.watermark is not None and turn.watermark > item.time + self._grace:
                self.too_late(item, turn)
                continue
            waiting = [as_row(item.record), False]
            if not null:
                self._pair(held[SIDES[1 - port]], waiting, item, item.time, turn)
            if not null or self._alone[port]:
                held[SIDES[port]].change(item.time, list).append(waiting)

    def _pair(self, others: TimeMap, waiting: list[Any], item: Item, time: int, turn: Turn) -> None:
        matched: list[int] = []  # the times of those that had no partner before
        for at, rows in others.items(time - self._within, time + self._within + 1):
            for other in rows:
                left, right = (waiting, other) if turn.port == LEFT else (other, waiting)
                row = self._rows.pair(left[ROW], right[ROW])
                turn.items.append(Item(row, max(time, at), None, item.seq, item.due))
                waiting[MATCHED] = True
                if not other[MATCHED]:
                    other[MATCHED] = True
                    matched.append(at)
        for at in matched:
            others.change(at, list)

    def close(self, held: Held, watermark: int, turn: Turn) -> None:
        for side in (LEFT, RIGHT):
            rows: TimeMap = held[SIDES[side]]
            number = 0
            for time, waited in rows.pop_until(watermark - self._within - self._grace):
                kept = []
                for waiting in waited:
                    if self._alone[side] and not waiting[MATCHED]:
                        row = self._rows.alone(side, waiting[ROW])
                        turn.items.append(Item(row, time, None, number, True))
                    elif watermark == FOREVER:  # should there be more in another run
                        kept.append(waiting)
                    number += 1
                if kept:
                    rows.change(time, list).extend(kept)

    def due(self, held: Held) -> int | None:
        times = [first for first in (held[side].first for side in SIDES) if first is not None]
        return min(times) + self._within + self._grace + 1 if times else None

    def is_empty(self, held: Held) -> bool:
        return not any(held[side] for side in SIDES)
