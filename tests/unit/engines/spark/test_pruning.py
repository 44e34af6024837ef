"""Which fields of a source come into Spark."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from queenstream.core import aggregates
from queenstream.engines.spark.native.pruning import needed
from queenstream.pipeline.builder import Pipeline
from queenstream.pipeline.endpoints import Files, Memory, Queue
from queenstream.pipeline.expr.expressions import col
from queenstream.pipeline.shorthand import count, tumbling

SCHEMA = "a bigint, b string, c struct<d: string, e: string>, f double not null, g timestamp"
ALL = ("a", "b", "c", "f", "g")
WHOLE = aggregates.custom(dict, lambda _, record: record, lambda _, last: last, lambda last: last)
Steps = Callable[[Pipeline[Any]], Any]


@pytest.mark.parametrize(
    ("steps", "fields"),
    [
        (lambda p: p, ALL),
        (lambda p: p.filter("a > 1"), ALL),
        (lambda p: p.select("a"), ("a", "f")),
        (lambda p: p.select(x=col("c.d")), ("c", "f")),
        (lambda p: p.filter("b = 'x'").select("a"), ("a", "b", "f")),
        (lambda p: p.with_columns(x="a + 1"), ALL),
        (lambda p: p.with_columns(x="a + 1").select("x"), ALL),
        (lambda p: p.window(tumbling("1m")).aggregate(n=count()), ("f",)),
        (lambda p: p.window(tumbling("1m"), time="g").aggregate(n=count("b")), ("b", "f", "g")),
        (lambda p: p.key_by("b").window(tumbling("1m")).aggregate(n=aggregates.sum_("a")), ("a", "b", "f")),
        (
            lambda p: p.key_by(lambda record: record["b"]).window(tumbling("1m")).aggregate(n=count()),
            ALL,
        ),
        (lambda p: p.window(tumbling("1m")).aggregate(last=WHOLE), ALL),
    ],
)
def test_a_step_needs_what_it_reads(steps: Steps, fields: tuple[str, ...]) -> None:
    plan = steps(Pipeline("p").source(Queue("q", schema=SCHEMA))).to(print).plan()
    assert needed(plan, plan.sources[0]).names == fields


def test_branches_need_what_any_of_them_reads() -> None:
    source = Pipeline("p").source(Queue("q", schema="a bigint, b string, c double"), name="in")
    plan = source.select(x=col("a").cast("text")).union(source.select(x=col("b"))).to(print).plan()
    assert needed(plan, plan.sources[0]).names == ("a", "b")


def test_a_record_without_any_field_would_be_none() -> None:
    source = Pipeline("p").source(Queue("q", schema="a bigint, b string"))
    plan = source.window(tumbling("1m")).aggregate(n=count()).to(print).plan()
    assert needed(plan, plan.sources[0]).names == ("a",)


def test_of_files_that_tasks_read_only_what_is_needed_comes() -> None:
    for source, fields in (
        (Files("a.parquet", schema="a bigint, b string"), ("a",)),
        (Files("s3a://in/a.ndjson", schema="a bigint, b string", follow=True), ("a",)),
        (Files("a.ndjson", schema="a bigint, b string", follow=True), ("a", "b")),
    ):
        plan = Pipeline("p").source(source).select("a").to(print).plan()
        assert needed(plan, plan.sources[0]).names == fields


def test_what_is_fed_is_fed_whole() -> None:
    plan = Pipeline("p").source(Memory([], schema="a bigint, b string")).select("a").to(print).plan()
    assert needed(plan, plan.sources[0]).names == ("a", "b")
