"""An ingestion stream: measurements are pushed as they come, and Cassandra keeps them for a day."""

from __future__ import annotations

import os

from queenstream import Backpressure, Cassandra, DeadLetters, Letters, Pipeline, Queen, Queue

METRICS = Cassandra(
    "ingestion.metrics",
    hosts=os.environ.get("CASSANDRA_HOST", "127.0.0.1"),
    port=int(os.environ.get("CASSANDRA_PORT", "9042")),
    user=os.environ.get("CASSANDRA_USER"),
    password=os.environ.get("CASSANDRA_PASSWORD"),
    schema={
        "timestamp": "timestamp",
        "metric_name": "text",
        "value": "double",
        "tags": "map<text, text>",
    },
    partition_key="metric_name",
    clustering_key="timestamp",
    ttl=86_400,  # a day
    concurrency=10,
    create_table=True,
    create_keyspace=1,  # one replica: for a cluster of one node
)


def main() -> None:
    with Queen() as queen:
        for name in ("ingestion-metrics", "ingestion-failed", "ingestion-failed.replay"):
            queen.queue(name).delete()
        # Single measurements in, batches out. What cannot be stored in time slows who measures.
        pressure = Backpressure("block", threshold=10_000, on_change=lambda now: print("pressure:", now.on))
        metrics = queen.queue("ingestion-metrics").buffered(
            batch_size=1_000, flush_interval="1s", partition_key="metric_name", backpressure=pressure
        )
        with metrics as producer:
            for second in range(60):
                at = f"2026-01-31T12:00:{second:02}Z"
                for name, value in (("cpu", second / 60), ("memory", 4_096 + second)):
                    tags = {"host": "web-1", "zone": "a"}
                    producer.push({"timestamp": at, "metric_name": name, "value": value, "tags": tags})
            producer.push({"timestamp": "noon", "metric_name": "cpu", "value": 0})
        print("pushed", producer.stats.stored)

    ingestion = (
        Pipeline("ingestion")
        .source(Queue("ingestion-metrics"))
        .to(METRICS, on_error=DeadLetters("ingestion-failed"))
    )
    ingestion.run(engine="local", until="caught_up")

    with Queen() as queen:
        for letter in Letters(queen, "ingestion-failed").find():
            print("refused:", letter.error)

    # A table is a source, too: a record for each row, read once.
    totals: dict[str, list[float]] = {}
    table = Cassandra(
        METRICS.label,
        hosts=METRICS.hosts,
        port=METRICS.port,
        user=METRICS.user,
        password=METRICS.password,
    )
    (
        Pipeline("report")
        .source(table)
        .to(lambda row: totals.setdefault(row["metric_name"], []).append(row["value"]))
        .run(engine="local")
    )
    for name, values in sorted(totals.items()):
        print(name, len(values), "rows, highest", round(max(values), 3))


if __name__ == "__main__":
    main()
