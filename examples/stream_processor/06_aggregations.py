"""Aggregates of a window: by functions of its events, or by those that all of Queenstream has."""

from __future__ import annotations

from queenstream import StreamProcessor
from queenstream.core.aggregates import avg, count, max_, percentile, stddev, sum_


def main() -> None:
    stream = StreamProcessor("aggregations").tumbling_window(60.0)
    for value in range(1, 101):
        stream.emit(f"event-{value}", {"value": value}, timestamp=value / 10)

    # A function gets the events, by time.
    aggregators = {
        "count": lambda events: len(events),
        "sum": lambda events: sum(e.data.get("value", 0) for e in events),
        "avg": lambda events: sum(e.data.get("value", 0) for e in events) / len(events),
        "max": lambda events: max((e.data.get("value", 0) for e in events), default=0),
        "min": lambda events: min((e.data.get("value", 0) for e in events), default=0),
    }
    window = stream.get_windows()[0]
    results = stream.aggregate_window(window, aggregators)
    print(results["count"])
    print(results["avg"])
    print(results["sum"], results["max"], results["min"])

    # An aggregate names a field. It passes over what is no number, and is the same in windows and pipelines.
    stream.emit("broken", {"value": None}, timestamp=1.0)
    window = stream.get_windows()[0]
    print(stream.aggregate_window(window, {"n": count(), "total": sum_("value"), "mean": avg("value")}))
    print(stream.aggregate_window(window, {"max": max_("value"), "p95": percentile("value", 0.95)}))
    print(round(stream.aggregate_window(window, {"spread": stddev("value")})["spread"], 3))


if __name__ == "__main__":
    main()
