"""State of a key that is larger than a page: over restarts, by key, as of an older batch, and deleted."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from queenstream.engines.spark.checkpoints import inspection
from queenstream.pipeline.builder import Pipeline
from queenstream.pipeline.endpoints import Files
from queenstream.pipeline.shorthand import count, session

Row = dict[str, Any]
pytestmark = [pytest.mark.usefixtures("spark"), pytest.mark.timeout(300)]

OPEN = 1_500  # sessions of one key


def visits(pages: Path, to: Callable[[Row], object]) -> Pipeline[Any]:
    source = Files(pages, format="ndjson", follow=True)
    rows = Pipeline("visits").source(source, name="in").map(dict).event_time("at").key_by("user")
    sessions = rows.window(session("5s"), grace="30d").aggregate(n=count(), step_name="sessions")
    return sessions.to(to)


def test_a_key_with_many_open_sessions(spark: SparkSession, tmp_path: Path) -> None:
    pages, state = tmp_path / "in", tmp_path / "state"
    pages.mkdir()
    found: list[Row] = []

    def run(name: str, *seconds: int) -> None:
        rows = [{"user": "ann", "at": 1_793_000_000_000 + at * 1_000} for at in seconds]
        (pages / name).write_text("".join(json.dumps(row) + "\n" for row in rows))
        visits(pages, found.append).run(checkpoint=str(state), until="caught_up")

    def stored(batch: int | None = None) -> list[Any]:
        entries = inspection.entries(spark, state, "visits", keys=['"ann"'], batch=batch)
        return [each.entry for each in entries]

    run("1.ndjson", *range(0, 10 * OPEN, 10))
    assert len(stored()) == OPEN
    first = inspection.batches(state, "visits")[0].id
    run("2.ndjson", 3, 6, 10 * OPEN - 9)  # two sessions become one, and the last one gets longer
    assert len(stored()) == OPEN - 1
    assert [entry[4] for entry in stored()][:2] == [[4], [1]]
    assert [entry[4] for entry in stored(first)][:2] == [[1], [1]]
    assert found == []

    run("3.ndjson", 40 * 86_400)
    assert [row["n"] for row in found] == [4, *[1] * (OPEN - 3), 2]
    [left] = stored()
    assert left[4] == [1]
    reader = spark.read.format("statestore").option("stateVarName", "pages")
    assert reader.load(str(state / "visits" / "spark")).count() == 0
