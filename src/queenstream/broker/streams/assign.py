"""Which message belongs to which window: a batch of what is new, placed by ``queenstream.core.windows``.

Pure: what was read goes in, what to write comes out. The time of a message is its ``created_at``, or a field
of its payload.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import msgspec

from queenstream.broker.streams.model import Stream
from queenstream.core import paths, windows
from queenstream.core.windows import Count, Late, Session, Span


@dataclass
class Fresh:
    """What is new in one partition of a source, in its order."""

    queue_id: int
    partition_id: int
    key: str
    before_id: int  # the message before the first
    ids: list[int]
    created: list[int]
    payloads: list[bytes] | None = None


@dataclass
class Run:
    """Messages of a partition without one left out. ``before``: the one in front, if it was read earlier."""

    partition_id: int
    first: int
    last: int
    count: int
    before: int | None


@dataclass
class Filling:
    """What is added to one window."""

    first_us: int
    last_us: int
    messages: int = 0
    runs: list[Run] = field(default_factory=list)
    absorbed: list[int] = field(default_factory=list)  # open windows that become part of this one

    def add(self, partition_id: int, ids: list[int], created: list[int], before: int | None) -> None:
        self.first_us = min(self.first_us, created[0])
        self.last_us = max(self.last_us, created[-1])
        self.messages += len(ids)
        last = self.runs[-1] if self.runs else None
        if last is not None and last.partition_id == partition_id and last.last == before:
            last.last, last.count = ids[-1], last.count + len(ids)
        else:
            self.runs.append(Run(partition_id, ids[0], ids[-1], len(ids), before))


@dataclass
class LateMessage:
    """A message that no window takes."""

    key: str
    partition_id: int
    message_id: int
    event_us: int | None
    span: Span | None
    lateness_us: int | None
    reason: str


@dataclass
class OpenSession:
    """A session that still takes messages."""

    window_id: int
    span: Span


@dataclass
class Batch:
    """What to write."""

    windows: dict[tuple[str, int, int], Filling] = field(default_factory=dict)
    late: list[LateMessage] = field(default_factory=list)
    positions: dict[str, int] = field(default_factory=dict)  # count: messages of a key so far
    highest: dict[int, int] = field(default_factory=dict)  # queue → the latest event time in it

    def fill(
        self, key: str, start: int, end: int, fresh: Fresh, at: int, upto: int, before: int | None
    ) -> None:
        name = (key, start, end)
        filling = self.windows.get(name)
        if filling is None:
            filling = self.windows[name] = Filling(fresh.created[at], fresh.created[upto - 1])
        filling.add(fresh.partition_id, fresh.ids[at:upto], fresh.created[at:upto], before)


class BadTime(Exception):
    """A payload without a usable time."""


_decode = msgspec.json.Decoder().decode
# Far enough from the ends of the calendar that every window of such a time has a start and an end.
_EARLIEST = windows.to_us(datetime(1000, 1, 1, tzinfo=UTC))
_LATEST = windows.to_us(datetime(9000, 1, 1, tzinfo=UTC))


def event_time(path: str) -> Callable[[bytes], int]:
    """A function that reads the time at a path of a payload: an ISO 8601 text, or milliseconds since 1970.

    >>> event_time("data.at")(b'{"at": "2026-01-31T12:00:00Z"}')
    1769860800000000
    >>> event_time("payload.readings.0.`t.ms`")(b'{"readings": [{"t.ms": 1769860800000}]}')
    1769860800000000
    """
    value_of = paths.getter(paths.strip(path))

    def read(payload: bytes) -> int:
        try:
            value = value_of(_decode(payload))
        except (msgspec.DecodeError, RecursionError):
            raise BadTime("the payload is not JSON") from None
        if value is None:
            raise BadTime(f"there is no {path} in the payload")
        return _time_of(value, path)

    return read


def _time_of(value: Any, path: str) -> int:
    try:
        if isinstance(value, str):
            moment = datetime.fromisoformat(value)
            us = windows.to_us(moment if moment.tzinfo else moment.replace(tzinfo=UTC))
        elif isinstance(value, int | float) and not isinstance(value, bool):
            us = round(value * 1000)
        else:
            raise ValueError
        if not _EARLIEST <= us < _LATEST:
            raise ValueError
    except (ValueError, OverflowError):
        raise BadTime(
            f"{path} is {str(value)[:80]!r}, neither an ISO 8601 time nor milliseconds since 1970 "
            "in the years 1000 to 8999"
        ) from None
    return us


def assign(
    stream: Stream,
    read: Iterable[Fresh],
    watermark: int | None,
    sessions: dict[str, list[OpenSession]],
    positions: dict[str, int],
) -> Batch:
    """Place what was read. ``sessions`` and ``positions`` are those of the keys in it."""
    batch = Batch(positions=dict(positions))
    definition = stream.windows
    if isinstance(definition, Count):
        _count(definition, read, batch)
    elif stream.event_time_path is None and not isinstance(definition, Session):
        for fresh in read:
            _grid(definition, fresh, watermark, stream.grace_us, batch)
    else:
        timed = _timed(stream, read, batch)
        if isinstance(definition, Session):
            _sessions(definition, stream.grace_us, timed, watermark, sessions, batch)
        else:
            _by_event_time(definition, stream.grace_us, timed, watermark, batch)
    return batch


def _grid(
    definition: windows.Tumbling | windows.Sliding,
    fresh: Fresh,
    watermark: int | None,
    grace: int,
    batch: Batch,
) -> None:
    """By created_at, which rises: a window's messages stand side by side, its ends are found by halving."""
    created = fresh.created
    total = len(created)
    if not total:
        return
    start = 0
    if watermark is not None:  # what a closed window missed; a push cannot be that late, but it is not lost
        while start < total and isinstance(
            missed := windows.place(definition.assign(created[start]), created[start], watermark, grace), Late
        ):
            batch.late.append(
                LateMessage(fresh.key, fresh.partition_id, fresh.ids[start], None, missed.span,
                            missed.lateness_us, "it was stored after its window had closed")
            )  # fmt: skip
            start += 1
        if start == total:
            return
    span: Span | None = definition.next_with(created[start])
    while span is not None:
        at, upto = bisect_left(created, span.start, start), bisect_left(created, span.end, start)
        if at == upto:
            if at == total:
                return
            span = definition.next_with(created[at], span)
            continue
        if watermark is None or watermark < span.ripe_at(grace):
            before = fresh.ids[at - 1] if at else fresh.before_id
            batch.fill(fresh.key, span.start, span.end, fresh, at, upto, before)
        following = definition.following(span)
        span = following if following.start <= created[-1] else None


def _count(definition: Count, read: Iterable[Fresh], batch: Batch) -> None:
    """In order of arrival, over all the partitions of a key."""
    for fresh, at in _in_order(read):
        position = batch.positions.get(fresh.key, 0)
        batch.positions[fresh.key] = position + 1
        before = fresh.ids[at - 1] if at else fresh.before_id
        for span in definition.assign(position):
            batch.fill(fresh.key, span.start, span.stop, fresh, at, at + 1, before)


def _in_order(read: Iterable[Fresh]) -> Iterator[tuple[Fresh, int]]:
    """Every message as (partition, place in it), by created_at and id, as they stand in a partition too."""
    every = [(fresh.created[at], fresh.ids[at], fresh, at) for fresh in read for at in range(len(fresh.ids))]
    every.sort(key=lambda one: one[:2])
    for _, _, fresh, at in every:
        yield fresh, at


def _timed(stream: Stream, read: Iterable[Fresh], batch: Batch) -> Iterator[tuple[Fresh, int, int]]:
    """Every message with its time, in order of arrival; those without one go to the late output."""
    time_of = None if stream.event_time_path is None else event_time(stream.event_time_path)
    for fresh, at in _in_order(read):
        if time_of is None:
            yield fresh, at, fresh.created[at]
            continue
        assert fresh.payloads is not None
        try:
            time = time_of(fresh.payloads[at])
        except BadTime as error:
            batch.late.append(
                LateMessage(fresh.key, fresh.partition_id, fresh.ids[at], None, None, None, str(error))
            )
            continue
        highest = batch.highest.get(fresh.queue_id)
        batch.highest[fresh.queue_id] = time if highest is None else max(highest, time)
        yield fresh, at, time


def _too_late(fresh: Fresh, at: int, time: int, late: Late) -> LateMessage:
    return LateMessage(
        fresh.key, fresh.partition_id, fresh.ids[at], time, late.span, late.lateness_us,
        "its window had closed",
    )  # fmt: skip


def _by_event_time(
    definition: windows.Tumbling | windows.Sliding,
    grace: int,
    timed: Iterable[tuple[Fresh, int, int]],
    watermark: int | None,
    batch: Batch,
) -> None:
    for fresh, at, time in timed:
        placed = windows.place(definition.assign(time), time, watermark, grace)
        if isinstance(placed, Late):
            batch.late.append(_too_late(fresh, at, time, placed))
            continue
        before = fresh.ids[at - 1] if at else fresh.before_id
        for span in placed:
            batch.fill(fresh.key, span.start, span.end, fresh, at, at + 1, before)


def _sessions(
    definition: Session,
    grace: int,
    timed: Iterable[tuple[Fresh, int, int]],
    watermark: int | None,
    stored: dict[str, list[OpenSession]],
    batch: Batch,
) -> None:
    """A session grows with each message, and takes in those that it meets."""
    open_: dict[str, dict[Span, list[int]]] = {  # key → span → the stored windows in it
        key: {session.span: [session.window_id] for session in sessions} for key, sessions in stored.items()
    }
    for fresh, at, time in timed:
        own = open_.setdefault(fresh.key, {})
        span, taken = definition.add(own, time)
        placed = windows.place([span], time, watermark, grace)
        if isinstance(placed, Late):
            batch.late.append(_too_late(fresh, at, time, placed))
            continue
        grown = Filling(fresh.created[at], fresh.created[at])
        for other in taken:
            grown.absorbed += own.pop(other)
            filled = batch.windows.pop((fresh.key, other.start, other.end), None)
            if filled is not None:
                grown.first_us = min(grown.first_us, filled.first_us)
                grown.last_us = max(grown.last_us, filled.last_us)
                grown.messages += filled.messages
                grown.runs += filled.runs
        own[span] = list(grown.absorbed)
        batch.windows[fresh.key, span.start, span.end] = grown
        before = fresh.ids[at - 1] if at else fresh.before_id
        batch.fill(fresh.key, span.start, span.end, fresh, at, at + 1, before)
