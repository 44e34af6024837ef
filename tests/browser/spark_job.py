"""A pipeline on Spark for the browser to look at, with a broker of its own and orders that keep coming.

Run as a process: ``python -m tests.browser.spark_job``. It says its broker's address on standard output when
the first batch is in the sink, goes on, and ends when its standard input is closed.
"""

from __future__ import annotations

import os
import sys
import tempfile
import threading
import time
from typing import Any

from queenstream import Pipeline, Queen, Queue, count, sum_, tumbling
from queenstream.spark import session
from queenstream.testing.brokers import TemporaryBrokers

NAME, ORDERS, TOTALS, STEP, KEY = "spark-totals", "orders", "totals", "per customer", "ann"


def totals() -> Pipeline[Any]:
    """What each customer spends in two seconds, by the time in the order."""
    orders = Pipeline(NAME).source(Queue(ORDERS), name="orders").event_time("at")
    parsed = orders.transform("parse", lambda order: {**order, "amount": float(order["amount"])})
    windows = parsed.key_by("customer").window(tumbling("2s"))
    return windows.aggregate(orders=count(), total=sum_("amount"), step_name=STEP).to(
        Queue(TOTALS), name="sink"
    )


def push(queen: Queen, over: threading.Event) -> None:
    """Orders of two customers, until it is over."""
    while not over.wait(0.2):
        at = int(time.time() * 1_000)
        orders = [{"customer": each, "amount": "2.5", "at": at} for each in (KEY, "bob")]
        queen.queue(ORDERS).push(orders)


def main() -> None:
    """Run it."""
    over = threading.Event()
    with (
        TemporaryBrokers() as brokers,
        brokers.start() as broker,
        broker.client() as queen,
        tempfile.TemporaryDirectory() as folder,
    ):
        os.environ["QUEEN_PG"] = broker.database_url
        spark = session(NAME, "local[2]", conf={"spark.sql.shuffle.partitions": "1"})
        pushing = threading.Thread(target=push, args=(queen, over))
        pushing.start()
        try:
            run = totals().start(checkpoint=folder, url=broker.address, interval="1s")
            windows = queen.queue(TOTALS).group("waiting").wait("50s")
            assert any(windows.pop() for _ in range(3)), "no window came within 150 s"
            sys.stdout.write(f"{broker.address}\n")
            sys.stdout.flush()
            sys.stdin.read()
            over.set()  # a query that has nothing to do stops at once
            pushing.join()
            run.stop()
            run.wait(60)
        finally:
            over.set()
            pushing.join()
            spark.stop()


if __name__ == "__main__":
    main()
