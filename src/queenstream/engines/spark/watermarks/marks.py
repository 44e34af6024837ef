"""How far the event time of each group of sources has come, and which groups are idle."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

_NUMBER, _HIGHEST, _IDLE = "watermarks", "highest", "idle"


@dataclass(frozen=True, slots=True)
class Marks:
    """The marks of all groups. It is an offset of the source of watermarks, so it is in Spark's log.

    ``number`` tells two apart. ``highest``: the latest event time of each group, in µs, as the clock of the
    query has it. ``idle``: which groups hold nobody back.
    """

    number: int
    highest: tuple[int | None, ...]
    idle: tuple[bool, ...]

    @classmethod
    def of(cls, offset: Mapping[str, Any]) -> Self:
        """The marks in an offset."""
        return cls(offset[_NUMBER], tuple(offset[_HIGHEST]), tuple(offset[_IDLE]))

    def offset(self) -> dict[str, Any]:
        """As an offset: JSON."""
        return {_NUMBER: self.number, _HIGHEST: list(self.highest), _IDLE: list(self.idle)}

    def clocks(self) -> list[int | None]:
        """What the watermark of each group is raised to: where it is, or if it is idle, as far as the others.

        The others are the groups that are not idle, and the one that is furthest behind counts. If all are
        idle, the one that is furthest ahead counts. While a group that is not idle has had no record, nothing
        is raised.

        >>> Marks(1, (90, 50), (False, True)).clocks(), Marks(1, (90, 50), (True, True)).clocks()
        ([90, 90], [90, 90])
        >>> Marks(1, (90, None), (False, True)).clocks(), Marks(1, (None, 50), (False, True)).clocks()
        ([90, 90], [None, 50])
        """
        raised = self._raised()
        return [
            _later(high, raised) if idle else high for high, idle in zip(self.highest, self.idle, strict=True)
        ]

    def _raised(self) -> int | None:
        awake = [high for high, idle in zip(self.highest, self.idle, strict=True) if not idle]
        known = [high for high in awake if high is not None]
        if awake:
            return min(known) if len(known) == len(awake) else None
        return max((high for high in self.highest if high is not None), default=None)


def beginning(groups: int) -> Marks:
    """The marks of groups that have had no record."""
    return Marks(0, (None,) * groups, (False,) * groups)


def is_marks(offset: Any) -> bool:
    """Whether an offset in Spark's log is that of the source of watermarks."""
    return isinstance(offset, dict) and _NUMBER in offset


def _later(one: int | None, other: int | None) -> int | None:
    return max((each for each in (one, other) if each is not None), default=None)


def latest(ones: Sequence[int | None], others: Sequence[int | None]) -> tuple[int | None, ...]:
    """By group the later of two event times."""
    return tuple(_later(one, other) for one, other in zip(ones, others, strict=True))
