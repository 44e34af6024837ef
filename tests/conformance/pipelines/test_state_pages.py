"""Keys whose state is large: a batch reads and writes what it touches, and what is over is deleted."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from queenstream.engines.spark.keyed.pages import PAGE_BYTES
from queenstream.engines.spark.sources.sources import Decoded
from queenstream.engines.spark.tasks import rows as flow
from queenstream.engines.spark.tasks.records import Item
from queenstream.pipeline.builder import Pipeline
from queenstream.pipeline.shorthand import count, session, sliding, tumbling
from tests.conformance.pipelines.engines import Ends
from tests.conformance.pipelines.spark_engine import Collected
from tests.conformance.pipelines.staged_engine import Query

OPEN = 2_000  # windows of a key


def query_of(window: Any) -> Query:
    io: Ends = Collected()
    rows = Pipeline("p").source(io.source("in"), name="in").event_time("at").key_by("user")
    return Query(rows.window(window, grace="30d").aggregate(n=count()).to(io.sink("out")).plan())


def batch(query: Query, *seconds: float, name: str = "in", more: dict[str, Any] | None = None) -> list[Any]:
    """What comes of records of one key at these times; what was asked of the state before is forgotten."""
    for handle in query.handles:
        handle.asked.clear()
        handle.bytes_written = 0
    items = [
        Item({"user": "ann", "at": int(at * 1_000), **(more or {})}, None, None, number)
        for number, at in enumerate(seconds)
    ]
    empty = {each: Decoded([]) for each in ("left", "right") if name != "in" and each != name}
    return [row for rows in query.batch({name: Decoded(items), **empty}).values() for row in rows]


def reach(query: Query, seconds: float, name: str = "in") -> list[Any]:
    """What comes when the watermark is there."""
    query.watermark = flow.to_clock(int(seconds * 1e6)) // 1_000
    return batch(query, name=name)


@pytest.mark.parametrize(
    ("window", "touched"), [(tumbling("10s"), 1), (sliding("20s", "10s"), 2), (session("5s"), 1)]
)
def test_a_batch_costs_what_it_touches(window: Any, touched: int) -> None:
    query = query_of(window)
    [handle] = query.handles
    batch(query, *(10.0 * number for number in range(OPEN)))
    whole = handle.bytes_written
    assert whole > 8 * PAGE_BYTES
    assert batch(query, 10.0 * (OPEN // 2)) == []
    assert handle.bytes_written <= (1 + touched) * PAGE_BYTES
    assert handle.asked["getValue"] <= touched
    assert handle.asked["updateValue"] <= touched
    assert handle.asked["update"] <= 1


@pytest.mark.parametrize("window", [tumbling("10s"), session("5s")])
def test_a_window_that_closes_costs_its_page(window: Any) -> None:
    query = query_of(window)
    [handle] = query.handles
    batch(query, *(10.0 * number for number in range(OPEN)))
    assert len(reach(query, 30 * 86_400 + 10)) == 1
    assert handle.asked["getValue"] == 1
    assert handle.bytes_written <= 2 * PAGE_BYTES


@pytest.mark.parametrize("window", [tumbling("10s"), session("5s")])
def test_windows_that_are_closed_are_deleted(window: Any) -> None:
    query = query_of(window)
    [handle] = query.handles
    batch(query, *(10.0 * number for number in range(OPEN)))
    [pages] = handle.pages.values()
    before = len(pages)
    assert len(reach(query, 30 * 86_400 + 5 * OPEN)) == OPEN // 2
    assert len(pages) <= before // 2 + 1
    query.restart()
    assert len(reach(query, 31 * 86_400 + 10 * OPEN)) == OPEN // 2
    assert not pages
    assert not handle.values


def test_sessions_merge_over_pages() -> None:
    """One record in every gap makes one session of all, in the order in which they come."""
    query = query_of(session("6s"))
    [handle] = query.handles
    batch(query, *(10.0 * number for number in range(OPEN)))
    assert len(next(iter(handle.pages.values()))) > 1
    query.restart()
    batch(query, *(10.0 * number + 5 for number in range(OPEN)))
    [row] = reach(query, 31 * 86_400 + 10 * OPEN)
    assert row["n"] == 2 * OPEN
    assert row["window_end"].timestamp() == 10 * (OPEN - 1) + 5 + 6
    assert not handle.values


def joined(how: Any) -> Query:
    io: Ends = Collected()
    left, right = (
        Pipeline("p").source(io.source(name), name=name).event_time("at") for name in ("left", "right")
    )
    return Query(left.join(right, on="user", within="10s", how=how).to(io.sink("out")).plan())


def test_rows_of_a_join_are_read_by_time() -> None:
    query = joined("inner")
    [handle] = query.handles
    batch(query, *(5.0 * number for number in range(OPEN)), name="left", more={"text": "x" * 50})
    found = batch(query, 5_000, name="right")
    assert len(found) == 5
    assert handle.asked["getValue"] <= 2
    assert handle.bytes_written <= 5 * PAGE_BYTES


def test_rows_of_a_join_that_are_over_are_deleted() -> None:
    query = joined("left")
    [handle] = query.handles
    batch(query, *(5.0 * number for number in range(OPEN)), name="left", more={"text": "x" * 50})
    batch(query, 5_000, name="right")
    [pages] = handle.pages.values()
    before = len(pages)
    query.restart()
    # Of those up to 5,000 seconds, three have found a partner, and two of those behind it.
    assert len(reach(query, 5 * OPEN / 2 + 11, "left")) == OPEN // 2 + 1 - 3
    assert len(pages) <= before // 2 + 2
    assert len(reach(query, 86_400, "left")) == OPEN // 2 - 1 - 2
    assert not pages
    assert not handle.values


def test_small_state_is_one_value() -> None:
    query = query_of(tumbling("10s"))
    [handle] = query.handles
    batch(query, *(10.0 * number for number in range(20)))
    assert handle.asked == Counter(get=1, update=1, registerTimer=1)
    batch(query, 5, 15)
    assert handle.asked == Counter(get=1, update=1)
