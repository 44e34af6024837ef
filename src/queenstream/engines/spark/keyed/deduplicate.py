"""Only the first of records that are the same."""

from __future__ import annotations

from queenstream.core.windows import length_us
from queenstream.engines.spark.keyed.base import FOREVER, Held, Keyed, Turn
from queenstream.engines.spark.keyed.pages import TimeMap
from queenstream.engines.spark.tasks.failures import Guard, Troubles
from queenstream.engines.spark.tasks.graph import Step
from queenstream.engines.spark.tasks.records import Item
from queenstream.pipeline.plan import nodes


class Deduplicating(Keyed[nodes.Deduplicate]):
    """A key's state: when records with its values passed, for as long as another may come."""

    def __init__(self, node: nodes.Deduplicate, step: Step, guard: Guard, troubles: Troubles) -> None:
        super().__init__(node, step, guard, troubles)
        assert node.within is not None, "a plan has a bound for it"
        self._within = length_us(node.within)
        self._grace = length_us(node.grace)

    def begin(self) -> Held:
        return {"passed": TimeMap()}

    def take(self, held: Held, items: list[Item], turn: Turn) -> None:
        passed: TimeMap = held["passed"]
        for item in items:
            if item.time is None:
                continue
            if turn.watermark is not None and turn.watermark > item.time + self._grace:
                self.too_late(item, turn)
            elif next(passed.items(item.time - self._within, item.time + self._within + 1), None) is None:
                passed.change(item.time, _nothing)
                turn.items.append(item)

    def close(self, held: Held, watermark: int, turn: Turn) -> None:  # noqa: ARG002 - gives nothing
        if watermark != FOREVER:  # what passed stays known
            held["passed"].pop_until(watermark - self._within - self._grace)

    def due(self, held: Held) -> int | None:
        first: int | None = held["passed"].first
        return None if first is None else first + self._within + self._grace + 1

    def is_empty(self, held: Held) -> bool:
        return not held["passed"]


def _nothing() -> None:
    """Of a record that passed, only its time is kept."""
