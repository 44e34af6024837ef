"""A first stream: the messages of two queues, cut into windows of time."""

from __future__ import annotations

from typing import Any

from queenstream import Queen, Window


def show(window: Window[Any]) -> None:
    print(f"{len(window.all_messages)} messages in {(window.end - window.start).total_seconds():g} seconds")
    for message in window.all_messages:
        print(" ", message.queue, message.data)
    # The window is acknowledged when the handler returns, and comes again if it raises.


def main() -> None:
    with Queen() as queen:
        queen.stream("first-activity").delete()
        for name in ("first-events", "first-views"):
            queen.queue(name).delete()
            queen.queue(name).create()  # a stream's sources must exist

        # A window is [start, end), aligned to 1970; grace is how long after its end it still takes messages.
        (
            queen.stream("first-activity", "analytics")
            .sources(["first-events", "first-views"])
            .tumbling_time(2)  # seconds; "2s" is the same
            .grace_period(1)
            .define()
        )

        # What is pushed in one transaction has one time, and so is in one window.
        (
            queen.transaction()
            .queue("first-events").push([{"user": "ann", "action": "login"}])
            .queue("first-views").push([{"user": "ann", "page": "/"}, {"user": "bob", "page": "/tea"}])
            .commit()
        )  # fmt: skip

        # No further message is needed: the window comes when the clock has passed its end and the grace.
        # Without a limit, process() runs until SIGINT or SIGTERM.
        queen.consumer("first-activity", "printer").process(show, limit=1)


if __name__ == "__main__":
    main()
