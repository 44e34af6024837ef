"""When a window cannot be handled: refuse it, put it aside, or let it raise."""

from __future__ import annotations

import logging
from typing import Any

from queenstream import Queen, Window

logging.getLogger("queenstream.client").setLevel(logging.ERROR)  # the failures below are meant


def bill(window: Window[Any]) -> None:
    numbers = window.aggregate(sum=["data.amount"])
    if numbers["sum"]["data.amount"] < 0:
        raise ValueError("the sum is negative")
    print("billed", numbers["sum"]["data.amount"])


def main() -> None:
    with Queen() as queen:
        queen.stream("errors-pairs").delete()
        for name in ("errors-orders", "errors-aside"):
            queen.queue(name).delete()
            queen.queue(name).create()
        stream = queen.stream("errors-pairs", "shop").sources(["errors-orders"])
        stream.count(2).retry_limit(1).define()
        amounts = [1, 2, -9, 4, 5, 6]
        queen.queue("errors-orders").push([{"amount": amount} for amount in amounts])

        # 1. Refuse it. It comes again, with its attempt counted; the others of its key wait behind it.
        def refuse(window: Window[Any]) -> None:
            try:
                bill(window)
            except ValueError as error:
                print("attempt", window.attempt, "refused:", error)
                window.ack(False, error)

        queen.consumer("errors-pairs", "one").process(refuse, limit=3)

        # 2. Put it aside, for a person to look at, and go on. The window's id makes that happen once.
        def put_aside(window: Window[Any]) -> None:
            try:
                bill(window)
            except ValueError as error:
                failed = {"error": str(error), "orders": [message.data for message in window.all_messages]}
                queen.queue("errors-aside").push(failed, transaction_id=window.id)

        queen.consumer("errors-pairs", "two").process(put_aside, limit=3)
        print("aside:", queen.queue("errors-aside").auto_ack().pop()[0].data)

        # 3. Let it raise: the window fails with that error. Past retry_limit it is dead; the others go on.
        done = queen.consumer("errors-pairs", "three").process(bill, limit=4)
        print(f"handled {done.handled}, failed {done.failed}")
        for window in queen.admin.stream_windows("errors-pairs", group="three", state="dead"):
            print("dead:", window.error)


if __name__ == "__main__":
    main()
