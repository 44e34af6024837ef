"""Windows by key: what all kinds of them have in common."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import compress, repeat
from typing import Any, Generic, TypeAlias, TypeVar

from queenstream.core.batches import Batch
from queenstream.core.records import moment
from queenstream.core.windows import length_us
from queenstream.engines.local.failures import Surroundings
from queenstream.engines.local.operators.base import Keeper, along
from queenstream.engines.local.operators.fold import Folds, States, without_failures
from queenstream.pipeline.plan import nodes
from queenstream.pipeline.plan.nodes import WINDOW_END, WINDOW_START
from queenstream.runtime.failures import GONE, Along

T = TypeVar("T")


_PART = 1_024  # records


def in_parts(batch: Batch) -> Iterator[tuple[Batch, list[int]]]:
    """A batch in parts, and their times.

    With a million keys each state is somewhere else in memory. It is looked up, and then folded into by one
    aggregate after the other: in a part, it is still in the processor's cache by then.
    """
    times = batch.times or []
    for first in range(0, len(times), _PART):
        part = slice(first, first + _PART)
        keys = None if batch.keys is None else batch.keys[part]
        yield Batch(batch.records[part], times[part], keys), times[part]


@dataclass(slots=True)
class Placed(Generic[T]):
    """Records beside the windows that take them; a record in several windows stands there as often."""

    windows: list[T] = field(default_factory=list)
    records: list[Any] = field(default_factory=list)
    times: Sequence[int] = field(default_factory=list)


class _Places:
    """Finds what went along with a record; only if it failed, so nothing is noted before the first does."""

    def __init__(self, batch: Batch) -> None:
        self._batch = batch
        self._indices: dict[int, int] | None = None

    def along(self, record: Any) -> Along:
        if self._indices is None:
            self._indices = {id(each): at for at, each in enumerate(self._batch.records)}
        return along(self._batch, self._indices[id(record)])


Closing: TypeAlias = tuple[Any, int | None, int | None, States]
"""A window to give a row of: its key, its start and end (None: nobody knows), and what it holds."""


class WindowedOperator(Keeper[nodes.Aggregation]):
    """Folds records into windows, and makes rows of windows. Where a record goes, the subclasses say."""

    def __init__(self, node: nodes.Aggregation, around: Surroundings) -> None:
        super().__init__(node, around)
        self.folds = Folds(node.aggregates)
        self.grace_us = length_us(node.grace)
        self.delay_us = self.grace_us
        self.updates = node.emit == "update"
        self.arrived = 0
        self._names = (WINDOW_START, WINDOW_END, *node.keys, *self.folds.names)

    def keys_of(self, batch: Batch) -> Iterable[Any]:
        """The key of each record; without any, all have the same."""
        return batch.keys if self.node.keys and batch.keys is not None else repeat(None, len(batch.records))

    async def fold(
        self, states: list[States], records: list[Any], times: Sequence[int], batch: Batch
    ) -> None:
        """Add records to the accumulators beside them; ``batch`` is where they are from."""
        first = self.arrived
        self.arrived += len(records)
        if self.folds.custom:
            went = _Places(batch).along
            flags = await without_failures(self.folds, self.guard, states, records, times, first, went)
            if not all(flags):
                states, records = list(compress(states, flags)), list(compress(records, flags))
                times = list(compress(times, flags))
        self.folds.fold(states, records, times, first)

    async def rows(self, closing: Iterable[Closing]) -> Batch:
        """A row for each window; the event time of a row is the last instant of its window."""
        windows = list(closing)
        values = await self._values(windows)
        records: list[Any] = []
        times: list[int] = []
        keys: list[Any] = []
        names, several, keyed = self._names, len(self.node.keys) > 1, bool(self.node.keys)
        last: tuple[int | None, int | None] = (None, None)
        shown: tuple[Any, Any] = (None, None)
        for (key, start, end, _), made in zip(windows, values, strict=True):
            if made is GONE:
                continue
            if (start, end) != last:  # neighbours mostly have the same
                last = (start, end)
                shown = (None if start is None else moment(start), None if end is None else moment(end))
            parts = key if several else (key,) if keyed else ()
            records.append(dict(zip(names, (*shown, *parts, *made), strict=True)))
            keys.append(key)
            if end is not None:
                times.append(end - 1)
        return Batch(records, times if len(times) == len(records) else None, keys if keyed else None)

    async def _values(self, windows: list[Closing]) -> list[Any]:
        finish = self.folds.finish
        if not self.folds.custom:
            return [finish(states) for _, _, _, states in windows]
        return await self.each(windows, lambda window: finish(window[3]), None)

    def meta(self) -> dict[str, Any]:
        return {"watermark": self.watermark, "arrived": self.arrived}

    def restore_meta(self, meta: Any) -> None:
        super().restore_meta(meta)
        self.arrived = meta["arrived"]
