"""From a consumer of messages to a consumer of windows: the same work, before and after."""

from __future__ import annotations

from typing import Any

from queenstream import Messages, Queen, Window


def main() -> None:
    def process(data: Any) -> None:
        print("processed", data["n"])

    with Queen() as queen:
        queen.stream("migrate-seconds").delete()
        events = queen.queue("migrate-events")
        events.delete()
        events.create()
        events.push([{"n": n} for n in range(3)])

        # Before: batches by number, as they happen to come, acknowledged by hand.
        def take(messages: Messages[Any]) -> None:
            for message in messages:
                process(message.data)
            messages.ack()

        events.auto_ack(False).batch(100).limit(3).consume(take)

        # After: batches by time. A stream reads its sources as a group of its own: the consumers of the queue
        # go on, and neither takes anything from the other. Leases, retries and order are as before.
        stream = queen.stream("migrate-seconds", "docs").sources(["migrate-events"])
        stream.tumbling_time(1).grace_period(0).define()

        def take_window(window: Window[Any]) -> None:
            for message in window.all_messages:
                process(message.data)

        queen.consumer("migrate-seconds", "processor").process(take_window, limit=1)


if __name__ == "__main__":
    main()
