"""The load generator: a process of its own, raw sockets on uvloop, requests rendered beforehand.

``run`` starts it, from a benchmark; ``python -m harness.load`` is what runs there: an ``Order`` comes on its
standard input, an ``Outcome`` goes to its standard output.
"""

from __future__ import annotations

import asyncio
import os
import random
import re
import subprocess
import sys
import time
from array import array
from collections import deque
from pathlib import Path
from typing import cast

import msgspec
import uvloop
from msgspec import Struct

from harness import databases
from harness.roles import Consume, Latency, Order, Outcome, Push, RedisAdd, Result, Role

PAYLOAD = b'{"d":"' + b"x" * 192 + b'"}'  # 200 bytes
ID_BYTES = 18  # a transaction id is 36 random hex digits: as long as a UUID
GRACE_SECONDS = 15.0  # how long what is in flight at the end may take


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


class Tally:
    """What a role has done so far."""

    def __init__(self, seconds: float) -> None:
        self.started = time.perf_counter()
        self.ends = self.started + seconds
        self.count = self.in_time = self.errors = self.sent = 0
        self.error = ""
        self.last = self.started
        self.times = array("d")
        self.open = 0  # connections at work
        self.idle = asyncio.Event()

    def add(self, messages: int, seconds: float) -> None:
        now = time.perf_counter()
        self.count += messages
        if now <= self.ends:
            self.in_time += messages
            self.last = now
        self.times.append(seconds)

    def fail(self, what: bytes) -> None:
        self.errors += 1
        self.error = self.error or what[:300].decode("utf-8", "replace")

    def result(self, *, whole: bool = True) -> Result:
        """``whole``: the rate is over all of the time; else up to the last answer."""
        times = sorted(self.times)
        seconds = (self.ends if whole else self.last) - self.started
        return Result(
            self.count,
            self.in_time / seconds if seconds > 0 else 0.0,
            times[len(times) // 2] * 1e3 if times else 0.0,
            times[int(len(times) * 0.99)] * 1e3 if times else 0.0,
            self.errors,
            self.error,
        )


class Connection(asyncio.Protocol):
    """One keep-alive connection, one request at a time; ``answered`` decides what comes next."""

    def __init__(self, tally: Tally) -> None:
        self.tally = tally
        self.transport: asyncio.Transport
        self._parts: list[bytes] = []
        self._missing = 0  # bytes until the answer is whole
        self.sent_at = 0.0
        self.finished = False
        tally.open += 1

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)

    def connection_lost(self, _: Exception | None) -> None:
        if not self.finished and time.perf_counter() < self.tally.ends:
            self.tally.fail(b"the connection was lost")
        self.finish()

    def finish(self) -> None:
        if not self.finished:
            self.finished = True
            self.tally.open -= 1
            if not self.tally.open:
                self.tally.idle.set()
        self.transport.close()

    def send(self, request: bytes) -> None:
        self.sent_at = time.perf_counter()
        self.transport.write(request)

    def data_received(self, data: bytes) -> None:
        if self._missing:
            self._parts.append(data)
            self._missing -= len(data)
            if self._missing > 0:
                return
            data = b"".join(self._parts)
        else:
            whole = self.size(data)
            if whole > len(data):
                self._parts = [data]
                self._missing = whole - len(data)
                return
        self._parts, self._missing = [], 0
        self.answered(data)

    def size(self, data: bytes) -> int:
        """How long the answer is that starts with this. (Our heads come in one piece.)"""
        head = data.find(b"\r\n\r\n") + 4
        at = data.find(b"content-length: ", 0, head)
        return head + int(data[at + 16 : data.index(b"\r", at)]) if at > 0 else head

    def start(self) -> None:
        raise NotImplementedError

    def answered(self, data: bytes) -> None:
        raise NotImplementedError


def post(path: str, body: bytes) -> bytes:
    return b"POST %b HTTP/1.1\r\nHost: bench\r\nContent-Length: %d\r\n\r\n%b" % (
        path.encode(),
        len(body),
        body,
    )


def push_template(role: Push, first: int) -> bytes:
    """A push request with a place for each transaction id; the partitions are those from ``first`` on."""
    items = [
        b'{"queue":"%b","partition":"p%d","transactionId":"%%b","payload":%b}'
        % (role.queue.encode(), (first + at) % role.partitions, PAYLOAD)
        for at in range(role.batch)
    ]
    body = b'{"items":[' + b",".join(items) + b"]}"
    filled = body % ((b"0" * 2 * ID_BYTES,) * role.batch)
    return post("/api/v1/push", body).replace(
        b"Content-Length: %d" % len(body), b"Content-Length: %d" % len(filled)
    )


class Pusher(Connection):
    """Pushes as long as there is time."""

    def __init__(self, tally: Tally, role: Push, number: int, templates: dict[int, bytes]) -> None:
        super().__init__(tally)
        self._role = role
        self._templates = templates
        self._first = number * role.partitions // role.connections

    def start(self) -> None:
        role = self._role
        if time.perf_counter() >= self.tally.ends or (role.most and self.tally.sent >= role.most):
            self.finish()
            return
        self.tally.sent += role.batch
        if role.walk:
            first = self._first = (self._first + role.batch) % role.partitions
        else:
            first = random.randrange(role.partitions)
        template = self._templates.get(first)
        if template is None:
            template = push_template(role, first)
            if len(self._templates) * len(template) < 100_000_000:
                self._templates[first] = template
        ids = os.urandom(ID_BYTES * role.batch).hex().encode()
        width = 2 * ID_BYTES
        self.send(template % tuple([ids[at : at + width] for at in range(0, len(ids), width)]))

    def answered(self, data: bytes) -> None:
        if not data.startswith(b"HTTP/1.1 201") or b'"duplicate"' in data:
            self.tally.fail(data)
        else:
            self.tally.add(self._role.batch, time.perf_counter() - self.sent_at)
        self.start()


class PoppedData(Struct):
    """The payload of a message that says when it was sent."""

    t: int = 0


class PoppedMessage(Struct, rename="camel"):
    transaction_id: str


class StampedMessage(PoppedMessage, rename="camel"):
    data: PoppedData


class Popped(Struct, rename="camel"):
    partition_id: str
    lease_id: str | None
    messages: list[PoppedMessage]


class StampedPopped(Popped, rename="camel"):
    messages: list[StampedMessage]  # type: ignore[assignment]


_POPPED = msgspec.json.Decoder(Popped)
_STAMPED = msgspec.json.Decoder(StampedPopped)
_REFUSED = re.compile(rb'"success":\s*false')


def ack_request(popped: Popped, group: str) -> bytes:
    end = f'","partitionId":"{popped.partition_id}","leaseId":"{popped.lease_id}","status":"completed"}}'
    items = (end + ',{"transactionId":"').join([message.transaction_id for message in popped.messages])
    body = f'{{"consumerGroup":"{group}","acknowledgments":[{{"transactionId":"{items}{end}]}}'
    return post("/api/v1/ack/batch", body.encode())


class Consumer(Connection):
    """Pops and acknowledges as long as there is time (or messages)."""

    decoder: msgspec.json.Decoder[Popped] = _POPPED

    def __init__(self, tally: Tally, role: Consume) -> None:
        super().__init__(tally)
        self._role = role
        query = f"batch={role.batch}&consumerGroup={role.group}"
        if role.auto_ack:
            query += "&autoAck=true"
        if role.wait_ms:
            query += f"&wait=true&timeout={role.wait_ms}"
        self._pop = f"GET /api/v1/pop/queue/{role.queue}?{query} HTTP/1.1\r\nHost: bench\r\n\r\n".encode()
        self._acking = 0  # messages whose ack is under way
        self._popped_at = 0.0

    def start(self) -> None:
        if self.finished or time.perf_counter() >= self.tally.ends:
            self.finish()
            return
        self.send(self._pop)
        self._popped_at = self.sent_at

    def answered(self, data: bytes) -> None:
        if self._acking:
            if not data.startswith(b"HTTP/1.1 200") or _REFUSED.search(data):
                self.tally.fail(data)
            else:
                self.tally.add(self._acking, time.perf_counter() - self._popped_at)
            self._acking = 0
            self.start()
        elif data.startswith(b"HTTP/1.1 200"):
            popped = self.decoder.decode(data[data.index(b"\r\n\r\n") + 4 :])
            self.delivered(popped)
            if self._role.auto_ack:
                self.tally.add(len(popped.messages), time.perf_counter() - self._popped_at)
                self.start()
            else:
                self._acking = len(popped.messages)
                self.send(ack_request(popped, self._role.group))
        elif not data.startswith(b"HTTP/1.1 204"):
            self.tally.fail(data)
            asyncio.get_running_loop().call_later(0.05, self.start)
        elif self._role.until_empty:
            self.finish()
        else:
            asyncio.get_running_loop().call_later(0 if self._role.wait_ms else 0.005, self.start)

    def delivered(self, popped: Popped) -> None:
        """Messages have come."""


class StampReader(Consumer):
    """A consumer that sees how long each message was on its way."""

    decoder: msgspec.json.Decoder[Popped] = cast("msgspec.json.Decoder[Popped]", _STAMPED)

    def __init__(self, tally: Tally, role: Consume, delays: array[float]) -> None:
        super().__init__(tally, role)
        self._delays = delays

    def delivered(self, popped: Popped) -> None:
        now = time.perf_counter_ns()
        self._delays.extend((now - message.data.t) / 1e9 for message in cast(StampedPopped, popped).messages)


class StampWriter(Connection):
    """Sends one message when told to, then is free again."""

    def __init__(self, tally: Tally, role: Latency, free: deque[StampWriter]) -> None:
        super().__init__(tally)
        self._role = role
        self._free = free

    def start(self) -> None:
        self._free.append(self)

    def write(self) -> None:
        item = (
            f'{{"items":[{{"queue":"{self._role.queue}","partition":"p{random.randrange(self._role.partitions)}",'
            f'"transactionId":"{os.urandom(ID_BYTES).hex()}",'
            f'"payload":{{"t":{time.perf_counter_ns()},"d":"{"x" * 170}"}}}}]}}'
        )
        self.send(post("/api/v1/push", item.encode()))

    def answered(self, data: bytes) -> None:
        if not data.startswith(b"HTTP/1.1 201"):
            self.tally.fail(data)
        self.tally.add(1, time.perf_counter() - self.sent_at)
        self._free.append(self)


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
            self.tally.fail(data)
        self.start()


async def _open(address: str, connections: list[Connection]) -> None:
    loop = asyncio.get_running_loop()
    host, port = address.rsplit(":", 1)

    async def one(connection: Connection) -> None:
        await loop.create_connection(lambda: connection, host, int(port))

    await asyncio.gather(*(one(connection) for connection in connections))


async def _drive(tally: Tally, connections: list[Connection]) -> None:
    for connection in connections:
        connection.start()
    end = tally.ends - time.perf_counter() + GRACE_SECONDS
    try:
        await asyncio.wait_for(tally.idle.wait(), end)
    except TimeoutError:
        tally.fail(b"requests were not answered in time")


async def _closed_loop(role: Push | Consume | RedisAdd, order: Order, ready: asyncio.Barrier) -> Result:
    tally = Tally(order.seconds)
    connections: list[Connection]
    if isinstance(role, Push):
        templates: dict[int, bytes] = {}
        connections = [Pusher(tally, role, number, templates) for number in range(role.connections)]
    elif isinstance(role, Consume):
        connections = [Consumer(tally, role) for _ in range(role.connections)]
    else:
        connections = [Adder(tally, role) for _ in range(role.connections)]
    await _open(order.address, connections)
    await ready.wait()
    tally.started = time.perf_counter()
    tally.ends = tally.started + order.seconds
    if isinstance(role, Consume) and role.wait_ms:
        # A long poll under way at the end is dropped, not waited for.
        late = order.seconds + 0.2
        loop = asyncio.get_running_loop()
        for connection in connections:
            loop.call_later(late, connection.finish)
    await _drive(tally, connections)
    return tally.result(whole=not (isinstance(role, Consume) and role.until_empty))


async def _latency(role: Latency, order: Order, ready: asyncio.Barrier) -> Result:
    """The times are from sending a message to its arrival at a consumer, whose ack is not in it."""
    delays: array[float] = array("d")
    free: deque[StampWriter] = deque()
    # They go on after the last message is sent, until all have come.
    read, written = Tally(order.seconds + 60), Tally(order.seconds + 60)
    consume = Consume(role.consumers, 100, role.group, role.queue, wait_ms=60_000)
    readers: list[Connection] = [StampReader(read, consume, delays) for _ in range(role.consumers)]
    writers = [StampWriter(written, role, free) for _ in range(role.producers)]
    await _open(order.address, [*readers, *writers])
    await ready.wait()
    for connection in (*readers, *writers):
        connection.start()
    started = time.perf_counter()
    sent = 0
    while (passed := time.perf_counter() - started) < order.seconds:
        for _ in range(int(passed * role.rate) - sent):
            if not free:
                break
            free.popleft().write()
            sent += 1
        await asyncio.sleep(0.001)
    for _ in range(100):
        await asyncio.sleep(0.1)
        if len(free) == role.producers and len(delays) >= written.count:
            break
    for connection in (*readers, *writers):
        connection.finish()
    tally = Tally(0)
    tally.times = delays
    result = tally.result()
    result.count, result.rate = len(delays), sent / order.seconds
    result.errors, result.error = read.errors + written.errors, read.error or written.error
    if len(delays) < written.count:
        result.errors += written.count - len(delays)
        result.error = result.error or "a message that was answered did not arrive"
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
