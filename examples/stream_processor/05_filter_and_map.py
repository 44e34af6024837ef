"""Several filters and maps in a row; what one of them cannot take is counted, and the stream goes on."""

from __future__ import annotations

import logging
from dataclasses import replace

from queenstream import Event, StreamProcessor

logging.getLogger("queenstream.processor").setLevel(logging.ERROR)  # the failure below is meant


def enrich(event: Event) -> Event:
    event.data["processed_at"] = 1_700_000_000.0  # time.time(), if this need not print the same every day
    event.data["double"] = event.data.get("value", 0) * 2
    return event


def by_user(event: Event) -> Event:
    # Data may be changed in place; for the rest of an event one makes a copy.
    return replace(event, key=event.data["user"])


def rounded(event: Event) -> Event:
    event.data["double"] = round(event.data["double"], -2)
    return event


def without_type(event: Event) -> Event:
    del event.data["type"]
    return event


def main() -> None:
    stream = StreamProcessor("filter-and-map")
    stream.filter(lambda e: e.data.get("type") == "important")
    stream.filter(lambda e: e.data.get("value", 0) > 50)
    stream.map(enrich)
    stream.map(by_user).map(rounded).map(without_type)  # every step gives the stream back
    stream.sink(lambda e: print(e.key, e.data))

    stream.emit("e1", {"type": "important", "value": 140, "user": "alice"})
    stream.emit("e2", {"type": "important", "value": 10, "user": "alice"})
    stream.emit("e3", {"type": "other", "value": 300, "user": "bob"})
    stream.emit("e4", {"type": "important", "value": 70})  # by_user finds no user
    stream.emit("e5", {"type": "important", "value": 60, "user": "bob"})

    metrics = stream.get_metrics()
    print("filtered:", metrics["events_filtered"], "failed:", metrics["events_failed"])
    print(metrics["last_error"])


if __name__ == "__main__":
    main()
