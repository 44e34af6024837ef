"""What all steps with state have, seen from one key: records come, time comes, and in between it is text.

A key's state (``Held``) is whatever a step keeps, made of what ``encoding`` can write.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Generic, TypeAlias, TypeVar

from queenstream.core.records import moment
from queenstream.core.windows import Span
from queenstream.engines.spark.tasks.failures import Guard, Troubles
from queenstream.engines.spark.tasks.graph import Step
from queenstream.engines.spark.tasks.records import Item
from queenstream.pipeline.plan.nodes import WINDOW_END, WINDOW_START, Node

N = TypeVar("N", bound=Node)

Held: TypeAlias = Any
"""What a step keeps of one key."""

FOREVER = (1 << 63) - 1
"""The watermark at the end of all input."""


@dataclass(slots=True)
class Turn:
    """A key's turn in a batch: how far time is, and what the step has given so far.

    ``watermark`` None: nothing can be late. ``port``: the input that records come from.
    """

    key: Any
    watermark: int | None = None
    port: int = 0
    items: list[Item] = field(default_factory=list)
    late: list[Item] = field(default_factory=list)


class Keyed(Generic[N]):
    """One node at work on one key after the other.

    A batch has, for a key: first the records that came with the watermark (``due``), then ``close``, then the
    other records. That is the order in which the local engine sees them, which moves time after a batch and
    not before the next one.
    """

    def __init__(self, node: N, step: Step, guard: Guard, troubles: Troubles) -> None:
        self.node = node
        self.step = step
        self.guard = guard
        self._troubles = troubles

    def begin(self) -> Held:
        """What it keeps of a key that it does not know."""
        raise NotImplementedError

    def take(self, held: Held, items: list[Item], turn: Turn) -> None:
        """Records of the key, in order."""
        raise NotImplementedError

    def take_together(self, held: Held, items: list[Item], turn: Turn) -> bool:
        """The same where one failed record must not be mistaken for another; False: take them one by one."""
        self.take(held, items, turn)
        return True

    def close(self, held: Held, watermark: int, turn: Turn) -> None:
        """The watermark is there: what is due, comes."""
        raise NotImplementedError

    def due(self, held: Held) -> int | None:
        """When ``close`` has something to do next, in µs."""
        raise NotImplementedError

    def is_empty(self, held: Held) -> bool:
        """Whether there is nothing to keep."""
        raise NotImplementedError

    def too_late(self, item: Item, turn: Turn, span: Span | None = None) -> None:
        """A record that nothing takes any more: counted, and given to who wants it."""
        self._troubles.count(self.node.name, "late")
        if not self.step.late_to or item.time is None or turn.watermark is None:
            return
        row = {
            "record": item.record,
            "event_time": moment(item.time),
            "lateness_ms": max(0, turn.watermark - item.time) // 1_000,
            "step": self.node.name,
            WINDOW_START: None if span is None else moment(span.start),
            WINDOW_END: None if span is None else moment(span.end),
        }
        turn.late.append(Item(row, item.time, None, item.seq, item.due))
