"""The progress of batches: each is counted once, by sink and by phase."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from queenstream.connectors.validation import fit, schema_of
from queenstream.core import metric_names
from queenstream.core.batches import Batch
from queenstream.engines.spark.progress.listener import ProgressListener
from queenstream.engines.spark.run import SparkRun
from queenstream.pipeline.builder import Pipeline
from queenstream.pipeline.endpoints import Files, Memory
from queenstream.pipeline.engine_api import RunOptions
from tests.sparks import is_native

Row = dict[str, Any]
pytestmark = [pytest.mark.usefixtures("spark"), pytest.mark.timeout(600)]

BATCHES = 6


def ended_query(spark: SparkSession, folder: Path, on_batch: Callable[[int], None]) -> StreamingQuery:
    """A query of six batches, which has ended."""
    (folder / "in").mkdir()
    for number in range(BATCHES):
        (folder / "in" / f"{number}.json").write_text(json.dumps({"n": number}))

    def batch(rows: DataFrame, number: int) -> None:
        rows.count()
        on_batch(number)

    rows = spark.readStream.schema("n int").option("maxFilesPerTrigger", 1).json(str(folder / "in"))
    writer = rows.writeStream.foreachBatch(batch).option("checkpointLocation", str(folder / "checkpoint"))
    query = writer.trigger(availableNow=True).start()
    query.awaitTermination()
    return query


@pytest.mark.parametrize("case", ["listening", "never", "not always", "few kept"])
def test_each_batch_is_given_once_and_in_order(spark: SparkSession, tmp_path: Path, case: str) -> None:
    """Also those whose event was lost, and those that the query no longer keeps."""
    own = spark.newSession()
    if case == "few kept":
        own.conf.set("spark.sql.streaming.numRecentProgressUpdates", "2")
    found: list[int] = []
    listener = ProgressListener(lambda progress: found.append(progress.batchId))
    if case != "never":
        listener.start(own)

    def on_batch(number: int) -> None:
        if case == "not always" and number == 2:
            listener.stop()
        if case == "not always" and number == 4:
            listener.start(own)

    query = ended_query(own, tmp_path, on_batch)
    listener.finish(query)
    listener.stop()
    assert found == [*range(BATCHES)]
    listener.read(query)
    listener.finish(query)
    assert found == [*range(BATCHES)]


def test_a_failure_to_count_a_batch_does_not_fail_the_query(
    spark: SparkSession, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    found: list[int] = []

    def count(progress: Any) -> None:
        found.append(progress.batchId)
        raise ValueError("no such figure")

    own = spark.newSession()
    listener = ProgressListener(count)
    listener.start(own)
    query = ended_query(own, tmp_path, lambda number: None)
    listener.finish(query)
    listener.stop()
    assert query.exception() is None
    assert found == [*range(BATCHES)]
    assert "no such figure" in caplog.text


@pytest.mark.parametrize("native", [True, False], ids=["native", "python"])
def test_rows_and_bytes_by_sink_and_time_by_phase(spark: SparkSession, tmp_path: Path, native: bool) -> None:
    schema = "n bigint, even boolean"
    rows: Pipeline[Any] = Pipeline("sized").source(Memory([], schema=schema), name="in")
    rows = rows.filter("n >= 0", name="same") if native else rows.transform("same", lambda row: row)
    rows = rows.to(Files(tmp_path / "all", format="parquet"), name="all")
    pipeline = rows.filter("even", name="half").to(Files(tmp_path / "half", format="ndjson"), name="half-out")
    plan = pipeline.plan()
    assert is_native(plan, spark) == native
    made = [
        [{"n": n, "even": n % 2 == 0} for n in range(at, at + size)] for at, size in ((0, 100), (100, 40))
    ]
    columns = plan.sources[0].source.columns
    assert columns is not None
    fed: list[Batch] = [fit(schema_of(columns), batch) for batch in made]
    run = SparkRun(plan, RunOptions(), {"in": fed})
    run.start()
    run.wait()
    stats = run.get_stats()
    sinks, phases = metric_names.SINK.group(stats), metric_names.PHASE.group(stats)
    assert {name: each["rows"] for name, each in sinks.items()} == {"all": 140, "half-out": 70}
    assert run.summary().written == 210
    assert all(each["bytes"] > each["rows"] for each in sinks.values())
    if native:  # the files are moved to their places as they were staged
        assert sinks["all"]["bytes"] == sum(
            each.stat().st_size for each in (tmp_path / "all").glob("*.parquet")
        )
    assert [*phases] == ["read", "compute", "stage", "commit"]
    assert all(each["seconds"] > 0 for each in phases.values())
    assert all(0 <= each["last_batch_seconds"] <= each["seconds"] for each in phases.values())
    whole = sum(batch["seconds"] for batch in run.look()["batches"])
    assert whole * 0.5 < sum(each["seconds"] for each in phases.values()) <= whole
    assert sum(each["commit_seconds"] for each in sinks.values()) < phases["commit"]["seconds"]
    text = run.summary().text()
    assert "BYTES" in text.splitlines()[2]
    assert any(line.startswith("  time: read ") for line in text.splitlines())
