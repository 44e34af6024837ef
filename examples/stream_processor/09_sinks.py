"""Many sinks: each gets every event, and one that is broken does not keep it from the others."""

from __future__ import annotations

import logging
import queue
import sqlite3
from collections import Counter

from queenstream import Event, StreamProcessor

logging.getLogger("queenstream.processor").setLevel(logging.ERROR)  # the failure below is meant

database = sqlite3.connect(":memory:")
messages: queue.Queue[str] = queue.Queue()
dashboard: Counter[str] = Counter()


def save_to_db(event: Event) -> None:
    database.execute("insert into events values (?, ?)", (event.id, event.data["value"]))


def send_to_queue(event: Event) -> None:
    messages.put(event.id)


def update_dashboard(event: Event) -> None:
    dashboard[event.data["user"]] += event.data["value"]


def send_to_pager(event: Event) -> None:
    raise ConnectionError(f"nobody takes {event.id}")


def main() -> None:
    database.execute("create table events (id text, value int)")

    stream = StreamProcessor("sinks")
    stream.sink(lambda e: print(e.data))
    stream.sink(save_to_db)
    stream.sink(send_to_pager, name="pager")
    stream.sink(send_to_queue)
    stream.sink(update_dashboard)

    stream.emit("e1", {"user": "alice", "value": 5})
    stream.emit("e2", {"user": "bob", "value": 7})
    stream.emit("e3", {"user": "alice", "value": 1})

    print("saved:", database.execute("select count(*), sum(value) from events").fetchone())
    print("sent:", [messages.get() for _ in range(messages.qsize())])
    print("dashboard:", dict(dashboard))
    print("errors:", stream.get_metrics()["errors_by_step"])


if __name__ == "__main__":
    main()
