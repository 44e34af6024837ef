"""What a stream processor works on: events, the windows they lie in, and those that came too late."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any, TypeAlias

from queenstream.core.windows import to_us
from queenstream.errors import ConfigError

Instant: TypeAlias = float | datetime | str
"""Seconds since 1970, a datetime with its zone, or ISO 8601 text with its zone."""

_FIRST = to_us(datetime.min.replace(tzinfo=UTC))
_LAST = to_us(datetime.max.replace(tzinfo=UTC))


def us_of(instant: Instant) -> int:
    """Microseconds since the epoch, which is what windows count in.

    >>> us_of(1.5), us_of("1970-01-01T00:00:01.5Z")
    (1500000, 1500000)
    """
    if isinstance(instant, float | int) and not isinstance(instant, bool):
        # Compared first: neither an infinite number nor NaN can be rounded.
        if not _FIRST <= instant * 1_000_000 <= _LAST:
            raise ConfigError(f"{instant!r} is not in the years 1 to 9999; give seconds since 1970")
        return round(instant * 1_000_000)
    try:
        return to_us(datetime.fromisoformat(instant) if isinstance(instant, str) else _datetime(instant))
    except ValueError as error:
        raise ConfigError(f"{instant!r} cannot be a timestamp: {error}") from None


def seconds_of(instant: Instant) -> float:
    """The same in seconds, as ``time.time()`` gives them.

    >>> seconds_of("1970-01-01T00:01:00Z"), seconds_of(60)
    (60.0, 60.0)
    """
    us = us_of(instant)
    return float(instant) if isinstance(instant, float | int) else us / 1_000_000


def _datetime(instant: object) -> datetime:
    if not isinstance(instant, datetime):
        raise ConfigError(f"{instant!r} is no timestamp; give seconds since 1970, or a datetime with a zone")
    return instant


@dataclass(frozen=True, slots=True)
class Event:
    """One event of a stream. ``data`` may be changed by a map step; the rest is changed by a copy.

    >>> from dataclasses import replace
    >>> event = Event("e1", {"user": "ann", "value": 5}, timestamp=60.0)
    >>> replace(event, key=event.data["user"])
    Event(id='e1', data={'user': 'ann', 'value': 5}, key='ann', timestamp=60.0)
    """

    id: str
    data: dict[str, Any]
    key: str | None = None
    timestamp: float = 0.0

    def __post_init__(self) -> None:
        if not isinstance(self.id, str):
            raise ConfigError(f"the id of an event is {self.id!r}; give a text")
        if not isinstance(self.data, dict):
            raise ConfigError(f"the data of event {self.id!r} is {shown(self.data)}; give a dictionary")
        if self.key is not None and not isinstance(self.key, str):
            raise ConfigError(f"the key of event {self.id!r} is {shown(self.key)}; give a text, or None")
        object.__setattr__(self, "timestamp", seconds_of(self.timestamp))

    @property
    def us(self) -> int:
        """The timestamp in microseconds.

        >>> Event("e1", {}, timestamp=1.5).us
        1500000
        """
        return round(self.timestamp * 1_000_000)

    def copy(self) -> Event:
        """The same event with a dictionary of its own.

        >>> event = Event("e1", {"value": 5})
        >>> event.copy() == event, event.copy().data is event.data
        (True, False)
        """
        return replace(self, data=dict(self.data))


@dataclass(frozen=True, slots=True)
class EventWindow:
    """One window as it was when somebody asked: ``start`` belongs to it, ``end`` does not.

    Events stand by time, then arrival. ``key`` is that of a session; other windows have events of all keys.
    ``complete`` is false once ``max_events`` has pushed some of its events out.

    >>> from queenstream import StreamProcessor
    >>> stream = StreamProcessor("clicks").tumbling_window(10.0)
    >>> _ = stream.emit("e1", {"page": "/"}, timestamp=12.0)
    >>> [window] = stream.get_windows()
    >>> window.start, window.end, len(window.events), window.complete
    (10.0, 20.0, 1, True)
    """

    start: float
    end: float
    key: str | None
    events: tuple[Event, ...]
    complete: bool = True


@dataclass(frozen=True, slots=True)
class LateEvent:
    """An event whose windows have all been cleared: the last of them, and how far behind it was, in seconds.

    >>> LateEvent(Event("e1", {}, timestamp=3.0), 0.0, 10.0, lateness=17.0).lateness
    17.0
    """

    event: Event
    window_start: float
    window_end: float
    lateness: float


def shown(value: object) -> str:
    """A value in an error message, not too long."""
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
