"""Windows as plain arithmetic, written once: for streams, for both engines, and to check them by.

A window is ``[start, end)``. Instants are whole microseconds since the epoch, negative before 1970, and never
rounded; ``to_us`` and ``from_us`` stand at the edge. There is no clock: the caller says what time it is.

>>> from datetime import timedelta
>>> five_minutes = Tumbling(timedelta(minutes=5))
>>> [span] = five_minutes.assign(to_us(datetime(2025, 11, 3, 10, 7, 12, tzinfo=UTC)))
>>> print(span)
[2025-11-03T10:05:00Z, 2025-11-03T10:10:00Z)
>>> print(iso(span.ripe_at(length_us(timedelta(seconds=30)))))
2025-11-03T10:10:30Z

A definition that cannot be is a ValueError that says what to write instead.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import TypeAlias, TypeVar

Event = TypeVar("Event")
Amount = TypeVar("Amount", int, timedelta)

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)


def to_us(instant: datetime) -> int:
    """Microseconds since the epoch, exactly."""
    if instant.utcoffset() is None:
        raise ValueError(f"{instant} has no time zone; write it with one, such as {instant}+00:00")
    return (instant - _EPOCH) // _MICROSECOND


def from_us(us: int) -> datetime:
    """The instant in UTC; the inverse of ``to_us``."""
    try:
        return _EPOCH + timedelta(microseconds=us)
    except OverflowError:
        raise ValueError(f"{us} µs from 1970 is not in the years 1 to 9999; check its unit") from None


def length_us(length: timedelta) -> int:
    """How many microseconds a duration lasts, exactly."""
    return length // _MICROSECOND


def iso(us: int) -> str:
    """ISO 8601 in UTC, as the broker writes it."""
    return from_us(us).isoformat().replace("+00:00", "Z")


@dataclass(frozen=True, slots=True, order=True)
class Span:
    """One window's time: ``start`` belongs to it, ``end`` does not. Spans sort by start, then end."""

    start: int
    end: int

    def __post_init__(self) -> None:
        if self.start >= self.end:
            raise ValueError(f"a window must end after it starts; got start {self.start}, end {self.end}")

    def __contains__(self, time: int) -> bool:
        return self.start <= time < self.end

    def __str__(self) -> str:
        return f"[{iso(self.start)}, {iso(self.end)})"

    def ripe_at(self, grace_us: int = 0) -> int:
        """From this instant on (clock or watermark) the window is closed; before it, it takes events."""
        return self.end + grace_us

    @staticmethod
    def around(times: Iterable[int]) -> Span:
        """The smallest span that holds all ``times``, one at least: how a count window says when it was."""
        ordered = sorted(times)
        return Span(ordered[0], ordered[-1] + 1)


def window_id(stream_id: str, key: str, window: Span | range) -> str:
    """What names a window on the wire. A count window goes by positions: its times need not be its own.

    >>> window_id("s1", "chat-123", Span(0, 60_000_000))
    's1:chat-123:1970-01-01T00:00:00Z:1970-01-01T00:01:00Z'
    >>> window_id("s1", "chat-123", range(200, 300))
    's1:chat-123:200:300'
    """
    if isinstance(window, range):
        return f"{stream_id}:{key}:{window.start}:{window.stop}"
    return f"{stream_id}:{key}:{iso(window.start)}:{iso(window.end)}"


class _Grid:
    """Windows of one size that start at every multiple of the slide, counted from the epoch."""

    __slots__ = ()
    size: timedelta

    @property
    def size_us(self) -> int:
        return length_us(self.size)

    @property
    def slide_us(self) -> int:
        return length_us(self.size)

    def aligned(self, time: int) -> int:
        """``time`` moved down to a window's start: where ``seek`` goes."""
        return time // self.slide_us * self.slide_us

    def assign(self, time: int) -> list[Span]:
        """Every window that holds ``time``, earliest first."""
        return list(self.between(time - self.size_us + 1, time + 1))

    def following(self, span: Span) -> Span:
        """The next window, with messages or without."""
        return Span(span.start + self.slide_us, span.end + self.slide_us)

    def next_with(self, time: int, after: Span | None = None) -> Span:
        """The first window past ``after`` that holds ``time``: over the empty ones in one step."""
        first = time - self.size_us + 1
        if after is not None:
            first = max(first, after.start + self.slide_us)
        span = next(self.between(first, time + 1), None)
        if span is None:
            raise ValueError(f"{time} lies before every window past {after!r}; start from an earlier window")
        return span

    def between(self, start: int, end: int) -> Iterator[Span]:
        """Every window that starts in ``[start, end)``, with messages or without."""
        size, slide = self.size_us, self.slide_us
        return (Span(at, at + size) for at in range(-(-start // slide) * slide, end, slide))


@dataclass(frozen=True, slots=True)
class Tumbling(_Grid):
    """Every instant lies in exactly one window.

    >>> Tumbling(timedelta(microseconds=10)).assign(-1)
    [Span(start=-10, end=0)]
    """

    size: timedelta

    def __post_init__(self) -> None:
        _check_length("a tumbling window's size", self.size)


@dataclass(frozen=True, slots=True)
class Sliding(_Grid):
    """A window starts at every slide; the slide need not divide the size.

    >>> Sliding(timedelta(microseconds=10), timedelta(microseconds=4)).assign(9)
    [Span(start=0, end=10), Span(start=4, end=14), Span(start=8, end=18)]
    """

    size: timedelta
    slide: timedelta

    def __post_init__(self) -> None:
        _check_length("a sliding window's size", self.size)
        _check_length("a sliding window's slide", self.slide)
        _check_slide(self.slide, self.size)

    @property
    def slide_us(self) -> int:
        return length_us(self.slide)


@dataclass(frozen=True, slots=True)
class Session:
    """From the first event of a key to its last plus the gap.

    ``end`` is not in the window, so an event exactly one gap after the last one starts a session of its own.

    >>> Session(timedelta(microseconds=10)).of([0, 9, 19])
    [Span(start=0, end=19), Span(start=19, end=29)]
    """

    gap: timedelta

    def __post_init__(self) -> None:
        _check_length("a session's gap", self.gap)

    def assign(self, time: int) -> list[Span]:
        """The session of an event that is alone."""
        return [Span(time, time + length_us(self.gap))]

    def add(self, sessions: Iterable[Span], time: int) -> tuple[Span, list[Span]]:
        """The session that an event ends up in, and those of the key's ``sessions`` that it takes in.

        >>> Session(timedelta(microseconds=10)).add([Span(0, 10), Span(15, 25)], 8)
        (Span(start=0, end=25), [Span(start=0, end=10), Span(start=15, end=25)])
        """
        [own] = self.assign(time)
        # Spans that only touch have no instant in common, and stay apart.
        taken = [session for session in sessions if session.start < own.end and own.start < session.end]
        together = [own, *taken]
        return Span(min(span.start for span in together), max(span.end for span in together)), taken

    def of(self, times: Iterable[int]) -> list[Span]:
        """The sessions of one key's events, which may come in any order."""
        sessions: list[Span] = []
        for time in sorted(times):
            # In order, an event can only lie in the last session.
            session, taken = self.add(sessions[-1:], time)
            sessions[len(sessions) - len(taken) :] = [session]
        return sessions


@dataclass(frozen=True, slots=True)
class Count:
    """``size`` consecutive messages of a key; a window starts every ``slide`` messages, by default ``size``.

    A message goes by its position among the key's messages: 0, 1, 2 … in order of arrival. A window is a
    ``range`` of positions; only its last message closes it, never time.

    >>> Count(3).assign(4), Count(3, slide=2).assign(4)
    ([range(3, 6)], [range(2, 5), range(4, 7)])
    """

    size: int
    slide: int | None = None

    def __post_init__(self) -> None:
        _check_count("a count window's size", self.size)
        if self.slide is not None:
            _check_count("a count window's slide", self.slide)
            _check_slide(self.slide, self.size)

    @property
    def step(self) -> int:
        """How many messages lie between the starts of two windows."""
        return self.size if self.slide is None else self.slide

    def assign(self, position: int) -> list[range]:
        """Every window that holds the message at ``position``, earliest first."""
        first = max(0, ((position - self.size) // self.step + 1) * self.step)
        return [range(start, start + self.size) for start in range(first, position + 1, self.step)]

    def closed_by(self, position: int) -> range | None:
        """The window of which the message at ``position`` is the last, if there is one."""
        start = position + 1 - self.size
        return range(start, position + 1) if start >= 0 and start % self.step == 0 else None

    def ranges(self, total: int, *, flush: bool = False) -> list[range]:
        """The full windows of ``total`` messages; ``flush``: and the rest, in none of them, as one more."""
        full = [range(start, start + self.size) for start in range(0, total - self.size + 1, self.step)]
        if flush and total > (full[-1].stop if full else 0):
            full.append(range(len(full) * self.step, total))
        return full


Definition: TypeAlias = Tumbling | Sliding | Session | Count


def windows_of(
    definition: Definition,
    events: Iterable[Event],
    time: Callable[[Event], int],
    *,
    empty: bool = False,
    flush: bool = False,
) -> list[tuple[Span, list[Event]]]:
    """All windows of one key's events, as if none had been late: what an engine is checked by.

    Events stand by time, then arrival; in a count window by arrival. ``empty``: also the tumbling or sliding
    windows without events, between the first and the last. ``flush``: also a count window that is not full.

    >>> windows_of(Tumbling(timedelta(microseconds=10)), [12, 3, 35, 1], int)
    [(Span(start=0, end=10), [1, 3]), (Span(start=10, end=20), [12]), (Span(start=30, end=40), [35])]
    """
    arrived = list(events)
    if isinstance(definition, Count):
        slices = [arrived[r.start : r.stop] for r in definition.ranges(len(arrived), flush=flush)]
        return [(Span.around(map(time, part)), part) for part in slices]
    arrived.sort(key=time)
    if isinstance(definition, Session):
        sessions = definition.of(map(time, arrived))
        return [(span, [event for event in arrived if time(event) in span]) for span in sessions]
    found: dict[Span, list[Event]] = {}
    for event in arrived:
        for span in definition.assign(time(event)):
            found.setdefault(span, []).append(event)
    if empty and found:
        for span in definition.between(min(found).start, max(found).start):
            found.setdefault(span, [])
    return sorted(found.items(), key=lambda item: item[0])


@dataclass(frozen=True, slots=True)
class Late:
    """An event that no window takes any more: the last window it missed, and how far behind the watermark."""

    span: Span
    lateness_us: int


def place(spans: list[Span], time: int, watermark: int | None, grace_us: int = 0) -> list[Span] | Late:
    """Those of an event's ``spans`` (one at least) that still take it, or, if none does, how late it is.

    >>> place([Span(0, 10), Span(5, 15)], 7, watermark=12)
    [Span(start=5, end=15)]
    >>> place([Span(0, 10), Span(5, 15)], 7, watermark=20, grace_us=5)
    Late(span=Span(start=5, end=15), lateness_us=13)
    """
    if watermark is None:
        return spans
    taking = [span for span in spans if watermark < span.ripe_at(grace_us)]
    return taking or Late(max(spans), watermark - time)


@dataclass(slots=True)
class Watermark:
    """The highest event time seen, the least over the sources that are not idle. It never runs backwards.

    A source that has shown nothing yet holds it at None, and then no window is ripe. When all sources are
    idle, it is the highest time of all. The fields are its whole state, for a checkpoint to keep.

    >>> watermark = Watermark(("clicks", "orders"), idle_timeout=timedelta(seconds=5))
    >>> watermark.observe("clicks", 70), watermark.observe("orders", 50), watermark.holders
    (None, 50, ['orders'])
    >>> watermark.drained("orders", now=0), watermark.drained("orders", now=5_000_000), watermark.time
    (False, True, 70)
    """

    sources: tuple[str, ...]
    idle_timeout: timedelta | None = None
    highest: dict[str, int] = field(default_factory=dict)
    idle: set[str] = field(default_factory=set)
    quiet_since: dict[str, int] = field(default_factory=dict)
    time: int | None = None

    @property
    def holders(self) -> list[str]:
        """The sources it waits for: those silent so far, or else the furthest behind; none: all are idle."""
        awake = [source for source in self.sources if source not in self.idle]
        silent = [source for source in awake if source not in self.highest]
        least = min((self.highest[source] for source in awake if source in self.highest), default=None)
        return silent or [source for source in awake if self.highest[source] == least]

    def observe(self, source: str, time: int) -> int | None:
        """An event of ``source``, which so is not idle; the watermark after it."""
        self._check(source)
        self.highest[source] = max(time, self.highest.get(source, time))
        self.idle.discard(source)
        self.quiet_since.pop(source, None)
        return self._move()

    def drained(self, source: str, now: int) -> bool:
        """``source`` was read to its end at ``now``. True: it has become idle; store that."""
        self._check(source)
        since = self.quiet_since.setdefault(source, now)
        if self.idle_timeout is None or source in self.idle or now - since < length_us(self.idle_timeout):
            return False
        self.set_idle(source)
        return True

    def set_idle(self, source: str) -> int | None:
        """``source`` holds the watermark no longer, until its next event; the watermark after it."""
        self._check(source)
        self.idle.add(source)
        return self._move()

    def settle(self) -> int | None:
        """The watermark that follows from the fields, once they were set by hand."""
        return self._move()

    def raise_to(self, time: int) -> int:
        """At least ``time`` from here on: windows up to it are closed, whatever the sources say."""
        self.time = time if self.time is None else max(self.time, time)
        return self.time

    def _move(self) -> int | None:
        holders = self.holders
        reached = self.highest.get(holders[0]) if holders else max(self.highest.values(), default=None)
        return self.time if reached is None else self.raise_to(reached)

    def _check(self, source: str) -> None:
        if source not in self.sources:
            raise ValueError(f"{source!r} is no source of this watermark; it has {', '.join(self.sources)}")


def _check_length(what: str, value: object) -> None:
    if not isinstance(value, timedelta) or value <= timedelta(0):
        raise ValueError(f"{what} must be a timedelta over zero, not {value!r}; write durations.parse('5m')")


def _check_count(what: str, value: object) -> None:
    # True is an int to Python; as a number of messages it is a mistake.
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise ValueError(f"{what} must be a whole number of messages, not {value!r}; write 1 or more")


def _check_slide(slide: Amount, size: Amount) -> None:
    if slide > size:
        lost = "what falls between two windows would be in none"
        raise ValueError(f"a slide of {slide} is over the size {size}: {lost}; make it {size} or less")
