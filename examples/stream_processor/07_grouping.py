"""Groups and counts over the events that the stream has kept."""

from __future__ import annotations

from queenstream import StreamProcessor


def main() -> None:
    stream = StreamProcessor("grouping")
    for i in range(25):
        user = "alice" if i % 3 else "bob"
        stream.emit(f"event-{i}", {"user": user, "instance_id": f"instance-{i % 6 + 1}"})

    groups = stream.group_by(lambda e: e.data.get("user"))
    for name, events in groups.items():
        print(f"{name}: {len(events)} events")

    print(stream.count_by_key("instance_id"))


if __name__ == "__main__":
    main()
