"""State by key: sessions that span runs, kept in a checkpoint with the places in the sources."""

from __future__ import annotations

import tempfile
from typing import Any

from queenstream import Pipeline, Queen, Queue
from queenstream.pipeline.state import State


def session(user: str, event: dict[str, Any], state: State) -> dict[str, Any] | None:
    current = state.get("current_session", {"user_id": user, "start_time": None, "events": 0})
    if event["event_type"] == "session_start":
        current = {"user_id": user, "start_time": event["timestamp"], "events": 0}
    current["events"] += 1
    if event["event_type"] == "session_end":
        state.clear()
        return {**current, "duration": event["timestamp"] - current["start_time"]}
    state.set("current_session", current)
    return None


def sessions() -> Pipeline[Any]:
    return (
        Pipeline("user-sessions")
        .source(Queue("state-events"))
        .key_by("user_id")
        .stateful(session, name="sessions")
        .to(print)
    )


def event(user: str, kind: str, timestamp: int) -> dict[str, Any]:
    return {"user_id": user, "event_type": kind, "timestamp": timestamp}


def main() -> None:
    with Queen() as queen, tempfile.TemporaryDirectory() as folder:
        queen.queue("state-events").delete()
        events = queen.queue("state-events")
        events.push([event("ann", "session_start", 100), event("bob", "session_start", 110)])
        events.push([event("ann", "click", 120), event("bob", "session_end", 150)])
        sessions().run(engine="local", until="caught_up", checkpoint=folder)

        print("a second run goes on where the first one ended")
        events.push([event("ann", "session_end", 400)])
        sessions().run(engine="local", until="caught_up", checkpoint=folder)


if __name__ == "__main__":
    main()
