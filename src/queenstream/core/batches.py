"""Batches: records on their way from a source through the steps of an engine to a sink.

>>> batch = Batch([{"user": "a"}, {"user": "b"}], times=[1_000_000, 2_000_000])
>>> len(batch), batch.highest_time
(2, 2000000)
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass(slots=True)
class Batch:
    """Records, with what goes along with each of them in lists of the same length.

    ``times`` are event times in microseconds since 1970, None where the source has none; ``keys`` are the
    records' keys at this place of a plan. ``failures`` are what a source could not make a record of (a line
    that is no JSON, a payload that does not fit the schema), each with what was wrong: errors of the step
    that reads.
    """

    records: list[Any]
    times: list[int] | None = None
    keys: list[Any] | None = None
    failures: list[tuple[Any, Exception]] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.records)

    @property
    def empty(self) -> bool:
        """Whether there is nothing in it at all: no record, and no failure either."""
        return not self.records and not self.failures

    @property
    def highest_time(self) -> int | None:
        """The latest event time in it, if there is one."""
        return max(self.times) if self.times else None
