"""Questions to the events of a stream processor: aggregates, counts and joins. Pure; nothing is locked here.

Fields are those of the events' data: ``user`` and ``data.user`` are the same.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import replace
from typing import Any, TypeAlias

from queenstream.core import paths
from queenstream.core.aggregates import Aggregate, from_dict
from queenstream.errors import ConfigError
from queenstream.processor.events import Event, shown

Aggregator: TypeAlias = Callable[[list[Event]], Any] | Aggregate | Mapping[str, object]
"""A function of a window's events, an aggregate of a field, or one written as data: ``{"$sum": "value"}``."""


def aggregated(name: str, aggregator: Aggregator, events: Iterable[Event]) -> Any:
    """What one aggregator says of events, which stand by time, then arrival."""
    if isinstance(aggregator, Mapping):
        [aggregator] = from_dict({name: aggregator}).values()
    if isinstance(aggregator, Aggregate):
        if aggregator.field is not None:
            aggregator = replace(aggregator, field=paths.strip(aggregator.field))
        return aggregator.over(event.data for event in events)
    return aggregator(list(events))


def counted(events: Iterable[Event], field: str) -> dict[Any, int]:
    """How many events have which value; those without one do not count."""
    read = paths.getter(paths.strip(field))
    values = [value for event in events if (value := read(event.data)) is not None]
    try:
        return dict(Counter(values))
    except TypeError:
        raise ConfigError(
            f"{field!r} has lists or dictionaries; count another field, or group_by() their text"
        ) from None


def joined(
    ours: Iterable[Event], theirs: Iterable[Event], field: str, apart_us: int
) -> list[tuple[Event, Event]]:
    """Pairs of the same value at most ``apart_us`` apart. Both sides stand by time, and so do the pairs.

    Theirs are found by value, then by time: each event is looked at once, however many there are.
    """
    read = paths.getter(paths.strip(field))
    lanes: dict[Hashable, tuple[list[int], list[Event]]] = {}
    for event in theirs:
        value = matchable(read(event.data))
        if value is not None:
            times, events = lanes.setdefault(value, ([], []))
            times.append(event.us)
            events.append(event)
    pairs: list[tuple[Event, Event]] = []
    for event in ours:
        lane = lanes.get(matchable(read(event.data)))
        if lane is not None:
            times, events = lane
            first = bisect_left(times, event.us - apart_us)
            past = bisect_right(times, event.us + apart_us, lo=first)
            pairs += [(event, partner) for partner in events[first:past]]
    return pairs


def matchable(value: object) -> Hashable | None:
    """What a value is found by: the same for equal values, lists and maps too; but 1 is not True.

    >>> matchable([1, {"a": 2}]) == matchable([1.0, {"a": 2}]), matchable(1) == matchable(True)
    (True, False)
    """
    if value is None or type(value) is str or type(value) is int:
        return value
    if isinstance(value, bool):
        return ("bool", value)
    if isinstance(value, float) and value != value:
        return ("nan",)
    if isinstance(value, list | tuple):
        return ("list", *map(matchable, value))
    if isinstance(value, set | frozenset):
        return ("set", frozenset(map(matchable, value)))
    if isinstance(value, Mapping):
        return ("map", frozenset((matchable(name), matchable(held)) for name, held in value.items()))
    if isinstance(value, Hashable):
        return value
    raise ConfigError(f"{shown(value)} cannot be compared; group or join by text, numbers, lists or maps")
