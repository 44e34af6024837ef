"""Joins in event time: the records of one key that wait for partners, on two sides."""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from typing import Any

from queenstream.pipeline import nodes
from queenstream.pipeline.joined import LEFT, RIGHT, Rows
from queenstream.pipeline.records import as_row
from queenstream.spark.failures import Guard, Troubles
from queenstream.spark.graph import Step
from queenstream.spark.keyed.base import FOREVER, Held, Keyed, Turn
from queenstream.spark.records import Item
from queenstream.windows import length_us

TIME, ROW, MATCHED = 0, 1, 2  # of a record that waits


class Joining(Keyed[nodes.Join]):
    """Keeps each record until no partner can come that would not be late.

    A record is late once the watermark is past its time + grace; so one in order never is. A key's state:
    on each side what waits, by time: its time, its fields, and whether it has found a partner.
    """

    def __init__(self, node: nodes.Join, step: Step, guard: Guard, troubles: Troubles) -> None:
        super().__init__(node, step, guard, troubles)
        assert node.within is not None, "a plan has a bound for it"
        self._within = length_us(node.within)
        self._grace = length_us(node.grace)
        self._alone = (node.how in ("left", "full"), node.how in ("right", "full"))
        self._rows = Rows(node, step.known)

    def begin(self) -> Held:
        return {"sides": [[], []]}

    def take(self, held: Held, items: list[Item], turn: Turn) -> None:
        key, port = turn.key, turn.port
        null = key is None or (type(key) is tuple and None in key)
        for item in items:
            if item.time is None:
                continue
            if turn.watermark is not None and turn.watermark > item.time + self._grace:
                self.too_late(item, turn)
                continue
            waiting = [item.time, as_row(item.record), False]
            if not null:
                self._pair(held["sides"][1 - port], waiting, item, turn)
            if not null or self._alone[port]:
                insort(held["sides"][port], waiting, key=_time)

    def _pair(self, others: list[list[Any]], waiting: list[Any], item: Item, turn: Turn) -> None:
        time = waiting[TIME]
        first = bisect_left(others, time - self._within, key=_time)
        for other in others[first : bisect_right(others, time + self._within, key=_time)]:
            left, right = (waiting, other) if turn.port == LEFT else (other, waiting)
            row = self._rows.pair(left[ROW], right[ROW])
            turn.items.append(Item(row, max(time, other[TIME]), None, item.seq, item.due))
            waiting[MATCHED] = other[MATCHED] = True

    def close(self, held: Held, watermark: int, turn: Turn) -> None:
        ended = watermark == FOREVER
        for side in (LEFT, RIGHT):
            kept = []
            for number, waiting in enumerate(held["sides"][side]):
                time, row, matched = waiting
                over = time + self._within + self._grace < watermark
                lonely = over and not matched and self._alone[side]
                if lonely:
                    turn.items.append(Item(self._rows.alone(side, row), time, None, number, True))
                if not over or (ended and not lonely):  # should there be more in another run
                    kept.append(waiting)
            held["sides"][side] = kept

    def due(self, held: Held) -> int | None:
        times: list[int] = [waiting[TIME] for side in held["sides"] for waiting in side]
        return min(times) + self._within + self._grace + 1 if times else None

    def is_empty(self, held: Held) -> bool:
        return not any(held["sides"])


def _time(waiting: list[Any]) -> Any:
    return waiting[TIME]
