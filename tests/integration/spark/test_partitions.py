"""How many tasks a run has: ``run(partitions=…)``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyspark import TaskContext
from pyspark.sql import SparkSession

from queenstream.engines.spark.checkpoints.partitions import kept_partitions
from queenstream.engines.spark.sinks.storage import folder_at
from queenstream.errors import CheckpointError, ConfigError
from queenstream.pipeline.builder import Pipeline
from queenstream.pipeline.endpoints import Memory, Queue
from queenstream.pipeline.shorthand import count, tumbling
from queenstream.testing.brokers import TemporaryBroker

Row = dict[str, Any]
pytestmark = [pytest.mark.usefixtures("spark"), pytest.mark.timeout(600)]


def totals(to: Any) -> Pipeline[Any]:
    source = Memory([{"user": "ab"[n % 2], "at": n} for n in range(4)], schema="user string, at bigint")
    windows = Pipeline("totals").source(source).key_by("user").window(tumbling("1m"), time="at")
    return windows.aggregate(n=count()).to(to)


def test_state_is_in_as_many_partitions_as_the_run_says(spark: SparkSession, tmp_path: Path) -> None:
    found: list[Row] = []
    where = str(tmp_path)
    totals(found.append).run(checkpoint=where, partitions=3)
    assert sorted(row["n"] for row in found) == [2, 2]
    storage = folder_at(spark, f"{where}/totals")
    assert kept_partitions(storage) == 3
    operator = tmp_path / "totals" / "spark" / "state" / "0"
    assert len([each for each in operator.iterdir() if each.name.isdecimal()]) == 3
    with pytest.raises(
        CheckpointError, match=r"in 3 partitions, and partitions is 4; .*rescale CHECKPOINT --part"
    ):
        totals(found.append).run(checkpoint=where, partitions=4)
    totals(found.append).run(checkpoint=where)
    totals(found.append).run(checkpoint=where, partitions=3)
    assert kept_partitions(storage) == 3


def with_task(record: Row) -> Row:
    context = TaskContext.get()
    assert context is not None
    return {**record, "task": context.partitionId()}


@pytest.mark.parametrize(("partitions", "tasks"), [(3, {0, 1, 2}), (None, {0})])
def test_so_many_tasks_read_a_queue(broker: TemporaryBroker, partitions: int | None, tasks: set[int]) -> None:
    found: list[Row] = []
    with broker.client() as queen:
        for user in "abc":
            queen.queue("orders").partition(user).push([{"user": user, "n": n} for n in range(4)])
    copy = Pipeline("copy").source(Queue("orders")).transform("task", with_task).to(found.append)
    copy.run(until="caught_up", url=broker.address, partitions=partitions)
    assert len(found) == 12
    assert {row["task"] for row in found} == tasks


def test_a_number_that_is_none_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"partitions is 0; write a whole number from 1 on"):
        totals(print).run(partitions=0)
    with pytest.raises(ConfigError, match=r"the local engine has no partitions; leave partitions out"):
        totals(print).run(engine="local", partitions=2)
