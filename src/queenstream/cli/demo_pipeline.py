"""The demo's data pipeline: what the shop took every ten seconds, by Spark, shown on the terminal.

Run by ``queen up --demo`` as a process of its own: ``python -m queenstream.cli.demo_pipeline ADDRESS``.
Where PySpark is not installed, the same pipeline runs in-process.
"""

from __future__ import annotations

import importlib.util
import json
import logging
import os
import signal
import sys
import threading
from typing import Any

from queenstream import Pipeline, Queen, Queue, count, max_, sum_, tumbling
from queenstream.cli.demo import QUEUE
from queenstream.errors import QueenstreamError
from queenstream.pipeline.running import EngineName

REVENUE = "demo.revenue"
ORDER = "order BIGINT, customer STRING, amount DOUBLE"


def revenue() -> Pipeline[Any]:
    """Orders, their sum and the largest of each ten seconds, by when they were pushed."""
    return (
        Pipeline(REVENUE)
        .source(Queue(QUEUE, schema=ORDER))
        .window(tumbling("10s"), grace="1s")
        .aggregate(orders=count(), total=sum_("amount"), largest=max_("amount"))
        .to(Queue(REVENUE))
    )


def engine() -> EngineName:
    """Spark, where it is installed."""
    return "spark" if importlib.util.find_spec("pyspark") is not None else "local"


def show(row: dict[str, Any], by: EngineName) -> None:
    """A line for each result: for people on a terminal, JSON in a pipe."""
    if sys.stdout.isatty():
        line = f"{row['orders']:>4} orders {row['total']:>10,.2f}   largest {row['largest']:>8,.2f}"
        sys.stdout.write(f"  {row['window_start'][11:19]}  {line}   ({REVENUE}, on {by})\n")
    else:
        told = {"event": "result", "pipeline": REVENUE, "engine": by, **row}
        sys.stdout.write(json.dumps(told) + "\n")
    sys.stdout.flush()


def show_all(address: str, by: EngineName, stop: threading.Event) -> None:
    """Each result as it comes."""
    with Queen(address) as queen:
        results = queen.queue(REVENUE).group("terminal").each()
        results.consume(lambda message: show(message.data, by), stop=stop, signals=False)


def main() -> None:
    """Run it until a signal comes, or the process that started it is gone."""
    address = sys.argv[1]
    parent = os.getppid()
    logging.basicConfig(level=logging.ERROR)
    stop = threading.Event()
    by = engine()
    try:
        run = revenue().start(engine=by, url=address)
        for number in (signal.SIGINT, signal.SIGTERM):  # after PySpark has set its own
            signal.signal(number, lambda *_: stop.set())
        threading.Thread(target=show_all, args=(address, by, stop), daemon=True).start()
        while not stop.wait(1) and os.getppid() == parent and not run.wait(0):
            pass
        stop.set()
        run.stop()
        run.wait(20)
    except KeyboardInterrupt:
        pass  # while it started
    except QueenstreamError as error:
        if not stop.is_set():
            sys.stderr.write(f"the demo pipeline ended: {error}\n")


if __name__ == "__main__":
    main()
