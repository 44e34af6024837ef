"""A pipeline from files into a topic and a table, in a process that may kill itself, as its settings say.

Each record gets a random number on its way. So sinks that agree on it got the rows of one and the same try.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
import uuid
from pathlib import Path
from typing import Any

from queenstream import Cassandra, Files, Function, Kafka, Pipeline
from queenstream.pipeline.state import State

Record = dict[str, Any]


def main(settings: dict[str, Any]) -> None:
    """Run to the end of the files, or until the kill."""
    killed, moment, driver = Path(settings["folder"], "killed"), settings["moment"], os.getpid()

    def kill() -> None:
        if not killed.exists():
            killed.touch()
            os.kill(driver, signal.SIGKILL)
            time.sleep(30)

    def draw(record: Record) -> Record:
        if moment == "stage" and record["n"] == settings["last"]:
            kill()
        return {**record, "drawn": uuid.uuid4().hex}

    def called(_: Record) -> None:
        if moment == "prepared":
            kill()

    topic = Kafka(
        settings["topic"],
        servers=settings["servers"],
        key_by="user",
        settings={"linger.ms": "0", "batch.num.messages": "1", "max.in.flight.requests.per.connection": "1"},
    )
    table = Cassandra(
        settings["table"],
        schema="user string, slot int, n bigint, drawn string",
        concurrency=1,
        **settings["cassandra"],
    )

    def draw_by_user(user: str, record: Record, state: State) -> Record:
        state.set("seen", state.get("seen", 0) + 1)
        return draw(record)

    schema = "user string, slot int, n bigint"
    rows = Pipeline("delivery").source(Files(Path(settings["folder"], "in"), format="ndjson", schema=schema))
    drawn = rows.key_by("user").stateful(draw_by_user) if settings["state"] else rows.transform("draw", draw)
    drawn.to(Function(called, name="caller"), topic, table).run(
        checkpoint=str(Path(settings["folder"], "state")), master="local[2]"
    )


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
