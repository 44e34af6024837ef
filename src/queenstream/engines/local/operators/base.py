"""What all operators have: a batch goes in, a batch comes out; those with state also answer to time.

An operator never changes a batch that it was given, since another branch may get the same one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import compress
from typing import Any, ClassVar, Generic, TypeAlias, TypeVar

from queenstream.core.batches import Batch
from queenstream.core.records import moment
from queenstream.core.windows import Span
from queenstream.engines.local.checkpoints.snapshots import StateKey
from queenstream.engines.local.failures import Counts, Guard, Surroundings
from queenstream.pipeline.plan.nodes import WINDOW_END, WINDOW_START, Node
from queenstream.runtime.failures import GONE, Along
from queenstream.runtime.keys import META

N = TypeVar("N", bound=Node)

Changes: TypeAlias = dict[StateKey, Any]
"""Entries of a step's state by name; None: the entry is gone."""

FOREVER = (1 << 63) - 1
"""The watermark at the end of all input."""


class Operator(Generic[N]):
    """One node at work."""

    keeps_state: ClassVar[bool] = False

    def __init__(self, node: N, around: Surroundings) -> None:
        self.node = node
        self.counts = Counts()
        self.guard = Guard(node, around, self.counts)
        self.may_wait = node.policy.max_retries > 0
        self.delay_us = 0  # how far the watermark after this node is behind the one before it

    async def process(self, inputs: Sequence[Batch]) -> Batch:
        """What becomes of a batch from each input, in the order of ``node.inputs``."""
        raise NotImplementedError

    def close(self) -> None:
        """Let go of what is held."""

    async def each(
        self, records: Iterable[Any], call: Callable[[Any], Any], batch: Batch | None, port: int = 0
    ) -> list[Any]:
        """``call`` of each record, in order; ``GONE`` where it failed for good. Nothing is called twice.

        ``batch`` is where the records are from, at the input ``port``; None: they are none that came in.
        """
        results: list[Any] = []
        append = results.append
        rest = iter(records)
        record: Any = None
        while True:
            try:
                for record in rest:
                    append(call(record))
            except Exception as error:  # noqa: BLE001 - whatever a user's function raises
                went = None if batch is None else along(batch, len(results), port)
                append(await self.guard.recover(record, error, call, went))
            else:
                return results

    async def each_pure(self, batch: Batch, call: Callable[[Any], Any], port: int = 0) -> list[Any]:
        """The same for what may be called twice, as it has no effects: in one go, if nothing fails."""
        try:
            return [call(record) for record in batch.records]
        except Exception:  # noqa: BLE001 - found again, for the record that it belongs to
            return await self.each(batch.records, call, batch, port)


class Keeper(Operator[N]):
    """An operator with state. It moves with the watermark, and says what changed for a checkpoint.

    What ``changes`` gives is not copied: it is to be stored before the next batch is processed.
    """

    keeps_state: ClassVar[bool] = True

    def __init__(self, node: N, around: Surroundings) -> None:
        super().__init__(node, around)
        self.tracking = around.tracking
        self.watermark: int | None = None
        self.late: list[dict[str, Any]] = []
        self.wants_late = False  # whether somebody takes the late rows
        self._meta: dict[str, Any] = {}

    async def advance(self, watermark: int) -> Batch:
        """The watermark is there: what is due, comes."""
        raise NotImplementedError

    def changes(self) -> Changes:
        """What is not as it was at the last call."""
        found = self.changed_entries()
        meta = self.meta()
        if meta != self._meta:
            found[META] = self._meta = meta
        return found

    def restore(self, entries: Mapping[StateKey, Any]) -> None:
        """Take back what ``changes`` gave; entries that are None left out."""
        for name, value in entries.items():
            if name == META:
                self._meta = value
                self.restore_meta(value)
            else:
                self.restore_entry(value)

    def meta(self) -> dict[str, Any]:
        """What there is beside the entries."""
        return {"watermark": self.watermark}

    def restore_meta(self, meta: Mapping[str, Any]) -> None:
        """Take that back."""
        self.watermark = meta["watermark"]

    def changed_entries(self) -> Changes:
        """The entries that changed."""
        raise NotImplementedError

    def restore_entry(self, value: Any) -> None:
        """Take one of them back."""
        raise NotImplementedError

    def reach(self, watermark: int, last_due: int | None) -> None:
        """Note the watermark; ``last_due`` is what the latest of the closed windows waited for, if any did.

        The end of all input is no time: if more comes in another run, only what was closed is closed.
        """
        reached = last_due if watermark == FOREVER else watermark
        if reached is not None:
            self.watermark = reached if self.watermark is None else max(self.watermark, reached)

    def too_late(self, record: Any, time: int, span: Span | None = None) -> None:
        """A record that nothing takes any more: counted, and kept for who wants it."""
        self.counts.late += 1
        if self.wants_late and self.watermark is not None:
            self.late.append(
                {
                    "record": record,
                    "event_time": moment(time),
                    "lateness_ms": (self.watermark - time) // 1_000,
                    "step": self.node.name,
                    WINDOW_START: None if span is None else moment(span.start),
                    WINDOW_END: None if span is None else moment(span.end),
                }
            )


def along(batch: Batch, index: int, port: int = 0) -> Along:
    """What goes along with one of a batch's records."""
    time = None if batch.times is None else batch.times[index]
    return Along(time, None if batch.keys is None else batch.keys[index], port)


def nothing() -> Batch:
    """An empty batch."""
    return Batch([])


def together(batches: Iterable[Batch]) -> Batch:
    """Several as one, in this order; times and keys only if all that have records have them."""
    filled = [batch for batch in batches if batch.records]
    if len(filled) < 2:
        return filled[0] if filled else nothing()
    times = [batch.times for batch in filled]
    keys = [batch.keys for batch in filled]
    return Batch(
        [record for batch in filled for record in batch.records],
        None if None in times else [time for each in times if each is not None for time in each],
        None if None in keys else [key for each in keys if each is not None for key in each],
    )


def chosen(batch: Batch, flags: Sequence[Any]) -> Batch:
    """The records whose flag is true, with their times and keys."""
    return Batch(
        list(compress(batch.records, flags)),
        None if batch.times is None else list(compress(batch.times, flags)),
        None if batch.keys is None else list(compress(batch.keys, flags)),
    )


def survivors(batch: Batch, results: list[Any]) -> tuple[Batch, list[Any]]:
    """Without the records that failed, and their results without those."""
    flags = [result is not GONE for result in results]
    return chosen(batch, flags), list(compress(results, flags))
