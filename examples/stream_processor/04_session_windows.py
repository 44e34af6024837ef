"""Session windows: the events of one key that follow each other closely, however long that lasts."""

from __future__ import annotations

from queenstream import StreamProcessor

MINUTE = 60.0


def main() -> None:
    stream = StreamProcessor("sessions")
    stream.session_window(timeout=300.0)  # five minutes of silence end a session

    stream.emit("e1", {"value": 1}, key="user-123", timestamp=0.0)
    stream.emit("e2", {"value": 2}, key="user-123", timestamp=2 * MINUTE)  # the same session
    stream.emit("e3", {"value": 3}, key="user-123", timestamp=8 * MINUTE)  # six minutes later: a new one
    stream.emit("e4", {"value": 4}, key="user-456", timestamp=2 * MINUTE)  # other keys have their own
    show(stream)

    # An event that was on its way for long may show that two sessions were one.
    stream.emit("e5", {"value": 5}, key="user-123", timestamp=5 * MINUTE)
    print("after e5:")
    show(stream)


def show(stream: StreamProcessor) -> None:
    for window in stream.get_windows():
        minutes = f"{window.start / MINUTE:g} to {window.end / MINUTE:g} min"
        print(window.key, minutes, [event.id for event in window.events])


if __name__ == "__main__":
    main()
