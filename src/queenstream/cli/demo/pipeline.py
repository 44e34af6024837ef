"""The demo's data pipeline on Spark: it joins, windows and detects, and shows what it finds.

Run by ``queen up --demo`` as a process of its own: ``python -m queenstream.cli.demo.pipeline ADDRESS``.
Where Spark or Java is missing it says so, and the same pipeline runs in-process.
"""

from __future__ import annotations

import json
import logging
import os
import signal
import sys
import threading
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

from queenstream import DeadLetters, Pipeline, Queue, count, sum_, tumbling
from queenstream.cli.demo.run import configure
from queenstream.cli.demo.traffic import ANOMALIES, CLICKS, MATCHES, ORDERS, READINGS, REVENUE
from queenstream.errors import ConfigError, QueenstreamError
from queenstream.pipeline.engine_api import EngineName, Run, find_engine

NAME = "demo.shop"
FAILED = "demo.failed"
BATCH_EVERY = "1s"  # back to back, Spark would keep a core busy
# Java that starts sooner, and takes less: a demo is over before better code pays.
SOON = {
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    "spark.driver.memory": "1g",
}
END_SECONDS = 15.0

ORDER = "order BIGINT, customer STRING, amount DOUBLE"
CLICK = "user STRING, action STRING, order BIGINT, campaign STRING"

Row = dict[str, Any]


def shop(began: datetime, show: Callable[[Row], object]) -> Pipeline[Any]:
    """Which campaigns sell, which fridges are too warm, and which users click like no human."""

    def source(queue: str, schema: str | None = None) -> Pipeline[Any]:
        name = queue.removeprefix("demo.")
        return Pipeline(NAME).source(Queue(queue, start=began, schema=schema), name=name)

    clicks = source(CLICKS, CLICK)
    revenue = (
        source(ORDERS, ORDER)
        .join(clicks.filter("action = 'checkout'", name="checkouts"), on="order", within="5s", name="led to")
        .key_by("campaign")
        .window(tumbling("10s"))
        .aggregate(orders=count(), revenue=sum_("amount"), step_name="revenue")
        .to(Queue(REVENUE, partition_by="campaign"))
    )
    rapid = clicks.patterns(
        rapid_clicks="COUNT(*) > 10 IN 5s WHERE action = 'click'", by="user", step_name="too fast"
    ).to(Queue(MATCHES))
    warm = (
        source(READINGS)
        .anomalies(
            "temperature",
            by="sensor",
            window="2m",
            algorithm="mad",
            threshold=10,
            min_samples=15,
            name="too warm",
        )
        .to(Queue(ANOMALIES))
    )
    news = revenue.union(warm, rapid, name="news").to(show, name="terminal")
    return news.on_error(DeadLetters(FAILED, replay=False))


def line(row: Row) -> str:
    """A result as people read it.

    >>> at = datetime(2026, 1, 31, 12, 0, 9)
    >>> line({"pattern": "rapid_clicks", "key": "bot-7", "value": 11.0, "end": at})
    '  12:00:09  pattern   bot-7          rapid_clicks: 11'
    """
    if "detector" in row:
        what = f"{row['value']:.1f} °C, usually {row['mean']:.1f}"
        return _line(row["time"], "anomaly", row["key"], what)
    if "pattern" in row:
        return _line(row["end"], "pattern", row["key"], f"{row['pattern']}: {row['value']:g}")
    what = f"{row['orders']:>4} orders {row['revenue']:>12,.2f}"
    return _line(row["window_start"], "revenue", row["campaign"], what)


def _line(at: datetime, kind: str, key: str, what: str) -> str:
    local = at.astimezone() if at.tzinfo else at
    return f"  {local:%H:%M:%S}  {kind:<9} {key:<14} {what}"


def show(row: Row) -> None:
    """A line for each result: for people on a terminal, JSON in a pipe."""
    if sys.stdout.isatty():
        say(line(row))
    else:
        say(json.dumps({"event": "result", "pipeline": NAME, **row}, default=str))


def say(text: str) -> None:
    """A line on the terminal."""
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def start(address: str, pipeline: Pipeline[Any]) -> tuple[Run, EngineName]:
    """On Spark; in this process, where there is none."""
    try:
        return _on_spark(address, pipeline), "spark"
    except ConfigError as error:
        sys.stderr.write(f"the demo pipeline runs without Spark: {error}\n")
        return pipeline.start(engine="local", url=address, summary=False), "local"


def _on_spark(address: str, pipeline: Pipeline[Any]) -> Run:
    find_engine("spark")  # or what is missing
    from queenstream.engines.spark import session

    if sys.stdout.isatty():
        say("  Demo traffic flows. Spark starts, which takes half a minute …\n")
    session(NAME, conf=SOON)
    return pipeline.start(engine="spark", url=address, interval=BATCH_EVERY, summary=False)


def introduce(address: str, by: EngineName) -> None:
    """Where to look, for people."""
    if sys.stdout.isatty():
        where = "on Spark" if by == "spark" else "in-process"
        say(f"  The pipeline {NAME} runs {where}: orders joined with the clicks that led to them and added")
        say("  up by campaign; fridges that are too warm; users who click too fast. Look at it there:")
        say(f"  {address}/pipelines/{NAME} and {address}/analytics\n")


def main() -> None:
    """Run it until a signal comes, or the process that started it is gone."""
    address = sys.argv[1]
    parent = os.getppid()
    logging.basicConfig(level=logging.ERROR)
    stop = threading.Event()
    try:
        configure(address)
        run, by = start(address, shop(datetime.now(UTC), show))
        for number in (signal.SIGINT, signal.SIGTERM):  # after PySpark has set its own
            signal.signal(number, lambda *_: stop.set())
        introduce(address, by)
        while not stop.wait(1) and os.getppid() == parent and not run.wait(0):
            pass
        stop.set()
        run.stop()
        run.wait(END_SECONDS)
    except KeyboardInterrupt:
        pass  # while it started
    except (OSError, QueenstreamError) as error:
        if not stop.is_set():
            sys.stderr.write(f"the demo pipeline ended: {error}\n")


if __name__ == "__main__":
    main()
