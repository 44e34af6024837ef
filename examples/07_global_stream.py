"""A global stream: one window for all sources and partitions, for numbers about the whole system."""

from __future__ import annotations

import time
from typing import Any

from queenstream import Queen, Window

LOGS = ("global-api-logs", "global-app-logs", "global-db-logs")


def report(window: Window[Any]) -> None:
    total = len(window.all_messages)
    errors = len(window.filter(lambda message: message.data.get("error")).messages)
    print(f"key {window.key}: {total} lines, {errors} errors")


def main() -> None:
    with Queen() as queen:
        queen.stream("global-metrics").delete()
        for name in LOGS:
            queen.queue(name).delete()
            queen.queue(name).create()
        stream = queen.stream("global-metrics", "monitoring").sources(LOGS)
        stream.tumbling_time("2s").grace_period("500ms").define()  # or 2 and 0.5: seconds

        time.sleep(2 - time.time() % 2)  # begin with a fresh window, so that all of it is in one
        for number in range(6):
            api = queen.queue("global-api-logs").partition(f"web-{number % 2}")
            api.push({"path": "/", "error": number == 4})
        queen.queue("global-app-logs").push([{"line": "started"}, {"line": "no disk", "error": True}])
        queen.queue("global-db-logs").push({"line": "checkpoint"})

        queen.consumer("global-metrics", "watch").process(report, limit=1)


if __name__ == "__main__":
    main()
