"""Windowed operations: page views in windows side by side, sensors in windows that overlap."""

from __future__ import annotations

from typing import Any

from queenstream import Pipeline, Queen, Queue, avg, collect_set, count, max_, sliding, tumbling

VIEWS = [("ann", "12:00:00", 30), ("bob", "12:01:00", 10), ("ann", "12:04:00", 50), ("eve", "12:06:00", 5)]
READINGS = [("12:00:00", 20.0, 40.0), ("12:04:00", 22.0, 45.0), ("12:08:00", 27.0, 41.0)]
OVER = {"at": "2026-01-31T14:00:00Z"}  # so late that all before it is over


def page_views() -> Pipeline[Any]:
    return (
        Pipeline("page-views")
        .source(Queue("windowed-user-events"))
        .window(tumbling("5m"), grace="30s", time="at")
        # As data, or as functions: {"$sum": 1} is count(), {"$addToSet": …} is collect_set(…).
        .aggregate(
            {
                "total_views": {"$sum": 1},
                "unique_users": {"$addToSet": "user_id"},
                "avg_session_duration": {"$avg": "session_duration"},
            }
        )
        .to(Queue("windowed-page-view-metrics"))
    )


def real_time_metrics() -> Pipeline[Any]:
    return (
        Pipeline("real-time-metrics")
        .source(Queue("windowed-sensor-data"))
        .window(sliding("10m", "5m"), grace="30s", time="at")
        .aggregate(
            readings=count(),
            avg_temperature=avg("temperature"),
            max_humidity=max_("humidity"),
            rooms=collect_set("room"),
        )
        .to(show)
    )


def show(row: dict[str, Any]) -> None:
    span = f"{row['window_start']:%H:%M} to {row['window_end']:%H:%M}"
    print(f"{span}: {row['avg_temperature']:g} degrees, humidity up to {row['max_humidity']:g}")


def main() -> None:
    with Queen() as queen:
        for name in ("windowed-user-events", "windowed-sensor-data", "windowed-page-view-metrics"):
            queen.queue(name).delete()
        queen.queue("windowed-user-events").push(
            [
                {"user_id": user, "at": f"2026-01-31T{time}Z", "session_duration": seconds}
                for user, time, seconds in VIEWS
            ]
            + [OVER]
        )
        queen.queue("windowed-sensor-data").push(
            [
                {"at": f"2026-01-31T{time}Z", "temperature": degrees, "humidity": humidity, "room": "hall"}
                for time, degrees, humidity in READINGS
            ]
            + [OVER]
        )

        page_views().run(engine="local", until="caught_up")  # without engine: on Spark
        for message in queen.queue("windowed-page-view-metrics").batch(10).pop():
            row = message.data
            print(f"{row['window_start'][11:16]}: {row['total_views']} views", end=" ")
            print(f"by {sorted(row['unique_users'])}, {row['avg_session_duration']:g} s on average")
        real_time_metrics().run(engine="local", until="caught_up")


if __name__ == "__main__":
    main()
