"""A pipeline with many sinks that waits in the middle of a batch, for a test to pause it and let another run
take over: python -m tests.faults.takeover_job SETTINGS

Each record gets a random number on its way. So sinks that agree on it got the rows of one and the same try.
"""

from __future__ import annotations

import json
import sys
import time
import uuid
from pathlib import Path
from typing import Any

from queenstream.errors import OwnershipLost
from queenstream.pipeline.builder import Pipeline
from queenstream.pipeline.endpoints import Function, Queue
from queenstream.pipeline.policies import DeadLetters
from queenstream.spark import session
from tests.integration.spark.delivery_job import sinks

LOST = 3
"""The exit code of a run that another one has taken over."""

Record = dict[str, Any]


def wait_for(path: Path) -> None:
    """Wait until a file is there, at most two minutes."""
    deadline = time.monotonic() + 120
    while not path.exists() and time.monotonic() < deadline:
        time.sleep(0.05)


def main(settings: dict[str, Any]) -> None:
    """Run until caught up. The first of two runs waits at its moment until it is woken up."""
    folder, moment, last = Path(settings["folder"]), settings["moment"], settings["last"]

    def pause() -> None:
        if settings["waits"]:
            (folder / "waiting").touch()
            wait_for(folder / "go on")

    def draw(record: Record) -> Record:
        if record["n"] % 10 == 3:
            raise ValueError(f"{record['n']} ends with 3")
        if moment == "stage" and record["n"] == last:
            pause()
        return {**record, "lane": record["user"], "drawn": uuid.uuid4().hex}

    def called(row: Record) -> None:
        if moment == "prepared" and row["n"] == 0:
            pause()

    session(
        "takeover",
        "local[2]",
        conf={
            f"spark.hadoop.fs.viewfs.mounttable.shared.link./{folder.name}": f"file:{folder}",
            "spark.hadoop.fs.AbstractFileSystem.viewfs.impl": "org.apache.hadoop.fs.viewfs.ViewFs",
        },
    )
    rows = Pipeline("takeover").source(Queue("events"), name="events")
    if settings["state"]:
        rows = rows.deduplicate("n", within="1h")
    try:
        rows.transform("draw", draw, on_error=DeadLetters("dead")).to(
            Function(called, name="caller"), *sinks(settings)
        ).run(checkpoint=f"viewfs://shared/{folder.name}/state", url=settings["broker"], until="caught_up")
    except OwnershipLost as error:
        sys.stderr.write(f"{error}\n")
        sys.exit(LOST)


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
