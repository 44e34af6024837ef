"""Pipelines on Spark, end to end: what users see of a run, beyond the rows that conformance compares."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from queenstream.connectors.validation import fit, schema_of
from queenstream.core import aggregates
from queenstream.engines.spark.checkpoints import inspection
from queenstream.engines.spark.run import SparkRun
from queenstream.errors import CheckpointError, StepFailed
from queenstream.pipeline.builder import Pipeline
from queenstream.pipeline.endpoints import Files, Function, Memory, Queue
from queenstream.pipeline.engine_api import RunOptions
from queenstream.pipeline.errors import PipelineError
from queenstream.pipeline.expr.expressions import col
from queenstream.pipeline.shorthand import count, sliding, tumbling
from queenstream.pipeline.state import State
from queenstream.testing import PipelineDriver
from queenstream.testing.brokers import TemporaryBroker
from tests.conformance.pipelines.engines import multiset
from tests.sparks import is_native

Row = dict[str, Any]
pytestmark = [pytest.mark.usefixtures("spark"), pytest.mark.timeout(600)]


def lines(path: Path, rows: list[Row]) -> None:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


# Without Python

EVENTS = "user string, at bigint, value double, n int"


def by_expressions(to: Callable[[Row], object]) -> Pipeline[Any]:
    return (
        Pipeline("native")
        .on_error("skip")
        .source(Memory([], schema=EVENTS), name="in")
        .filter("value > 0 or value is null")
        .with_columns(double="value * 2 + n", loud=col("user").upper())
        .key_by("user")
        .window(sliding("10s", "4s"), grace="2s", time="at")
        .aggregate(
            number=count(),
            total=aggregates.sum_("value"),
            whole=aggregates.sum_("n"),
            mean=aggregates.avg("double"),
            least=aggregates.min_("value"),
            most=aggregates.max_("loud"),
            first=aggregates.first("n"),
            last=aggregates.last("n"),
            all=aggregates.collect_list("n"),
            each=aggregates.collect_set("n"),
            different=aggregates.count_distinct("n"),
            spread=aggregates.stddev("value"),
            middle=aggregates.percentile("value", 0.5),
        )
        .with_columns(several="number > 1")
        .to(Function(to, name="out"))
    )


def test_a_plan_of_expressions_gives_the_same_rows_with_no_python_in_it(spark: SparkSession) -> None:
    chance = random.Random(20251103)

    def event(batch: int) -> Row:
        at = None if chance.random() < 0.05 else batch * 4_000 + chance.randint(-9_000, 3_000)
        value = chance.choice([None, 1.5, -2.0, 3.25, 0.125])
        return {"user": chance.choice("abc"), "at": at, "value": value, "n": chance.randint(1, 4)}

    batches = [[event(batch) for _ in range(30)] for batch in range(4)]
    found: list[Row] = []
    plan = by_expressions(found.append).plan()
    assert is_native(plan, spark)
    schema = schema_of(plan.sources[0].source.columns)
    run = SparkRun(plan, RunOptions(), {"in": [fit(schema, batch) for batch in batches]})
    run.start()
    run.wait()
    with PipelineDriver(by_expressions(print)) as driver:
        for batch in batches:
            driver.send_together({"in": batch})
        driver.end()
        assert multiset(found) == multiset(driver.rows("out"))
        failed = driver.stats().failed
    stats = run.get_stats()
    assert (stats["messages"], stats["errors"]) == (120, failed)
    physical = run.explain()
    assert "StateStoreSave" in physical
    assert not [each for each in ("Python", "InArrow", "InPandas", "BatchEval") if each in physical]


@pytest.mark.parametrize(
    "change",
    [
        pytest.param(lambda pipeline: pipeline.filter(lambda row: True), id="a function"),
        pytest.param(lambda pipeline: pipeline.late(print), id="late output"),
    ],
)
def test_what_needs_python_is_not_taken_for_such_a_plan(
    spark: SparkSession, change: Callable[[Pipeline[Any]], Pipeline[Any]]
) -> None:
    events: Pipeline[Any] = Pipeline("p").source(Memory([], schema=EVENTS)).window(tumbling("1s"), time="at")
    assert not is_native(change(events.aggregate(n=count())).to(print).plan(), spark)


# A run


def test_a_pipeline_runs_on_spark_unless_told_otherwise() -> None:
    found: list[Row] = []
    words = Memory([{"text": "to be or"}, {"text": "not to be"}])
    run = (
        Pipeline("words")
        .source(words)
        .flat_map(lambda record: [{"word": word} for word in record["text"].split()])
        .transform("long", lambda record: {**record, "length": len(record["word"])})
        .to(found.append)
        .run()
    )
    assert [row["word"] for row in found] == ["to", "be", "or", "not", "to", "be"]
    assert found[3] == {"word": "not", "length": 3}
    figures = run.get_stats()
    assert figures["messages"] == 2
    here = Pipeline("words").source(words).to(found.append).run(engine="local").get_stats()
    assert {name for name in here if not name.startswith("steps.")} <= figures.keys()


def test_the_verbs_that_one_tries_first(capsys: pytest.CaptureFixture[str]) -> None:
    sizes: list[int] = []
    numbers = Memory([{"n": n} for n in range(5)])
    doubled = Pipeline("verbs").source(numbers).map(lambda row: {"n": row["n"] * 2}).print("twice")
    seen: list[int] = []
    large = doubled.filter("n > 4").foreach(lambda row: seen.append(row["n"]))
    large.to(Function(lambda rows: sizes.append(len(rows)), batch_size=1)).run()
    assert seen == [6, 8]
    assert sizes == [1, 1]
    assert [line for line in capsys.readouterr().out.splitlines() if line.startswith("twice")] == [
        f'twice: {{"n":{n}}}' for n in (0, 2, 4, 6, 8)
    ]


def test_a_step_may_end_the_run_and_nothing_of_its_batch_is_written() -> None:
    found: list[Row] = []
    pipeline = (
        Pipeline("strict")
        .source(Memory([{"n": 1}, {"n": 0}]))
        .transform("divide", lambda record: {"n": 1 / record["n"]}, on_error="fail")
        .to(found.append)
    )
    with pytest.raises(StepFailed, match=r"divide failed on \{'n': 0\}: ZeroDivisionError"):
        pipeline.run()
    assert found == []


def test_what_spark_cannot_do_is_said_before_anything_runs() -> None:
    source = Memory([{"at": 0, "seen": 0}])
    events = Pipeline("p").source(source, backpressure="drop_newest", name="events").event_time("at")
    totals = events.window(tumbling("1s")).aggregate(n=count())
    again = totals.event_time("window_start").window(tumbling("1m")).aggregate(n=count(), step_name="again")
    with pytest.raises(PipelineError) as problems:
        again.to(print).run()
    told = str(problems.value)
    assert "2 problems" in told
    assert "events drops records (drop_newest)" in told
    assert "sets the event time after a step with state" in told
    assert told.count("test_pipelines.py:") == 2


# Checkpoints


def visits(key: str, record: Row, state: State) -> Row:
    seen = state.get("seen", 0) + 1
    state.set("seen", seen)
    return {"user": key, "page": record["page"], "seen": seen}


def counting(folder: Path, to: Callable[[Row], object]) -> Pipeline[Any]:
    source = Files(folder, format="ndjson", follow=True)
    return Pipeline("visits").source(source, name="in").key_by("user").stateful(visits, name="seen").to(to)


def test_a_run_goes_on_where_the_last_one_ended(spark: SparkSession, tmp_path: Path) -> None:
    pages, checkpoint = tmp_path / "in", tmp_path / "state"
    pages.mkdir()
    found: list[Row] = []
    lines(pages / "1.ndjson", [{"user": "a", "page": 1}, {"user": "b", "page": 2}, {"user": "a", "page": 3}])
    counting(pages, found.append).run(checkpoint=str(checkpoint), until="caught_up")
    assert sorted((row["user"], row["seen"]) for row in found) == [("a", 1), ("a", 2), ("b", 1)]
    assert inspection.state(spark, checkpoint, "visits", "seen", "a") == [["a", {"seen": 2}, {}, None]]
    assert inspection.state(spark, checkpoint, "visits", "seen", "nobody") == []

    found.clear()
    lines(pages / "2.ndjson", [{"user": "a", "page": 4}])
    counting(pages, found.append).run(checkpoint=str(checkpoint), until="caught_up")
    assert found == [{"user": "a", "page": 4, "seen": 3}]
    assert [each.id for each in inspection.batches(checkpoint, "visits")] == [1, 0]

    renamed = counting(pages, print).key_by("page").stateful(visits, name="more").to(print)
    with pytest.raises(CheckpointError, match=r"more \(.*\): it is a new step with state"):
        renamed.run(checkpoint=str(checkpoint), until="caught_up")
    told = checkpoint / "visits" / "run.json"
    told.write_text(json.dumps({**json.loads(told.read_text()), "layout": 0}))
    with pytest.raises(CheckpointError, match="another version of queenstream"):
        counting(pages, print).run(checkpoint=str(checkpoint), until="caught_up")
    told.write_text("{")
    with pytest.raises(CheckpointError, match="is damaged"):
        counting(pages, print).run(checkpoint=str(checkpoint), until="caught_up")


def test_a_batch_that_was_computed_is_written_as_it_was(tmp_path: Path) -> None:
    pages, checkpoint = tmp_path / "in", tmp_path / "state"
    pages.mkdir()
    lines(pages / "1.ndjson", [{"n": 1}, {"n": 2}])
    tries: list[list[Row]] = []

    def write(rows: list[Row]) -> None:
        tries.append(rows)
        if len(tries) == 1:
            raise ConnectionError("the sink is away")

    pipeline = (
        Pipeline("dice")
        .source(Files(pages, format="ndjson", follow=True))
        .transform("throw", lambda record: {**record, "dice": random.random()})
        .to(Function(write, name="out", batch=True), on_error="fail")
    )
    with pytest.raises(StepFailed, match="the sink is away"):
        pipeline.run(checkpoint=str(checkpoint), until="caught_up")
    pipeline.run(checkpoint=str(checkpoint), until="caught_up")
    assert len(tries) == 2
    assert tries[0] == tries[1]


# Queues


def test_from_queue_to_queue_each_message_counts_once(broker: TemporaryBroker, tmp_path: Path) -> None:
    totals = (
        Pipeline("totals")
        .source(Queue("orders"))
        .key_by("user")
        .stateful(running_total, name="sum")
        .to(Queue("sums", partition_by="user"))
    )
    with broker.client() as queen:
        for amount in (5, 7):
            queen.queue("orders").push({"user": "a", "amount": amount})
        totals.run(checkpoint=str(tmp_path), until="caught_up", url=broker.address)
        queen.queue("orders").push({"user": "a", "amount": 1})
        for _ in range(2):  # the second time there is nothing new
            totals.run(checkpoint=str(tmp_path), until="caught_up", url=broker.address)
        got = [message.data["total"] for message in queen.queue("sums").partition("a").batch(10).pop()]
    assert got == [5, 12, 13]


def test_tasks_push_into_a_queue_themselves_where_no_python_is_needed(
    broker: TemporaryBroker, tmp_path: Path
) -> None:
    big = (
        Pipeline("big")
        .source(Queue("orders", schema="user string, amount bigint, at timestamp"))
        .filter("amount > 4")
        .with_columns(double="amount * 2")
        .to(Queue("big", partition_by="user"))
    )
    with broker.client() as queen:
        for amount in (5, 3, 7):
            queen.queue("orders").push({"user": "a", "amount": amount, "at": "2026-01-31T12:00:00Z"})
        runs = [big.run(checkpoint=str(tmp_path), until="caught_up", url=broker.address) for _ in range(2)]
        got = [message.data for message in queen.queue("big").partition("a").batch(10).pop()]
    did = [(each.read, each.filtered, each.written) for each in (run.summary() for run in runs)]
    assert did == [(3, 1, 2), (0, 0, 0)]
    assert [row["double"] for row in got] == [10, 14]
    assert got[0] == {"user": "a", "amount": 5, "at": "2026-01-31T12:00:00Z", "double": 10}


def test_a_backlog_is_read_in_batches_that_the_run_limits(broker: TemporaryBroker, tmp_path: Path) -> None:
    copy = (
        Pipeline("copy")
        .source(Queue("orders", schema="user string, amount bigint"))
        .filter("amount >= 0")
        .to(Queue("copied", partition_by="user"))
    )
    with broker.client() as queen:
        for user in "abc":
            for amount in range(10):
                queen.queue("orders").partition(user).push({"user": user, "amount": amount})
        run = copy.start(checkpoint=str(tmp_path), until="caught_up", url=broker.address, max_batch_rows=12)
        run.wait()
        sizes = [batch["records"] for batch in run.look()["batches"]]
        got = {
            user: [
                message.data["amount"] for message in queen.queue("copied").partition(user).batch(20).pop()
            ]
            for user in "abc"
        }
    assert sum(sizes) == 30
    assert max(sizes) <= 12
    assert got == {user: list(range(10)) for user in "abc"}


def running_total(key: str, record: Row, state: State) -> Row:
    total = state.get("total", 0) + record["amount"]
    state.set("total", total)
    return {"user": key, "total": total}
