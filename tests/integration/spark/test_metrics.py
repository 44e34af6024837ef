"""The figures of runs on Spark: the same names as the local engine's, and the same numbers."""

from __future__ import annotations

import random
import urllib.request
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from queenstream.connectors.validation import fit, schema_of
from queenstream.core import metric_names
from queenstream.core.batches import Batch
from queenstream.core.windows import Sliding, Tumbling
from queenstream.engines.spark.checkpoints.key_state import KeyState
from queenstream.engines.spark.run import SparkRun, start
from queenstream.errors import StepFailed
from queenstream.pipeline.builder import Pipeline
from queenstream.pipeline.endpoints import Memory, Queue
from queenstream.pipeline.engine_api import RunOptions
from queenstream.pipeline.plan.planner import Plan
from queenstream.pipeline.shorthand import count, sliding, tumbling
from queenstream.testing import PipelineDriver
from queenstream.testing.brokers import TemporaryBroker, TemporaryBrokers
from tests.sparks import is_native

Row = dict[str, Any]
pytestmark = [pytest.mark.usefixtures("spark"), pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def brokers() -> Iterator[TemporaryBrokers]:
    with TemporaryBrokers() as started:
        yield started


@pytest.fixture
def broker(brokers: TemporaryBrokers, monkeypatch: pytest.MonkeyPatch) -> Iterator[TemporaryBroker]:
    with brokers.start() as started:
        monkeypatch.setenv("QUEEN_PG", started.database_url)
        yield started


def batches_run(plan: Plan, batches: list[list[Row]]) -> SparkRun:
    """A run whose sources are fed these batches, and then end."""
    [read] = plan.sources
    schema = None if read.source.columns is None else schema_of(read.source.columns)
    run = SparkRun(plan, RunOptions(), {read.name: [fit(schema, batch) for batch in batches]})
    run.start()
    run.wait()
    return run


def divided(records: list[Row]) -> Pipeline[Any]:
    return (
        Pipeline("p")
        .source(Memory(records), name="in")
        .transform("divide", lambda row: {**row, "n": 6 / row["n"]}, on_error="skip")
        .filter(lambda row: row["n"] > 1, name="large")
        .key_by("user")
        .window(tumbling("1m"), time="at")
        .aggregate(total=count(), step_name="sum")
        .to(lambda row: None, name="out")
    )


def test_the_names_and_the_numbers_are_those_of_the_local_engine() -> None:
    records = [{"user": "ab"[n % 2], "n": n % 4, "at": n * 1_000} for n in range(12)]
    here = divided(records).run(engine="local").get_stats()
    there = divided(records).run().get_stats()
    whole = {*filter(metric_names.is_of_whole, here)}
    assert whole == {*metric_names.GAUGES, *metric_names.COUNTERS}
    assert {*filter(metric_names.is_of_whole, there)} == whole | {
        *metric_names.SOME_GAUGES,
        *metric_names.SOME_COUNTERS,
    }
    for name in ("messages", "errors", "error_rate", "retries", "late", "dead_letters", "dropped", "live"):
        assert there[name] == here[name], name
    assert metric_names.PHASE.group(there).keys() == {*metric_names.PHASE.group(here), "stage"}
    [written], [expected] = (metric_names.SINK.group(each).values() for each in (there, here))
    assert (written["rows"], expected["rows"]) == (here["steps.out.taken"], here["steps.out.taken"])
    assert written.keys() == expected.keys() | {"bytes", "last_batch_bytes"}
    steps = {name: metric_names.step_of(name) for name in there}
    known = {name: there[name] for name, step in steps.items() if step and step[1] in metric_names.STEPS}
    assert known == {name: here[name] for name in known}
    shares = {name for name, step in steps.items() if step and step[1].endswith("_ratio")}
    assert shares == {name for name in here if name.endswith("_ratio")}
    assert all(0 <= there[name] <= 1 for name in shares)
    assert there["steps.sum.busy_ratio"] > there["steps.out.busy_ratio"]
    assert there["steps.in.backpressure_ratio"] >= there["steps.sum.busy_ratio"] > 0
    assert there["steps.out.backpressure_ratio"] == 0
    assert {"steps.divide.taken", "steps.divide.given", "steps.sum.taken", "steps.out.taken"} <= known.keys()
    assert there["queue_depth"] == 0
    assert 0 < there["latency_p50_ms"] <= there["latency_p99_ms"]


def test_figures_for_prometheus_are_served_while_it_runs_and_after() -> None:
    run = divided([{"user": "a", "n": 1, "at": 0}]).start()
    assert isinstance(run, SparkRun)
    port = run.serve_metrics()
    run.wait()
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
        text = answer.read().decode()
    assert 'queen_pipeline_messages_total{pipeline="p"} 1.0' in text
    assert 'queen_pipeline_step_taken_total{pipeline="p",step="divide"} 1.0' in text
    assert "queen_pipeline_batch_duration_p95_ms" in text
    assert 'queen_pipeline_sink_rows_total{pipeline="p",sink="out"} 1.0' in text
    assert 'queen_pipeline_phase_seconds_total{phase="commit",pipeline="p"}' in text
    assert f"# HELP queen_pipeline_sink_bytes_total {metric_names.SINKS['bytes']}" in text
    assert (
        f"# HELP queen_pipeline_phase_last_batch_seconds {metric_names.PHASE_GAUGES['last_batch_seconds']}"
        in text
    )
    assert run.metrics().decode().count("# HELP") == text.count("# HELP queen_")


@pytest.mark.parametrize("window", [tumbling("10s"), sliding("10s", "4s")], ids=["tumbling", "sliding"])
def test_late_records_are_counted_not_the_groups_that_spark_drops(
    spark: SparkSession, window: Tumbling | Sliding
) -> None:
    chance = random.Random(20261116)
    events = "user string, at bigint"

    def late_ones(source: Memory[Any]) -> Pipeline[Any]:
        keyed = (
            Pipeline("late").on_error("skip").source(source, name="in").filter("user != 'z'").key_by("user")
        )
        return keyed.window(window, grace="1s", time="at").aggregate(n=count()).to(print)

    batches = [
        [
            {"user": chance.choice("abz"), "at": batch * 9_000 + chance.randint(-30_000, 8_000)}
            for _ in range(25)
        ]
        for batch in range(4)
    ]
    pipeline = late_ones(Memory([], schema=events))
    assert is_native(pipeline.plan(), spark)
    with PipelineDriver(late_ones(Memory([], schema=events))) as driver:
        for batch in batches:
            driver.send_together({"in": batch})
        expected = driver.stats().late
    assert expected > 10
    stats = batches_run(pipeline.plan(), batches).get_stats()
    assert stats["late"] == expected


def test_late_messages_of_a_queue_too(broker: TemporaryBroker, tmp_path: Path, spark: SparkSession) -> None:
    schema = "user string, at bigint"
    pipeline = (
        Pipeline("late")
        .on_error("skip")
        .source(Queue("events", schema=schema))
        .key_by("user")
        .window(tumbling("10s"), time="at")
        .aggregate(n=count())
        .to(lambda row: None)
    )
    assert is_native(pipeline.plan(), spark)
    with broker.client() as queen:
        queen.queue("events").push([{"user": "a", "at": 60_000}])
        pipeline.run(checkpoint=str(tmp_path), until="caught_up", url=broker.address)
        queen.queue("events").push([{"user": "a", "at": n} for n in (1, 2, 61_000)])
        stats = pipeline.run(checkpoint=str(tmp_path), until="caught_up", url=broker.address).get_stats()
        assert (stats["messages"], stats["late"]) == (3, 2)


def test_how_far_the_watermark_is_behind_is_the_same_with_and_without_python(spark: SparkSession) -> None:
    now = int(datetime.now(UTC).timestamp() * 1_000)
    batches = [[{"user": "a", "at": now - 100_000}], [{"user": "a", "at": now - 90_000}]]

    def lag(schema: str | None) -> float:
        source: Memory[Any] = Memory([], schema=schema) if schema else Memory([])
        events = Pipeline("lag").on_error("skip").source(source, name="in").key_by("user")
        plan = events.window(tumbling("7s"), grace="20s", time="at").aggregate(n=count()).to(print).plan()
        assert is_native(plan, spark) == bool(schema)
        columns = plan.sources[0].source.columns
        fitted = None if columns is None else schema_of(columns)
        run = SparkRun(plan, RunOptions(), {"in": [fit(fitted, batch) for batch in batches]}, end=False)
        run.start()
        run.wait()
        stats = run.get_stats()
        at = stats["steps.aggregate.watermark_timestamp_seconds"]  # of the step with state, and no other
        assert [name for name in stats if "watermark_timestamp" in name] == [
            "steps.aggregate.watermark_timestamp_seconds"
        ]
        assert stats["watermark_lag_seconds"] == pytest.approx(datetime.now(UTC).timestamp() - at, abs=5)
        return stats["watermark_lag_seconds"]

    # After the batch that shows a time comes one that has it as its watermark.
    assert lag(None) == pytest.approx(90, abs=60)
    assert lag("user string, at bigint") == pytest.approx(90, abs=60)


def test_a_run_tells_the_broker_of_itself(broker: TemporaryBroker, tmp_path: Path) -> None:
    pipeline = Pipeline("copy").source(Queue("orders"), name="in").to(Queue("copies"))
    with broker.client() as queen:
        queen.queue("orders").push([{"n": n} for n in range(3)])
        run = pipeline.start(checkpoint=str(tmp_path), until="caught_up", url=broker.address)
        run.wait()
        shown = queen.admin.pipeline("copy")
    assert (shown.engine, shown.state, shown.checkpoint) == ("spark", "stopped", str(tmp_path))
    assert (shown.stats["messages"], shown.stats["steps.in.taken"]) == (3, 3)
    assert shown.stats["batches"] >= 1
    assert shown.plan is not None
    inside = run.look()
    assert sum(batch["records"] for batch in inside["batches"]) == 3
    assert inside["checkpoints"][0]["committedAt"].tzinfo is not None


def test_what_it_remembers_of_a_key_comes_with_a_later_look(tmp_path: Path, spark: SparkSession) -> None:
    records = [{"user": "ab"[n % 2], "at": n * 1_000} for n in range(12)]
    events: Pipeline[Any] = Pipeline("totals").source(Memory([]), name="in").key_by("user")
    plan = events.window(tumbling("1m"), time="at").aggregate(n=count(), step_name="sum").to(print).plan()
    run = SparkRun(plan, RunOptions(checkpoint=str(tmp_path)), {"in": [Batch(records)]}, end=False)
    run.start()
    run.wait()
    asked = KeyState(str(tmp_path), "totals")
    assert asked.look(spark, "b") == {}
    asked.wait(60)
    [entry] = asked.look(spark, "b")["state"]["entries"]
    assert (entry["step"], entry["key"], entry["aggregates"]) == ("sum", "b", {"n": 6})
    assert asked.look(spark, "nobody") == {}  # and not what is known of another
    asked.wait(60)
    assert asked.look(spark, "nobody") == {"state": {"key": "nobody", "entries": []}}
    lost = KeyState(str(tmp_path / "elsewhere"), "totals")
    lost.look(spark, "b")
    lost.wait(60)
    assert "there is no checkpoint" in lost.look(spark, "b")["error"]


def test_a_run_that_fails_tells_why(broker: TemporaryBroker) -> None:
    pipeline = (
        Pipeline("strict")
        .source(Memory([{"n": 0}]))
        .transform("divide", lambda row: {"n": 1 / row["n"]}, on_error="fail")
        .to(lambda row: None)
    )
    run = start(pipeline.plan(), RunOptions(url=broker.address))
    with pytest.raises(StepFailed):
        run.wait()
    with broker.client() as queen:
        shown = queen.admin.pipeline("strict")
    assert shown.state == "failed"
    assert "ZeroDivisionError" in (shown.error or "")
