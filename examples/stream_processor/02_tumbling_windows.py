"""Tumbling windows: side by side, each event in exactly one."""

from __future__ import annotations

from queenstream import StreamProcessor


def main() -> None:
    stream = StreamProcessor("tumbling")
    stream.tumbling_window(window_size=10.0)  # seconds; "10s" does as well

    # Events have their own time. Without a timestamp it is now, and 100 events 0.1 s apart would take 10 s.
    for i in range(100):
        stream.emit(f"event-{i}", {"value": i}, timestamp=1_700_000_004.0 + i * 0.1)

    # Windows are aligned to 1970, not to the first event: so there are two.
    for window in stream.get_windows():
        agg = stream.aggregate_window(
            window,
            {
                "count": lambda events: len(events),
                "sum": lambda events: sum(e.data["value"] for e in events),
            },
        )
        print(f"Window from {window.start:.0f}: count={agg['count']}, sum={agg['sum']}")


if __name__ == "__main__":
    main()
