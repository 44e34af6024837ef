"""What the Python client costs, and whether single pushes through its buffer keep up with batches.

The host's speed changes within a run. So everything is measured in slices that take turns, the figures are
medians over the slices, and in each slice a fixed piece of Python is timed as well: figures of different runs
can be compared in units of that piece.
"""

from __future__ import annotations

import argparse
import asyncio
import time
from collections.abc import Callable, Coroutine, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from harness import databases, report, servers
from queenstream import AsyncQueen, Queen

QUESTION = "the Python client: CPU per message in batches of 100, and buffered single pushes against batches"
BATCH = [{"user": "ann", "amount": number, "note": "x" * 60} for number in range(100)]
STEPS = ("push 100", "consume 100", "buffered")
PIECE_ROUNDS = 20_000
Work = Callable[[int], Any]  # of so many messages
Figures = dict[str, tuple[float, float]]  # CPU in µs per message, messages per second


def piece() -> float:
    """The CPU of a fixed bit of Python, in µs a round: names, numbers, a dictionary, a list."""
    before = time.process_time()
    seen: dict[str, int] = {}
    for number in range(PIECE_ROUNDS):
        name = f"user-{number % 100}"
        seen[name] = seen.get(name, 0) + len([number, number * 3, number % 7])
    assert sum(seen.values()) == 3 * PIECE_ROUNDS
    return (time.process_time() - before) / PIECE_ROUNDS * 1e6


@contextmanager
def sync_client(address: str) -> Iterator[dict[str, Work]]:
    """What is measured of ``Queen``."""
    with Queen(address) as queen:
        queue = queen.queue("sync")

        def push(messages: int) -> None:
            for _ in range(messages // 100):
                queue.push(BATCH)

        def consume(messages: int) -> None:
            done = queue.batch(100).limit(messages).consume(lambda _: None, signals=False)
            assert done.handled == messages, done

        def buffered(messages: int) -> None:
            with queen.queue("buffered").buffered(batch_size=100) as producer:
                for _ in range(messages // 100):
                    for payload in BATCH:
                        producer.push(payload)

        yield dict(zip(STEPS, (push, consume, buffered), strict=True))


@contextmanager
def async_client(address: str) -> Iterator[dict[str, Work]]:
    """What is measured of ``AsyncQueen``, on an event loop of asyncio's own."""
    queen = AsyncQueen(address)
    queue = queen.queue("async")

    async def push(messages: int) -> None:
        for _ in range(messages // 100):
            await queue.push(BATCH)

    async def consume(messages: int) -> None:
        done = await queue.batch(100).limit(messages).consume(lambda _: None, signals=False)
        assert done.handled == messages, done

    async def buffered(messages: int) -> None:
        async with queen.queue("async-buffered").buffered(batch_size=100) as producer:
            for _ in range(messages // 100):
                for payload in BATCH:
                    await producer.push(payload)

    with asyncio.Runner() as runner:

        def plain(step: Callable[[int], Coroutine[Any, Any, None]]) -> Work:
            return lambda messages: runner.run(step(messages))

        yield dict(zip(STEPS, map(plain, (push, consume, buffered)), strict=True))
        runner.run(queen.close())


def measured(client: dict[str, Work], messages: int, buffered_first: bool) -> Figures:
    """One slice. What is consumed was pushed before it; the buffer has its turn first or last."""
    figures: Figures = {}
    for what in (STEPS[2], *STEPS[:2]) if buffered_first else STEPS:
        cpu, wall = time.process_time(), time.perf_counter()
        client[what](messages)
        used, passed = time.process_time() - cpu, time.perf_counter() - wall
        figures[what] = used / messages * 1e6, messages / passed
    return figures


def run(out: report.Report, options: argparse.Namespace) -> None:
    # A slice must be larger than the buffer's threshold (10,000), or the buffer never has to wait.
    slices, messages = (6, 15_000) if options.quick else (12, 30_000)
    found: dict[str, list[Figures]] = {"Queen": [], "AsyncQueen": []}
    pieces: list[float] = []
    with servers.stack() as stack, ExitStack() as opened:
        report.postgres_version(out, stack.url)
        databases.check_durable(stack.url)
        clients = {
            "Queen": opened.enter_context(sync_client(stack.address)),
            "AsyncQueen": opened.enter_context(async_client(stack.address)),
        }
        for client in clients.values():  # connections, the queues, what Python learns about the code
            measured(client, 1000, buffered_first=False)
        for number in range(slices):
            around = [piece()]
            for name, client in clients.items():
                found[name].append(measured(client, messages, buffered_first=number % 2 == 1))
                around.append(piece())
            pieces.append(report.median(around))
    show(out, found, pieces)


def show(out: report.Report, found: dict[str, list[Figures]], pieces: list[float]) -> None:
    rows, costs, in_pieces, ratios = [], [], [], []
    for name, slices in found.items():
        for what in STEPS:
            cpu = report.median([figures[what][0] for figures in slices])
            rate = report.median([figures[what][1] for figures in slices])
            rows.append([f"{name}: {what}", cpu, rate])
            out.figures[f"{name} {what}"] = cpu
        both = [figures["push 100"][0] + figures["consume 100"][0] for figures in slices]
        costs.append(report.median(both))
        in_pieces.append(report.median([cost / unit for cost, unit in zip(both, pieces, strict=True)]))
        ratios.append(report.median([f["buffered"][1] / f["push 100"][1] for f in slices]))
    out.table(["", "µs CPU per message", "messages/s"], rows)
    unit = report.median(pieces)
    out.note(
        f"a round of a fixed piece of Python took {unit:.3f} µs ({min(pieces):.3f} to {max(pieces):.3f}); "
        f"to push and consume a message cost {max(in_pieces):.1f} such rounds"
    )
    out.figures |= {"piece": unit, "push and consume, in pieces": max(in_pieces)}
    out.at_most("µs of the client's CPU to push and consume a message", max(costs), 15.0)
    out.at_least("buffered single pushes against batches of 100", min(ratios), 0.8)


if __name__ == "__main__":
    report.main(QUESTION, run)
