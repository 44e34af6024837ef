"""Pipelines on a driver that has room for little: python -m tests.integration.spark.small_driver SETTINGS"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from queenstream.core.aggregates import count, sum_
from queenstream.pipeline.builder import Pipeline
from queenstream.pipeline.endpoints import Files, Function, Postgres, Queue, Sink
from queenstream.pipeline.policies import DeadLetters
from queenstream.pipeline.shorthand import tumbling
from queenstream.spark import session

SCHEMA = "n bigint, text string"
SMALL = {"spark.driver.maxResultSize": "1m", "spark.driver.memory": "512m"}


def main(settings: dict[str, Any]) -> None:
    """Every kind of sink, behind a plan without Python, one with a function, and one with state."""
    session("small", "local[2]", conf=SMALL)
    folder = Path(settings["folder"])
    counts: dict[str, int] = {}
    for kind in ("native", "python", "state"):

        def called(rows: list[Any], kind: str = kind) -> None:
            counts[kind] = counts.get(kind, 0) + len(rows)

        def touch(row: dict[str, Any]) -> dict[str, Any]:
            return {**row, "n": row["n"] + 1}

        ends: list[Sink] = [
            Queue(f"{kind}-copies"),
            Files(folder / f"{kind}-lines", format="ndjson"),
            Files(folder / f"{kind}-columns", format="parquet"),
            Postgres(f"{kind}_rows", url=settings["database"], create_table=True, schema=SCHEMA),
            Function(called, name="called", batch_size=1_000),
        ]
        rows = Pipeline(kind).source(Queue("events", schema=SCHEMA, group=kind), name="in").filter("n >= 0")
        if kind == "python":
            rows = rows.map(touch)
        if kind == "state":
            rows = rows.deduplicate("n", within="1h")
        rows.to(*ends).run(until="caught_up", url=settings["broker"])
    totals = Pipeline("totals").source(Queue("events", schema=SCHEMA)).key_by("n").window(tumbling("1h"))
    updates = totals.aggregate(total=sum_("n"), emit="update")
    updates.to(Files(folder / "totals", format="ndjson")).run(until="caught_up", url=settings["broker"])
    columns = Files(folder / "native-columns", format="parquet", schema=SCHEMA)
    Pipeline("columns").source(columns).filter("n >= 0").to(Queue("columns")).run(url=settings["broker"])
    failures(settings)
    late(settings)
    Path(folder, "counts").write_text(json.dumps(counts))


def failures(settings: dict[str, Any]) -> None:
    """Dead letters of a step and of a sink, with and without Python; from lines and CSV."""
    folder = Path(settings["folder"])

    def halve(row: dict[str, Any]) -> dict[str, Any]:
        if row["n"] % 2:
            raise ValueError(f"{row['n']} is odd: {row['text']}")
        return {**row, "lane": None if row["n"] % 4 else "fourth"}

    lines = Files(folder / "native-lines", format="ndjson", schema=SCHEMA)
    halves = Pipeline("halves").source(lines).on_error(DeadLetters("failed")).map(halve)
    table = Files(folder / "halves", format="csv", schema=f"{SCHEMA}, lane string")
    # The queue refuses rows without a lane.
    halves.to(table).to(Queue("halves", partition_by="lane")).run(url=settings["broker"])

    values = Files(folder / "halves", format="csv", schema="n bigint, text boolean, lane string")
    misfits = Pipeline("misfits").source(values).on_error(DeadLetters("misfits"))
    misfits.filter("n > 0").to(Queue("none")).run(url=settings["broker"])


def late(settings: dict[str, Any]) -> None:
    """Late rows: the first batch shows a time that all others are before."""
    events = Queue("events", schema=f"{SCHEMA}, at timestamp", group="late")
    rows = Pipeline("late").source(events).event_time("at").window(tumbling("1h")).aggregate(n=count())
    rows = rows.late(Queue("late")).to(Files(settings["folder"] + "/hours", format="ndjson"))
    rows.run(until="caught_up", url=settings["broker"], max_batch_rows=settings["messages"] // 3)


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
