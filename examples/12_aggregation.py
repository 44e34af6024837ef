"""Aggregate each window: how many requests, how slow, how many failed."""

from __future__ import annotations

from typing import Any

from queenstream import Queen, Window

# (second of the minute before or after 12:01, milliseconds, status)
REQUESTS = [(-50, 20, 200), (-40, 30, 200), (-30, 250, 500), (-1, 20, 200), (0, 40, 200), (5, 60, 404)]


def measure(window: Window[Any]) -> None:
    numbers = window.aggregate(count=True, avg=["data.ms"], percentile={"data.ms": [0.5, 0.95]})
    times = numbers["percentile"]["data.ms"]
    failed = len(window.filter(lambda message: message.data["status"] >= 500).messages)
    print(
        f"{window.start:%H:%M} requests {numbers['count']}, average {numbers['avg']['data.ms']:g} ms, "
        f"median {times[0.5]:g} ms, p95 {times[0.95]:g} ms, error rate {failed / numbers['count']:.0%}"
    )


def main() -> None:
    with Queen() as queen:
        queen.stream("aggregate-minutes").delete()
        queen.queue("aggregate-requests").delete()
        queen.queue("aggregate-requests").create()

        # The requests carry their own time, so windows go by that, not by when a message was stored. A window
        # comes when a later time has been seen; the last ones, when nothing has come for the idle timeout.
        stream = queen.stream("aggregate-minutes", "monitoring").sources(["aggregate-requests"])
        stream.tumbling_time(60).grace_period(0).event_time("data.at").idle_timeout(1).define()

        minute = 1_769_860_860_000  # 2026-01-31T12:01:00Z in milliseconds
        queen.queue("aggregate-requests").push(
            [{"at": minute + second * 1000, "ms": ms, "status": status} for second, ms, status in REQUESTS]
        )
        queen.consumer("aggregate-minutes", "metrics").process(measure, limit=2)


if __name__ == "__main__":
    main()
