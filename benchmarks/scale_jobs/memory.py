"""The driver's memory with a long backlog of a queue, against a short one.

What is measured is the highest resident memory of the driver's Python (with the broker, which runs in the
same process) and of its JVM, which on a local master runs the tasks too; without the Python workers of
tasks, and without PostgreSQL. A JVM takes as much of its heap as it is allowed to before it cleans up. So
the heap is small enough for the short backlog to fill it.
"""

from __future__ import annotations

from typing import Any

from harness import report, sparks
from queenstream.pipeline.builder import Pipeline
from queenstream.pipeline.endpoints import Queue
from queenstream.testing.brokers import TemporaryBrokers
from scale_jobs.children import DriverMemory, child, fresh_broker
from scale_jobs.queues import MESSAGES

TARGET = 1.2
_HEAP = "512m"
_FULL = (1_000_000, 20_000_000)
_QUICK = (200_000, 2_000_000)


def measure(out: report.Report, *, quick: bool) -> None:
    """Measure a plan without Python and one with a function, each with both backlogs."""
    few, many = _QUICK if quick else _FULL
    for kind in ("expressions", "a function"):
        found: dict[int, tuple[int, int]] = {}
        for messages in (few, many):
            with child(read_backlog, messages, kind) as taken:
                found[messages] = taken.result()
        rows = [
            [f"{messages:,} messages", *(size >> 20 for size in sizes)] for messages, sizes in found.items()
        ]
        out.table([f"driver memory, {kind}", "Python MB", "JVM MB"], rows)
        name = f"driver memory, {kind}: {many:,} messages against {few:,}"
        out.figures[name] = {str(messages): list(sizes) for messages, sizes in found.items()}
        out.at_most(name, sum(found[many]) / sum(found[few]), TARGET)


def read_backlog(messages: int, kind: str) -> tuple[int, int]:
    """In a process of its own: move a backlog from queue to queue; gives the memory of Python and JVM."""
    with TemporaryBrokers() as brokers, fresh_broker(brokers) as (broker, base):
        sparks.fill(broker.database_url, messages)
        spark = sparks.start(conf={"spark.driver.memory": _HEAP})

        def double(row: dict[str, Any]) -> dict[str, Any]:
            return {**row, "value": row["value"] * 2}

        rows = Pipeline("memory").source(Queue("events", schema=MESSAGES)).filter("value > 0")
        if kind == "a function":
            rows = rows.map(double)
        with DriverMemory() as memory:
            rows.to(Queue("copies")).run(
                until="caught_up", url=broker.address, checkpoint=str(base / "state"), summary=False
            )
        with broker.client() as queen:
            assert queen.admin.queue("copies").messages.total == messages
        spark.stop()
    return memory.python, memory.java
