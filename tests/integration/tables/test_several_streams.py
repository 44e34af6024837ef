"""Several streams by event time: who is ahead waits for who is behind."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest

from queenstream import Function, Memory, Pipeline
from queenstream.engines.local.intake import MOST_TOGETHER
from queenstream.pipeline.plan.nodes import Coordination

DENSE, SPARSE = 1_000, 15_000  # milliseconds between two records
SPAN = 30_000_000


def merged(coordination: Coordination) -> list[int]:
    """The event times of two streams, in the order in which they came out."""
    found: list[int] = []

    def stream(name: str, every: int) -> Pipeline[Any]:
        records = [{"stream": name, "at": at} for at in range(0, SPAN, every)]
        return Pipeline("several").source(Memory(records), name=name).event_time("at")

    both = stream("dense", DENSE).union(stream("sparse", SPARSE), coordination=coordination)
    both.to(Function(lambda rows: found.extend(row["at"] for row in rows), batch=True)).run(engine="local")
    assert len(found) == SPAN // DENSE + SPAN // SPARSE
    return found


def furthest_back(times: list[int]) -> int:
    """How much earlier than one before it a record may be."""
    latest = times[0]
    back = 0
    for at in times:
        latest = max(latest, at)
        back = max(back, latest - at)
    return back


def test_sources_go_in_step() -> None:
    assert furthest_back(merged("timestamp")) <= MOST_TOGETHER * SPARSE
    assert furthest_back(merged("arrival")) > MOST_TOGETHER * SPARSE


def test_what_waits_together_is_in_order() -> None:
    """A source that has nothing holds nobody up."""
    late = Memory([{"at": at} for at in (5, 3, 9)])
    found: list[int] = []
    mine = Pipeline("several").source(Memory([{"at": at} for at in (1, 4, 8)])).event_time("at")
    others = [Pipeline("several").source(source).event_time("at") for source in (late, Memory([]))]
    mine.union(*others, coordination="timestamp").to(lambda row: found.append(row["at"])).run(engine="local")
    assert found == [1, 3, 4, 5, 8, 9]


@pytest.mark.parametrize("coordination", ["arrival", "timestamp"])
def test_one_of_them_comes_in_its_own_order(coordination: Coordination) -> None:
    times = merged(coordination)
    assert all(earlier <= later for earlier, later in pairwise(at for at in times if at % SPARSE))
