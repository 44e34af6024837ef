"""Two pipelines as a process, for a test to kill: python -m tests.faults.spark_job BROKER FOLDER

One has functions, a join, windows, late output and dead letters: its rows go to the sinks through the driver.
The other has none, and its tasks push into the queue themselves. Spark's executors are processes of their own
(``local-cluster``), so that they can be killed, too.
"""

from __future__ import annotations

import sys
import threading
import time
from pathlib import Path
from typing import Any

from queenstream.core.aggregates import count, sum_
from queenstream.errors import BrokerUnreachable, Unavailable
from queenstream.pipeline.builder import Pipeline
from queenstream.pipeline.endpoints import Queue
from queenstream.pipeline.engine_api import Run
from queenstream.pipeline.policies import DeadLetters
from queenstream.pipeline.shorthand import tumbling
from queenstream.spark import session

MASTER = "local-cluster[1,2,1024]"
PATIENCE_SECONDS = 60.0

Record = dict[str, Any]


def checked(record: Record) -> Record:
    """A step that fails on some records."""
    if record["n"] % 10 == 3:
        raise ValueError(f"{record['n']} ends with 3")
    return {**record, "twice": record["n"] * 2}


def joined() -> Pipeline[Any]:
    """Left and right by number, summed by user; what is late and what fails has a queue of its own."""
    right = Pipeline("joined").source(Queue("right"), name="right").event_time("at")
    return (
        Pipeline("joined")
        .source(Queue("left"), name="left")
        .event_time("at")
        .transform("check", checked, on_error=DeadLetters("dead"))
        .join(right, on="n", within="3s", name="meet")
        .late(Queue("late"))
        .key_by("user")
        .window(tumbling("5s"))
        .aggregate(number=count(), twice=sum_("twice"), value=sum_("value"))
        .to(Queue("totals", partition_by="user"))
    )


def plain() -> Pipeline[Any]:
    """Expressions only."""
    return (
        Pipeline("plain")
        .source(Queue("events", schema="user string, n bigint"), name="events")
        .filter("n % 7 <> 0")
        .with_columns(square="n * n")
        .to(Queue("copies", partition_by="user"))
    )


def started(pipeline: Pipeline[Any], broker: str, folder: Path) -> Run:
    """Start a run; try again, as a service would, while the broker or its database is away."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while True:
        try:
            return pipeline.start(checkpoint=str(folder), url=broker, interval="200ms")
        except (BrokerUnreachable, Unavailable):
            if time.monotonic() > deadline:
                raise
            time.sleep(0.5)


def main(broker: str, folder: Path) -> None:
    """Run both until the process ends."""
    session("kills", MASTER, conf={
        "spark.python.daemon.module": "queenstream.engines.spark.session.daemon",  # executors are here
        "spark.sql.shuffle.partitions": "2",
        "spark.ui.enabled": "false",
        "spark.driver.memory": "1g",
    })  # fmt: skip
    runs = [started(each, broker, folder) for each in (joined(), plain())]
    waiting = [threading.Thread(target=run.wait, daemon=True) for run in runs]
    for thread in waiting:
        thread.start()
    for thread in waiting:
        thread.join()


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
