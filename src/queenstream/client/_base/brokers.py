"""Which broker to ask: spread over those that answer, away from those that do not."""

from __future__ import annotations

import os
import random
import threading
from collections.abc import Iterable
from typing import Generic, Protocol, TypeVar

from queenstream.client._base.addresses import Address

FIRST_SECONDS = 0.05  # after a first failure
MOST_SECONDS = 3.0
IDLE = 32  # connections kept open to each broker


class _Connection(Protocol):
    @property
    def open(self) -> bool: ...
    def close(self) -> None: ...
    def abandon(self) -> None: ...


C = TypeVar("C", bound=_Connection)


def backoff(failures: int) -> float:
    """How long to wait after so many failures in a row: twice as long each time, with jitter.

    >>> 0.025 <= backoff(1) <= 0.05
    True
    """
    longest = min(MOST_SECONDS, FIRST_SECONDS * 2.0 ** min(failures - 1, 20))
    return longest * random.uniform(0.5, 1.0)  # noqa: S311 - no secret


class Broker(Generic[C]):
    """One address: what is known of it, and its idle connections."""

    def __init__(self, address: Address) -> None:
        self.address = address
        self.failures = 0
        self.down_until = 0.0
        self.in_flight = 0
        self.idle: list[C] = []


class Brokers(Generic[C]):
    """All addresses of a client. Safe to use from threads; nothing here waits."""

    def __init__(self, addresses: Iterable[Address]) -> None:
        self.all: list[Broker[C]] = [Broker(address) for address in addresses]
        random.shuffle(self.all)  # many clients with one list start at different brokers
        self._lock = threading.Lock()
        self._process = os.getpid()

    def choose(self, now: float) -> Broker[C]:
        """The one with the least under way of those that are up; else the one that may be up first."""
        with self._lock:
            if self._process != os.getpid():  # a fork shares no connection with its parent
                self._process = os.getpid()
                for broker in self.all:
                    for connection in broker.idle:
                        connection.abandon()
                    broker.idle, broker.in_flight = [], 0
            chosen = self.all[0] if len(self.all) == 1 else self._best(now)
            chosen.in_flight += 1
            return chosen

    def _best(self, now: float) -> Broker[C]:
        up = [broker for broker in self.all if broker.down_until <= now]
        if up:
            chosen = min(up, key=lambda broker: broker.in_flight)
        else:
            chosen = min(self.all, key=lambda broker: broker.down_until)
        self.all.remove(chosen)  # of equals, the one that was chosen longest ago
        self.all.append(chosen)
        return chosen

    def connection(self, broker: Broker[C]) -> C | None:
        """An idle connection, if there is one."""
        with self._lock:
            while broker.idle:
                connection = broker.idle.pop()
                if connection.open:
                    return connection
                connection.close()
        return None

    def done(self, broker: Broker[C], connection: C | None, keep: bool) -> None:
        """A request is over: the broker works, and the connection may be kept."""
        with self._lock:
            broker.in_flight = max(0, broker.in_flight - 1)
            broker.failures, broker.down_until = 0, 0.0
            if connection is not None and keep and len(broker.idle) < IDLE:
                broker.idle.append(connection)
                return
        if connection is not None:
            connection.close()

    def failed(self, broker: Broker[C], now: float) -> None:
        """It did not answer, or said that it cannot: the others first, for a while."""
        with self._lock:
            broker.in_flight = max(0, broker.in_flight - 1)
            broker.failures += 1
            broker.down_until = now + backoff(broker.failures)
            dropped, broker.idle = broker.idle, []
        for connection in dropped:
            connection.close()

    def given_up(self, broker: Broker[C]) -> None:
        """The request ended for a reason of the caller's own, which says nothing about the broker."""
        with self._lock:
            broker.in_flight = max(0, broker.in_flight - 1)

    def wait(self, now: float) -> float:
        """How long until one of them is worth asking."""
        with self._lock:
            return max(0.0, min(broker.down_until for broker in self.all) - now)

    def close(self) -> None:
        """Close what is idle."""
        with self._lock:
            dropped = [connection for broker in self.all for connection in broker.idle]
            for broker in self.all:
                broker.idle = []
        for connection in dropped:
            connection.close()
