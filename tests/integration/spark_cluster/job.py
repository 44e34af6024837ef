"""What a user runs on a cluster: python -m tests.integration.spark_cluster.job MASTER BROKER FOLDER

Orders and payments meet, and what was paid is summed by user and time. As a program of its own its functions
travel to the executors with the plan; they have our package from the driver, and nothing else of ours.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from queenstream.core.aggregates import count, sum_
from queenstream.pipeline.builder import Pipeline
from queenstream.pipeline.endpoints import Queue
from queenstream.pipeline.shorthand import tumbling

Record = dict[str, Any]


def looked_at(folder: str) -> Any:
    """A step that says who does it and takes its time, as long as there is a file ``slow``."""

    def look(order: Record) -> Record:
        import os
        import time
        from pathlib import Path

        import queenstream

        if ".zip/" not in queenstream.__file__:
            raise RuntimeError(f"the executor has a queenstream of its own: {queenstream.__file__}")
        if (Path(folder) / "slow").exists():
            (Path(folder) / f"{os.getpid()}.pid").touch()
            time.sleep(0.05)
        return {**order, "amount": order["amount"] * 2}

    return look


def paid_by_user(folder: Path) -> Pipeline[Any]:
    """The pipeline."""
    payments = Pipeline("paid").source(Queue("payments")).event_time("at")
    orders = (
        Pipeline("paid").source(Queue("orders")).transform("look", looked_at(str(folder)), on_error="fail")
    )
    return (
        orders.event_time("at")
        .join(payments, on="order", within="2s")
        .key_by("user")
        .window(tumbling("5s"))
        .aggregate(number=count(), ordered=sum_("amount"), paid=sum_("paid"))
        .to(Queue("totals", partition_by="user"))
    )


if __name__ == "__main__":
    master, broker, where = sys.argv[1:]
    state = str(Path(where) / "state")
    paid_by_user(Path(where)).run(master=master, checkpoint=state, url=broker, interval="200ms")
