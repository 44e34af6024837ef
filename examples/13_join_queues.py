"""Join queues: what a user clicked and what the user bought, together in one window."""

from __future__ import annotations

from typing import Any

from queenstream import Queen, Window

CLICKS, PURCHASES = "join-clicks", "join-purchases"
found: list[str] = []


def analyze(window: Window[Any]) -> None:
    # Each message says which queue it came from, so there is no need to guess by its fields.
    clicks = window.filter(lambda message: message.queue == CLICKS).messages
    purchases = window.reset().filter(lambda message: message.queue == PURCHASES)
    numbers = purchases.aggregate(count=True, sum=["data.amount"])
    rate = f"{numbers['count'] / len(clicks):.0%}" if clicks else "no clicks"
    found.append(f"{window.key} from {window.start:%H:%M}: {rate}, {numbers['sum']['data.amount']:g} earned")


def main() -> None:
    with Queen() as queen:
        queen.stream("join-behavior").delete()
        for name in (CLICKS, PURCHASES):
            queen.queue(name).delete()
            queen.queue(name).namespace("analytics").create()
        (
            queen.stream("join-behavior", "analytics")
            .sources([CLICKS, PURCHASES])
            .partitioned()  # by user: the partition's name, the same in both queues
            .tumbling_time("1h")
            .grace_period("5m")
            .event_time("data.at")
            .idle_timeout(2)
            .define()
        )

        clicks, purchases = queen.queue(CLICKS), queen.queue(PURCHASES)
        for minute in ("05", "10", "20", "30"):
            clicks.partition("ann").push({"page": "/tea", "at": f"2026-01-31T12:{minute}:00Z"})
        purchases.partition("ann").push({"product": "tea", "amount": 9.5, "at": "2026-01-31T12:31:00Z"})
        clicks.partition("bob").push({"page": "/cups", "at": "2026-01-31T12:40:00Z"})
        purchases.partition("ann").push({"product": "cup", "amount": 12, "at": "2026-01-31T13:02:00Z"})

        queen.consumer("join-behavior", "analyst").process(analyze, limit=3)
        print("\n".join(sorted(found)))  # keys are independent, and come in any order


if __name__ == "__main__":
    main()
