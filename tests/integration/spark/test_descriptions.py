"""What Spark's own pages call the jobs of a run."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from queenstream.pipeline.builder import Pipeline
from queenstream.pipeline.endpoints import Files, Function, Memory
from queenstream.pipeline.shorthand import count, tumbling

pytestmark = pytest.mark.timeout(600)
LIMIT_SECONDS = 20.0


def descriptions(spark: SparkSession) -> list[str]:
    """Of all jobs that the session's application knows."""
    of_java: Any = spark
    jobs = of_java._jsc.sc().statusStore().jobsList(None)
    found = [jobs.apply(number).description() for number in range(jobs.size())]
    return [str(each.get()) for each in found if each.isDefined()]


def described_stages(spark: SparkSession) -> set[str]:
    """The descriptions of all stages that the session's application knows."""
    of_java: Any = spark
    java: Any = spark.sparkContext._jvm
    store, nothing = of_java._jsc.sc().statusStore(), java.java.util.Collections.emptyList()
    empty = spark.sparkContext._gateway.new_array(java.double, 0)  # type: ignore[union-attr]
    stages = store.stageList(nothing, False, False, empty, nothing)
    found = [stages.apply(number).description() for number in range(stages.size())]
    return {str(each.get()) for each in found if each.isDefined()}


def wait_for(name: str, expected: set[str], known: Callable[[], Iterable[str]]) -> None:
    end = time.monotonic() + LIMIT_SECONDS
    while not (found := {each for each in known() if each.startswith(name)}) >= expected:
        assert time.monotonic() < end, found
        time.sleep(0.1)


@pytest.mark.parametrize("native", [True, False], ids=["native", "python"])
def test_jobs_are_named_after_the_pipeline_the_batch_the_steps_and_the_sink(
    spark: SparkSession, native: bool
) -> None:
    name = f"described-{native}"
    rows = Pipeline(name).source(Memory([{"n": 1}, {"n": 2}], schema="n bigint"))
    rows = rows.filter("n > 0", name="same") if native else rows.transform("same", lambda record: record)
    rows.to(Function(lambda row: None, where="tasks"), name="pages").run()
    expected = {f"{name}: batch 0: compute and stage pages (same)", f"{name}: batch 0: write pages"}
    wait_for(name, expected, lambda: descriptions(spark))


def test_each_sink_of_a_plan_without_python_has_its_own_job(spark: SparkSession, tmp_path: Path) -> None:
    rows = Pipeline("described-two").source(Memory([{"n": 1}, {"n": 2}], schema="n bigint"))
    rows = rows.filter("n > 0", name="all").to(Files(tmp_path / "all", format="parquet"), name="pages")
    rows.filter("n > 1", name="some").to(Files(tmp_path / "some", format="parquet"), name="few").run()
    jobs = ("compute and stage pages (all)", "compute and stage few (all, some)")
    expected = {f"described-two: batch 0: {job}" for job in jobs}
    wait_for("described-two", expected, lambda: descriptions(spark))


def test_the_stages_of_a_step_with_state_have_its_name(spark: SparkSession, tmp_path: Path) -> None:
    rows = Pipeline("described-sum").source(Memory([{"u": "a", "at": 1}])).key_by("u")
    counted = rows.window(tumbling("1m"), time="at").aggregate(n=count(), step_name="sum")
    counted.to(Files(tmp_path / "out", format="parquet"), name="pages").run()
    steps = "key_by, event_time, sum"
    expected = {f"described-sum: batch 0: compute and stage pages ({steps})"}
    wait_for("described-sum", expected, lambda: described_stages(spark))
