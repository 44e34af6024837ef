"""What the Python client costs, and whether single pushes through its buffer keep up with batches."""

from __future__ import annotations

import argparse
import asyncio
import time
from collections.abc import Callable
from typing import Any

from harness import databases, report, servers
from queenstream import AsyncQueen, Queen

QUESTION = "the Python client: CPU per message in batches of 100, and buffered single pushes against batches"
BATCH = [{"user": "ann", "amount": number, "note": "x" * 60} for number in range(100)]
Figures = dict[str, tuple[float, float]]  # CPU in µs per message, messages per second


def timed(figures: Figures, what: str, messages: int, work: Callable[[], Any]) -> None:
    cpu, wall = time.process_time(), time.perf_counter()
    work()
    used, passed = time.process_time() - cpu, time.perf_counter() - wall
    figures[what] = used / messages * 1e6, messages / passed


def sync_round(address: str, messages: int, number: int) -> Figures:
    figures: Figures = {}
    with Queen(address) as queen:
        queue = queen.queue(f"sync-{number}")

        def push() -> None:
            for _ in range(messages // 100):
                queue.push(BATCH)

        def buffered() -> None:
            with queen.queue(f"buffered-{number}").buffered(batch_size=100) as producer:
                for _ in range(messages // 100):
                    for payload in BATCH:
                        producer.push(payload)

        def consume() -> None:
            done = queue.batch(100).limit(messages).consume(lambda _: None, signals=False)
            assert done.handled == messages, done

        queue.push(BATCH)
        timed(figures, "push 100", messages, push)
        timed(figures, "consume 100", messages, consume)
        timed(figures, "buffered", messages, buffered)
    return figures


def async_round(address: str, messages: int, number: int) -> Figures:
    figures: Figures = {}

    async def run() -> None:
        async with AsyncQueen(address) as queen:
            queue = queen.queue(f"async-{number}")
            await queue.push(BATCH)

            async def push() -> None:
                for _ in range(messages // 100):
                    await queue.push(BATCH)

            async def consume() -> None:
                done = await queue.batch(100).limit(messages).consume(lambda _: None, signals=False)
                assert done.handled == messages, done

            async def buffered() -> None:
                async with queen.queue(f"abuffered-{number}").buffered(batch_size=100) as producer:
                    for _ in range(messages // 100):
                        for payload in BATCH:
                            await producer.push(payload)

            for what, work in (("push 100", push), ("consume 100", consume), ("buffered", buffered)):
                cpu, wall = time.process_time(), time.perf_counter()
                await work()
                used, passed = time.process_time() - cpu, time.perf_counter() - wall
                figures[what] = used / messages * 1e6, messages / passed

    asyncio.run(run())
    return figures


def run(out: report.Report, options: argparse.Namespace) -> None:
    rounds, messages = (3, 30_000) if options.quick else (7, 50_000)
    found: dict[str, list[Figures]] = {"Queen": [], "AsyncQueen": []}
    with servers.stack() as stack:
        report.postgres_version(out, stack.url)
        databases.check_durable(stack.url)
        for number in range(rounds):
            found["Queen"].append(sync_round(stack.address, messages, number))
            found["AsyncQueen"].append(async_round(stack.address, messages, number))
    rows, worst, ratios = [], 0.0, []
    for name, all_rounds in found.items():
        for what in ("push 100", "consume 100", "buffered"):
            cpu = report.median([figures[what][0] for figures in all_rounds])
            rate = report.median([figures[what][1] for figures in all_rounds])
            rows.append([f"{name}: {what}", cpu, rate])
            out.figures[f"{name} {what}"] = cpu
        both = report.median([f["push 100"][0] + f["consume 100"][0] for f in all_rounds])
        worst = max(worst, both)
        ratios.append(report.median([f["buffered"][1] / f["push 100"][1] for f in all_rounds]))
    out.table(["", "µs CPU per message", "messages/s"], rows)
    out.at_most("µs of the client's CPU to push and consume a message", worst, 15.0)
    out.at_least("buffered single pushes against batches of 100", min(ratios), 0.8)


if __name__ == "__main__":
    report.main(QUESTION, run)
