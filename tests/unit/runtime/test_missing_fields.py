"""Fields that steps read and that no record had."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest

from queenstream.core.aggregates import sum_
from queenstream.pipeline.builder import Pipeline
from queenstream.pipeline.endpoints import Kafka, Memory, Queue
from queenstream.pipeline.expr.expressions import coalesce, col
from queenstream.pipeline.shorthand import tumbling
from queenstream.runtime.missing_fields import FieldWatch, find_missing, untyped_reads


@dataclass
class Order:
    amount: int


def found_in(pipeline: Pipeline[Any], step: str, *batches: list[Any]) -> list[str]:
    """What is missing after these batches have reached a step."""
    plan = pipeline.to(print).plan()
    counts: dict[str, dict[str, int]] = {}

    def count(step: str, what: str, number: int) -> None:
        own = counts.setdefault(step, {})
        own[what] = own.get(what, 0) + number

    watch = FieldWatch(untyped_reads(plan), count)
    for batch in batches:
        watch.look(step, 0, batch)
    return [str(each).partition(": ")[2] for each in find_missing(plan, counts)]


def untyped() -> Pipeline[Any]:
    return Pipeline("p").source(Memory([]))


@pytest.mark.parametrize(
    ("path", "record", "similar"),
    [
        ("amout", {"amount": 1}, "did you mean 'amount'?"),
        ("ID", {"id": 1}, "did you mean 'id'?"),
        ("user.contry", {"user": {"country": "DE"}}, "did you mean 'user.country'?"),
        ("user.country", {"user": None}, "check the name"),
        ("items.1", {"items": ["a"]}, "check the name"),
        ("amout", Order(1), "did you mean 'amount'?"),
    ],
)
def test_a_field_that_is_not_there_and_the_one_that_was_meant(path: str, record: Any, similar: str) -> None:
    expected = f"filter reads {path!r}, which the only record did not have; {similar}"
    assert found_in(untyped().filter(f"{path} = 1"), "filter", [record]) == [expected]


@pytest.mark.parametrize(
    ("path", "record"),
    [("a", {"a": None}), ("a.b", {"a": {"b": 1}}), ("items.0", {"items": ["x"]}), ("amount", Order(1))],
)
def test_a_field_that_is_there_if_only_as_null(path: str, record: Any) -> None:
    assert found_in(untyped().filter(f"{path} = 1"), "filter", [record]) == []


def test_one_record_that_has_it_is_enough_and_may_come_later() -> None:
    pipeline = untyped().filter("rebate > 1")
    without = [{"amount": 1}] * 1_500
    [said] = found_in(pipeline, "filter", without, without)
    assert said == "filter reads 'rebate', which none of 3,000 records had; check the name"
    assert found_in(pipeline, "filter", without, [{"rebate": 2}]) == []


def test_what_an_expression_expects_to_be_absent_is_no_matter() -> None:
    pipeline = untyped().filter((coalesce(col("rebate"), 0) < 5) & (col("deleted_at").is_null()))
    assert found_in(pipeline, "filter", [{"amount": 1}]) == []


def test_every_step_that_reads_fields_is_looked_at() -> None:
    pipeline = (
        untyped()
        .event_time("at")
        .deduplicate("a", within="1m")
        .with_columns(x=col("b") + 1)
        .key_by("c")
        .window(tumbling("1m"), time="d")
        .aggregate(total=sum_("e"))
    )
    reads = untyped_reads(pipeline.to(Queue("q", partition_by="c")).plan())
    assert {path for inputs in reads.values() for paths in inputs for path in paths} == {"at", *"abcde"}


def test_of_typed_records_the_planner_knows_the_fields() -> None:
    typed = Pipeline("p").source(Queue("q", schema="amount DOUBLE")).filter("amount > 1").to(print)
    assert untyped_reads(typed.plan()) == {}
    with pytest.raises(Exception, match=r"reads 'amout', which is not there; .* write 'amount'"):
        Pipeline("p").source(Queue("q", schema="amount DOUBLE")).filter("amout > 1").to(print).plan()


def test_inside_a_variant_nobody_knows_the_fields() -> None:
    source = Kafka("orders", servers="localhost:9092", envelope=True)
    pipeline = Pipeline("p").source(source).filter("value.amout > 1 and topic = 'orders'")
    record = {"topic": "orders", "value": {"amount": 5}}
    expected = "filter reads 'value.amout', which the only record did not have; did you mean 'value.amount'?"
    assert found_in(pipeline, "filter", [record]) == [expected]
