"""What a stream is: its row, and the windows that follow from it."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from queenstream.core import windows
from queenstream.errors import InvalidRequest

OWN = "__stream__:"  # how the names of a stream's own queue, and of its groups in the sources, begin
GLOBAL = "__GLOBAL__"
_TIME = r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d+)?Z"
_TIME_ID = re.compile(rf"(?P<stream>\d+):(?P<key>.*):(?P<start>{_TIME}):(?P<end>{_TIME})", re.DOTALL)
_COUNT_ID = re.compile(r"(?P<stream>\d+):(?P<key>.*):(?P<start>\d+):(?P<end>\d+)", re.DOTALL)


def refuse_own(names: Iterable[str]) -> None:
    """A stream's own queue and groups are not for users: its windows are polled."""
    for name in names:
        if name.startswith(OWN):
            raise InvalidRequest(f"{name[:200]!r} belongs to a stream; poll the stream, or take another name")


@dataclass
class Source:
    """One queue that a stream reads."""

    queue_id: int
    name: str
    group_id: int
    highest_us: int | None
    idle: bool
    quiet_since: datetime | None


@dataclass
class Stream:
    """A stream as it is stored."""

    id: int
    name: str
    namespace: str
    queue_id: int
    partitioned: bool
    window_type: str
    size_us: int | None
    slide_us: int | None
    size_count: int | None
    slide_count: int | None
    grace_us: int
    lease_seconds: float
    retry_limit: int
    max_in_flight: int
    event_time_path: str | None
    idle_timeout_us: int | None
    emit_empty: bool
    subscription_from: datetime | None
    watermark_us: int | None
    emitted_us: int | None
    late: int
    created_at: datetime
    updated_at: datetime
    sources: list[Source] = field(default_factory=list)

    @property
    def queue(self) -> str:
        """The name of its own queue."""
        return OWN + self.name

    @property
    def windows(self) -> windows.Definition:
        """Its windows, as arithmetic."""
        return definition_of(self.window_type, self.size_us, self.slide_us, self.size_count, self.slide_count)

    def lane(self, key: str, number: int) -> str:
        """The partition of its own queue for the key's window of this number: ``max_in_flight`` in turn."""
        if self.max_in_flight == 1:
            return key
        return f"{number % self.max_in_flight}\x1f{key}"

    def window_id(self, key: str, start: int, end: int) -> str:
        """What names a window on the wire."""
        span = range(start, end) if self.window_type == "count" else windows.Span(start, end)
        return windows.window_id(str(self.id), key, span)

    def parse_window_id(self, text: str) -> tuple[str, int, int] | None:
        """Key, start and end of the window that is named so on the wire; None: none of this stream is."""
        pattern = _COUNT_ID if self.window_type == "count" else _TIME_ID
        match = pattern.fullmatch(text)
        if match is None or match["stream"] != str(self.id):
            return None
        try:
            start, end = (
                int(match[side])
                if pattern is _COUNT_ID
                else windows.to_us(datetime.fromisoformat(match[side]))
                for side in ("start", "end")
            )
        except ValueError:
            return None
        # Beyond what the database can hold there is none.
        return (match["key"], start, end) if max(abs(start), abs(end)) < 2**63 else None


def definition_of(
    window_type: str,
    size_us: int | None,
    slide_us: int | None,
    size_count: int | None,
    slide_count: int | None,
) -> windows.Definition:
    """The windows of a definition; ValueError, with what to write instead, if it cannot be."""
    if window_type == "count":
        return windows.Count(size_count or 0, slide_count)
    size = timedelta(microseconds=size_us or 0)
    if window_type == "tumbling":
        return windows.Tumbling(size)
    if window_type == "sliding":
        return windows.Sliding(size, timedelta(microseconds=slide_us or 0))
    return windows.Session(size)


def from_row(row: Any) -> Stream:
    """A stream from its row, without its sources."""
    return Stream(**{name: row[name] for name in Stream.__dataclass_fields__ if name != "sources"})
