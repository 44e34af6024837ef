"""Demo traffic: a shop's orders, clicks and fridges, two groups of consumers, sums by window.

Run by ``queen up --demo`` as a process of its own: ``python -m queenstream.cli.demo.run ADDRESS``. It speaks
plain HTTP, so it is also the shortest example of the contract. What is unusual in it is planted
(``traffic``), for the pipeline beside it to find (``pipeline``).
"""

from __future__ import annotations

import http.client
import json
import os
import signal
import sys
import threading
from typing import Any
from urllib.parse import urlsplit

from queenstream.cli.demo.traffic import (
    ANOMALIES,
    CLICKS,
    MATCHES,
    ORDERS,
    READINGS,
    REVENUE,
    Traffic,
)

TICK_SECONDS = 0.1
FAILING = 0.01  # of the orders cannot be billed, and end among the dead letters
STREAM = "demo.sales"


class Broker:
    """The broker's HTTP interface, over one connection."""

    def __init__(self, address: str) -> None:
        parts = urlsplit(address)
        self._connection = http.client.HTTPConnection(parts.hostname or "127.0.0.1", parts.port, timeout=30)

    def call(self, method: str, path: str, body: Any = None) -> Any:
        payload = None if body is None else json.dumps(body)
        self._connection.request(method, path, payload)
        response = self._connection.getresponse()
        text = response.read()
        if response.status >= 400:
            raise OSError(f"{method} {path}: {response.status} {text.decode()}")
        return json.loads(text) if text else None


def configure(address: str) -> None:
    """Make the queues, so that the stream and the pipeline find them."""
    broker = Broker(address)
    # An hour of traffic is enough to look at; without a ttl, messages are kept for good.
    options = {"leaseTime": 30, "retryLimit": 2, "retryDelay": 2000, "ttl": 3600}
    for queue in (ORDERS, CLICKS, READINGS, STREAM, REVENUE, ANOMALIES, MATCHES):
        body = {"queue": queue, "namespace": "demo", "options": options}
        broker.call("POST", "/api/v1/configure", body)


def produce(address: str, stop: threading.Event) -> None:
    """Push what happens. Each customer, user and fridge is a partition, so theirs stays in order."""
    broker = Broker(address)
    traffic = Traffic()
    ticks = 0
    while not stop.wait(TICK_SECONDS):
        ticks += 1  # not the clock: after a pause nothing is made up for
        items = traffic.until(ticks * TICK_SECONDS)
        if items:
            broker.call("POST", "/api/v1/push", {"items": items})


def consume(address: str, stop: threading.Event, group: str, failing: float) -> None:
    """Take orders of one customer at a time, and acknowledge them."""
    broker = Broker(address)
    while not stop.is_set():
        path = f"/api/v1/pop/queue/{ORDERS}?consumerGroup={group}&batch=20&wait=true&timeout=5000"
        popped = broker.call("GET", path)
        if popped is None:
            continue
        acks = []
        for message in popped["messages"]:
            bad = message["data"]["order"] % round(1 / failing) == 0 if failing else False
            acks.append(
                {
                    "transactionId": message["transactionId"],
                    "partitionId": message["partitionId"],
                    "leaseId": message["leaseId"],
                    "status": "failed" if bad else "completed",
                    "error": "the card was declined" if bad else None,
                }
            )
        broker.call("POST", "/api/v1/ack/batch", {"consumerGroup": group, "acknowledgments": acks})


def add_up(address: str, stop: threading.Event) -> None:
    """Take each customer's orders of ten seconds as one window, add them up, and push the sum."""
    broker = Broker(address)
    window = {"window_duration_ms": 10_000, "window_grace_period_ms": 1000, "partitioned": True}
    definition = {"name": STREAM, "namespace": "demo", "source_queue_names": [ORDERS], **window}
    broker.call("POST", "/api/v1/stream/define", definition)
    while not stop.is_set():
        polled = broker.call(
            "POST",
            "/api/v1/stream/poll",
            {"streamName": STREAM, "consumerGroup": "totals", "timeout": 5000},
        )
        if polled is None:
            continue
        taken = polled["window"]
        total = round(sum(message["data"]["amount"] for message in taken["messages"]), 2)
        result = {"customer": taken["key"], "from": taken["start"], "total": total}
        item = {"queue": STREAM, "partition": taken["key"], "transactionId": taken["id"], "payload": result}
        broker.call("POST", "/api/v1/push", {"items": [item]})
        done = {"windowId": taken["id"], "leaseId": taken["leaseId"], "success": True}
        broker.call("POST", "/api/v1/stream/ack", done)


def main() -> None:
    """Send traffic until a signal comes or the broker goes away."""
    address = sys.argv[1]
    parent = os.getppid()
    stop = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stop.set())
    _quietly(configure, stop, address)
    jobs = ((produce, ()), (consume, ("billing", FAILING)), (consume, ("mailing", 0.0)), (add_up, ()))
    for job, more in jobs:
        threading.Thread(target=_quietly, args=(job, stop, address, stop, *more), daemon=True).start()
    while not stop.wait(1) and os.getppid() == parent:
        pass


def _quietly(job: Any, stop: threading.Event, *args: Any) -> None:
    """When the broker stops, so does the demo."""
    try:
        job(*args)
    except (OSError, http.client.HTTPException) as error:
        if not stop.is_set():
            sys.stderr.write(f"demo traffic ended: {error}\n")
            stop.set()


if __name__ == "__main__":
    main()
