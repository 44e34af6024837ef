"""Topics of Kafka: read by a group in batches, which are committed when they are stored; and written."""

from __future__ import annotations

import logging
import os
from typing import Any

from queenstream import DeadLetters, Function, Kafka, Memory, Pipeline, count, sum_, tumbling

logging.getLogger("queenstream.local").setLevel(logging.ERROR)  # the record that does not fit is meant
SERVERS = os.environ.get("KAFKA_SERVERS", "localhost:9092")


def fill() -> None:
    """Some events to begin with. The topics are there, or the server makes them."""
    users = [
        {"user_id": f"u{n % 3}", "action": "click", "value": n, "at": 1_700_000_000_000 + n} for n in range(9)
    ]
    users.append({"user_id": "u9", "action": "click", "value": 0, "at": 1_700_000_900_000})  # much later
    orders = [{"user_id": "u1", "amount": 5}, {"user_id": "u2"}]
    for topic, events in (("user-events", users), ("order-events", orders)):
        Pipeline(f"fill {topic}").source(Memory(events)).to(
            Kafka(topic, servers=SERVERS, key_by="user_id")
        ).run(engine="local")


def main() -> None:
    fill()

    # Both topics into a table, up to 500 rows at a time. Nothing is committed before the function has
    # returned: if the program dies in it, these rows come again.
    table: list[dict[str, Any]] = []
    failed: list[dict[str, Any]] = []

    def process_batch(rows: list[dict[str, Any]]) -> None:
        table.extend(rows)

    topics = Kafka(["user-events", "order-events"], servers=SERVERS, group="example-storage", envelope=True)
    (
        Pipeline("storage")
        .source(topics)
        .transform("row", lambda message: {"topic": message["topic"], **message["value"]})
        .to(Function(process_batch, batch_size=500))
        .run(engine="local", until="caught_up")
    )
    for topic in ("user-events", "order-events"):
        print(topic, len([row for row in table if row["topic"] == topic]), "rows stored")

    # One topic with a schema: what does not fit goes to the dead letters, with its place in the topic.
    orders = Kafka(
        "order-events", servers=SERVERS, group="example-orders", schema="user_id string, amount int not null"
    )
    (
        Pipeline("orders")
        .source(orders, on_error=DeadLetters(Function(failed.append)))
        .to(lambda order: print("order of", order["user_id"], "over", order["amount"]))
        .run(engine="local", until="caught_up")
    )
    for letter in failed:
        where = letter["record"]
        print("refused:", f"{where['topic']} key {where['key']}:", letter["error"])

    # Windows of one topic into another. A window is over when an event says that it is that late.
    activity = Kafka("user-activity", servers=SERVERS, key_by="user_id")
    (
        Pipeline("activity")
        .source(Kafka("user-events", servers=SERVERS, group="example-activity"))
        .key_by("user_id")
        .window(tumbling("5m"), time="at", grace="1m")
        .aggregate(event_count=count(), total_value=sum_("value"))
        .to(activity)
        .run(engine="local", until="caught_up")
    )
    windows: list[dict[str, Any]] = []
    (
        Pipeline("look")
        .source(Kafka("user-activity", servers=SERVERS, group="example-look"))
        .to(windows.append)
        .run(engine="local", until="caught_up")
    )
    for window in sorted(windows, key=lambda row: str(row["user_id"])):
        print(window["user_id"], window["event_count"], "events, value", window["total_value"])


if __name__ == "__main__":
    main()
