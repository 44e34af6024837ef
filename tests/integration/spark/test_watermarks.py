"""Event time on Spark across restarts: what is due comes without waiting for the next record."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame

from queenstream.connectors.validation import fit
from queenstream.engines.spark.run import SparkRun
from queenstream.errors import CheckpointError, RunFailed
from queenstream.pipeline.builder import Pipeline
from queenstream.pipeline.endpoints import Queue
from queenstream.pipeline.engine_api import RunOptions
from queenstream.pipeline.shorthand import count, tumbling
from queenstream.testing.brokers import TemporaryBroker
from tests.conformance.pipelines.engines import Idle, multiset
from tests.conformance.pipelines.spark_engine import Collected
from tests.conformance.pipelines.test_cases import CASES

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


# Idle sources


def both(rows: list[Row], late: list[Row], idle: str = "1s") -> Pipeline[Any]:
    """Clicks of two queues; nobody waits for the second one while it is idle."""
    other = Pipeline("both").source(Queue("b", schema=CLICKS), name="b", idle_timeout=idle).event_time("at")
    clicks = Pipeline("both").source(Queue("a", schema=CLICKS), name="a").event_time("at").union(other)
    windowed = clicks.key_by("user").window(tumbling("10s")).aggregate(n=count())
    return windowed.late(late.append).to(rows.append)


def shown(rows: list[Row]) -> list[tuple[int, int]]:
    """The windows, by the second when they begin."""
    return [(int(row["window_start"].timestamp()), row["n"]) for row in rows]


def test_windows_come_while_a_queue_is_idle_and_its_return_holds_them_back_again(
    broker: TemporaryBroker, tmp_path: Path
) -> None:
    rows: list[Row] = []
    late: list[Row] = []
    state = tmp_path / "state"
    with broker.client() as queen:

        def push(queue: str, second: int) -> None:
            queen.queue(queue).push([{"user": "ann", "at": second * 1_000}])

        push("a", 1)
        push("b", 2)
        run = both(rows, late).start(checkpoint=str(state))
        until(lambda: run.get_stats()["messages"] == 2)
        push("a", 30)
        until(lambda: rows)  # b is idle by now
        assert shown(rows) == [(0, 2)]
        push("a", 60)
        until(lambda: len(rows) == 2)  # its watermark has followed
        push("b", 5)
        until(lambda: late)
        run.stop()

        # Runs that wait longer know that b is back, and how far each queue was.
        run = both(rows, late, idle="1h").start(checkpoint=str(state))
        push("a", 90)
        until(lambda: run.get_stats()["messages"] == 1)
        run.stop()
        assert len(rows) == 2
        run = both(rows, late, idle="1h").start(checkpoint=str(state))
        push("b", 75)  # a was at 90, which Spark has forgotten
        until(lambda: len(rows) == 3)
        run.stop()
    assert shown(rows) == [(0, 2), (30, 1), (60, 1)]
    assert [each["record"]["at"] for each in late] == [5_000]

    with pytest.raises(CheckpointError, match="has sources with an idle_timeout, and this plan is different"):
        without_idle(rows).start(checkpoint=str(state))


def without_idle(rows: list[Row]) -> Pipeline[Any]:
    other = Pipeline("both").source(Queue("b", schema=CLICKS), name="b").event_time("at")
    clicks = Pipeline("both").source(Queue("a", schema=CLICKS), name="a").event_time("at").union(other)
    return clicks.key_by("user").window(tumbling("10s")).aggregate(n=count()).to(rows.append)


def test_a_queue_that_has_had_no_message_holds_a_join_back_until_it_is_idle(
    broker: TemporaryBroker, tmp_path: Path
) -> None:
    rows: list[Row] = []
    other = Pipeline("join").source(Queue("b", schema="n int"), name="b", idle_timeout="1s")
    pipeline = Pipeline("join").source(Queue("a", schema="n int"), name="a")
    pipeline = pipeline.join(other, on="n", within="1s", how="left")  # in the time of the messages
    with broker.client() as queen:
        queen.queue("a").push([{"n": 1}])
        queen.queue("b").create()
        run = pipeline.to(rows.append).start(checkpoint=str(tmp_path))
        until(lambda: run.get_stats()["messages"] == 1)
        time.sleep(1.5)
        queen.queue("a").push([{"n": 2}])
        until(lambda: rows)
        run.stop()
    assert [row["n"] for row in rows] == [1]


def test_records_that_a_filter_drops_show_that_a_queue_is_not_idle(
    broker: TemporaryBroker, tmp_path: Path
) -> None:
    rows: list[Row] = []
    schema = "n int, at bigint"
    other = Pipeline("join").source(Queue("b", schema=schema), name="b", idle_timeout="2s")
    pipeline = Pipeline("join").source(Queue("a", schema=schema), name="a").event_time("at")
    pipeline = pipeline.join(other.filter("n > 0").event_time("at"), on="n", within="1s")
    with broker.client() as queen:
        queen.queue("a").push([{"n": 1, "at": at} for at in (1_000, 9_000, 20_000)])
        queen.queue("b").push([{"n": 1, "at": 1_500}])
        run = pipeline.to(rows.append).start(checkpoint=str(tmp_path))
        until(lambda: len(rows) == 1)
        end = time.monotonic() + 4
        while time.monotonic() < end:
            queen.queue("b").push([{"n": 0, "at": 0}])
            time.sleep(0.2)
        queen.queue("b").push([{"n": 1, "at": 9_500}])  # too late if b had been idle
        queen.queue("a").push([{"n": 2, "at": 30_000}])
        queen.queue("b").push([{"n": 2, "at": 30_000}])
        until(lambda: len(rows) == 3)
        run.stop()
    assert sorted(row["n"] for row in rows) == [1, 1, 2]


class Killed(SparkRun):
    """A run that dies in a batch, before or after it is delivered, and before Spark knows that it is done.

    Where both sources have had records, b is idle.
    """

    dies: tuple[int, bool] | None = None

    def _batch(self, rows: DataFrame, batch_id: int) -> None:
        self._die((batch_id, False))
        super()._batch(rows, batch_id)
        if batch_id > 0:
            assert self._idle is not None
            self._idle.declare("b")
        self._die((batch_id, True))

    def _die(self, here: tuple[int, bool]) -> None:
        if self.dies == here:
            self._failed_batch = RunFailed("killed")
            raise self._failed_batch


def test_that_a_source_is_idle_is_decided_once_whenever_the_driver_is_killed(tmp_path: Path) -> None:
    case = CASES["a_source_that_is_idle_holds_nobody_back"]
    ends = Collected()
    plan = case.build(ends).plan()
    options = RunOptions(master="local[2]", checkpoint=str(tmp_path))
    given = {
        read.name: [
            fit(None, [] if isinstance(batch, Idle) else list(batch.get(read.name, ())))
            for batch in case.batches
        ]
        for read in plan.sources
    }
    deaths = [(batch, delivered) for batch in (1, 2, 3) for delivered in (False, True)]
    for dies in [*deaths, None]:
        run = Killed(plan, options, given, end=False)
        run.dies = dies
        run.start()
        if dies is None:
            run.wait()
        else:
            with pytest.raises(RunFailed, match="killed"):
                run.wait()
    for sink, expected in case.expected.items():
        assert multiset(ends.outcome.sinks[sink]) == multiset(expected)


def entry(path: Path) -> Row:
    found: Row = json.loads(path.read_text().splitlines()[1])
    return found
