"""Random logs through the stages of the Spark engine: what the oracle says, as on the local engine."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from queenstream.core import windows
from queenstream.pipeline.builder import Pipeline
from tests.conformance.pipelines import oracle, test_oracle
from tests.conformance.pipelines.engines import Ends, Row
from tests.conformance.pipelines.staged_engine import StagedEngine
from tests.conformance.pipelines.test_oracle import (
    LONG,
    check,
    counting,
    ends,
    gone_quiet,
    graces,
    joining,
    logs,
    ms,
    two_logs,
    windowed,
)

engines = st.sampled_from([StagedEngine(), StagedEngine(page_bytes=1)])
"""One has a page of state for each value."""

thorough = settings(
    max_examples=1_000 if LONG else 40,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)


@pytest.mark.parametrize("emit", ["final", "update"])
@pytest.mark.parametrize("kind", ["tumbling", "sliding", "session", "count"])
def test_windows(kind: str, emit: oracle.Emit) -> None:
    definitions: st.SearchStrategy[Any] = getattr(test_oracle, kind)

    @thorough
    @given(logs(), definitions, graces, ends, engines)
    def equal(
        log: list[list[Row]], window: tuple[Any, Any], grace: int, ended: bool, engine: StagedEngine
    ) -> None:
        described, defined = window
        grace = 0 if isinstance(defined, windows.Count) else grace
        outcome = engine.run(windowed(defined, grace, emit), [{"in": batch} for batch in log], end=ended)
        expected = oracle.aggregated(log, described, grace, oracle.all_aggregates, emit=emit, ended=ended)
        check(log, outcome, expected)

    equal()


@pytest.mark.parametrize("how", ["inner", "left", "right", "full"])
def test_joins(how: oracle.How) -> None:
    @thorough
    @given(two_logs(), st.sampled_from([0, 1_000, 6_000]), graces, ends, engines)
    def equal(
        log: list[tuple[list[Row], list[Row]]], within: int, grace: int, ended: bool, engine: StagedEngine
    ) -> None:
        batches = [{"left": left, "right": right} for left, right in log]
        outcome = engine.run(joining(within, grace, how), batches, end=ended)
        check(log, outcome, oracle.joined(log, within, grace, how, ended=ended))

    equal()


@thorough
@given(logs(st.integers(0, 2)), st.sampled_from([0, 1_000, 6_000]), graces, ends, engines)
def test_deduplicate(
    log: list[list[Row]], within: int, grace: int, ended: bool, engine: StagedEngine
) -> None:
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


@thorough
@given(logs(), st.sampled_from([None, 0, 1_250, 9_000]), st.sampled_from([None, 1_250, 6_500]), ends, engines)
def test_stateful(
    log: list[list[Row]], quiet: int | None, ttl: int | None, ended: bool, engine: StagedEngine
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
