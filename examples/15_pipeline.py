"""From window to queue without a gap: results are pushed once, and are the source of the next stream."""

from __future__ import annotations

from typing import Any

from queenstream import Queen, Window


def main() -> None:
    with Queen() as queen:
        for name in ("pipeline-seconds", "pipeline-summary"):
            queen.stream(name).delete()
        for name in ("pipeline-readings", "pipeline-averages"):
            queen.queue(name).delete()
            queen.queue(name).create()
        first = queen.stream("pipeline-seconds", "plant").sources(["pipeline-readings"])
        first.tumbling_time(10).grace_period(0).event_time("data.at").idle_timeout(1).define()
        second = queen.stream("pipeline-summary", "plant").sources(["pipeline-averages"])
        # No idle timeout: nothing closes a minute but an average of the next one.
        second.tumbling_time(60).grace_period(0).event_time("data.at").define()

        def condense(window: Window[Any]) -> None:
            numbers = window.aggregate(count=True, avg=["data.value"], max=["data.value"])
            result = {
                "at": window.start,
                "avg": numbers["avg"]["data.value"],
                "max": numbers["max"]["data.value"],
                "count": numbers["count"],
            }
            # The result is stored and the window acknowledged, or neither. A transaction can be repeated, as
            # after an answer that was lost: nothing is stored twice.
            transaction = queen.transaction().ack(window).queue("pipeline-averages").push(result)
            for _ in range(2):
                _, pushed = transaction.commit().results
                print(f"{window.start:%H:%M:%S}", pushed["status"])

        def summarize(window: Window[Any]) -> None:
            numbers = window.aggregate(sum=["data.count"], max=["data.max"])
            print(f"{len(window.messages)} averages of {numbers['sum']['data.count']} readings", end=", ")
            print("highest", numbers["max"]["data.max"])

        readings = [("00:01", 3), ("00:02", 5), ("00:11", 8), ("00:19", 2), ("01:00", 4)]
        queen.queue("pipeline-readings").push(
            [{"value": value, "at": f"2026-01-31T12:{time}Z"} for time, value in readings]
        )
        queen.consumer("pipeline-seconds", "condenser").process(condense, limit=3)
        queen.consumer("pipeline-summary", "reporter").process(summarize, limit=1)


if __name__ == "__main__":
    main()
