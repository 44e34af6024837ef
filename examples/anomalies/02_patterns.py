"""A pattern detector: more than ten clicks in thirty seconds, for each user; to a callback and to a file."""

import json
from pathlib import Path
from typing import Any

from queenstream import Files, Memory, Pipeline

# Ann clicks twice a second, Bob every five seconds; Cid logs in and buys nothing.
EVENTS: list[dict[str, Any]] = [
    *({"user_id": "ann", "at": n * 500, "action": "click"} for n in range(20)),
    *({"user_id": "bob", "at": n * 5_000, "action": "click"} for n in range(20)),
    {"user_id": "cid", "at": 1_000, "action": "login"},
    {"user_id": "cid", "at": 2_000, "action": "view"},
]


def alert(match: dict[str, Any]) -> None:
    print(f"{match['pattern']}: {match['key']}, from {match['start']:%M:%S} to {match['end']:%M:%S}")


(
    Pipeline("user-behaviour-patterns")
    .source(Memory(sorted(EVENTS, key=lambda event: event["at"])))
    .event_time("at")
    .patterns(
        rapid_clicks="COUNT(*) > 10 IN 30s WHERE action = 'click'",
        left="login THEN NOT buy WITHIN 1m",
        by="user_id",
        event="action",
        events=3,
    )
    .to(alert, Files("matches", format="ndjson"))
    .run(engine="local")
)
for file in sorted(Path("matches").iterdir()):
    for line in file.read_text().splitlines():
        match = json.loads(line)
        print(f"in the file: {match['pattern']} of {match['key']}, {len(match['events'])} events")
