"""What Spark's own pages call the jobs of a run."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from queenstream.pipeline.builder import Pipeline
from queenstream.pipeline.endpoints import Files, Memory

pytestmark = pytest.mark.timeout(600)
LIMIT_SECONDS = 20.0


def descriptions(spark: SparkSession) -> list[str]:
    """Of all jobs that the session's application knows."""
    of_java: Any = spark
    jobs = of_java._jsc.sc().statusStore().jobsList(None)
    found = [jobs.apply(number).description() for number in range(jobs.size())]
    return [str(each.get()) for each in found if each.isDefined()]


@pytest.mark.parametrize("native", [True, False], ids=["native", "python"])
def test_jobs_are_named_after_the_pipeline_the_batch_and_the_sink(
    spark: SparkSession, tmp_path: Path, native: bool
) -> None:
    name = f"described-{native}"
    rows = Pipeline(name).source(Memory([{"n": 1}, {"n": 2}], schema="n bigint"))
    rows = rows.filter("n > 0") if native else rows.transform("same", lambda record: record)
    rows.to(Files(tmp_path / "out", format="ndjson"), name="pages").run()
    expected = {f"{name}: batch 0: compute and stage", f"{name}: batch 0: write pages"}
    end = time.monotonic() + LIMIT_SECONDS
    while not (known := {each for each in descriptions(spark) if each.startswith(name)}) >= expected:
        assert time.monotonic() < end, known
        time.sleep(0.1)
