"""A stream in this process: events are filtered, changed and given to a sink as they are emitted."""

from __future__ import annotations

from queenstream import Event, StreamProcessor

COUNTRIES = {"alice": "FR", "bob": "DE"}


def enrich_event(event: Event) -> Event:
    event.data["country"] = COUNTRIES.get(event.data["user"], "unknown")
    return event


def main() -> None:
    stream = StreamProcessor("my-stream")

    # Steps run in the order in which they are added.
    stream.filter(lambda e: e.data.get("value", 0) > 100)  # only high values
    stream.map(enrich_event)
    stream.sink(lambda e: print(e.data))

    # No server, no thread: emit() takes the event through the steps, here and now.
    stream.emit("event-1", {"value": 150, "user": "alice"})
    stream.emit("event-2", {"value": 200, "user": "bob"})
    stream.emit("event-3", {"value": 50, "user": "carol"})


if __name__ == "__main__":
    main()
