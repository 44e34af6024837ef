"""What goes into a checkpoint store and what comes out of it, as values."""

from __future__ import annotations

import secrets
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, TypeAlias

from queenstream.pipeline.plan.fingerprints import Facts

StateKey: TypeAlias = str | bytes
"""What a step calls one entry of its state."""


def new_generation() -> str:
    """A name that no other has; those made later sort after it.

    >>> len(new_generation()), new_generation() != new_generation()
    (14, True)
    """
    return f"{int(time.time()):08x}{secrets.token_hex(3)}"


def epoch_id(generation: str, number: int) -> str:
    """What an epoch is called at the sinks, and a checkpoint on the command line.

    >>> epoch_id("65f0a1b2c3d4e5", 7)
    '65f0a1b2c3d4e5-0000000007'
    """
    return f"{generation}-{number:010}"


@dataclass(frozen=True, slots=True)
class Epoch:
    """What one commit stores: what changed since the last one. Values are plain data and times.

    ``positions`` are by source and name, ``state`` by step and key (None: the key is gone), ``outbox`` has
    the rows for each sink; steps, sources and sinks go by their names in the plan. ``clean``: the run stops
    here, with nothing under way.
    """

    number: int
    positions: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    state: Mapping[str, Mapping[StateKey, Any]] = field(default_factory=dict)
    watermarks: Any = None
    outbox: Mapping[str, Sequence[Any]] = field(default_factory=dict)
    clean: bool = False


@dataclass(frozen=True, slots=True)
class Delivery:
    """Rows that were computed and perhaps not delivered: ``epoch`` is the id to deliver them under."""

    epoch: str
    number: int
    sink: str
    rows: list[Any]


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Where a run goes on: after ``epoch``. ``rewound``: the sources are ahead of it, and are to go back."""

    epoch: int
    generation: str
    facts: Facts = field(default_factory=dict)
    positions: dict[str, dict[str, Any]] = field(default_factory=dict)
    state: dict[str, dict[StateKey, Any]] = field(default_factory=dict)
    watermarks: Any = None
    outbox: list[Delivery] = field(default_factory=list)
    rewound: bool = False

    @property
    def fresh(self) -> bool:
        """Nothing was ever committed: a first run."""
        return self.epoch == 0


@dataclass(frozen=True, slots=True)
class CheckpointInfo:
    """One checkpoint in a list. ``clean``: of a run that was stopped, not killed."""

    id: str
    epoch: int
    committed_at: datetime
    clean: bool
    fingerprint: str


@dataclass(frozen=True, slots=True)
class Contents:
    """What is in a checkpoint: positions by source; how many keys each step remembers, in how many bytes."""

    info: CheckpointInfo
    facts: Facts
    positions: dict[str, dict[str, Any]]
    keys: dict[str, int]
    bytes: dict[str, int]
    watermarks: Any
