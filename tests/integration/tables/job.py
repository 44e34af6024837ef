"""A pipeline as a process, for tests to kill: python -m tests.integration.tables.job ENGINE FOLDER URL

It follows a table, gives each row a random tag (so that work done twice would show), and writes it to two
tables and to files.
"""

from __future__ import annotations

import sys
import uuid
from pathlib import Path
from typing import Any

from queenstream.pipeline.builder import Pipeline
from queenstream.pipeline.endpoints import Files, Postgres
from queenstream.pipeline.engine_api import EngineName


def tag(record: dict[str, Any]) -> dict[str, Any]:
    return {**record, "tag": uuid.uuid4().hex}


def job(folder: Path, url: str) -> Pipeline[Any]:
    """The pipeline."""
    return (
        Pipeline("job")
        .source(Postgres("events", url=url, cursor="id"))
        .transform("tag", tag)
        .to(Postgres("copies", url=url), Postgres("latest", url=url, key="person"))
        .to(Files(folder / "out", format="parquet", schema="id bigint, person string, tag string"))
    )


def main(engine: EngineName, folder: Path, url: str) -> None:
    """Run it until the process ends."""
    if engine == "spark":
        from queenstream.spark import session

        session("job", "local[2]", conf={"spark.sql.shuffle.partitions": "2", "spark.driver.memory": "1g"})
    job(folder, url).run(engine=engine, checkpoint=str(folder / "state"))


if __name__ == "__main__":
    chosen: EngineName = "spark" if sys.argv[1] == "spark" else "local"
    main(chosen, Path(sys.argv[2]), sys.argv[3])
