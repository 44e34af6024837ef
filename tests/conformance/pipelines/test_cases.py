"""Every case on every engine. What an engine cannot do yet stands in ``GAPS``, with the reason."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterator
from typing import Any, Literal, get_args, get_origin, get_type_hints

import pytest

from queenstream.errors import StepFailed
from queenstream.pipeline.builder import Pipeline
from queenstream.pipeline.plan import nodes
from queenstream.pipeline.plan.nodes import Node
from tests.conformance.pipelines import (
    cases_analytics,
    cases_letters,
    cases_lookups,
    cases_records,
    cases_state,
    cases_windows,
)
from tests.conformance.pipelines.casebook import Case
from tests.conformance.pipelines.engines import Ends, Engine, LocalEngine, Replaced, Row, multiset, plain
from tests.conformance.pipelines.spark_engine import SparkEngine
from tests.conformance.pipelines.staged_engine import StagedEngine

BOOKS = (
    cases_records.BOOK,
    cases_windows.BOOK,
    cases_state.BOOK,
    cases_letters.BOOK,
    cases_lookups.BOOK,
    cases_analytics.BOOK,
)
CASES = {name: case for book in BOOKS for name, case in book.cases.items()}

ENGINES: dict[str, Engine] = {
    "local": LocalEngine(),
    "local, killed after every batch": LocalEngine(crashes=range(100)),
    "local, killed and replayed": LocalEngine(commit_every=3, crashes=range(100)),
    "spark's stages": StagedEngine(),
    "spark": SparkEngine(),
}

GENERAL = {field.name for field in dataclasses.fields(Node)} - {"on_error"}

GAPS: dict[tuple[str, str], str] = {}
"""By engine and case: why not. A gap that is none any more makes its test fail."""


ALWAYS = {  # one step with state after another, timers that end a wait, sessions that grow together
    "windows_of_windows",
    "one_follows_the_other_or_does_not",
    "a_state_that_nobody_touches_is_forgotten",
    "a_record_may_bridge_two_sessions",
    "a_source_that_is_idle_holds_nobody_back",
}


def said(case: Case) -> set[tuple[str, ...]]:
    """The nodes of a case's plan, and what is said of each: what a query of its own may show."""
    found: set[tuple[str, ...]] = set()
    for node in case.build(Replaced()).plan().nodes:
        found.add((node.kind,))
        for field in dataclasses.fields(node):
            value = getattr(node, field.name)
            if field.name not in GENERAL and repr(value) != repr(field.default):
                told = value if isinstance(value, str) else type(value).__name__
                found.add((node.kind, field.name, told))
    return found


def on_spark() -> set[str]:
    """Which cases run on Spark itself, five seconds each: all in the long form.

    In the short one, so many that every node is there with everything that a case says of it. The rest runs
    in Spark's stages alone: the code of its tasks, without Spark around it.
    """
    if os.environ.get("QUEENSTREAM_LONG"):
        return set(CASES)
    chosen = ALWAYS | {case for engine, case in GAPS if engine == "spark"}
    missing = {name: said(case) for name, case in CASES.items()}
    shown: set[tuple[str, ...]] = set()
    while (best := max(missing, key=lambda name: len(missing[name] - shown))) and missing[best] - shown:
        chosen.add(best)
        shown |= missing[best]
    return chosen


def pairs() -> Iterator[Any]:
    real = on_spark()
    for engine in ENGINES:
        for case in CASES.values():
            if engine == "spark" and case.name not in real:
                continue
            gap = GAPS.get((engine, case.name))
            marks = [] if gap is None else [pytest.mark.xfail(reason=gap, strict=True)]
            if engine == "spark":
                marks.append(pytest.mark.timeout(600))  # the first starts a session
            yield pytest.param(engine, case, id=f"{engine}: {case.name}", marks=marks)


def without(rows: list[Row], fields: frozenset[str]) -> list[Row]:
    return [{name: value for name, value in row.items() if name not in fields} for row in rows]


@pytest.mark.parametrize(("engine", "case"), list(pairs()))
def test_case(engine: str, case: Case) -> None:
    outcome = ENGINES[engine].run(case.build, case.batches, end=case.end)
    assert outcome.sinks.keys() == case.expected.keys()
    for sink, expected in case.expected.items():
        found = without(outcome.sinks[sink], case.ignoring)
        wanted = without(expected, case.ignoring)
        assert multiset(found) == multiset(wanted), sink
        if case.in_order:
            assert plain(found) == plain(wanted)


def test_gaps_are_of_cases_and_engines_that_exist() -> None:
    assert {engine for engine, _ in GAPS} <= ENGINES.keys()
    assert {case for _, case in GAPS} | ALWAYS <= CASES.keys()


@pytest.mark.parametrize("engine", ["local", "spark's stages"])
def test_a_step_that_raises_ends_the_pipeline_unless_it_is_told_otherwise(engine: str) -> None:
    place = r"cases_records\.py:\d+: check failed on \{'n': 2\}: ValueError: two is too much"
    with pytest.raises(StepFailed, match=place):
        ENGINES[engine].run(cases_records.a_failure_ends_the_pipeline, [{"in": [{"n": 2}]}], end=True)


@pytest.mark.parametrize("engine", ["local", "spark's stages"])
def test_a_callback_is_told_of_each_error(engine: str) -> None:
    told: list[tuple[str, Row, str]] = []

    def note(error: Exception, record: Row, step: str) -> None:
        told.append((str(error), record, step))

    def failing(io: Ends) -> Pipeline[Any]:
        return (
            Pipeline("p")
            .source(io.source("in"), name="in")
            .transform("check", cases_records.fails_on_two)
            .on_error("skip", callback=note)
            .to(io.sink("out"))
        )

    ENGINES[engine].run(failing, [{"in": [{"n": 1}, {"n": 2}]}], end=True)
    assert told == [("two is too much", {"n": 2}, "check")]


# Every node and option has a case

NOT_HERE = {
    ("read", "source"): "each source has tests of its own",
    ("read", "backpressure"): "a matter of the run, not of rows",
    ("replay", "source"): "each source has tests of its own",
    ("replay", "backpressure"): "it always blocks",
    ("replay", "idle_timeout"): "nobody waits for it",
    ("apply", "schema"): "says what is known of rows, and changes none",
    ("lookup", "table"): "each table has tests of its own",
    ("stateful", "schema"): "says what is known of rows, and changes none",
    ("write", "sink"): "each sink has tests of its own",
    ("stateful", "rules"): "a broker keeps them: test_rules.py, one for each engine",
}
CAN_FAIL = (nodes.Read, nodes.Apply, nodes.Lookup, nodes.EventTime, nodes.Aggregation, nodes.Stateful)
GIVEN_BY_THE_PLAN = {("aggregate", "keys"), ("stateful", "keys")}


def kinds() -> list[type[Node]]:
    found = [kind for kind in vars(nodes).values() if isinstance(kind, type) and issubclass(kind, Node)]
    return [kind for kind in found if kind is not Node]


def options() -> Iterator[Any]:
    for kind in kinds():
        hints = get_type_hints(kind, vars(nodes))
        for field in dataclasses.fields(kind):
            place = (kind.kind, field.name)
            if field.name in GENERAL or place in NOT_HERE or place in GIVEN_BY_THE_PLAN:
                continue
            if field.name == "on_error" and kind not in CAN_FAIL:
                continue
            values = get_args(hints[field.name]) if get_origin(hints[field.name]) is Literal else (None,)
            for value in values:
                yield pytest.param(kind, field, value, id=f"{kind.kind} {field.name} {value or ''}".strip())


def used() -> list[Node]:
    return [node for case in CASES.values() for node in case.build(Replaced()).plan().nodes]


@pytest.mark.parametrize(("kind", "option", "value"), list(options()))
def test_every_option_has_a_case(kind: type[Node], option: dataclasses.Field[Any], value: str | None) -> None:
    found = [getattr(node, option.name) for node in used() if isinstance(node, kind)]
    if value is not None:
        assert value in found
    else:
        assert any(each is not option.default and repr(each) != repr(option.default) for each in found)


def test_every_kind_of_node_has_a_case() -> None:
    assert {type(node) for node in used()} == set(kinds())
