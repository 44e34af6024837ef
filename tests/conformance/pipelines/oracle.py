"""What a pipeline must give, worked out from the whole log at once in the most straightforward way.

It knows where the batches were cut, since that decides what is late: a record is measured by the highest
event time of the batches before its own. Nothing of the package is used here, so that the engines and their
arithmetic are checked by something that they do not share. Times are milliseconds.
"""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Literal, NamedTuple, TypeAlias

from tests.conformance.pipelines.engines import Row, at

ONE_US = timedelta(microseconds=1)


class Arrival(NamedTuple):
    """A record, when it was, how many came before it, and what was known of event time then."""

    record: Row
    time: int
    number: int
    watermark: int | None


@dataclass
class Expected:
    """What the sinks must hold."""

    rows: list[Row] = field(default_factory=list)
    late: list[Row] = field(default_factory=list)

    def too_late(self, arrival: Arrival, step: str, span: tuple[int, int] | None = None) -> None:
        assert arrival.watermark is not None
        self.late.append(
            {
                "record": arrival.record,
                "event_time": at(arrival.time),
                "lateness_ms": arrival.watermark - arrival.time,
                "step": step,
                "window_start": None if span is None else at(span[0]),
                "window_end": None if span is None else at(span[1]),
            }
        )


Log: TypeAlias = Sequence[Sequence[Row]]


def arrivals(log: Log) -> list[list[Arrival]]:
    """The batches of one source, each record with the watermark that the batches before it made."""
    found: list[list[Arrival]] = []
    highest: int | None = None
    number = 0
    for batch in log:
        found.append([])
        for record in batch:
            found[-1].append(Arrival(record, record["at"], number, highest))
            number += 1
        highest = max([highest, *(record["at"] for record in batch)], key=_or_least, default=None)
    return found


def _or_least(time: int | None) -> float:
    return -math.inf if time is None else time


def highest_of(log: Log) -> int | None:
    """The watermark after the whole log."""
    return max((record["at"] for batch in log for record in batch), default=None)


# Windows


class Tumbling(NamedTuple):
    size: int


class Sliding(NamedTuple):
    size: int
    slide: int


class Session(NamedTuple):
    gap: int


class Count(NamedTuple):
    size: int
    slide: int


Window: TypeAlias = Tumbling | Sliding | Session | Count
Emit: TypeAlias = Literal["final", "update"]
Values: TypeAlias = Callable[[list[Arrival]], Row]
"""The aggregates of a window's records."""


def aggregated(
    log: Log,
    window: Window,
    grace: int,
    values: Values,
    *,
    step: str = "aggregate",
    emit: Emit = "final",
    ended: bool = False,
) -> Expected:
    """Windows by ``user``."""
    if isinstance(window, Session):
        return _sessions(log, window, grace, values, step, emit, ended)
    if isinstance(window, Count):
        return _counted(log, window, values, emit)
    return _on_a_grid(log, window, grace, values, step, emit, ended)


def _row(key: Any, start: int, end: int, content: list[Arrival], values: Values) -> Row:
    return {"window_start": at(start), "window_end": at(end), "user": key, **values(content)}


def _on_a_grid(
    log: Log, window: Tumbling | Sliding, grace: int, values: Values, step: str, emit: Emit, ended: bool
) -> Expected:
    expected = Expected()
    slide = window.slide if isinstance(window, Sliding) else window.size
    content: dict[tuple[Any, int], list[Arrival]] = defaultdict(list)
    for batch in arrivals(log):
        touched = set()
        for arrival in batch:
            # Every multiple of the slide, tried one by one.
            low = (arrival.time - window.size) // slide - 1
            starts = [at * slide for at in range(low, arrival.time // slide + 2)]
            holding = [start for start in starts if start <= arrival.time < start + window.size]
            known = arrival.watermark
            open_ones = [start for start in holding if known is None or known < start + window.size + grace]
            if not open_ones:
                expected.too_late(arrival, step, (holding[-1], holding[-1] + window.size))
            for start in open_ones:
                content[arrival.record["user"], start].append(arrival)
                touched.add((arrival.record["user"], start))
        if emit == "update":
            for key, start in touched:
                expected.rows.append(_row(key, start, start + window.size, content[key, start], values))
    if emit == "final":
        reached = highest_of(log)
        for (key, start), held in content.items():
            if ended or (reached is not None and start + window.size + grace <= reached):
                expected.rows.append(_row(key, start, start + window.size, held, values))
    return expected


def _sessions(
    log: Log, window: Session, grace: int, values: Values, step: str, emit: Emit, ended: bool
) -> Expected:
    """A session is the list of its records; open ones are looked through from the first to the last."""
    expected = Expected()
    sessions: list[list[Arrival]] = []

    def span(session: list[Arrival]) -> tuple[int, int]:
        times = [arrival.time for arrival in session]
        return min(times), max(times) + window.gap

    def close(until: float) -> None:
        for session in [each for each in sessions if span(each)[1] + grace <= until]:
            sessions.remove(session)
            if emit == "final":
                expected.rows.append(_row(session[0].record["user"], *span(session), session, values))

    reached: int | None = None
    for batch in arrivals(log):
        touched: list[Arrival] = []
        for arrival in batch:
            start, end = arrival.time, arrival.time + window.gap
            taking = [
                each
                for each in sessions
                if each[0].record["user"] == arrival.record["user"]
                and span(each)[0] < end
                and start < span(each)[1]
            ]
            if not taking and arrival.watermark is not None and end + grace <= arrival.watermark:
                expected.too_late(arrival, step, (start, end))
                continue
            for each in taking:
                sessions.remove(each)
            sessions.append([arrival, *(held for each in taking for held in each)])
            touched.append(arrival)
        if emit == "update":
            changed = [session for session in sessions if any(each in session for each in touched)]
            expected.rows += [_row(each[0].record["user"], *span(each), each, values) for each in changed]
        reached = max([reached, *(arrival.time for arrival in batch)], key=_or_least)
        if reached is not None:
            close(reached)
    if ended:
        close(math.inf)
    return expected


def _counted(log: Log, window: Count, values: Values, emit: Emit) -> Expected:
    expected = Expected()
    by_key: dict[Any, list[Arrival]] = defaultdict(list)

    def show(key: Any, start: int) -> None:
        content = by_key[key][start : start + window.size]
        row = _row(key, 0, 0, content, values)
        times = [arrival.time for arrival in content]
        row |= {"window_start": at(min(times)), "window_end": at(max(times)) + ONE_US}
        expected.rows.append(row)

    for batch in arrivals(log):
        before = {key: len(held) for key, held in by_key.items()}
        for arrival in batch:
            by_key[arrival.record["user"]].append(arrival)
        for key, held in by_key.items():
            old = before.get(key, 0)
            for start in range(0, len(held), window.slide):
                filled = start + window.size <= len(held) and start + window.size > old
                grown = len(held) > old and start + window.size > old
                if filled if emit == "final" else grown:
                    show(key, start)
    return expected


# Aggregates, of the field "value"


def numbers(content: Iterable[Arrival]) -> list[float]:
    found = [arrival.record.get("value") for arrival in content]
    return [each for each in found if isinstance(each, int | float) and not isinstance(each, bool)]


def all_aggregates(content: list[Arrival]) -> Row:
    """One of each kind."""
    ordered = sorted(content, key=lambda arrival: (arrival.time, arrival.number))
    values = [arrival.record.get("value") for arrival in ordered]
    present = [value for value in values if value is not None]
    found = numbers(content)
    different: list[Any] = []
    for value in present:
        if value not in different:
            different.append(value)
    return {
        "n": len(content),
        "present": len(present),
        "total": sum(found),
        "mean": sum(found) / len(found) if found else None,
        "least": _extreme(present, min),
        "most": _extreme(present, max),
        "earliest": values[0],
        "latest": values[-1],
        "everything": present,
        "different": different,
        "kinds": len(different),
        "spread": statistics.pstdev(found) if found else None,
        "middle": _percentile(found, 0.5),
        "high": _percentile(found, 0.9),
        "product": math.prod(value for value in present if isinstance(value, int)),
    }


def _extreme(present: list[Any], choose: Callable[..., Any]) -> Any:
    """Every number is less than every text."""
    return choose(present, key=lambda value: (isinstance(value, str), value), default=None)


def _percentile(found: list[float], share: float) -> float | None:
    if not found:
        return None
    ordered = sorted(found)
    place = (len(ordered) - 1) * share
    low = math.floor(place)
    high = math.ceil(place)
    return ordered[low] + (ordered[high] - ordered[low]) * (place - low)


# Joins

How: TypeAlias = Literal["inner", "left", "right", "full"]


def joined(
    log: Sequence[tuple[Sequence[Row], Sequence[Row]]],
    within: int,
    grace: int,
    how: How,
    *,
    step: str = "join",
    ended: bool = False,
) -> Expected:
    """Left and right records with one ``user``; a record has ``id``, ``user`` and ``at``."""
    expected = Expected()
    taken: tuple[list[Row], list[Row]] = ([], [])
    highest: list[int | None] = [None, None]
    for batch in log:
        known = None if None in highest else min(time for time in highest if time is not None)
        for side in (0, 1):
            for record in batch[side]:
                if known is not None and known > record["at"] + grace:
                    expected.too_late(Arrival(record, record["at"], 0, known), step)
                else:
                    taken[side].append(record)
        for side in (0, 1):
            highest[side] = max([highest[side], *(each["at"] for each in batch[side])], key=_or_least)
    reached = None if None in highest else min(time for time in highest if time is not None)
    pairs = [
        (left, right)
        for left in taken[0]
        for right in taken[1]
        if left["user"] is not None
        and left["user"] == right["user"]
        and abs(left["at"] - right["at"]) <= within
    ]
    expected.rows += [{**left, "right_id": right["id"], "right_at": right["at"]} for left, right in pairs]
    for side, wanted in enumerate((how in ("left", "full"), how in ("right", "full"))):
        paired = {pair[side]["id"] for pair in pairs}
        for record in taken[side]:
            over = ended or (reached is not None and reached > record["at"] + within + grace)
            if wanted and over and record["id"] not in paired:
                expected.rows.append(_alone(side, record))
    return expected


def _alone(side: int, record: Row) -> Row:
    """A record without a partner: what it was joined on is there all the same."""
    if side == 0:
        return {**record, "right_id": None, "right_at": None}
    own = {"right_id": record["id"], "right_at": record["at"]}
    return {"id": None, "user": record["user"], "at": None, **own}


# Deduplicate, stateful


def deduplicated(log: Log, within: int, grace: int, *, step: str = "deduplicate") -> Expected:
    """The first of equal ``value``."""
    expected = Expected()
    passed: list[Arrival] = []
    for batch in arrivals(log):
        for arrival in batch:
            same = [each for each in passed if each.record["value"] == arrival.record["value"]]
            if arrival.watermark is not None and arrival.watermark > arrival.time + grace:
                expected.too_late(arrival, step)
            elif all(abs(each.time - arrival.time) > within for each in same):
                passed.append(arrival)
                expected.rows.append(arrival.record)
    return expected


@dataclass
class Counting:
    """A key's state in the pipeline that ``counted_until_quiet`` describes."""

    n: int
    touched: int
    timer: int | None


def counted_until_quiet(log: Log, quiet: int | None, ttl: int | None, *, ended: bool = False) -> Expected:
    """Counts the records of a user, and starts over after ``ttl`` without one.

    With ``quiet``, each record sets a timer for so long after it; when it fires, it tells the count and
    clears it.
    """
    expected = Expected()
    states: dict[Any, Counting] = {}

    def over(state: Counting, now: float) -> bool:
        """A timer that is set to the end of life, or before it, is still to come."""
        if ttl is None or (state.timer is not None and state.timer <= state.touched + ttl):
            return False
        return now >= state.touched + ttl

    def fire(until: float) -> None:
        for user, state in list(states.items()):
            if over(state, until):
                del states[user]
            elif state.timer is not None and state.timer <= until:
                expected.rows.append({"user": user, "quiet_after": state.n})
                del states[user]

    reached: int | None = None
    for batch in arrivals(log):
        for arrival in batch:
            user = arrival.record["user"]
            state = states.get(user)
            if state is None or over(state, arrival.time):
                state = states[user] = Counting(0, arrival.time, None)
            state.n += 1
            state.touched = max(state.touched, arrival.time)
            if quiet is not None:
                state.timer = arrival.time + quiet
            expected.rows.append({"user": user, "n": state.n})
        reached = max([reached, *(arrival.time for arrival in batch)], key=_or_least)
        if reached is not None:
            fire(reached)
    if ended:
        fire(math.inf)
    return expected
