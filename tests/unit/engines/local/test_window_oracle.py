"""Windows against a straightforward oracle: random events, shuffled, in random batches, with crashes."""

from __future__ import annotations

import asyncio
import itertools
from datetime import timedelta
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from queenstream.core import windows
from queenstream.core.aggregates import (
    avg,
    collect_list,
    count,
    count_distinct,
    first,
    last,
    max_,
    min_,
    sum_,
)
from queenstream.core.windows import Count, Definition, Session, Sliding, Span, Tumbling
from queenstream.pipeline.builder import Pipeline
from tests.unit.engines.local.driving import Driven, Row, ignore, source

AGGREGATES = {
    "n": count(),
    "some": count("v"),
    "total": sum_("v"),
    "mean": avg("v"),
    "least": min_("v"),
    "most": max_("v"),
    "early": first("v"),
    "late": last("v"),
    "listed": collect_list("v"),
    "different": count_distinct("v"),
}
MS = timedelta(milliseconds=1)

values = st.one_of(st.none(), st.integers(-5, 5), st.floats(-2, 2), st.sampled_from(["x", "y"]))
events = st.lists(st.tuples(st.sampled_from("ab"), st.integers(-40, 120), values), max_size=40)
time_windows = st.one_of(
    st.builds(lambda size: Tumbling(size * MS), st.integers(1, 30)),
    st.tuples(st.integers(1, 30), st.integers(1, 30)).map(
        lambda pair: Sliding(max(pair) * MS, min(pair) * MS)
    ),
)
sessions = st.builds(lambda gap: Session(gap * MS), st.integers(2, 12))
counts = st.tuples(st.integers(1, 6), st.integers(1, 6)).map(lambda pair: Count(max(pair), min(pair)))
# Close enough that sessions begin apart and meet.
crowded = st.lists(st.tuples(st.sampled_from("ab"), st.integers(0, 80), values), min_size=8, max_size=40)
cuts = st.lists(st.integers(0, 40), max_size=5)


def records_of(drawn: list[tuple[str, int, Any]]) -> list[Row]:
    return [{"k": key, "at": time, "v": value, "id": index} for index, (key, time, value) in enumerate(drawn)]


def batches_of(records: list[Row], cut_at: list[int]) -> list[list[Row]]:
    bounds = sorted({0, len(records), *(min(cut, len(records)) for cut in cut_at)})
    return [records[start:end] for start, end in itertools.pairwise(bounds)]


def pipeline_of(window: Definition, grace_ms: int) -> Pipeline[Row]:
    made = source().key_by("k").window(window, grace=grace_ms * MS, time="at").aggregate(AGGREGATES)
    # Nothing is late for a count window.
    late = made if isinstance(window, Count) else made.late(ignore, name="late")
    return late.to(ignore, name="out")


def run(
    window: Definition, grace_ms: int, batches: list[list[Row]], crashes: bool
) -> tuple[list[Row], list[int]]:
    """All rows, and the ids of what was late."""

    async def drive() -> tuple[list[Row], list[int]]:
        driven = Driven(pipeline_of(window, grace_ms), tracking=crashes)
        rows, late = [], []
        for batch in batches:
            rows += await driven.send(*batch)
            late += [each["record"]["id"] for each in driven.rows("late")]
            if crashes:
                driven.crash()
        return [*rows, *await driven.finish()], late

    return asyncio.run(drive())


def expected_row(key: str, span: Span, records: list[Row]) -> Row:
    made: Row = {
        "window_start": windows.from_us(span.start),
        "window_end": windows.from_us(span.end),
        "k": key,
    }
    for name, aggregate in AGGREGATES.items():
        read, held = aggregate.reader(), aggregate.init()
        for each in records:
            held = aggregate.add(held, read(each), (each["at"] * 1000, each["id"]))
        made[name] = aggregate.finish(held)
    return made


def by_span(rows: list[Row]) -> list[Row]:
    return sorted(rows, key=lambda each: (each["k"], each["window_start"], each["window_end"], each["n"]))


@settings(deadline=None, max_examples=80)
@given(events, time_windows, st.integers(0, 30), cuts, st.booleans())
def test_tumbling_and_sliding_windows(
    drawn: list[tuple[str, int, Any]],
    window: Tumbling | Sliding,
    grace: int,
    cut_at: list[int],
    crashes: bool,
) -> None:
    batches = batches_of(records_of(drawn), cut_at)
    held: dict[tuple[str, Span], list[Row]] = {}
    late, watermark = [], None
    for batch in batches:
        for each in batch:
            placed = windows.place(
                window.assign(each["at"] * 1000), each["at"] * 1000, watermark, grace * 1000
            )
            if isinstance(placed, windows.Late):
                late.append(each["id"])
                continue
            for span in placed:
                held.setdefault((each["k"], span), []).append(each)
        watermark = max([each["at"] * 1000 for each in batch] + ([] if watermark is None else [watermark]))
    rows, late_found = run(window, grace, batches, crashes)
    assert by_span(rows) == by_span([expected_row(key, span, held[key, span]) for key, span in held])
    assert late_found == late


class SessionOracle:
    """Sessions of one key as plain lists of records, closed by hand."""

    def __init__(self, window: Session, grace: int) -> None:
        self.window = window
        self.grace = grace
        self.open: list[tuple[Span, list[Row]]] = []

    def add(self, record: Row, watermark: int | None) -> bool:
        time = record["at"] * 1000
        span, taken = self.window.add([span for span, _ in self.open], time)
        if not taken and watermark is not None and span.ripe_at(self.grace) <= watermark:
            return False
        merged = [each for held, records in self.open if held in taken for each in records]
        self.open = [(held, records) for held, records in self.open if held not in taken]
        self.open.append((span, [*merged, record]))
        return True

    def close(self, watermark: int) -> list[tuple[Span, list[Row]]]:
        due = [each for each in self.open if each[0].ripe_at(self.grace) <= watermark]
        self.open = [each for each in self.open if each not in due]
        return due


@settings(deadline=None, max_examples=80)
@given(crowded, sessions, st.integers(0, 60), cuts, st.booleans())
def test_session_windows(
    drawn: list[tuple[str, int, Any]], window: Session, grace: int, cut_at: list[int], crashes: bool
) -> None:
    batches = batches_of(records_of(drawn), cut_at)
    oracles = {key: SessionOracle(window, grace * 1000) for key in "ab"}
    expected, late, watermark = [], [], None
    for batch in batches:
        late += [each["id"] for each in batch if not oracles[each["k"]].add(each, watermark)]
        watermark = max([each["at"] * 1000 for each in batch] + ([] if watermark is None else [watermark]))
        for key, oracle in oracles.items():
            expected += [expected_row(key, *each) for each in oracle.close(watermark)]
    for key, oracle in oracles.items():
        expected += [expected_row(key, *each) for each in oracle.open]
    rows, late_found = run(window, grace, batches, crashes)
    assert by_span(rows) == by_span(expected)
    assert late_found == late


@settings(deadline=None, max_examples=80)
@given(events, counts, cuts, st.booleans())
def test_count_windows(
    drawn: list[tuple[str, int, Any]], window: Count, cut_at: list[int], crashes: bool
) -> None:
    records = records_of(drawn)
    expected = [
        expected_row(key, span, part)
        for key in "ab"
        for span, part in windows.windows_of(
            window, [each for each in records if each["k"] == key], lambda each: each["at"] * 1000
        )
    ]
    rows, late = run(window, 0, batches_of(records, cut_at), crashes)
    assert sorted(rows, key=repr) == sorted(expected, key=repr)
    assert late == []


@settings(deadline=None, max_examples=80)
@given(events, st.one_of(time_windows, sessions), cuts, st.randoms(use_true_random=False))
def test_with_enough_grace_the_order_of_events_does_not_show(
    drawn: list[tuple[str, int, Any]], window: Any, cut_at: list[int], random: Any
) -> None:
    """The rows of shuffled events are those of a batch over all of them."""
    records = records_of(drawn)
    expected = [
        expected_row(key, span, part)
        for key in "ab"
        for span, part in windows.windows_of(
            window, [each for each in records if each["k"] == key], lambda each: each["at"] * 1000
        )
    ]
    shuffled = records[:]
    random.shuffle(shuffled)
    rows, late = run(window, 1_000, batches_of(shuffled, cut_at), crashes=False)
    for made in (*rows, *expected):  # of equal times, the first to arrive is another one now
        for name in ("early", "late", "listed"):
            made.pop(name)
    assert by_span(rows) == by_span(expected)
    assert late == []
