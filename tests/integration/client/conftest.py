"""Both clients against real brokers: in the test's own event loop, and as processes that can be killed."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import Protocol, TypeVar

import pytest

from queenstream import AsyncQueen, Queen
from queenstream.broker.app import Broker
from tests.integration.client.servers import Served, Server
from tests.processes import Up, free_port

R = TypeVar("R")


@pytest.fixture
async def queen(broker: Broker) -> AsyncIterator[AsyncQueen]:
    """The asynchronous client of the test's broker."""
    async with AsyncQueen(broker.address) as client:
        yield client


class InThread(Protocol):
    """Runs a function with the synchronous client, in a thread: the broker needs the event loop."""

    async def __call__(self, work: Callable[[Queen], R]) -> R: ...


@pytest.fixture
def in_thread(broker: Broker) -> InThread:
    async def run(work: Callable[[Queen], R]) -> R:
        def inside() -> R:
            with Queen(broker.address) as client:
                return work(client)

        return await asyncio.to_thread(inside)

    return run


class Process:
    """A broker in a process of its own, on a port that stays: it can be killed and started again."""

    def __init__(self, database_url: str) -> None:
        self._flags = ("--pg", database_url, "--port", str(free_port()), "--log-level", "error")
        self._up = Up(*self._flags)
        self.address = self._up.ready()

    def kill(self) -> None:
        """As ``kill -9``: nothing is put in order."""
        self._up.stop(signal.SIGKILL)

    def start(self) -> None:
        self._up = Up(*self._flags)
        assert self._up.ready() == self.address

    def stop(self) -> None:
        self._up.stop()


@pytest.fixture
def process(database_url: str) -> Iterator[Process]:
    """A broker as a process."""
    started = Process(database_url)
    yield started
    started.stop()


StartServer = Callable[[Server], Awaitable[Served]]


@pytest.fixture
async def serve() -> AsyncIterator[StartServer]:
    """Starts servers that do as they are told, which a broker would not."""
    started: list[Served] = []

    async def start(behaviour: Server) -> Served:
        served = Served(behaviour)
        await served.start()
        started.append(served)
        return served

    yield start
    for served in started:
        await served.stop()
