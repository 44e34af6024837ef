"""Seek: let a group see windows again from a time on, or jump ahead."""

from __future__ import annotations

from typing import Any

from queenstream import Queen, Window


def main() -> None:
    seen: list[str] = []

    def note(window: Window[Any]) -> None:
        seen.append(f"{window.start:%H:%M} {[message.data['n'] for message in window.all_messages]}")

    with Queen() as queen:
        queen.stream("seek-minutes").delete()
        queen.queue("seek-events").delete()
        queen.queue("seek-events").create()
        stream = queen.stream("seek-minutes", "docs").sources(["seek-events"])
        stream.tumbling_time(60).grace_period(0).event_time("data.at").idle_timeout(1).define()
        times = ["12:00:10", "12:00:50", "12:01:30", "12:02:00", "12:05:05"]
        queen.queue("seek-events").push(
            [{"n": n, "at": f"2026-01-31T{time}Z"} for n, time in enumerate(times)]
        )
        consumer = queen.consumer("seek-minutes", "reader")
        consumer.process(note, limit=4)
        print("first time:", *seen)

        # Back. The time is moved down to a window's start, here 12:01:00. Windows are stored: the same ones
        # come, with the same messages.
        seen.clear()
        consumer.seek("2026-01-31T12:01:30Z")
        consumer.process(note, limit=3)
        print("again from 12:01:", *seen)

        # A group that does not exist yet can be placed, too.
        seen.clear()
        newcomer = queen.consumer("seek-minutes", "newcomer")
        newcomer.seek("2026-01-31T12:05:00Z")
        newcomer.process(note, limit=1)
        print("newcomer:", *seen)


if __name__ == "__main__":
    main()
