"""Steps of a workflow from three queues, joined for each order: which is complete, which hangs where."""

from __future__ import annotations

from typing import Any

from queenstream import Queen, Window

STEPS = ("lifecycle-created", "lifecycle-paid", "lifecycle-shipped")
states: dict[str, str] = {}


def check(window: Window[Any]) -> None:
    created, paid, shipped = (any(message.queue == step for message in window.all_messages) for step in STEPS)
    if created and paid and shipped:
        states[window.key] = "complete"
    elif created and paid:
        states[window.key] = "waits for the shipment"
    elif created:
        states[window.key] = "waits for the payment; remind the customer"
    else:
        states[window.key] = "was not created in this hour"


def main() -> None:
    with Queen() as queen:
        queen.stream("lifecycle-orders").delete()
        for name in STEPS:
            queen.queue(name).delete()
            queen.queue(name).create()
        stream = queen.stream("lifecycle-orders", "orders").sources(STEPS).partitioned()
        stream.tumbling_time("1h").grace_period("5m").event_time("data.at").idle_timeout(2).define()

        def happened(step: str, order: str, time: str) -> None:
            queen.queue(f"lifecycle-{step}").partition(order).push({"at": f"2026-01-31T{time}:00Z"})

        happened("created", "order-1", "12:01")
        happened("created", "order-2", "12:05")
        happened("paid", "order-1", "12:06")
        happened("created", "order-3", "12:10")
        happened("paid", "order-3", "12:11")
        happened("shipped", "order-1", "12:45")
        happened("shipped", "order-0", "12:50")

        queen.consumer("lifecycle-orders", "checker").process(check, limit=4)
        for order, state in sorted(states.items()):
            print(order, state)


if __name__ == "__main__":
    main()
