"""Plans without Python, where columns could lose what Python's values have: the rows of the local engine."""

from __future__ import annotations

from typing import Any

import pytest
from pyspark.sql import SparkSession

from queenstream.core import aggregates
from queenstream.engines.spark.native.pruning import needed
from queenstream.engines.spark.sources.load import Sources
from queenstream.pipeline.builder import Pipeline
from queenstream.pipeline.endpoints import Function, Memory, Queue
from queenstream.pipeline.engine_api import RunOptions
from queenstream.pipeline.shorthand import tumbling
from queenstream.testing.brokers import TemporaryBroker
from tests.sparks import is_native

Row = dict[str, Any]
pytestmark = [pytest.mark.usefixtures("spark"), pytest.mark.timeout(600)]
GREATEST = 2**63 - 1


def test_a_message_that_does_not_fit_the_schema_is_an_error_of_the_source(
    spark: SparkSession, broker: TemporaryBroker
) -> None:
    payloads = [
        {"user": "a", "amount": 5, "at": "2026-01-31T12:00:00Z"},
        {"user": "b", "amount": "7", "at": 1_500, "more": True},
        {"user": 3, "amount": 1.0, "at": "2026-01-31"},
        {"user": "c", "amount": "much"},
        {"user": "c", "amount": 2**63},
        {"user": "c", "at": "noon"},
        {"amount": 1},
        [1],
        {"user": "d"},
    ]
    with broker.client() as queen:
        for payload in payloads:
            queen.queue("orders").push(payload)

    def orders(to: list[Row]) -> Pipeline[Any]:
        schema = "user string not null, amount bigint, at timestamp"
        source = Queue("orders", schema=schema, group=f"group-{id(to)}")
        return (
            Pipeline("orders")
            .on_error("skip")
            .source(source, name="in")
            .with_columns(twice="amount * 2")
            .to(to.append)
        )

    here: list[Row] = []
    local = orders(here).run(engine="local", until="caught_up", url=broker.address).get_stats()
    there: list[Row] = []
    assert is_native(orders(there).plan(), spark)
    figures = orders(there).run(until="caught_up", url=broker.address).get_stats()
    assert sorted(there, key=str) == sorted(here, key=str)
    assert [row["amount"] for row in there] == [5, 7, 1, None]
    for name in ("errors", "steps.in.taken", "steps.in.failed"):
        assert figures[name] == local[name], name
    assert figures["errors"] == 5


def test_fields_that_nobody_looks_at_stay_outside_and_must_fit_all_the_same(
    spark: SparkSession, broker: TemporaryBroker
) -> None:
    payloads = [
        {"user": "a", "amount": 5, "note": "x", "tags": ["t"]},
        {"user": "a", "amount": 7, "note": {"no": "text"}},
        {"user": "a", "amount": 9, "tags": "none"},
        {"user": "b", "amount": 1, "note": None, "tags": []},
    ]
    with broker.client() as queen:
        queen.queue("notes").push(payloads)
    found: list[Row] = []
    source = Queue("notes", schema="user string, note string, amount bigint, tags array<string>")
    chosen = Pipeline("notes").on_error("skip").source(source, name="in").filter("amount > 0").select("user")
    run = chosen.to(found.append).start(until="caught_up", url=broker.address)
    run.wait()
    assert sorted(row["user"] for row in found) == ["a", "b"]
    figures = run.get_stats()
    assert (figures["steps.in.taken"], figures["steps.in.failed"]) == (2, 2)
    plan = chosen.to(found.append).plan()
    rows = Sources(spark, plan, RunOptions(url=broker.address))
    [read] = plan.sources
    assert rows.typed(read, needed(plan, read)).select("data.*").columns == ["user", "amount"]


def test_what_does_not_fit_is_in_no_window_and_counted(spark: SparkSession, broker: TemporaryBroker) -> None:
    with broker.client() as queen:
        queen.queue("misfits").push([{"n": 1}, {"n": "much"}, [2], {"n": 3}, {}])
    counts: list[Row] = []
    source = Queue("misfits", schema="n bigint not null")
    windows = Pipeline("misfits").on_error("skip").source(source, name="in").window(tumbling("1h"))
    plan = windows.aggregate(n=aggregates.count(), sum=aggregates.sum_("n"))
    assert is_native(plan.to(counts.append).plan(), spark)
    figures = plan.to(counts.append).run(until="caught_up", url=broker.address).get_stats()
    assert (figures["steps.in.taken"], figures["steps.in.failed"]) == (2, 3)
    assert counts == []  # the hour is not over: what does not fit has no time that could end it
    updates = windows.aggregate(n=aggregates.count(), sum=aggregates.sum_("n"), emit="update")
    updates.to(counts.append).run(until="caught_up", url=broker.address)
    assert [(row["n"], row["sum"]) for row in counts] == [(2, 4)]


def test_sums_of_whole_numbers_may_leave_64_bits(spark: SparkSession) -> None:
    records = [
        *({"user": "a", "n": GREATEST, "at": at} for at in range(3)),
        *({"user": "b", "n": n, "at": 0} for n in (GREATEST, 1, -5)),
        *({"user": "c", "n": -GREATEST - 1, "at": at} for at in range(2)),
        {"user": "d", "n": None, "at": 0},
    ]

    def totals(to: list[Row]) -> Pipeline[Any]:
        return (
            Pipeline("totals")
            .on_error("skip")
            .source(Memory(records, schema="user string, n bigint, at bigint"))
            .key_by("user")
            .window(tumbling("1s"), time="at")
            .aggregate(total=aggregates.sum_("n"))
            .with_columns(more="total + 1", negative="total < 0", same="total")
            .to(Function(to.append, name="out"))
        )

    here: list[Row] = []
    totals(here).run(engine="local")
    there: list[Row] = []
    assert is_native(totals(there).plan(), spark)
    totals(there).run()
    by_user = {row["user"]: row for row in there}
    assert by_user == {row["user"]: row for row in here}
    assert by_user["a"]["total"] == by_user["a"]["same"] == 3 * GREATEST
    assert type(by_user["d"]["total"]) is int
