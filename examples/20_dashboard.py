"""A dashboard: views, visitors, the pages seen most and how long, minute by minute."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

from queenstream import Queen, Window

VIEWS = [
    ("12:00:05", "ann", "/", 10),
    ("12:00:20", "bob", "/tea", 40),
    ("12:00:21", "ann", "/tea", 25),
    ("12:00:59", "cem", "/tea", 5),
    ("12:01:10", "ann", "/cart", 60),
]
latest: dict[str, Any] = {}  # stands for the store that the page reads from


def update(window: Window[Any]) -> None:
    pages = Counter(message.data["page"] for message in window.all_messages)
    latest.update(
        minute=f"{window.start:%H:%M}",
        views=len(window.all_messages),
        visitors=len(window.group_by("data.user")),
        top=pages.most_common(2),
        seconds=window.aggregate(avg=["data.seconds"])["avg"]["data.seconds"],
    )
    print(json.dumps(latest))


def main() -> None:
    with Queen() as queen:
        queen.stream("dashboard-minutes").delete()
        queen.queue("dashboard-views").delete()
        queen.queue("dashboard-views").create()
        stream = queen.stream("dashboard-minutes", "analytics").sources(["dashboard-views"])
        stream.tumbling_time(60).grace_period(10).event_time("data.at").idle_timeout(1).define()
        queen.queue("dashboard-views").push(
            [
                {"at": f"2026-01-31T{time}Z", "user": user, "page": page, "seconds": seconds}
                for time, user, page, seconds in VIEWS
            ]
        )
        queen.consumer("dashboard-minutes", "dashboard").process(update, limit=2)


if __name__ == "__main__":
    main()
