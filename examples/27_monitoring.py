"""What a consumer does, counted by itself and told by the broker; and why no window comes."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Any

from queenstream import Queen, Window

logging.getLogger("queenstream.client").setLevel(logging.ERROR)  # the failure below is meant


@dataclass
class Counters:
    windows: int = 0
    messages: int = 0
    errors: int = 0


def main() -> None:
    counters = Counters()

    def handle(window: Window[Any]) -> None:
        try:
            if window.attempt == 1 and window.all_messages[0].data["n"] == 3:
                raise ConnectionError("the database is busy")
        except ConnectionError:
            counters.errors += 1
            raise
        counters.windows += 1
        counters.messages += len(window.all_messages)

    with Queen() as queen:
        queen.stream("monitor-triples").delete()
        queen.queue("monitor-events").delete()
        queen.queue("monitor-events").create()
        queen.stream("monitor-triples", "docs").sources(["monitor-events"]).count(3).define()
        queen.queue("monitor-events").push([{"n": n} for n in range(11)])

        # Counts of our own; process() gives its own when it ends.
        done = queen.consumer("monitor-triples", "reader").process(handle, limit=3)
        print(counters)
        print(f"handled {done.handled}, failed {done.failed}")

        # What the broker knows of the group. Prometheus has the same at /metrics.
        [group] = queen.admin.stream_groups("monitor-triples")
        print(f"lag {group.lag}, leased {group.leased}, done {group.done}, dead {group.dead}")
        windows = queen.admin.stream("monitor-triples").windows
        print(f"windows: open {windows.open}, closed {windows.closed}")

        # Two messages do not make three. Who wonders where their window is can ask.
        queen.consumer("monitor-triples", "reader").process(handle, limit=1)
        for reason in queen.admin.explain_stream("monitor-triples", group="reader").reasons:
            print(reason.code)
        print("queue:", queen.admin.queue("monitor-events").messages.total, "messages")


if __name__ == "__main__":
    main()
