"""What a stream says of itself, how old windows go, and what becomes of an event that comes after that."""

from __future__ import annotations

from queenstream import LateEvent, StreamProcessor

now = 0.0


def report(late: LateEvent) -> None:
    window = f"[{late.window_start:g}, {late.window_end:g})"
    print(f"{late.event.id} is {late.lateness:g} s late for {window}")


def main() -> None:
    global now
    stream = StreamProcessor("monitoring", clock=lambda: now).tumbling_window(10.0).late(report)
    stream.filter(lambda e: e.data["value"] % 4 != 0)
    for now in range(35):
        stream.emit(f"event-{now}", {"value": now})

    metrics = stream.get_metrics()
    print("received:", metrics["events_received"])
    print("processed:", metrics["events_processed"])
    print("filtered:", metrics["events_filtered"])
    print("windows:", metrics["windows_created"])
    print("active:", [window.start for window in stream.get_windows(active_only=True)])

    # A window stays until it is cleared, so that nothing is lost between its end and your reading it.
    removed = stream.clear_old_windows()
    print(f"Removed {removed} old windows")

    # For a cleared window it is too late; the sinks still get the event.
    stream.emit("straggler", {"value": 1}, timestamp=7.0)
    print("late:", stream.get_metrics()["events_late"])

    # Events, windows and figures go; the steps stay.
    stream.reset()
    print("after reset:", stream.get_metrics()["events_received"], stream.get_windows())


if __name__ == "__main__":
    main()
