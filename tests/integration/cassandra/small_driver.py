"""Through a topic and a table, on a driver that has room for little."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

from queenstream import Cassandra, Files, Kafka, Pipeline
from queenstream.spark import session
from tests.integration.spark.small_driver import SMALL

SCHEMA = "n bigint, text string"


def main(settings: dict[str, Any]) -> None:
    """Lines into a topic, the topic into a table by a function, and the table into files."""
    session("small", "local[2]", conf=SMALL)
    folder = Path(settings["folder"])
    topic = Kafka(settings["topic"], servers=settings["servers"], schema=SCHEMA)
    table = Cassandra(**settings["table"], schema=SCHEMA)
    new_table = replace(table, partition_key="n", create_table=True)

    def touch(row: dict[str, Any]) -> dict[str, Any]:
        return {**row, "n": row["n"] + 1}

    lines = Files(folder / "in.ndjson", format="ndjson", schema=SCHEMA)
    Pipeline("lines").source(lines).filter("n >= 0").to(topic).run()
    Pipeline("topic").source(topic).map(touch).to(new_table).run(until="caught_up")
    Pipeline("table").source(table).filter("n > 0").to(Files(folder / "out", format="parquet")).run()


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
