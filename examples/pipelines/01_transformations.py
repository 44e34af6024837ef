"""Parse, enrich from a table, keep some, sum up in windows, and store the sums in a table."""

from __future__ import annotations

import json
from typing import Any

from queenstream import Memory, Pipeline, Postgres, Queen, Queue, postgres, tumbling

USERS = [{"id": 1, "segment": "premium"}, {"id": 2, "segment": "basic"}]
SUMMARY = "user_id int, window_start timestamp, window_end timestamp, event_count bigint, total_value double"


def event(user_id: int, value: float, time: str) -> dict[str, str]:
    """As others send it: a text in a field."""
    return {"value": json.dumps({"user_id": user_id, "value": value, "at": f"2026-01-31T{time}Z"})}


def activity(url: str) -> Pipeline[Any]:
    return (
        Pipeline("user-activity")
        .source(Queue("transform-raw-events"))
        .transform("parse", lambda message: json.loads(message["value"]))
        .lookup(Postgres("users", url=url), on=("user_id", "id"), fields={"user_segment": "segment"})
        .filter("user_segment = 'premium'")
        .key_by("user_id")
        .window(tumbling("5m"), time="at")
        .aggregate({"event_count": {"$sum": 1}, "total_value": {"$sum": "value"}})
        .to(
            Postgres(
                "user_activity_summary",
                url=url,
                key=("user_id", "window_start"),
                schema=SUMMARY,
                create_table=True,
            )
        )
    )


def show(row: dict[str, Any]) -> None:
    start, events, total = row["window_start"], row["event_count"], row["total_value"]
    print(f"user {row['user_id']} from {start:%H:%M}: {events} events, {total}")


def main() -> None:
    with postgres.ephemeral() as server, Queen() as queen:
        queen.queue("transform-raw-events").delete()
        queen.queue("transform-raw-events").push(
            [
                event(1, 10, "12:00:00"),
                event(2, 99, "12:01:00"),  # not premium
                event(1, 5, "12:04:59"),
                event(3, 99, "12:05:00"),  # nobody knows this user
                event(1, 1, "12:05:00"),
                event(1, 1, "13:00:00"),  # so late that all before it is over
            ]
        )
        # A table from records: made if it is not there, one row for each id.
        users = Postgres(
            "users", url=server.url, key="id", schema="id int, segment string", create_table=True
        )
        Pipeline("users").source(Memory(USERS)).to(users).run(engine="local")

        activity(server.url).run(engine="local", until="caught_up")  # without engine: on Spark

        summary = Postgres("user_activity_summary", url=server.url)
        Pipeline("look").source(summary).to(show).run(engine="local")


if __name__ == "__main__":
    main()
