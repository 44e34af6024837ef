"""Event time on Spark across restarts: what is due comes without waiting for the next record."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest

from queenstream.pipeline.builder import Pipeline
from queenstream.pipeline.endpoints import Queue
from queenstream.pipeline.shorthand import count, tumbling
from queenstream.testing.brokers import TemporaryBroker

Row = dict[str, Any]
pytestmark = [pytest.mark.usefixtures("spark"), pytest.mark.timeout(600)]
LIMIT_SECONDS = 90.0
CLICKS = "user string, at bigint"


def until(condition: Any) -> None:
    end = time.monotonic() + LIMIT_SECONDS
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.05)


def same(record: Row) -> Row:
    return record


def windows(rows: list[Row], *, native: bool) -> Pipeline[Any]:
    clicks = Pipeline("clicks").source(Queue("clicks", schema=CLICKS)).event_time("at")
    if not native:
        clicks = clicks.transform("same", same)
    return clicks.key_by("user").window(tumbling("10s")).aggregate(n=count()).to(rows.append)


@pytest.mark.parametrize("native", [True, False], ids=["native", "python"])
def test_windows_that_are_due_close_after_a_restart_without_another_record(
    broker: TemporaryBroker, elsewhere: str, tmp_path: Path, native: bool
) -> None:
    state = f"{elsewhere}/state" if native else str(tmp_path / "data" / "state")
    logs = tmp_path / "data" / "state" / "clicks" / "spark"
    rows: list[Row] = []
    with broker.client() as queen:
        queen.queue("clicks").push([{"user": "ann", "at": 1_000}, {"user": "ann", "at": 30_000}])
    # The interval keeps Spark from the batch without data that would close the first window.
    run = windows(rows, native=native).start(checkpoint=state, interval="1h")
    until(lambda: (logs / "commits" / "0").exists())
    run.stop()
    assert rows == []
    assert not (logs / "offsets" / "1").exists()

    run = windows(rows, native=native).start(checkpoint=state, interval="1h")
    until(lambda: rows)
    run.stop()
    assert [row["n"] for row in rows] == [1]
    assert (
        entry(logs / "commits" / "1")["nextBatchWatermarkMs"]
        == entry(logs / "offsets" / "1")["batchWatermarkMs"]
    )

    run = windows(rows, native=native).start(checkpoint=state, interval="1h")
    time.sleep(1)  # a batch that there is nothing to do for would be planned at once
    run.stop()
    assert len(rows) == 1
    assert not (logs / "offsets" / "2").exists()


def entry(path: Path) -> Row:
    found: Row = json.loads(path.read_text().splitlines()[1])
    return found
