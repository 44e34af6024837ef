"""How long a message is on its way: stamped when it is sent, read when a long poll brings it."""

from __future__ import annotations

import asyncio
import os
import random
import time
from collections import deque
from typing import cast

import msgspec
from msgspec import Struct

from queenstream.cli.bench.connections import Connection, Tally, connect
from queenstream.cli.bench.load import FULL_POPPED, ID_BYTES, Consume, Consumer, FullPopped, Popped
from queenstream.cli.support.target import Target

ARRIVAL_SECONDS = 10.0  # how long after the end an answered message may still be on its way
_POLL_MS = 30_000


class Latency(Struct, tag="latency"):
    """Send ``rate`` messages a second, and see when long-polling consumers get them."""

    rate: float
    consumers: int
    producers: int = 32
    partitions: int = 100
    queue: str = "latency"
    group: str = "latency"
    batch: int = 100  # messages that a consumer takes at most
    payload: int = 200  # bytes; the stamp has to fit into it: 100 at least


class Stamp(Struct):
    """The payload of a message of ours: which run, which number, when it was sent."""

    run: str = ""
    n: int = -1
    t: int = 0


_STAMP = msgspec.json.Decoder(Stamp)


class Flight:
    """The messages that are under way. One that was answered and never arrives is lost."""

    def __init__(self) -> None:
        self.sent = self.repeated = 0
        self._waiting: dict[int, bool] = {}  # by number: whether the push was answered

    def depart(self) -> int:
        """The number of the next message."""
        self.sent += 1
        self._waiting[self.sent] = False
        return self.sent

    def answered(self, number: int) -> None:
        """The broker has it: from now on it must arrive, if it has not yet."""
        if number in self._waiting:
            self._waiting[number] = True

    def arrive(self, number: int) -> bool:
        """Whether it comes for the first time."""
        if self._waiting.pop(number, None) is None:
            self.repeated += 1
            return False
        return True

    @property
    def missing(self) -> int:
        """How many were answered and have not arrived."""
        return sum(self._waiting.values())


class StampReader(Consumer):
    """A consumer that sees how long each message was on its way."""

    decoder = FULL_POPPED

    def __init__(self, tally: Tally, target: Target, role: Consume, run: str, flight: Flight) -> None:
        super().__init__(tally, target, role)
        self._run = run
        self._flight = flight

    def over(self) -> bool:
        return self.finished  # it goes on after the last message is sent, until all have come

    def delivered(self, popped: Popped) -> None:
        now = time.perf_counter_ns()
        for message in cast(FullPopped, popped).messages:
            try:
                stamp = _STAMP.decode(message.data)
            except msgspec.MsgspecError:
                continue  # somebody else's
            if stamp.run == self._run and self._flight.arrive(stamp.n):
                self.tally.add(1, (now - stamp.t) / 1e9)

    def acked(self, messages: int) -> None:
        """The time of the ack is not measured."""


class StampWriter(Connection):
    """Sends one message when told to, then is free again."""

    def __init__(
        self, tally: Tally, target: Target, role: Latency, run: str, flight: Flight, free: deque[StampWriter]
    ) -> None:
        super().__init__(tally)
        self._target = target
        self._role = role
        self._run = run
        self._flight = flight
        self._free = free
        self._number = 0
        self._queue = msgspec.json.encode(role.queue).decode()

    def over(self) -> bool:
        return self.finished

    def start(self) -> None:
        self._free.append(self)

    def write(self) -> None:
        """Send one message, stamped with this moment."""
        role = self._role
        self._number = self._flight.depart()
        stamp = f'{{"run":"{self._run}","n":{self._number},"t":{time.perf_counter_ns()},"d":"'
        item = (
            f'{{"items":[{{"queue":{self._queue},"partition":"p{random.randrange(role.partitions)}",'  # noqa: S311
            f'"transactionId":"{os.urandom(ID_BYTES).hex()}",'
            f'"payload":{stamp}{"x" * (role.payload - len(stamp) - 2)}"}}}}]}}'
        )
        self.send(self._target.request("POST", "/api/v1/push", item.encode()))

    def answered(self, data: bytes) -> None:
        if data.startswith(b"HTTP/1.1 201"):
            self._flight.answered(self._number)
        else:
            self.refused(data)
        self._free.append(self)


class EndToEnd:
    """One run. ``tally`` counts arrivals and the times to them, ``flight`` what is under way."""

    def __init__(self, target: Target, role: Latency, seconds: float) -> None:
        self._target = target
        self._role = role
        self._seconds = seconds
        self._free: deque[StampWriter] = deque()
        self.tally = tally = Tally(seconds)
        self.flight = flight = Flight()
        run = os.urandom(6).hex()
        consume = Consume(role.consumers, role.batch, role.group, role.queue, wait_ms=_POLL_MS)
        self._writers = [
            StampWriter(tally, target, role, run, flight, self._free) for _ in range(role.producers)
        ]
        self._connections: list[Connection] = [
            *(StampReader(tally, target, consume, run, flight) for _ in range(role.consumers)),
            *self._writers,
        ]

    async def connect(self) -> None:
        """Open the connections, or raise."""
        await connect(self._target, self._connections)

    async def run(self) -> None:
        """Send for the time given, wait for what is under way, and count what is lost."""
        self.tally.restart(self._seconds)
        for connection in self._connections:
            connection.start()
        await self._send()
        await self._arrive()
        for connection in self._connections:
            connection.finish()

    async def _send(self) -> None:
        tally, flight = self.tally, self.flight
        while (now := time.perf_counter()) < tally.ends and tally.open:
            due = int((now - tally.started) * self._role.rate)
            while flight.sent < due and self._free:
                writer = self._free.popleft()
                if not writer.finished:  # else the broker has closed it
                    writer.write()
            await asyncio.sleep(0.001)

    async def _arrive(self) -> None:
        tally, flight = self.tally, self.flight
        tally.grace = min(tally.grace, ARRIVAL_SECONDS)
        while time.perf_counter() < tally.ends + tally.grace and tally.open:
            if not flight.missing and not self._unanswered():
                return
            await asyncio.sleep(0.01)
        if not tally.grace:
            return  # somebody was in a hurry: nothing is known about the rest
        if missing := flight.missing:
            tally.fail(
                f"{missing} messages were answered but did not arrive within {tally.grace:g} s", missing
            )
        if unanswered := self._unanswered():
            tally.fail(f"{unanswered} pushes were not answered within {tally.grace:g} s", unanswered)

    def _unanswered(self) -> int:
        return sum(writer.busy and not writer.finished for writer in self._writers)
