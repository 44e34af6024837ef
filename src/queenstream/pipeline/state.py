"""What a stateful step sees of its key's state, on every engine.

def sessions(key, event, state):
    started = state.get("started")
    if event["type"] == "start":
        state.set("started", event["at"])
        state.set_timer("forgotten", after="30m")
    elif started is not None:
        state.clear()
        return {"user": key, "from": started, "to": event["at"]}
    return None

def forgotten(key, timer, state):
    state.clear()
    return {"user": key, "abandoned": True}

pipeline.key_by("user").stateful(sessions, on_timer=forgotten, ttl="1h")
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime, timedelta
from typing import Any, Protocol, TypeAlias, runtime_checkable

from queenstream.core import durations
from queenstream.core.records import event_time, moment


@runtime_checkable
class Gatherer(Protocol):
    """A function of a step that takes the records of a key together: one state for all of them.

    It gives nothing for a record; what it finds comes with its timers.
    """

    def prepared(self, record: Any) -> Any:
        """What it keeps of a record; raises for one that it cannot take. It has no effects."""
        ...

    def gather(self, entries: Iterable[Entry], state: State) -> None:
        """Take records, in the order in which they came. It does not fail, and may keep the entries."""
        ...


Entry: TypeAlias = list[Any]
"""A record's time, and what is kept of it."""


class State:
    """One key's values and timers. What is set is kept with the checkpoint, and read back after a restart.

    Values are anything that JSON can write, and times. A key that was not touched for the step's ``ttl``
    (in event time) is forgotten, timers included.

    An engine makes one for each call, of what it has. That stays as it is: the call may fail.
    """

    __slots__ = ("_at", "_copied", "_has_timers", "emitted", "timers", "values", "watermark_us")

    def __init__(
        self,
        values: dict[str, Any],
        timers: dict[str, int],
        at: int | None,
        *,
        has_timers: bool,
        watermark_us: int | None = None,
    ) -> None:
        self.values = values
        self.timers = timers
        self._copied = False
        self._at = at
        self._has_timers = has_timers
        self.watermark_us = watermark_us
        self.emitted: list[Any] = []

    @property
    def time(self) -> datetime:
        """The event time of the record, or what the timer was set to."""
        return moment(self.time_us)

    @property
    def time_us(self) -> int:
        """The same in microseconds since 1970."""
        if self._at is None:
            raise ValueError("there is no event time; say where it stands with .event_time('field')")
        return self._at

    def get(self, name: str, default: Any = None) -> Any:
        """The value of that name."""
        return self.values.get(name, default)

    def set(self, name: str, value: Any) -> None:
        """Keep a value under a name."""
        self._change()
        self.values[name] = value

    def delete(self, name: str) -> None:
        """Forget one value; nothing happens if there is none."""
        self._change()
        self.values.pop(name, None)

    def clear(self) -> None:
        """Forget all values and timers of the key."""
        self._copied = True
        self.values, self.timers = {}, {}

    def set_timer(
        self, name: str, *, at: datetime | None = None, after: str | float | timedelta | None = None
    ) -> None:
        """Call ``on_timer`` once the watermark is at ``at``, or ``after`` from ``time``.

        A timer of that name that is set already is moved.
        """
        if not self._has_timers:
            raise ValueError("a timer needs somebody to call; write .stateful(…, on_timer=function)")
        if (at is None) == (after is None):
            raise ValueError(f"timer {name!r}: write either at=… or after=…")
        self.set_timer_us(name, event_time(at if at is not None else self.time + durations.parse(after or 0)))

    def set_timer_us(self, name: str, at: int) -> None:
        """The same with microseconds since 1970."""
        self._change()
        self.timers[name] = at

    def cancel_timer(self, name: str) -> None:
        """Forget a timer; nothing happens if there is none."""
        self._change()
        self.timers.pop(name, None)

    def emit(self, record: Any) -> None:
        """Give a record besides the one that is returned, before it."""
        self.emitted.append(record)

    def _change(self) -> None:
        if not self._copied:
            self._copied = True
            self.values, self.timers = dict(self.values), dict(self.timers)
