"""Moments as people write them: ``15 minutes ago``, ``today 10:00``, ``2026-01-31 12:00``, ``beginning``.

>>> noon = datetime(2026, 1, 31, 12, tzinfo=UTC)
>>> parse("15 minutes ago", noon).isoformat()
'2026-01-31T11:45:00+00:00'
>>> ago(noon - timedelta(minutes=15), noon)
'15m ago'
"""

from __future__ import annotations

import re
from datetime import UTC, datetime, time, timedelta, tzinfo
from enum import StrEnum

from queenstream.errors import ConfigError

_SECONDS = {
    "s": 1, "sec": 1, "secs": 1, "second": 1, "seconds": 1,
    "m": 60, "min": 60, "mins": 60, "minute": 60, "minutes": 60,
    "h": 3600, "hr": 3600, "hrs": 3600, "hour": 3600, "hours": 3600,
    "d": 86_400, "day": 86_400, "days": 86_400,
    "w": 604_800, "week": 604_800, "weeks": 604_800,
}  # fmt: skip
_PART = re.compile(r"(?:and )?(?:([0-9]{1,9}(?:\.[0-9]{1,6})?) ?|(an?) )([a-z]+)(?: |,|$|(?=[0-9]))")
_CLOCK = re.compile(r"([0-9]{1,2}):([0-9]{2})(?::([0-9]{2}))?")
_DAYS_BACK = {"today": 0, "yesterday": 1}
_REMEDY = "write '15 minutes ago', 'now', 'beginning', 'end', 'today 10:00' or 2026-01-31T12:00:00Z"


class Edge(StrEnum):
    """Ends of a queue, which are not times."""

    BEGINNING = "beginning"
    END = "end"


_EDGES = {
    "beginning": Edge.BEGINNING,
    "earliest": Edge.BEGINNING,
    "end": Edge.END,
    "latest": Edge.END,
}


def parse(text: str, now: datetime, zone: tzinfo | None = None) -> datetime | Edge:
    """The moment that ``text`` names, in UTC, or an end of the queue.

    A time without a zone, and where a day begins, go by ``zone``; None is this machine's.

    >>> parse("yesterday 18:30", datetime(2026, 1, 31, 12, tzinfo=UTC), UTC).isoformat()
    '2026-01-30T18:30:00+00:00'
    >>> parse("end", datetime(2026, 1, 31, 12, tzinfo=UTC))
    <Edge.END: 'end'>
    """
    words = " ".join(text.lower().split())
    if words in _EDGES:
        return _EDGES[words]
    if words == "now":
        return now.astimezone(UTC)
    try:
        found = _past(words, now) or _day(words, now, zone) or _written(text.strip(), zone)
    except (ValueError, OverflowError):
        found = None
    if found is None:
        shown = text if len(text) <= 60 else f"{text[:57]}..."
        raise ConfigError(f"{shown!r} is no moment; {_REMEDY}")
    return found


def parse_time(text: str, now: datetime, zone: tzinfo | None = None) -> datetime | None:
    """The same where only a time fits: None for the beginning, ``now`` for the end.

    >>> parse_time("beginning", datetime(2026, 1, 31, tzinfo=UTC)) is None
    True
    """
    found = parse(text, now, zone)
    if isinstance(found, Edge):
        return None if found is Edge.BEGINNING else now.astimezone(UTC)
    return found


def ago(moment: datetime, now: datetime) -> str:
    """How long ago, or how far ahead, in one unit: what a table shows.

    >>> noon = datetime(2026, 1, 31, 12, tzinfo=UTC)
    >>> ago(noon - timedelta(hours=50), noon), ago(noon + timedelta(seconds=90), noon), ago(noon, noon)
    ('2d ago', 'in 1m', 'now')
    """
    seconds = (now - moment).total_seconds()
    if abs(seconds) < 1:
        return "now"
    return f"{length(seconds)} ago" if seconds > 0 else f"in {length(-seconds)}"


def length(seconds: float) -> str:
    """A length of time in its largest unit, rounded down.

    >>> length(0.2), length(59.9), length(7200), length(90_000)
    ('0s', '59s', '2h', '1d')
    """
    for unit, size in (("d", 86_400), ("h", 3600), ("m", 60)):
        if seconds >= size:
            return f"{int(seconds // size)}{unit}"
    return f"{int(seconds)}s"


def _past(words: str, now: datetime) -> datetime | None:
    """``2h ago``, ``1 hour and 30 minutes ago``, ``an hour ago``."""
    if not words.endswith(" ago"):
        return None
    rest = words.removesuffix(" ago").replace(", ", ",")
    total = timedelta()
    while rest:
        part = _PART.match(rest)
        if part is None or part[3] not in _SECONDS:
            return None
        total += timedelta(seconds=float(part[1] or 1) * _SECONDS[part[3]])
        rest = rest[part.end() :]
    return now.astimezone(UTC) - total


def _day(words: str, now: datetime, zone: tzinfo | None) -> datetime | None:
    """``today``, ``yesterday 18:30``, or a time of today."""
    first, _, rest = words.partition(" ")
    if first not in _DAYS_BACK:
        first, rest = "today", words
        if _CLOCK.fullmatch(rest) is None:
            return None
    at = time()
    if rest:
        clock = _CLOCK.fullmatch(rest)
        if clock is None:
            return None
        at = time(int(clock[1]), int(clock[2]), int(clock[3] or 0))
    day = now.astimezone(zone).date() - timedelta(days=_DAYS_BACK[first])
    return _aware(datetime.combine(day, at), zone)


def _written(text: str, zone: tzinfo | None) -> datetime:
    """ISO 8601, with or without a time of day and a zone."""
    found = datetime.fromisoformat(text)
    return _aware(found, zone) if found.tzinfo is None else found.astimezone(UTC)


def _aware(naive: datetime, zone: tzinfo | None) -> datetime:
    # Without a zone Python asks the machine for the one that held at that time, summer time included.
    return (naive if zone is None else naive.replace(tzinfo=zone)).astimezone(UTC)
