"""A pipeline with many sinks, in a process that kills itself once, as its settings say.

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

from queenstream.pipeline.builder import Pipeline
from queenstream.pipeline.endpoints import Files, Function, Postgres, Queue, Sink, Source
from queenstream.pipeline.policies import DeadLetters, Outcome

Record = dict[str, Any]


def sinks(settings: dict[str, Any]) -> list[Sink]:
    """One of each kind."""
    folder = Path(settings["folder"])
    return [
        Queue("copies", partition_by="user"),
        Queue("lanes", partition_by="lane"),  # which refuses rows without a lane
        Files(folder / "lines", format="ndjson"),
        Files(folder / "columns", format="parquet"),
        Files(folder / "cells", format="csv"),
        Postgres("appended", url=settings["database"], create_table=True, schema="n bigint, drawn string"),
        Postgres(
            "kept", url=settings["database"], create_table=True, schema="n bigint, drawn string", key="n"
        ),
    ]


def main(settings: dict[str, Any]) -> None:
    """Run until caught up, or until the kill."""
    killed, moment, driver = Path(settings["folder"], "killed"), settings["moment"], os.getpid()

    def kill() -> None:
        if not killed.exists():
            killed.touch()
            os.kill(driver, signal.SIGKILL)
            time.sleep(30)

    def draw(record: Record) -> Record:
        if record["n"] % 10 == 3:
            raise ValueError(f"{record['n']} ends with 3")
        if moment == "stage" and record["n"] == settings["last"]:
            kill()
        lane = None if record["n"] % 10 == 7 else record["user"]
        return {"n": record["n"], "user": record["user"], "lane": lane, "drawn": uuid.uuid4().hex}

    def called(row: Record) -> None:
        if moment != "stage":
            kill()

    def to(queue: str) -> Outcome:
        """A queue of dead letters is read, too, which needs its database; files are read without one."""
        return "skip" if "events" in settings else DeadLetters(queue)

    caller: list[Sink] = [Function(called, name="caller")]
    others = sinks(settings)
    before = 0 if moment == "prepared" else 3  # so many sinks have the batch when it is killed
    ends = [*others[:before], *caller, *others[before:]]
    schema = "n bigint, user string" if settings["plan"] == "native" else None
    source: Source[Any] = Queue("events", schema=schema)
    if "events" in settings:
        source = Files(settings["events"], format="ndjson", schema=schema)
    rows = Pipeline("delivery").source(source, name="events")
    if settings["plan"] == "state":
        rows = rows.deduplicate("n", within="1h")
    if settings["plan"] == "native":
        rows = rows.filter("n % 10 <> 3")
        rows = rows.with_columns(drawn="user", lane="case when n % 10 <> 7 then user end")
    else:
        rows = rows.transform("draw", draw, on_error=to("dead"))
    for end in ends:
        rows = rows.to(end, on_error=to("refused"))
    rows.run(checkpoint=settings["checkpoint"], url=settings["broker"], until="caught_up", master="local[2]")


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
