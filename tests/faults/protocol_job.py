"""Pipelines that a test kills at a step of the protocol: python -m tests.faults.protocol_job SETTINGS

``copies`` has state and a random number for each record, and many sinks: sinks that agree on the number got
the rows of one and the same try. The others make much of one batch.
"""

from __future__ import annotations

import json
import sys
import time
import uuid
from pathlib import Path
from typing import Any

from queenstream.core.aggregates import collect_list, count
from queenstream.pipeline.builder import Pipeline
from queenstream.pipeline.endpoints import Files, Postgres, Queue
from queenstream.pipeline.engine_api import RunKeywords
from queenstream.pipeline.shorthand import tumbling
from queenstream.spark import session

Record = dict[str, Any]


def copies(settings: dict[str, Any]) -> Pipeline[Any]:
    """Each record once, into a table, a folder and a queue."""
    slow, folder = settings.get("slow"), settings["folder"]

    def draw(record: Record) -> Record:
        if record["n"] == slow:
            tried = Path(folder, "tried").exists()
            Path(folder, "again" if tried else "tried").touch()
            time.sleep(0 if tried else 30)  # the first try alone: the speculative one overtakes it
        return {**record, "drawn": uuid.uuid4().hex}

    columns = {"url": settings["database"], "create_table": True, "schema": "n bigint, drawn string"}
    rows = Pipeline("copies").source(Queue("events"), name="events")
    if settings["state"]:
        rows = rows.deduplicate("n", within="1h")
    return rows.transform("draw", draw).to(
        Postgres("appended", **columns),
        Files(Path(settings["folder"], "lines"), format="ndjson"),
        Queue("copies", partition_by="user"),
        Postgres("kept", key="n", **columns),
    )


def windows(settings: dict[str, Any]) -> Pipeline[Any]:
    """A window for each second and key; the last record closes all others at once."""
    rows = Pipeline("windows").source(
        Files(Path(settings["folder"], "in"), format="parquet", schema="n bigint, user string, at timestamp"),
        name="events",
    )
    return (
        rows.event_time("at")
        .key_by("user")
        .window(tumbling("1s"))
        .aggregate(number=count())
        .to(Files(Path(settings["folder"], "out"), format="parquet"), Queue("totals", partition_by="user"))
    )


def lists(settings: dict[str, Any]) -> Pipeline[Any]:
    """One window with all records in a list."""
    rows = Pipeline("lists").source(Queue("events"), name="events")
    return (
        rows.event_time("at")
        .window(tumbling("1d"))
        .aggregate(numbers=collect_list("n"))
        .to(Queue("totals"), Files(Path(settings["folder"], "out"), format="ndjson"))
    )


PIPELINES = {"copies": copies, "windows": windows, "lists": lists}


def main(settings: dict[str, Any]) -> None:
    """Run until caught up."""
    session("protocol", settings.get("master", "local[2]"), conf=settings.get("conf", {}))
    options: RunKeywords = {
        "checkpoint": settings["checkpoint"],
        "url": settings["broker"],
        "until": "caught_up",
        "max_batch_rows": settings.get("rows"),
    }
    PIPELINES[settings["pipeline"]](settings).run(**options)


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
