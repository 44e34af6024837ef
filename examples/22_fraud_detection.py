"""Rules over the last minutes of each user: windows that overlap, and one alert for what several see."""

from __future__ import annotations

from typing import Any

from queenstream import Queen, Window

PAYMENTS = {
    "ann": [("12:01", 20, "Bonn"), ("12:03", 35, "Bonn")],
    "bob": [("12:00", 4000, "Rome"), ("12:04", 7000, "Rome")],
    "cem": [("12:02", 5, "Oslo"), ("12:03", 5, "Lima"), ("12:04", 5, "Cairo"), ("12:30", 12_000, "Cairo")],
}


def main() -> None:
    with Queen() as queen:
        queen.stream("fraud-minutes").delete()
        for name in ("fraud-payments", "fraud-alerts"):
            queen.queue(name).delete()
            queen.queue(name).create()

        # A tumbling window would miss what happens around its border. A sliding one does not: a payment is in
        # all windows of five minutes that hold it, one of which starts every minute.
        (
            queen.stream("fraud-minutes", "payments")
            .sources(["fraud-payments"])
            .partitioned()
            .sliding_time("5m", "1m")
            .grace_period("5m")
            .event_time("data.at")
            .idle_timeout(2)
            .define()
        )

        def inspect(window: Window[Any]) -> None:
            total = window.aggregate(sum=["data.amount"])["sum"]["data.amount"]
            places = len(window.group_by("data.place"))
            count = len(window.all_messages)
            if total > 10_000 or places > 2 or count > 20:
                alert = {"user": window.key, "total": total, "places": places, "count": count}
                # Several windows may see it, and a window may come again: the payment that completes it
                # is the alert's transaction id, so it is stored once. A later one makes another alert.
                last = max(window.all_messages, key=lambda message: message.data["at"])
                alert["at"] = last.data["at"]
                alert_id = f"{window.key} {last.transaction_id}"
                queen.queue("fraud-alerts").push(alert, transaction_id=alert_id)

        for user, payments in PAYMENTS.items():
            queen.queue("fraud-payments").partition(user).push(
                [
                    {"amount": amount, "place": place, "at": f"2026-01-31T{time}:00Z"}
                    for time, amount, place in payments
                ]
            )
        done = queen.consumer("fraud-minutes", "detector").process(inspect, concurrency=2, limit=28)
        print("windows:", done.handled)
        alerts = [message.data for message in queen.queue("fraud-alerts").batch(10).auto_ack().pop()]
        for alert in sorted(alerts, key=lambda alert: (alert["user"], alert["at"])):
            print(alert)


if __name__ == "__main__":
    main()
