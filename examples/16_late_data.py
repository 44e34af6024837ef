"""Late data: what comes within the grace period is in its window; what comes after it is not lost."""

from __future__ import annotations

from typing import Any

from queenstream import Queen, Window


def show(window: Window[Any]) -> None:
    values = [message.data["value"] for message in window.all_messages]
    print(f"{window.start:%H:%M} to {window.end:%H:%M}: {values}")


def main() -> None:
    with Queen() as queen:
        queen.stream("late-minutes").delete()
        readings = queen.queue("late-readings")
        readings.delete()
        readings.create()
        stream = queen.stream("late-minutes", "sensors").sources(["late-readings"])
        stream.tumbling_time(60).grace_period(30).event_time("data.at").define()
        consumer = queen.consumer("late-minutes", "reader")

        # 12:00:00 to 12:01:00  the window
        # 12:01:00 to 12:01:30  grace: it still takes what belongs to it
        # from 12:01:30 on      it is closed, and comes to the consumers
        readings.push({"value": 1, "at": "2026-01-31T12:00:10Z"})
        readings.push({"value": 2, "at": "2026-01-31T12:01:20Z"})
        readings.push({"value": 3, "at": "2026-01-31T12:00:50Z"})  # late, but within the grace
        readings.push({"value": 4, "at": "2026-01-31T12:01:30Z"})  # the time that closes the window
        consumer.process(show, limit=1)

        readings.push({"value": 5, "at": "2026-01-31T12:00:55Z"})  # too late
        readings.push({"value": 6, "at": "2026-01-31T12:02:40Z"})
        consumer.process(show, limit=1)

        # A closed window does not change. What missed it is in the late output, with the reason.
        for late in queen.admin.stream_late("late-minutes"):
            assert late.window is not None
            assert late.lateness_ms is not None
            print(f"missed {late.window.start:%H:%M} by {late.lateness_ms / 1000:g} s: {late.reason}")


if __name__ == "__main__":
    main()
