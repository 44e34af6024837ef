"""The load generator as a process of its own, with the roles that only benchmarks need.

``run`` starts it, from a benchmark; ``python -m harness.load`` is what runs there: an ``Order`` comes on its
standard input, an ``Outcome`` goes to its standard output. ``queenstream.cli.bench.load`` drives the broker.
"""

from __future__ import annotations

import asyncio
import random
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import msgspec
import uvloop

from harness import databases
from harness.roles import Consume, Latency, Order, Outcome, Push, RedisAdd, Result, Role, result_of
from queenstream.cli.bench.connections import GRACE_SECONDS, Connection, Tally, connect, drive
from queenstream.cli.bench.end_to_end import EndToEnd
from queenstream.cli.bench.load import Consumer, pushers, text_payload
from queenstream.cli.support.target import Target, parse_target

PAYLOAD = text_payload(200)


def run(order: Order) -> Outcome:
    """Run the load generator in a process of its own."""
    done = subprocess.run(
        [sys.executable, "-m", "harness.load"],
        input=msgspec.json.encode(order),
        stdout=subprocess.PIPE,
        cwd=Path(__file__).parents[1],
        timeout=order.seconds + 4 * GRACE_SECONDS,
        check=True,
    )
    return msgspec.json.decode(done.stdout, type=Outcome)


class Adder(Connection):
    """XADD as long as there is time."""

    def __init__(self, tally: Tally, role: RedisAdd) -> None:
        super().__init__(tally)
        self._commands = [
            b"*5\r\n$4\r\nXADD\r\n$%d\r\n%b\r\n$1\r\n*\r\n$1\r\nd\r\n$%d\r\n%b\r\n"
            % (len(key), key, len(PAYLOAD), PAYLOAD)
            for key in (b"p%d" % number for number in range(role.streams))
        ]

    def start(self) -> None:
        if time.perf_counter() >= self.tally.ends:
            self.finish()
            return
        self.send(random.choice(self._commands))

    def size(self, data: bytes) -> int:
        return len(data)  # an id: one packet

    def answered(self, data: bytes) -> None:
        if data.startswith(b"$"):
            self.tally.add(1, time.perf_counter() - self.sent_at)
        else:
            self.tally.fail(data.decode("utf-8", "replace"))
        self.start()


def _target(order: Order) -> Target:
    # Bare, as in all earlier runs: a header more would be the broker's work, and change the figures.
    return replace(parse_target(f"http://{order.address}"), bare=True)


async def _closed_loop(role: Push | Consume | RedisAdd, order: Order, ready: asyncio.Barrier) -> Result:
    tally, target = Tally(order.seconds), _target(order)
    connections: Sequence[Connection]
    if isinstance(role, Push):
        connections = pushers(tally, target, role)
    elif isinstance(role, Consume):
        connections = [Consumer(tally, target, role) for _ in range(role.connections)]
    else:
        connections = [Adder(tally, role) for _ in range(role.connections)]
    await connect(target, connections)
    await ready.wait()
    tally.restart(order.seconds)
    await drive(tally, connections)
    return result_of(tally, whole=not (isinstance(role, Consume) and role.until_empty))


async def _latency(role: Latency, order: Order, ready: asyncio.Barrier) -> Result:
    """The times are from sending a message to its arrival at a consumer, whose ack is not in it."""
    run = EndToEnd(_target(order), role, order.seconds)
    await run.connect()
    await ready.wait()
    await run.run()
    result = result_of(run.tally)
    result.rate = run.flight.sent / order.seconds
    return result


async def _role(role: Role, order: Order, ready: asyncio.Barrier) -> Result:
    if isinstance(role, Push | Consume | RedisAdd):
        return await _closed_loop(role, order, ready)
    if isinstance(role, Latency):
        return await _latency(role, order, ready)
    await ready.wait()
    return await databases.work(role, order, Tally(order.seconds), PAYLOAD)


async def _all(order: Order) -> Outcome:
    ready = asyncio.Barrier(len(order.roles))
    before, started = time.process_time(), time.perf_counter()
    results = await asyncio.gather(*(_role(role, order, ready) for role in order.roles))
    share = (time.process_time() - before) / (time.perf_counter() - started)
    return Outcome(list(results), share)


if __name__ == "__main__":
    outcome = uvloop.run(_all(msgspec.json.decode(sys.stdin.buffer.read(), type=Order)))
    sys.stdout.buffer.write(msgspec.json.encode(outcome))
