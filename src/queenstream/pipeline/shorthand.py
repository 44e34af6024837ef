"""Windows in a few letters: ``tumbling("5m")``, ``sliding("10m", "1m")``, ``session("30s")``."""

from __future__ import annotations

from datetime import timedelta
from typing import TypeAlias, overload

from queenstream.core import aggregates, durations
from queenstream.core.aggregates import Aggregate
from queenstream.core.windows import Count, Session, Sliding, Tumbling
from queenstream.errors import ConfigError

Duration: TypeAlias = str | float | timedelta


def tumbling(size: Duration) -> Tumbling:
    """Windows side by side, aligned to the epoch.

    >>> tumbling("5m")
    Tumbling(size=datetime.timedelta(seconds=300))
    """
    return Tumbling(durations.parse(size))


def sliding(size: Duration, slide: Duration) -> Sliding:
    """Windows of one size that start at every slide.

    >>> sliding("10m", "1m").slide
    datetime.timedelta(seconds=60)
    """
    return Sliding(durations.parse(size), durations.parse(slide))


def session(gap: Duration) -> Session:
    """From a key's first event to its last plus the gap.

    >>> session("30s")
    Session(gap=datetime.timedelta(seconds=30))
    """
    return Session(durations.parse(gap))


@overload
def count(of: int, *, slide: int | None = None) -> Count: ...
@overload
def count(of: str | None = None) -> Aggregate: ...
def count(of: int | str | None = None, *, slide: int | None = None) -> Count | Aggregate:
    """A window of so many records; or, without a number, the aggregate that counts records or values.

    >>> count(100, slide=10)
    Count(size=100, slide=10)
    >>> count("user_id").kind
    'count'
    """
    if isinstance(of, int):
        return Count(of, slide)
    if slide is not None:
        raise ConfigError("slide is for a window of so many records; write count(100, slide=10)")
    return aggregates.count(of)
