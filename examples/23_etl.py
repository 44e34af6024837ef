"""Load windows into a database, each exactly once, also when one comes twice."""

from __future__ import annotations

import logging
import sqlite3
from typing import Any

from queenstream import Queen, Window

logging.getLogger("queenstream.client").setLevel(logging.ERROR)  # the failure below is meant


def main() -> None:
    warehouse = sqlite3.connect(":memory:", isolation_level=None)
    warehouse.execute("create table logs (at text, level text, line text)")
    warehouse.execute("create table loaded (window_id text primary key)")

    def load(window: Window[Any]) -> None:
        rows = [
            (message.data["at"], message.data["level"].upper(), message.data["line"].strip())
            for message in window.all_messages
        ]
        # The rows and the window's id in one transaction: either both are there or neither is. So a window
        # that comes again, because we died before it was acknowledged, is known.
        warehouse.execute("begin")
        new = warehouse.execute("insert or ignore into loaded values (?)", (window.id,)).rowcount
        if new:
            warehouse.executemany("insert into logs values (?, ?, ?)", rows)  # one call, not one for each row
        warehouse.execute("commit")
        print(f"{window.start:%H:%M}, attempt {window.attempt}:", len(rows) if new else "is loaded already")
        if window.attempt == 1 and new and len(rows) == 2:
            raise ConnectionError("the program dies here, after the load and before the acknowledgement")

    with Queen() as queen:
        queen.stream("etl-batches").delete()
        queen.queue("etl-logs").delete()
        queen.queue("etl-logs").create()
        stream = queen.stream("etl-batches", "etl").sources(["etl-logs"])
        stream.tumbling_time("10m").grace_period(0).event_time("data.at").idle_timeout(1).define()
        lines = [("12:01", "info", "started "), ("12:09", "warn", " slow"), ("12:12", "info", "stopped")]
        queen.queue("etl-logs").push(
            [{"at": f"2026-01-31T{time}:00Z", "level": level, "line": line} for time, level, line in lines]
        )
        queen.consumer("etl-batches", "loader").process(load, limit=3)

    for row in warehouse.execute("select substr(at, 12, 5), level, line from logs order by at"):
        print(*row)
    warehouse.close()


if __name__ == "__main__":
    main()
