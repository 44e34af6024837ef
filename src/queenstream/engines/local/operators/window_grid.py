"""Tumbling and sliding windows: in buckets by their start, so that what is due is found without a search."""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from itertools import compress
from typing import Any, TypeAlias

from queenstream.core.batches import Batch
from queenstream.core.windows import Sliding, Span, Tumbling
from queenstream.engines.local.failures import Surroundings
from queenstream.engines.local.operators.base import Changes, nothing
from queenstream.engines.local.operators.fold import States
from queenstream.engines.local.operators.window_base import Closing, Placed, WindowedOperator, in_parts
from queenstream.pipeline.plan import nodes
from queenstream.runtime.keys import entry_name

Touched: TypeAlias = dict[int, set[Any]]
"""The keys of windows, by the windows' start."""

_NEVER = -(1 << 63)


class GridOperator(WindowedOperator):
    """Windows at every slide; tumbling ones are those whose slide is their size."""

    def __init__(self, node: nodes.Aggregation, around: Surroundings, definition: Tumbling | Sliding) -> None:
        super().__init__(node, around)
        self._size, self._slide = definition.size_us, definition.slide_us
        self._place = self._tumble if self._slide == self._size else self._slide_over
        self._open: dict[int, dict[Any, States]] = {}
        self._starts: list[int] = []
        self._changed: Touched = {}
        self._closed: list[tuple[int, list[Any]]] = []

    async def process(self, inputs: Sequence[Batch]) -> Batch:
        [batch] = inputs
        touched: Touched = {}
        for part, times in in_parts(batch):
            placed = self._place(part, times, touched)
            await self.fold(placed.windows, placed.records, placed.times, part)
        if self.tracking:
            for start, keys in touched.items():
                self._changed.setdefault(start, set()).update(keys)
        if not self.updates:
            return nothing()
        return await self.rows(
            (key, start, start + self._size, self._open[start][key])
            for start in sorted(touched)
            for key in touched[start]
        )

    async def advance(self, watermark: int) -> Batch:
        closing: list[Closing] = []
        wait = self._size + self.grace_us
        due = None
        while self._starts and self._starts[0] + wait <= watermark:
            start = heapq.heappop(self._starts)
            due = start + wait
            bucket = self._open.pop(start)
            end = start + self._size
            if not self.updates:
                closing += [(key, start, end, held) for key, held in bucket.items()]
            if self.tracking:
                self._closed.append((start, list(bucket)))
        self.reach(watermark, due)
        return await self.rows(closing) if closing else nothing()

    def _limit(self) -> int:
        """A window that ends here, or before, is closed."""
        return _NEVER if self.watermark is None else self.watermark - self.grace_us

    def _bucket(self, start: int) -> dict[Any, States]:
        bucket = self._open.get(start)
        if bucket is None:
            bucket = self._open[start] = {}
            heapq.heappush(self._starts, start)
        return bucket

    def _tumble(self, batch: Batch, times: list[int], touched: Touched) -> Placed[States]:
        """Each record in its one window. Neighbours mostly lie in the same, so that one is kept at hand."""
        size, limit, new = self._size, self._limit(), self.folds.new
        marking = self.tracking or self.updates
        states: list[States] = []
        append = states.append
        late: list[int] = []
        last: int | None = None
        bucket: dict[Any, States] = {}
        keys: set[Any] = set()
        for time, key in zip(times, self.keys_of(batch), strict=True):
            start = time - time % size
            if start != last:
                if start + size <= limit:
                    late.append(len(states) + len(late))
                    continue
                bucket, last = self._bucket(start), start
                if marking:
                    keys = touched.setdefault(start, set())
            held = bucket.get(key)
            if held is None:
                held = bucket[key] = new()
            if marking:
                keys.add(key)
            append(held)
        if not late:
            return Placed(states, batch.records, times)
        return self._without(late, states, batch.records, times)

    def _without(
        self, late: list[int], states: list[States], records: list[Any], times: list[int]
    ) -> Placed[States]:
        flags = [True] * len(records)
        for at in late:
            flags[at] = False
            start = times[at] - times[at] % self._size
            self.too_late(records[at], times[at], Span(start, start + self._size))
        return Placed(states, list(compress(records, flags)), list(compress(times, flags)))

    def _slide_over(self, batch: Batch, times: list[int], touched: Touched) -> Placed[States]:
        """Each record in all its windows that are open, from the last one back."""
        size, slide, limit, new = self._size, self._slide, self._limit(), self.folds.new
        marking = self.tracking or self.updates
        states: list[States] = []
        taken: list[Any] = []
        taken_times: list[int] = []
        for record, time, key in zip(batch.records, times, self.keys_of(batch), strict=True):
            last = start = time - time % slide
            while start > time - size and start + size > limit:
                bucket = self._bucket(start)
                held = bucket.get(key)
                if held is None:
                    held = bucket[key] = new()
                states.append(held)
                taken.append(record)
                taken_times.append(time)
                if marking:
                    touched.setdefault(start, set()).add(key)
                start -= slide
            if start == last:
                self.too_late(record, time, Span(last, last + size))
        return Placed(states, taken, taken_times)

    def changed_entries(self) -> Changes:
        found: Changes = {entry_name(key, start): None for start, bucket in self._closed for key in bucket}
        for start, keys in self._changed.items():
            bucket = self._open.get(start, {})
            found |= {entry_name(key, start): [key, start, bucket[key]] for key in keys if key in bucket}
        self._changed, self._closed = {}, []
        return found

    def restore_entry(self, value: Any) -> None:
        key, start, states = value
        self._bucket(start)[key] = self.folds.restored(states)
