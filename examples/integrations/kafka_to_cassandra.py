"""From Kafka to Cassandra in one pipeline: parse, enrich, keep some, sum up in windows, store the sums."""

from __future__ import annotations

import json
import os
from typing import Any

from queenstream import Cassandra, Kafka, Memory, Pipeline, tumbling

SERVERS = os.environ.get("KAFKA_SERVERS", "localhost:9092")
USERS = [{"id": 1, "segment": "premium"}, {"id": 2, "segment": "basic"}]


def table(name: str, **options: Any) -> Cassandra:
    """A table of the example's keyspace."""
    return Cassandra(
        f"activity.{name}",
        hosts=os.environ.get("CASSANDRA_HOST", "127.0.0.1"),
        port=int(os.environ.get("CASSANDRA_PORT", "9042")),
        user=os.environ.get("CASSANDRA_USER"),
        password=os.environ.get("CASSANDRA_PASSWORD"),
        **options,
    )


def new_table(name: str, **options: Any) -> Cassandra:
    """The same, made where it is not there; one replica is for a cluster of one node."""
    return table(name, create_table=True, create_keyspace=1, **options)


def fill() -> None:
    """Who the users are, and what they did. The topic is there, or the server makes it."""
    users = new_table("users", partition_key="id", schema="id int, segment string")
    Pipeline("users").source(Memory(USERS)).to(users).run(engine="local")
    events = [
        (1, 10, "12:00:00"),
        (2, 99, "12:01:00"),  # not premium
        (1, 5, "12:04:59"),
        (3, 99, "12:05:00"),  # nobody knows this user
        (1, 1, "12:05:00"),
        (1, 1, "13:00:00"),  # so late that all before it is over
    ]
    raw = [{"user_id": user, "value": value, "at": f"2026-01-31T{at}Z"} for user, value, at in events]
    Pipeline("fill").source(Memory(raw)).to(Kafka("raw-events", servers=SERVERS)).run(engine="local")


def activity() -> Pipeline[Any]:
    """Events and sums of each premium user, by five minutes."""
    raw = Kafka("raw-events", servers=SERVERS, group="example-activity", format="string")
    summary = new_table(
        "user_activity_summary",
        partition_key="user_id",
        clustering_key="window_start",
        schema="user_id int, window_start timestamp, window_end timestamp, "
        "event_count bigint, total_value double",
        ttl="30d",
    )
    return (
        Pipeline("user-activity")
        .source(raw)
        .transform("parse", lambda message: json.loads(message["value"]))
        .lookup(table("users"), on=("user_id", "id"), fields={"user_segment": "segment"})
        .filter("user_segment = 'premium'")
        .key_by("user_id")
        .window(tumbling("5m"), time="at")
        .aggregate({"event_count": {"$sum": 1}, "total_value": {"$sum": "value"}})
        .to(summary)
    )


def show(row: dict[str, Any]) -> None:
    start, events, total = row["window_start"], row["event_count"], row["total_value"]
    print(f"user {row['user_id']} from {start:%H:%M}: {events} events, {total}")


def main() -> None:
    fill()
    activity().run(engine="local", until="caught_up")  # without engine: on Spark
    Pipeline("look").source(table("user_activity_summary")).to(show).run(engine="local")


if __name__ == "__main__":
    main()
