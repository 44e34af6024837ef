"""Several streams in one pipeline: each into a table of its own, in step by event time, and joined."""

from __future__ import annotations

from typing import Any

from queenstream import Pipeline, Postgres, Queen, Queue, postgres

CLICKS = [{"id": "ann", "page": "/shoes", "at": 1_000}, {"id": "bob", "page": "/hats", "at": 9_000}]
ORDERS = [{"user_id": "ann", "amount": 40, "at": 4_000}, {"user_id": "bob", "amount": 5, "at": 600_000}]


def stream(queue: str) -> Pipeline[Any]:
    return Pipeline("several").source(Queue(queue), name=queue).event_time("at")


def several(url: str, seen: list[int]) -> Pipeline[Any]:
    clicks, orders = stream("several-user-events"), stream("several-order-events")
    # Two streams with a destination each; together they are read in step: who is ahead waits.
    stored = clicks.to(
        Postgres("user_activity", url=url, schema="id string, page string, at bigint", create_table=True)
    )
    kept = orders.to(
        Postgres("order_history", url=url, schema="user_id string, amount int, at bigint", create_table=True)
    )
    both = stored.union(kept, coordination="timestamp").to(lambda row: seen.append(row["at"]))
    # And the orders with what their user has looked at in the five minutes around them.
    joined = orders.join(clicks, on=("user_id", "id"), within="5m", how="inner")
    return both.union(joined.to(Queue("several-enriched-orders"))).to(lambda _: None)


def show(row: dict[str, Any]) -> None:
    print("stored:", row)


def main() -> None:
    with postgres.ephemeral() as server, Queen() as queen:
        for name in ("several-user-events", "several-order-events", "several-enriched-orders"):
            queen.queue(name).delete()
        queen.queue("several-user-events").push(CLICKS)
        queen.queue("several-order-events").push(ORDERS)
        seen: list[int] = []
        several(server.url, seen).run(engine="local", until="caught_up")
        print("in the order of", seen)
        for message in queen.queue("several-enriched-orders").batch(10).pop():
            print("joined:", message.data["user_id"], message.data["amount"], message.data["page"])
        for table in ("user_activity", "order_history"):
            Pipeline("look").source(Postgres(table, url=server.url)).to(show).run(engine="local")


if __name__ == "__main__":
    main()
