"""Windows that take longer than their lease: it is renewed meanwhile, and who loses it is told."""

from __future__ import annotations

import time
from typing import Any

from queenstream import Queen, Window
from queenstream.errors import LeaseLost


def slow(window: Window[Any]) -> None:
    for message in window.all_messages:
        if window.lost:  # another may have the window by now: what we do would be done twice
            return
        time.sleep(1.2)
        print("worked on", message.data["n"])


def main() -> None:
    with Queen() as queen:
        queen.stream("long-work").delete()
        queen.queue("long-jobs").delete()
        queen.queue("long-jobs").create()
        stream = queen.stream("long-work", "docs").sources(["long-jobs"])
        stream.count(2).lease_timeout(2).define()
        queen.queue("long-jobs").push([{"n": n} for n in range(4)])
        consumer = queen.consumer("long-work", "worker")

        # 2.4 seconds of work under a lease of two: process() and windows() renew it, at a third of its time.
        done = consumer.process(slow, limit=1)
        print("handled", done.handled, "lost", done.lost)

        # Who polls by hand renews by hand, and before a long step for as long as that may take.
        window = consumer.poll(wait="10s")
        assert window is not None
        window.renew(5_000)
        time.sleep(2.2)
        print("held:", window.renew(100))

        # The lease ends. Whoever comes next gets the window, and the acknowledgement of the first is refused.
        again = consumer.poll(wait="10s")
        assert again is not None
        print("attempt", again.attempt)
        try:
            window.ack()
        except LeaseLost:
            print("too late, and nothing has changed")
        again.ack()


if __name__ == "__main__":
    main()
