"""Which checkpoint a sink was last written from.

An exactly-once sink knows a batch again by its checkpoint and number. If the checkpoint was lost, or another
one is given, a run would deliver everything again as new. So each sink stores which checkpoint its rows came
from, and a run with another one is refused before anything runs. ``run(start_over=True)`` allows it.

A run without a checkpoint neither stores nor checks this: it delivers what it reads, each time.
"""

from __future__ import annotations

from datetime import datetime
from pathlib import Path
from typing import Protocol, runtime_checkable

import msgspec

from queenstream.connectors.base import Writer
from queenstream.connectors.reporter import without_secrets
from queenstream.errors import CheckpointError


class Provenance(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Where the rows of a sink came from.

    ``checkpoint_id`` stays when a checkpoint is moved, copied or rewound. ``place`` (where it was) and
    ``run`` (which process) are for people. ``began_at``: when that run delivered its first batch.
    """

    checkpoint_id: str
    place: str
    run: str
    began_at: datetime


class ProvenanceStore(Protocol):
    """Keeps the provenance of one sink."""

    async def provenance(self) -> Provenance | None:
        """What is stored; None: nothing is."""
        ...

    async def store_provenance(self, provenance: Provenance) -> None:
        """Replace what is stored."""
        ...


@runtime_checkable
class TracedWriter(Writer, ProvenanceStore, Protocol):
    """A writer whose sink stores its provenance. It is open when it is asked."""


class SinkGuard:
    """Refuses sinks that were written from another checkpoint, and stores what this run writes.

    ``own`` is of this run; None: it has no checkpoint, and nothing is refused or stored. ``fresh``: the
    checkpoint has no batches, so it cannot be the one that has written a sink, even if it has its id.
    """

    def __init__(
        self, pipeline: str, own: Provenance | None, *, fresh: bool = False, start_over: bool = False
    ) -> None:
        self._pipeline = pipeline
        self._own = own
        self._fresh = fresh
        self._start_over = start_over
        self._stored: set[str] = set()

    async def check(self, step: str, store: ProvenanceStore) -> None:
        """``CheckpointError`` if another checkpoint has written the sink."""
        if self._own is None or self._start_over:
            return
        found = await store.provenance()
        if found is not None and (self._fresh or found.checkpoint_id != self._own.checkpoint_id):
            raise _foreign(self._pipeline, step, found, self._own)

    def is_new(self, step: str) -> bool:
        """Whether this run is about to write a sink for the first time."""
        return self._own is not None and step not in self._stored

    async def store(self, step: str, store: ProvenanceStore) -> None:
        """Note that this run writes a sink, before its first batch is there."""
        assert self._own is not None, "a run without a checkpoint stores nothing"
        await store.store_provenance(self._own)
        self._stored.add(step)


def place_of(checkpoint: str) -> str:
    """Where a checkpoint is, for people on whatever machine; without passwords.

    >>> place_of("s3a://bucket/state")
    's3a://bucket/state'
    """
    if "://" in checkpoint:
        return without_secrets(checkpoint)
    return str(Path(checkpoint).absolute())


def _foreign(pipeline: str, step: str, found: Provenance, own: Provenance) -> CheckpointError:
    now = "what is there now" if found.place == own.place else f"the checkpoint {own.place}"
    return CheckpointError(
        f"the sink {step} of {pipeline} was last written from the checkpoint {found.place}, by {found.run} "
        f"(first batch at {found.began_at:%Y-%m-%d %H:%M:%S} UTC), and {now} is not that checkpoint: the "
        "run would deliver again what the sink has. Put the old checkpoint back, or give it with "
        "checkpoint=…; to deliver again all the same, write run(start_over=True) or --start-over. "
        "Two pipelines that write one sink need different names"
    )
