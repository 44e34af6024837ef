"""How a buffered producer gathers messages, and what it does when more come than go."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

from queenstream.client._base.chain import at_least
from queenstream.errors import ConfigError

Strategy = Literal["block", "drop_oldest", "drop_newest", "error"]
STRATEGIES = ("block", "drop_oldest", "drop_newest", "error")


@dataclass(frozen=True)
class Pressure:
    """Told when the threshold is crossed (``on``), and when half of it has drained (not ``on``)."""

    on: bool
    pending: int
    strategy: Strategy


@dataclass(frozen=True)
class Backpressure:
    """What happens when ``threshold`` messages wait for an answer and another comes.

    ``block`` waits, ``drop_oldest`` and ``drop_newest`` give one up, ``error`` raises ``BufferFull``.

    >>> Backpressure("drop_oldest", threshold=10_000)
    Backpressure(strategy='drop_oldest', threshold=10000, on_change=None)
    """

    strategy: Strategy = "block"
    threshold: int = 10_000
    on_change: Callable[[Pressure], object] | None = None

    def __post_init__(self) -> None:
        if self.strategy not in STRATEGIES:
            raise ConfigError(f"backpressure is {self.strategy!r}; use one of {', '.join(STRATEGIES)}")
        at_least("threshold", self.threshold)


@dataclass(frozen=True)
class Buffering:
    """How messages are put together."""

    batch_size: int
    flush_seconds: float
    lanes: int
    wanted: Backpressure | Strategy = "block"
    backpressure: Backpressure = field(init=False)

    def __post_init__(self) -> None:
        at_least("batch_size", self.batch_size)
        at_least("max_concurrency", self.lanes)
        wanted = self.wanted if isinstance(self.wanted, Backpressure) else Backpressure(self.wanted)
        object.__setattr__(self, "backpressure", wanted)


@dataclass
class BufferStats:
    """What a producer has done so far. ``pending``: taken and not answered yet."""

    accepted: int = 0
    stored: int = 0
    duplicates: int = 0
    rejected: int = 0  # by the schema; they are in the dead letters
    dropped: int = 0
    failed: int = 0
    batches: int = 0
    pending: int = 0
    pressures: int = 0  # how often the threshold was crossed
