"""What an engine asks of a source that it reads and of a sink that it writes.

An engine takes a batch from its readers, works on it, stores ``changes()`` together with what it computed,
hands the results to its writers under the epoch's id, and then lets the readers ``commit()``. After a crash
it opens the readers at the stored positions and hands the last results out again.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias, runtime_checkable

from queenstream.core.batches import Batch

Positions: TypeAlias = Mapping[str, Any]
"""How far a source was read, by the name of its part (a partition, a file); JSON can hold it."""

Refusal: TypeAlias = tuple[int, Exception]
"""A row that a sink did not take: its index in the batch, and why."""

_LONGEST = 200  # characters of a delivery's name: with a row's number behind it, the broker takes 255


@dataclass(frozen=True, slots=True)
class SinkClaim:
    """The name of a sink for one checkpoint, and the token of the run that has claimed it."""

    sink: str
    token: str


@dataclass(frozen=True, slots=True)
class Context:
    """Whose reader or writer it is.

    ``node`` is the name of the step that reads or writes; ``url`` is the broker's, where the endpoint names
    none, and ``token`` is for that broker. ``exclusive``: no other run of this pipeline is alive (a
    checkpoint's lock says so), and what an earlier one had leased may be taken back. ``rewound``: the
    positions are older than what was acknowledged (``Snapshot.rewound``), and the source is to be moved back
    to them. ``claim``: the run has claimed the sink, and a writer refuses to write when another run has it.
    """

    pipeline: str
    node: str
    url: str | None = None
    exclusive: bool = False
    rewound: bool = False
    token: str | None = None
    claim: SinkClaim | None = None

    def delivery(self, epoch: str) -> str:
        """The name of an epoch at this sink: equal ones hold equal rows. At most 200 characters.

        >>> Context("totals", "queue:sums").delivery("65f0a1b2c3d4e5-0000000007")
        'totals:queue:sums:65f0a1b2c3d4e5-0000000007'
        """
        name = f"{self.pipeline}:{self.node}:{epoch}"
        if len(name) <= _LONGEST:
            return name
        return f"{hashlib.sha256(name.encode()).hexdigest()[:40]}:{epoch}"


class Reader(Protocol):
    """Reads a source from where it was left."""

    async def open(self, positions: Positions) -> None:
        """Begin after these positions; where there are none, at the source's ``start``."""
        ...

    async def read(self, most: int, wait_seconds: float) -> Batch | None:
        """Up to ``most`` records, waiting up to ``wait_seconds`` for the first one.

        An empty batch: there is nothing now. None: the source has ended.
        """
        ...

    def changes(self) -> dict[str, Any]:
        """The positions that moved since the last call."""
        ...

    async def commit(self) -> None:
        """What was read up to the last ``changes()`` is durable: acknowledge it at the source."""
        ...

    def drained(self) -> bool:
        """Whether a read that gave nothing has found the end of what is there now.

        A queue keeps the rest of a partition back until what was read of it is committed: as long as
        something is not, an empty batch says nothing about the end.
        """
        ...

    def lag(self) -> float | None:
        """How many records are there that were not read yet, if that is known."""
        ...

    async def close(self) -> None:
        """Let go of what is held; what was read and not committed comes again."""
        ...


class Writer(Protocol):
    """Writes to a sink."""

    async def open(self) -> None:
        """Connect; say what is wrong before the first row is made."""
        ...

    async def write(self, epoch: str, rows: Sequence[Any]) -> list[Refusal]:
        """Store an epoch's rows durably; gives those that the sink refused.

        ``epoch`` is the epoch's id (``checkpoints.epoch_id``), which no other epoch of any run has. A repeat
        with the same id and the same rows changes nothing where the sink is exactly-once. While the sink is
        away this waits and tries again, and the pipeline waits with it.
        """
        ...

    async def close(self) -> None:
        """Let go of what is held."""
        ...


class RowKey(Protocol):
    """Says which rows of a sink must be written in order: those of one key. It travels to other processes."""

    def reader(self) -> Callable[[Any], bytes | None]:
        """Returns a function that gives the key of a row; None: it may be written before or after others."""
        ...


@runtime_checkable
class KeyedWriter(Writer, Protocol):
    """A writer of a sink that several processes may write at once, each the rows of other keys."""

    def row_key(self) -> RowKey | None:
        """The key of the rows, once the writer is open; None: the sink keeps all rows in order."""
        ...


@runtime_checkable
class TimedWriter(Writer, Protocol):
    """A writer whose rows carry a time, which is the same when they are written again.

    One process asks for the time of an epoch, and several may write its rows.
    """

    async def time_of(self, epoch: str, rows: int) -> int:
        """The time of an epoch of so many rows, in µs; later than that of any other before it."""
        ...

    async def write_at(self, started: int, rows: Sequence[Any]) -> list[Refusal]:
        """Write rows, the first with this time and each of the others with one that is later by 1 µs."""
        ...
