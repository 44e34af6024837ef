"""Random logs, shuffled and late, cut anywhere, with crashes in between: engines give what the oracle does.

QUEENSTREAM_LONG=1 makes it last: thousands of logs, longer ones.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import HealthCheck, given, note, settings
from hypothesis import strategies as st

from queenstream.core import aggregates, windows
from queenstream.pipeline.builder import Pipeline
from queenstream.pipeline.state import State
from tests.conformance.pipelines import oracle
from tests.conformance.pipelines.engines import Build, Ends, LocalEngine, Outcome, Row, multiset

LONG = bool(os.environ.get("QUEENSTREAM_LONG"))
STEP = 5_000  # how far event time moves from batch to batch, about; a record may be three such behind

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3_600 if LONG else 120)]
thorough = settings(
    max_examples=3_000 if LONG else 100,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)

users = st.sampled_from(["ann", "bob", None])
values = st.one_of(
    st.none(), st.integers(-3, 3), st.integers(-8, 8).map(lambda number: number / 4), st.sampled_from("xy")
)


@st.composite
def logs(draw: st.DrawFn, value: st.SearchStrategy[Any] = values) -> list[list[Row]]:
    """Batches of records whose event times move on, mostly; some from before 1970."""
    base = draw(st.sampled_from([0, -12_000, 1_767_225_600_000]))
    quarters = st.integers(-3 * 4, 4)
    event = st.fixed_dictionaries({"user": users, "at": quarters, "value": value})
    batches = draw(st.lists(st.lists(event, max_size=8), min_size=1, max_size=12 if LONG else 7))
    return [
        [{**record, "at": base + number * STEP + record["at"] * STEP // 4} for record in batch]
        for number, batch in enumerate(batches)
    ]


@st.composite
def engines(draw: st.DrawFn) -> LocalEngine:
    """One that checkpoints every so often, and is killed after some of the batches."""
    crashes = draw(st.sets(st.integers(0, 11), max_size=3))
    return LocalEngine(commit_every=draw(st.integers(1, 4)), crashes=crashes)


ends = st.booleans()
graces = st.sampled_from([0, 1, 2_500, 7_000])


def check(log: object, outcome: Outcome, expected: oracle.Expected) -> None:
    note(f"{log=}")  # in a form that can be copied into a test
    assert multiset(outcome.sinks["out"]) == multiset(expected.rows)
    if "late" in outcome.sinks:
        assert multiset(outcome.sinks["late"]) == multiset(expected.late)


def ms(number: int) -> timedelta:
    return timedelta(milliseconds=number)


AGGREGATES = {
    "n": aggregates.count(),
    "present": aggregates.count("value"),
    "total": aggregates.sum_("value"),
    "mean": aggregates.avg("value"),
    "least": aggregates.min_("value"),
    "most": aggregates.max_("value"),
    "earliest": aggregates.first("value"),
    "latest": aggregates.last("value"),
    "everything": aggregates.collect_list("value"),
    "different": aggregates.collect_set("value"),
    "kinds": aggregates.count_distinct("value"),
    "spread": aggregates.stddev("value"),
    "middle": aggregates.percentile("value", 0.5),
    "high": aggregates.percentile("value", 0.9),
    "product": aggregates.custom(
        lambda: 1,
        lambda held, value: held * value if isinstance(value, int) else held,
        lambda one, other: one * other,
        lambda held: held,
        "value",
    ),
}


def windowed(window: windows.Definition, grace: int, emit: oracle.Emit) -> Build:
    def build(io: Ends) -> Pipeline[Any]:
        pipeline = (
            Pipeline("windows")
            .source(io.source("in"), name="in")
            .key_by("user")
            .window(window, grace=ms(grace), time="at")
            .aggregate(AGGREGATES, emit=emit)
        )
        late = pipeline if isinstance(window, windows.Count) else pipeline.late(io.sink("late"))
        return late.to(io.sink("out"))

    return build


tumbling = st.sampled_from([1, 1_000, 5_000, 7_001]).map(
    lambda size: (oracle.Tumbling(size), windows.Tumbling(ms(size)))
)
sliding = st.sampled_from([(5_000, 2_500), (7_000, 3_000), (10_000, 10_000), (4_000, 1_001)]).map(
    lambda pair: (oracle.Sliding(*pair), windows.Sliding(ms(pair[0]), ms(pair[1])))
)
session = st.sampled_from([1, 1_250, 3_000, 6_000]).map(
    lambda gap: (oracle.Session(gap), windows.Session(ms(gap)))
)
count = st.sampled_from([(1, 1), (3, 3), (3, 1), (4, 3)]).map(
    lambda pair: (oracle.Count(*pair), windows.Count(*pair))
)


@pytest.mark.parametrize("emit", ["final", "update"])
@pytest.mark.parametrize(
    "kind", [tumbling, sliding, session, count], ids=["tumbling", "sliding", "session", "count"]
)
def test_windows(
    kind: st.SearchStrategy[tuple[oracle.Window, windows.Definition]], emit: oracle.Emit
) -> None:
    @thorough
    @given(logs(), kind, graces, ends, engines())
    def equal(
        log: list[list[Row]],
        window: tuple[oracle.Window, windows.Definition],
        grace: int,
        ended: bool,
        engine: LocalEngine,
    ) -> None:
        described, defined = window
        grace = 0 if isinstance(defined, windows.Count) else grace
        outcome = engine.run(windowed(defined, grace, emit), [{"in": batch} for batch in log], end=ended)
        values = oracle.all_aggregates
        check(log, outcome, oracle.aggregated(log, described, grace, values, emit=emit, ended=ended))

    equal()


@st.composite
def two_logs(draw: st.DrawFn) -> list[tuple[list[Row], list[Row]]]:
    """Batches of two sources; every record has an id, so that it can be told from others."""
    left, right = draw(logs(st.none())), draw(logs(st.none()))
    length = max(len(left), len(right))
    made = []
    for number in range(length):
        sides = [
            [
                {"id": f"{name}{number}.{at}", "user": record["user"], "at": record["at"]}
                for at, record in enumerate(log[number] if number < len(log) else [])
            ]
            for name, log in (("l", left), ("r", right))
        ]
        made.append((sides[0], sides[1]))
    return made


def joining(within: int, grace: int, how: oracle.How) -> Build:
    schema = "id string, user string, at bigint"

    def build(io: Ends) -> Pipeline[Any]:
        right = Pipeline("right").source(io.source("right", schema), name="right").event_time("at")
        return (
            Pipeline("join")
            .source(io.source("left", schema), name="left")
            .event_time("at")
            .join(right, on="user", within=ms(within), grace=ms(grace), how=how)
            .late(io.sink("late"))
            .to(io.sink("out"))
        )

    return build


@pytest.mark.parametrize("how", ["inner", "left", "right", "full"])
def test_joins(how: oracle.How) -> None:
    @thorough
    @given(two_logs(), st.sampled_from([0, 1_000, 6_000]), graces, ends, engines())
    def equal(
        log: list[tuple[list[Row], list[Row]]], within: int, grace: int, ended: bool, engine: LocalEngine
    ) -> None:
        batches = [{"left": left, "right": right} for left, right in log]
        outcome = engine.run(joining(within, grace, how), batches, end=ended)
        check(log, outcome, oracle.joined(log, within, grace, how, ended=ended))

    equal()


@thorough
@given(logs(st.integers(0, 2)), st.sampled_from([0, 1_000, 6_000]), graces, ends, engines())
def test_deduplicate(log: list[list[Row]], within: int, grace: int, ended: bool, engine: LocalEngine) -> None:
    def build(io: Ends) -> Pipeline[Any]:
        return (
            Pipeline("once")
            .source(io.source("in"), name="in")
            .event_time("at")
            .deduplicate("value", within=ms(within), grace=ms(grace))
            .late(io.sink("late"))
            .to(io.sink("out"))
        )

    outcome = engine.run(build, [{"in": batch} for batch in log], end=ended)
    check(log, outcome, oracle.deduplicated(log, within, grace))


def counting(quiet: int | None) -> Callable[[Any, Row, State], Row]:
    def count(user: Any, record: Row, state: State) -> Row:
        n = state.get("n", 0) + 1
        state.set("n", n)
        if quiet is not None:
            state.set_timer("quiet", after=ms(quiet))
        return {"user": user, "n": n}

    return count


def gone_quiet(user: Any, timer: str, state: State) -> Row:
    n = state.get("n")
    state.clear()
    return {"user": user, "quiet_after": n}


@thorough
@given(
    logs(), st.sampled_from([None, 0, 1_250, 9_000]), st.sampled_from([None, 1_250, 6_500]), ends, engines()
)
def test_stateful(
    log: list[list[Row]], quiet: int | None, ttl: int | None, ended: bool, engine: LocalEngine
) -> None:
    def build(io: Ends) -> Pipeline[Any]:
        return (
            Pipeline("counts")
            .source(io.source("in"), name="in")
            .event_time("at")
            .key_by("user")
            .stateful(
                counting(quiet),
                on_timer=None if quiet is None else gone_quiet,
                ttl=None if ttl is None else ms(ttl),
            )
            .to(io.sink("out"))
        )

    outcome = engine.run(build, [{"in": batch} for batch in log], end=ended)
    check(log, outcome, oracle.counted_until_quiet(log, quiet, ttl, ended=ended))
