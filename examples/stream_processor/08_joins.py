"""A join: events of two streams with the same value in a field, not too far apart in time."""

from __future__ import annotations

from queenstream import StreamProcessor


def main() -> None:
    stream1 = StreamProcessor("stream-1")
    stream2 = StreamProcessor("stream-2")

    stream1.emit("e1", {"user_id": "alice", "action": "login"}, timestamp=0.0)
    stream2.emit("e2", {"user_id": "alice", "location": "NYC"}, timestamp=3.0)
    stream1.emit("e3", {"user_id": "bob", "action": "login"}, timestamp=10.0)
    stream2.emit("e4", {"user_id": "bob", "location": "Rome"}, timestamp=95.0)  # too late for e3
    stream1.emit("e5", {"user_id": "bob", "action": "logout"}, timestamp=140.0)

    joined = stream1.join_streams(stream2, join_key="user_id", window_seconds=60.0)
    for event1, event2 in joined:
        print(f"User {event1.data['user_id']}: {event1.data['action']} from {event2.data['location']}")


if __name__ == "__main__":
    main()
