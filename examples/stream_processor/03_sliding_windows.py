"""Sliding windows: they overlap, and an event is in each that covers it."""

from __future__ import annotations

from queenstream import StreamProcessor


def main() -> None:
    stream = StreamProcessor("sliding")
    # 30 seconds long, and a new one starts every 10: a moving figure that is renewed often.
    stream.sliding_window(window_size=30.0, slide_interval=10.0)

    for moment in (0.0, 12.0, 25.0, 40.0):
        stream.emit(f"at-{moment:g}", {}, timestamp=moment)

    for window in stream.get_windows():
        print(f"[{window.start:g}, {window.end:g})", [event.id for event in window.events])


if __name__ == "__main__":
    main()
