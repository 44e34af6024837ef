"""What windows cost: many keys, gaps, the way from ripe to a consumer, throughput, large windows."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import statistics
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, TypeVar

import msgspec
import uvloop
from msgspec import Raw, Struct

from harness import cpu, databases, load, report, servers
from harness.roles import Consume, Order, Push

QUESTION = "windows: polls with many keys, gaps, ripe → consumer, messages/s against pop, memory"
GROUP = "bench"
Json = dict[str, Any]
T = TypeVar("T")


class Window(Struct, rename="camel"):
    """What a consumer has to read of a window; the messages stay as they came."""

    id: str
    lease_id: str
    end: datetime
    messages: list[Raw]


class Polled(Struct):
    window: Window


_decode = msgspec.json.Decoder(Polled).decode


class Client:
    """One keep-alive connection; answers come with their length or in chunks."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    async def ask(self, method: str, path: str, body: Json | None = None) -> tuple[int, bytes]:
        content = b"" if body is None else msgspec.json.encode(body)
        head = f"{method} /api/v1/{path} HTTP/1.1\r\nHost: x\r\nContent-Length: {len(content)}\r\n\r\n"
        self._writer.write(head.encode() + content)
        answer = (await self._reader.readuntil(b"\r\n\r\n")).lower()
        status = int(answer[9:12])
        if b"transfer-encoding: chunked" in answer:
            return status, b"".join([chunk async for chunk in self._chunks()])
        _, found, rest = answer.partition(b"content-length:")
        length = int(rest[: rest.index(b"\r")]) if found else 0
        return status, await self._reader.readexactly(length)

    async def _chunks(self) -> AsyncIterator[bytes]:
        while True:
            size = int(await self._reader.readuntil(b"\r\n"), 16)
            yield (await self._reader.readexactly(size + 2))[:-2]
            if size == 0:
                return

    async def post(self, path: str, body: Json, *statuses: int) -> Any:
        status, answer = await self.ask("POST", path, body)
        assert status in (statuses or (200, 201)), answer[:300]
        return json.loads(answer) if answer else None

    async def poll(self, stream: str, timeout_ms: int = 30_000) -> Window | None:
        body = {"streamName": stream, "consumerGroup": GROUP, "timeout": timeout_ms}
        status, answer = await self.ask("POST", "stream/poll", body)
        assert status in (200, 204), answer[:300]
        return _decode(answer).window if status == 200 else None

    async def ack(self, window: Window) -> None:
        body = {"windowId": window.id, "leaseId": window.lease_id, "success": True}
        assert (await self.post("stream/ack", body))["acked"] is True

    async def define(self, name: str, queue: str, **definition: Any) -> None:
        await self.post("configure", {"queue": queue, "options": {"ttl": 0}})
        body = {
            "name": name, "namespace": "bench", "source_queue_names": [queue], "window_grace_period_ms": 0,
            "window_lease_timeout_ms": 600_000, **definition,
        }  # fmt: skip
        await self.post("stream/define", body, 201)

    async def closed(self, name: str, windows: int) -> float:
        """Wait until so many windows are closed; how many seconds that took."""
        started = time.perf_counter()
        async with asyncio.timeout(600):
            while True:
                _, answer = await self.ask("GET", f"resources/streams/{name}")
                if json.loads(answer)["windows"]["closed"] >= windows:
                    return time.perf_counter() - started
                await asyncio.sleep(0.05)


@contextlib.asynccontextmanager
async def client(stack: servers.Stack) -> AsyncIterator[Client]:
    host, port = stack.address.split(":")
    reader, writer = await asyncio.open_connection(host, int(port), limit=2**22)
    try:
        yield Client(reader, writer)
    finally:
        writer.close()


def with_client(stack: servers.Stack, work: Callable[..., Awaitable[T]], *args: Any, **named: Any) -> T:
    """Run ``work(client, …)`` on a connection of its own."""

    async def run() -> T:
        async with client(stack) as opened:
            return await work(opened, *args, **named)

    return uvloop.run(run())


def fill(stack: servers.Stack, queue: str, partitions: int, messages: int) -> None:
    """The same number of messages in every partition."""
    push = Push(20, 100, partitions, queue=queue, most=messages, walk=True)
    done = load.run(Order([push], 300, address=stack.address))
    assert done.results[0].count == messages, done.results[0].error


def medians(rows: Sequence[Sequence[float]]) -> list[float]:
    """Of each column."""
    return [report.median(column) for column in zip(*rows, strict=True)]


# Many keys


def many_keys(out: report.Report, stack: servers.Stack, quick: bool) -> None:
    """Every message is a window of its own; each poll takes the next one of any key."""
    many, rounds, polls = (20_000, 3, 200) if quick else (100_000, 7, 300)
    names = {"few": 10, "many": many}
    messages = {"few": max(1000, (rounds + 1) * polls // 10 * 10), "many": many}
    built: dict[str, float] = {}
    for name, keys in names.items():
        define = {"partitioned": True, "window_type": "count", "window_size_count": 1}
        with_client(stack, Client.define, name, name, **define)
        started = time.perf_counter()
        fill(stack, name, keys, messages[name])
        with_client(stack, Client.closed, name, messages[name])
        built[name] = time.perf_counter() - started
    databases.query(stack.url, "vacuum analyze")

    async def measure(c: Client, name: str, count: int) -> list[float]:
        times: list[float] = []
        for _ in range(count):
            began = time.perf_counter()
            window = await c.poll(name, 5000)
            times.append(time.perf_counter() - began)
            assert window is not None
            await c.ack(window)
        return times

    for name in names:  # the first poll subscribes the group
        with_client(stack, measure, name, polls // 2)
    found: dict[str, list[tuple[float, float, float]]] = {name: [] for name in names}
    for _ in range(rounds):
        for name in names:
            with cpu.measured(stack.broker_pid, stack.postmaster_pid) as spent:
                times = with_client(stack, measure, name, polls)
            slow = statistics.quantiles(times, n=100)[98]
            found[name].append((statistics.median(times) * 1e3, slow * 1e3, spent.total / polls * 1e3))
    rows = {name: medians(values) for name, values in found.items()}
    out.table(
        ["keys", "poll p50 ms", "poll p99 ms", "CPU of poll + ack, ms", "pushed and closed in s"],
        [[keys, *rows[name], built[name]] for name, keys in names.items()],
    )
    figures = ("p50_ms", "p99_ms", "cpu_ms")
    out.figures["keys"] = {name: dict(zip(figures, row, strict=True)) for name, row in rows.items()}
    ratios = [many_[0] / few[0] for many_, few in zip(found["many"], found["few"], strict=True)]
    out.at_most(f"poll p50, {many:,} keys against 10", report.median(ratios), 2.0)
    out.at_most("CPU of poll + ack, the same", rows["many"][2] / rows["few"][2], 2.0)


# A gap


def gaps(out: report.Report, stack: servers.Stack, quick: bool) -> None:
    """Windows of a second by event time; the next message is two seconds later, or a year."""
    rounds = 5 if quick else 25
    second = timedelta(seconds=1)
    at = datetime(2000, 1, 1, tzinfo=UTC)

    async def measure(c: Client) -> dict[str, list[float]]:
        nonlocal at
        await c.define("gap", "gap", window_duration_ms=1000, event_time_path="data.ts")
        found: dict[str, list[float]] = {"near": [], "far": []}
        for number in range(2 * rounds + 2):
            name, gap = ("near", 2 * second) if number % 2 else ("far", timedelta(days=365))
            began = time.perf_counter()
            for moment in (at, at + gap, at + gap + 2 * second):
                items = [{"queue": "gap", "payload": {"ts": moment.isoformat()}}]
                await c.post("push", {"items": items})
            for _ in range(2 if number == 0 else 3):  # the one that closed the round before is out now too
                window = await c.poll("gap", 10_000)
                assert window is not None
                await c.ack(window)
            at += gap + 4 * second
            if number >= 2:
                found[name].append((time.perf_counter() - began) * 1e3)
        return found

    found = with_client(stack, measure)
    near, far = report.median(found["near"]), report.median(found["far"])
    out.table(["gap", "push 3, poll and ack 3, ms"], [["2 s", near], ["a year", far]])
    out.figures["gap"] = {"near_ms": near, "year_ms": far}
    out.at_most("a year's gap against two seconds", far / near, 1.5)


# From ripe to a consumer that waits


def ripe(out: report.Report, stack: servers.Stack, quick: bool) -> None:
    """Windows of a second for 10 keys, 16 consumers that wait; from a window's end to its arrival."""
    seconds = 6.0 if quick else 40.0
    late: list[float] = []

    async def produce(ends: float) -> None:
        async with client(stack) as c:
            while time.monotonic() < ends:
                items = [{"queue": "ripe", "partition": f"k{n}", "payload": n} for n in range(10)]
                await c.post("push", {"items": items})
                await asyncio.sleep(0.1)

    async def consume(ends: float) -> None:
        async with client(stack) as c:
            while time.monotonic() < ends:
                window = await c.poll("ripe", 1500)
                if window is not None:
                    late.append(time.time() - window.end.timestamp())
                    await c.ack(window)

    async def run() -> None:
        async with client(stack) as c:
            await c.define("ripe", "ripe", window_duration_ms=1000, partitioned=True)
            await c.poll("ripe", 0)
        ends = time.monotonic() + seconds
        await asyncio.gather(produce(ends), *(consume(ends + 2) for _ in range(16)))

    uvloop.run(run())
    ordered = sorted(late[20:])  # the first second warms up
    assert len(ordered) > 10 * (seconds - 4)
    p50, p99 = ordered[len(ordered) // 2] * 1e3, ordered[int(len(ordered) * 0.99)] * 1e3
    out.table(["", "windows", "p50 ms", "p99 ms"], [["ripe → waiting consumer", len(ordered), p50, p99]])
    out.figures["ripe"] = {"p50_ms": p50, "p99_ms": p99}
    out.at_most("ripe → waiting consumer, p99 in ms", p99, 50.0)


# Messages through windows


def through(out: report.Report, stack: servers.Stack, quick: bool) -> None:
    """The same messages as windows of 1,000, and by pops of 100; 100 partitions, 8 consumers."""
    rounds, each = (2, 1000) if quick else (5, 3000)
    total, rows = 100 * each, []

    async def drain(name: str) -> tuple[int, float]:
        count, last = 0, 0.0

        async def one() -> None:
            nonlocal count, last
            async with client(stack) as c:
                while count < total:
                    window = await c.poll(name, 200)
                    if window is not None:
                        await c.ack(window)
                        count += len(window.messages)
                        last = time.perf_counter()

        began = time.perf_counter()
        await asyncio.gather(*(one() for _ in range(8)))
        return count, last - began

    for number in range(rounds):
        queue = f"through{number}"
        fill(stack, queue, 100, total)
        consume = Consume(8, 100, GROUP, queue=queue, until_empty=True)
        with cpu.measured(stack.broker_pid, stack.postmaster_pid) as popping:
            popped = load.run(Order([consume], 120, address=stack.address))
        assert popped.results[0].count == total, popped.results[0].error
        out.clients(popped.cpu_share)
        define = {"partitioned": True, "window_type": "count", "window_size_count": 1000}
        with cpu.measured(stack.broker_pid, stack.postmaster_pid) as assigning:
            with_client(stack, Client.define, queue, queue, **define)
            seconds = with_client(stack, Client.closed, queue, total // 1000)
        before, started = time.process_time(), time.perf_counter()
        with cpu.measured(stack.broker_pid, stack.postmaster_pid) as polling:
            count, took = uvloop.run(drain(queue))
        out.clients((time.process_time() - before) / (time.perf_counter() - started))
        assert count == total
        each_us = 1e6 / total
        rows.append((popped.results[0].rate, count / took, total / seconds, popping.total * each_us,
                     polling.total * each_us, assigning.total * each_us))  # fmt: skip
    pop, poll, assign, pop_us, poll_us, assign_us = medians(rows)
    out.table(
        ["", "messages/s", "CPU µs"],
        [["pop 100 + ack", pop, pop_us], ["window of 1,000: poll + ack", poll, poll_us],
         ["messages → closed windows", assign, assign_us]],
    )  # fmt: skip
    out.figures["through"] = {"pop_rate": pop, "window_rate": poll, "assign_rate": assign, "pop_us": pop_us,
                              "window_us": poll_us, "assign_us": assign_us}  # fmt: skip
    ratio = report.median([row[1] / row[0] for row in rows])
    out.at_least("messages/s in windows against pop 100", ratio, 0.7)
    whole = report.median([1 / (1 / row[1] + 1 / row[2]) / row[0] for row in rows])
    out.at_least("the same, one after the other with filling and closing the windows", whole, 0.7)


# A large window


def large(out: report.Report, stack: servers.Stack) -> None:
    """One window of 100,000 messages of 200 bytes: what the broker's memory grows by on its way."""
    size = 100_000
    fill(stack, "large", 1, size)

    async def prepare(c: Client) -> None:
        await c.define("large", "large", window_type="count", window_size_count=size)
        await c.closed("large", 1)

    async def take(c: Client) -> tuple[int, float]:
        began = time.perf_counter()
        window = await c.poll("large", 60_000)
        took = time.perf_counter() - began
        assert window is not None
        await c.ack(window)
        return len(window.messages), took

    with cpu.memory(stack.broker_pid, 0.02) as assigning:
        with_client(stack, prepare)
    time.sleep(1)
    with cpu.memory(stack.broker_pid, 0.02) as rest:
        time.sleep(0.5)
    with cpu.memory(stack.broker_pid, 0.01) as used:
        count, took = with_client(stack, take)
    assert count == size
    before = report.median(rest.samples)
    grown = max(0.0, used.peak - before)
    out.table(
        ["", "messages", "seconds", "MB before", "MB at the peak"],
        [["a large window, delivered", count, took, before, used.peak],
         ["the same, assigned", count, "", assigning.samples[0], assigning.peak]],
    )  # fmt: skip
    out.figures["large"] = {"seconds": took, "rest_mb": before, "peak_mb": used.peak, "grown_mb": grown}
    out.at_most("MB more while 100,000 messages are delivered", grown, 50.0)


def run(out: report.Report, options: argparse.Namespace) -> None:
    with servers.stack() as stack:
        report.postgres_version(out, stack.url)
        databases.check_durable(stack.url)
        large(out, stack)
        gaps(out, stack, options.quick)
        ripe(out, stack, options.quick)
        through(out, stack, options.quick)
        many_keys(out, stack, options.quick)


if __name__ == "__main__":
    report.main(QUESTION, run)
