"""What a running pipeline tells: throughput, latency, errors, depth; as numbers, and for Prometheus."""

from __future__ import annotations

import logging
from typing import Any
from urllib.request import urlopen

from queenstream import Pipeline, Queen, Queue

logging.getLogger("queenstream.local").setLevel(logging.ERROR)  # the failures below are meant


def double(record: dict[str, Any]) -> dict[str, Any]:
    return {"n": record["n"] * 2}


def main() -> None:
    with Queen() as queen:
        queen.queue("metrics-in").delete()
        queen.queue("metrics-out").delete()
        queen.queue("metrics-in").push([{"n": n} for n in range(99)] + [{"m": 1}])

        doubled = Pipeline("metrics-example").source(Queue("metrics-in")).map(double, name="double")
        run = doubled.on_error("skip").to(Queue("metrics-out")).start(engine="local", until="caught_up")
        port = run.serve_metrics(0, path="/stream-metrics")  # a free one; for Prometheus a fixed one
        run.wait()  # all of this can be asked while it runs, too, and from any thread

        stats = run.get_stats()
        print(f"messages: {stats['messages']:g}, errors: {stats['errors']:g} ({stats['error_rate']:g} %)")
        print("throughput is known:", stats["messages_per_second"] > 0)
        print("latency is known:", stats["latency_p95_ms"] > 0)
        print(f"queue depth: {stats['queue_depth']:g}, dead letters: {stats['dead_letters']:g}")
        with urlopen(f"http://127.0.0.1:{port}/stream-metrics") as answer:
            for line in answer.read().decode().splitlines():
                if line.startswith(("queen_pipeline_errors_total", "queen_pipeline_step_failed_total")):
                    print(line)


if __name__ == "__main__":
    main()
