"""Readings of many sensors, seen twice: the building as a whole, and each device on its own."""

from __future__ import annotations

from typing import Any

from queenstream import Queen, Window

CLIMATE = ("sensors-temperature", "sensors-humidity")
SOURCES = (*CLIMATE, "sensors-pressure", "sensors-status")
READINGS = [
    ("temperature", "hall", 20.0),
    ("temperature", "hall", 21.0),
    ("temperature", "oven", 88.0),
    ("humidity", "hall", 40.0),
    ("humidity", "oven", 12.0),
    ("pressure", "oven", 1013.0),
    ("pressure", "oven", 1019.0),
    ("status", "oven", "door open"),
]
lines: list[str] = []


def summary(window: Window[Any], what: str) -> str:
    """Average, least and greatest of one kind of reading; of none there are none."""
    kind = window.reset().filter(lambda message: message.queue == f"sensors-{what}")
    found = kind.aggregate(avg=["data.value"], min=["data.value"], max=["data.value"])
    if not kind.messages:
        return f"no {what}"
    average, least, most = (found[name]["data.value"] for name in ("avg", "min", "max"))
    return f"{what} {average:g} ({least:g} to {most:g}, {len(kind.messages)} readings)"


def building(window: Window[Any]) -> None:
    print("building:", summary(window, "temperature"), summary(window, "humidity"), sep="\n  ")


def device(window: Window[Any]) -> None:
    status = [message.data["value"] for message in window.messages if message.queue == "sensors-status"]
    temperature = window.filter(lambda message: message.queue == "sensors-temperature")
    hottest = temperature.aggregate(max=["data.value"])["max"]["data.value"]  # None, if nothing was measured
    health = "critical" if hottest is not None and hottest > 80 else "good"
    parts = [
        summary(window, "temperature"),
        summary(window, "pressure"),
        status[-1] if status else "no status",
    ]
    lines.append(f"{window.key} is {health}: {', '.join(parts)}")


def main() -> None:
    with Queen() as queen:
        for name in ("sensors-building", "sensors-devices"):
            queen.stream(name).delete()
        for name in SOURCES:
            queen.queue(name).delete()
            queen.queue(name).create()
        # Half a minute for readings that the network held up.
        whole = queen.stream("sensors-building", "iot").sources(CLIMATE).tumbling_time(60).grace_period(30)
        whole.event_time("data.at").idle_timeout(2).define()
        each = queen.stream("sensors-devices", "iot").sources(SOURCES).tumbling_time(60).grace_period(15)
        each.partitioned().event_time("data.at").idle_timeout(2).define()

        for second, (what, name, value) in reversed(list(enumerate(READINGS))):  # they come in any order
            reading = {"value": value, "at": f"2026-01-31T12:00:{second:02}Z"}
            queen.queue(f"sensors-{what}").partition(name).push(reading)

        queen.consumer("sensors-building", "climate").process(building, limit=1)
        queen.consumer("sensors-devices", "health").process(device, limit=2)
        print("\n".join(sorted(lines)))


if __name__ == "__main__":
    main()
