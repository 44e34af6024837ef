"""Messages of a queue: a filter, and a function in Python."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame

from harness import databases, sparks
from queenstream.pipeline.builder import Pipeline
from queenstream.pipeline.endpoints import Queue
from scale_jobs import Job, Setup, stream_to_end

MESSAGES = "user string, action string, value double, n bigint, page string"


def jobs(setup: Setup) -> list[Job]:
    """From a queue into a queue: expressions, and a function in Python."""
    spark, broker = setup.spark, setup.broker
    url = broker.database_url
    sparks.fill(url, setup.size(5_000_000))
    source = Queue("events", schema=MESSAGES)

    def read() -> DataFrame:
        options = {
            "queue": "events", "pg": url, "schema": MESSAGES, "columns": "data,id,partition,created_at",
            "maxRowsPerBatch": "200000", "maxBytesPerBatch": str(64 << 20),
        }  # fmt: skip
        return spark.readStream.format("queen").options(**options).load().select("data.*")

    def write(frame: DataFrame, folder: Path) -> None:
        stream_to_end(
            frame, folder, lambda writer: writer.format("queen").option("queue", "hand").option("pg", url)
        )

    def our_filter(folder: Path) -> None:
        rows = Pipeline("filter").source(source).filter("value > 100")
        rows.to(Queue("ours")).run(until="caught_up", url=broker.address, checkpoint=str(folder / "state"))

    def filter_by_hand(folder: Path) -> None:
        write(read().where("value > 100"), folder)

    def double(row: dict[str, Any]) -> dict[str, Any]:
        return {**row, "value": row["value"] * 2}

    def our_function(folder: Path) -> None:
        rows = Pipeline("function").source(source).map(double)
        rows.to(Queue("ours")).run(until="caught_up", url=broker.address, checkpoint=str(folder / "state"))

    def function_by_hand(folder: Path) -> None:
        def doubled(batches: Any) -> Any:
            for batch in batches:
                rows = [double(row) for row in batch.to_pylist()]
                yield pa.RecordBatch.from_pylist(rows, schema=batch.schema)

        write(read().mapInArrow(doubled, MESSAGES), folder)

    def stored(folder: Path, way: str) -> int:
        del folder
        queue = "ours" if way == "ours" else "hand"
        of_queue = (
            "(select p.id from queen.partitions p join queen.queues q on q.id = p.queue_id where q.name = "
        )
        condition = f"partition_id in {of_queue}'{queue}')"
        found = databases.query(url, f"select count(*) from queen.messages where {condition}")[0][0]
        databases.query(url, f"delete from queen.messages where {condition}", "vacuum queen.messages")
        return int(found)

    return [
        Job("queue → filter → queue", 0.8, our_filter, filter_by_hand, stored),
        Job("queue → function → queue", 0.9, our_function, function_by_hand, stored),
    ]
