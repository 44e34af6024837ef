"""The same steps as a pipeline, which keeps its place, survives a crash and runs on a cluster."""

from __future__ import annotations

from typing import Any

from queenstream import Event, StreamProcessor
from queenstream.core.aggregates import count, sum_
from queenstream.pipeline.endpoints import Memory

CLICKS: list[dict[str, Any]] = [
    {"id": f"c{i}", "data": {"user": "ann" if i % 3 else "bob", "ms": 10 * i}, "timestamp": 4.0 * i}
    for i in range(8)
]


def by_user(event: Event) -> Event:
    return Event(event.id, event.data, key=event.data["user"], timestamp=event.timestamp)


def main() -> None:
    stream = StreamProcessor("clicks")
    stream.filter(lambda e: e.data["ms"] > 0).map(by_user, name="by-user").session_window("10s")

    # First in this process, as it comes.
    for click in CLICKS:
        stream.emit(click["id"], click["data"], timestamp=click["timestamp"])
    for window in stream.get_windows():
        sums = stream.aggregate_window(window, {"clicks": count(), "ms": sum_("data.ms")})
        print(window.key, f"[{window.start:g}, {window.end:g})", sums)

    # Then as a pipeline. A record of its source has what emit() takes: id, data, key and timestamp. With
    # Queue("clicks") instead of Memory, and without engine="local", this is a job for Spark.
    pipeline = stream.as_pipeline(Memory(CLICKS)).aggregate(clicks=count(), ms=sum_("data.ms")).to(print)
    for node in pipeline.plan().nodes:
        print(node.kind, node.name)
    pipeline.run(engine="local")


if __name__ == "__main__":
    main()
