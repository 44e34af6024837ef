"""Questions about time: the last events, and those between two moments."""

from __future__ import annotations

from datetime import UTC, datetime

from queenstream import StreamProcessor

now = 1_700_000_000.0  # a clock that stands still; without clock=, the stream goes by time.time()


def main() -> None:
    # Only the last events are kept: what no longer fits makes room, and is counted.
    stream = StreamProcessor("time-queries", max_events=50, clock=lambda: now)
    for minutes in range(120, 0, -2):
        stream.emit(f"{minutes}-min-ago", {}, timestamp=now - minutes * 60)
    stream.emit("now", {})

    # By arrival, the oldest first.
    recent = stream.get_recent_events(count=3)
    print([event.id for event in recent])

    # By time. As with windows, the start belongs to it and the end does not.
    start = now - 3600  # the last hour
    end = now
    events = stream.get_events_in_range(start, end)
    print(len(events), events[0].id, events[-1].id)

    # Times may be datetimes, or text; without an end it is all that came since.
    at = datetime.fromtimestamp(now - 200, UTC)
    print([event.id for event in stream.get_events_in_range(at)])
    print([event.id for event in stream.get_events_in_range("2023-11-14T22:05:00Z", at.isoformat())])

    metrics = stream.get_metrics()
    print("kept:", metrics["events_kept"], "evicted:", metrics["events_evicted"])


if __name__ == "__main__":
    main()
