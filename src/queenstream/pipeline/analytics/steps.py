"""What ``.anomalies(…)`` and ``.patterns(…)`` call: steps with state that look at records in order.

A record waits until no earlier one can come that would not be late: until the watermark is at its time and
the grace. Then those of a key are looked at by time, and by arrival where times are equal. So records that
are out of order by less than the grace give what ordered ones give.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Iterable
from typing import Any, Protocol

from queenstream.core import paths
from queenstream.core.records import moment, short
from queenstream.pipeline.analytics.detectors import Detector
from queenstream.pipeline.analytics.matcher import number_of
from queenstream.pipeline.analytics.rolling import Held
from queenstream.pipeline.state import Entry, State

_WAITING, _LOOKED, _LAST = "waiting", "looked", "last"
_DUE = "due"


class Look(Protocol):
    """What is done with the records of a key, one after the other."""

    def taken(self, record: Any) -> Any:
        """What is needed of a record; raises for one that cannot be looked at."""
        ...

    def begin(self) -> Held:
        """Nothing seen yet."""
        ...

    def see(self, held: Held, at: int, taken: Any, key: Any) -> list[dict[str, Any]]:
        """What is found with the next record."""
        ...

    def reach(self, held: Held, at: int, key: Any) -> list[dict[str, Any]]:
        """What is found once no more records come up to there."""
        ...

    def due(self, held: Held) -> int | None:
        """Up to where time must come for something to be found without a record."""
        ...

    def lasts_us(self) -> int | None:
        """How long after its last record a key is as if it had never been; None: the step's ttl says it."""
        ...


class Ordered:
    """Calls a ``Look`` in the order of event time. It is the function of a step with state."""

    def __init__(self, look: Look, grace_us: int) -> None:
        self.look = look
        self.grace_us = grace_us

    def __call__(self, key: Any, record: Any, state: State) -> None:  # noqa: ARG002 - as such functions are
        """A record comes: it waits for its turn."""
        self.gather([[state.time_us, self.look.taken(record)]], state)

    def prepared(self, record: Any) -> Any:
        """What is kept of a record; raises for one that cannot be looked at."""
        return self.look.taken(record)

    def gather(self, entries: Iterable[Entry], state: State) -> None:
        """Records come, each with its time and what is kept of it: they wait for their turn."""
        waiting = state.get(_WAITING) or []
        first = waiting[0][0] if waiting else None
        for entry in entries:
            if waiting and entry[0] < waiting[-1][0]:
                insort(waiting, entry, key=_time)
            else:
                waiting.append(entry)
        if first is None or waiting[0][0] < first:
            state.set_timer_us(_DUE, waiting[0][0] + self.grace_us)
        state.set(_WAITING, waiting)

    def on_timer(self, key: Any, timer: str, state: State) -> None:  # noqa: ARG002 - there is only one
        """Time has come: look at those that nobody can come before any more."""
        assert state.watermark_us is not None, "timers come with it"
        until = state.watermark_us - self.grace_us
        waiting = state.get(_WAITING) or []
        held = state.get(_LOOKED)
        if held is None:
            held = self.look.begin()
        seen = 0
        for at, taken in waiting:
            if at > until:
                break
            seen += 1
            for row in self.look.see(held, at, taken, key):
                state.emit(row)
        # A record at ``until`` itself may still come.
        for row in self.look.reach(held, until - 1, key):
            state.emit(row)
        left = waiting[seen:]
        state.set(_WAITING, left)
        state.set(_LOOKED, held)
        dues = [left[0][0]] if left else []
        if (due := self.look.due(held)) is not None:
            dues.append(due + 1)
        lasts_us = self.look.lasts_us()
        if lasts_us is not None:
            last = waiting[seen - 1][0] if seen else state.get(_LAST, until)
            if not dues and until > last + lasts_us:
                state.clear()
                return
            state.set(_LAST, last)
            dues.append(last + lasts_us + 1)
        if dues:
            state.set_timer_us(_DUE, max(min(dues), until + 1) + self.grace_us)


def _time(entry: Entry) -> int:
    return int(entry[0])


class Anomalies:
    """Numbers that are unlike those before them; ``everything``: a row for each number, not only these."""

    def __init__(self, name: str, field: str, detector: Detector, *, everything: bool = False) -> None:
        self._name = name
        self._field = field
        self._read = paths.getter(field)
        self._detector = detector
        self._everything = everything

    def number(self, record: Any) -> float | None:
        """The record's number, if it has one."""
        return number_of(self._read(record))

    def taken(self, record: Any) -> float:
        found = self.number(record)
        if found is None:
            raise ValueError(
                f"{self._field} is {short(self._read(record))}, and not a number; mend the record or filter "
                "it out"
            )
        return found

    def begin(self) -> Held:
        return self._detector.begin()

    def see(self, held: Held, at: int, taken: float, key: Any) -> list[dict[str, Any]]:
        judged = self._detector.judge(held, at, taken)
        if judged is None or not (judged.unusual or self._everything):
            return []
        return [
            {
                "detector": self._name,
                "key": key,
                "time": moment(at),
                "field": self._field,
                "algorithm": self._detector.algorithm,
                "value": taken,
                "mean": judged.mean,
                "deviation": judged.deviation,
                "score": judged.score,
                "anomaly": judged.unusual,
            }
        ]

    def reach(self, held: Held, at: int, key: Any) -> list[dict[str, Any]]:  # noqa: ARG002 - only records count
        return []

    def due(self, held: Held) -> int | None:  # noqa: ARG002
        return None

    def lasts_us(self) -> int | None:
        return None
