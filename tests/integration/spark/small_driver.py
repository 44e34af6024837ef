"""Pipelines on a driver that has room for little: python -m tests.integration.spark.small_driver SETTINGS"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from queenstream.aggregates import sum_
from queenstream.pipeline.builder import Pipeline
from queenstream.pipeline.endpoints import Files, Function, Postgres, Queue, Sink
from queenstream.pipeline.shorthand import tumbling
from queenstream.spark import session

SCHEMA = "n bigint, text string"


def main(settings: dict[str, Any]) -> None:
    """Every kind of sink, behind a plan without Python, one with a function, and one with state."""
    session("small", "local[2]", conf={"spark.driver.maxResultSize": "1m", "spark.driver.memory": "512m"})
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
    Path(folder, "counts").write_text(json.dumps(counts))


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
