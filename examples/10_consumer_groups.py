"""Consumer groups: each gets all windows of a stream, and has its own progress."""

from __future__ import annotations

from typing import Any

from queenstream import Queen, Window


def main() -> None:
    archive: list[dict[str, Any]] = []

    def update_dashboard(window: Window[Any]) -> None:
        print("dashboard:", window.aggregate(count=True, sum=["data.amount"]))

    def keep(window: Window[Any]) -> None:
        archive.extend(message.data for message in window.all_messages)
        print("archive:", [record["amount"] for record in archive])

    with Queen() as queen:
        queen.stream("groups-sales").delete()
        queen.queue("groups-orders").delete()
        queen.queue("groups-orders").create()
        stream = queen.stream("groups-sales", "shop").sources(["groups-orders"])
        stream.tumbling_time(1).grace_period(0).define()
        queen.queue("groups-orders").push([{"amount": 5}, {"amount": 12}])

        # Two groups: the same window comes to each of them.
        queen.consumer("groups-sales", "dashboard").process(update_dashboard, limit=1)
        queen.consumer("groups-sales", "archiver").process(keep, limit=1)

        # One that is new starts at the first message, unless it says otherwise.
        late = queen.consumer("groups-sales", "latecomer", subscription_from="now")
        print("latecomer:", late.poll(wait=0))
        for group in sorted(
            queen.admin.stream_groups("groups-sales"), key=lambda group: group.consumer_group
        ):
            print(f"{group.consumer_group}: {group.lag} windows to come")


if __name__ == "__main__":
    main()
