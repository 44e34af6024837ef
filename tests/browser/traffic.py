"""What goes on at the broker that the browser tests look at: a shop, sensors, and payloads that mean harm.

Run as a process: ``python -m tests.browser.traffic ADDRESS``. It says ``ready`` on standard output when there
is something of everything, goes on with it, and ends when its standard input is closed.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import threading
from datetime import UTC, datetime, timedelta
from typing import Any

import httpx

from queenstream import Pipeline, Queen, Queue, count, sum_, tumbling
from queenstream.cli.demo.run import STREAM
from queenstream.cli.demo.traffic import ORDERS

HOSTILE = "<img src=x onerror=\"document.title='owned'\"><script>document.title='owned'</script>"
HOSTILE_QUEUE = "hostile </script><b>queue</b>"
MANY = "many.partitions"
PARTITIONS = 10_000
BIG = 9_007_199_254_740_993  # one more than a double can tell from its neighbour
READINGS, ALERTS, CLICKS, MATCHES = "sensors.readings", "sensors.alerts", "shop.clicks", "shop.matches"


def sensors() -> Pipeline[Any]:
    """Temperatures, and those that are unusual for their sensor."""
    readings = Pipeline("sensors").source(Queue(READINGS)).event_time("at")
    return readings.anomalies("temperature", by="sensor", window="10m", threshold=4).to(Queue(ALERTS))


def behaviour() -> Pipeline[Any]:
    """Clicks, and who clicks too fast."""
    clicks = Pipeline("behaviour").source(Queue(CLICKS)).event_time("at")
    rapid = "COUNT(*) > 5 IN 30s WHERE action = 'click'"
    return clicks.patterns(rapid=rapid, by="user_id", event="action").to(Queue(MATCHES))


def totals() -> Pipeline[Any]:
    """What each customer of the shop spends in ten seconds."""
    orders = Pipeline("totals").source(Queue(ORDERS)).key_by("customer")
    return (
        orders.window(tumbling("10s"))
        .aggregate(orders=count(), total=sum_("amount"))
        .to(Queue("shop.totals"))
    )


def seed(address: str, queen: Queen) -> None:
    """What does not change while the tests run."""
    hostile = queen.queue(HOSTILE_QUEUE)
    hostile.partition(HOSTILE[:60]).push({"html": HOSTILE, "big": BIG}, transaction_id=HOSTILE)
    hostile.partition("plain").push(HOSTILE)
    many = [{"queue": MANY, "partition": f"lane-{n:05}", "payload": {"n": n}} for n in range(PARTITIONS)]
    for start in range(0, PARTITIONS, 1000):
        _push(address, many[start : start + 1000])
    began = datetime.now(UTC) - timedelta(minutes=10)
    usual = [20 + (n * 7 % 5) / 10 for n in range(300)]
    usual[200] = usual[250] = 35.0
    readings = [
        {"sensor": "boiler", "temperature": value, "at": (began + timedelta(seconds=n)).isoformat()}
        for n, value in enumerate(usual)
    ]
    queen.queue(READINGS).partition("boiler").push(readings)
    clicks = [
        {"user_id": "ann", "action": "click", "at": (began + timedelta(seconds=n)).isoformat()}
        for n in range(12)
    ]
    queen.queue(CLICKS).partition("ann").push(clicks)


def _push(address: str, items: list[dict[str, Any]]) -> None:
    httpx.post(f"{address}/api/v1/push", json={"items": items}, timeout=60).raise_for_status()


def _await(queen: Queen) -> None:
    """Until the pipelines have found something, and the shop has closed windows and dead letters."""
    for queue in (ALERTS, MATCHES):
        queen.queue(queue).group("waiting").wait("60s").pop()
    waiting = threading.Event()
    for _ in range(600):
        done = [each.done for each in queen.admin.stream_groups(STREAM)]
        letters = queen.admin.dead_letters(queue=ORDERS, limit=1).total
        if any(done) and letters:
            return
        waiting.wait(0.1)
    raise TimeoutError("the demo traffic gave no window or no dead letter within a minute")


def main() -> None:
    """Set everything going."""
    address = sys.argv[1]
    demo = subprocess.Popen([sys.executable, "-m", "queenstream.cli.demo.run", address])
    try:
        with Queen(address) as queen, tempfile.TemporaryDirectory() as folder:
            seed(address, queen)
            runs = [
                each.start(engine="local", url=address, checkpoint=f"{folder}/{number}")
                for number, each in enumerate((sensors(), behaviour(), totals()))
            ]
            _await(queen)
            sys.stdout.write("ready\n")
            sys.stdout.flush()
            sys.stdin.read()
            for run in runs:
                run.stop()
                run.wait(10)
    finally:
        demo.terminate()
        demo.wait(10)


if __name__ == "__main__":
    main()
