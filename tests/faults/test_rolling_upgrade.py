"""Brokers of two releases on one database, replaced one by one under load: nothing is lost, and no 500."""

from __future__ import annotations

import asyncio
import os
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import asyncpg
import httpx
import pytest

from queenstream.broker.storage import sql
from tests.faults.releases import ROOT, next_release, previous_release
from tests.processes import Up

THIS = ROOT / "src"
MOST_SECONDS = 60.0
STEP = 200 if os.environ.get("QUEENSTREAM_LONG") else 20  # messages pushed and consumed in each situation


@pytest.fixture
def place() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="queenstream-release-") as path:
        yield Path(path)


class Traffic:
    """Producers and consumers that repeat, at another broker, what got 503 or no answer."""

    def __init__(self) -> None:
        self.addresses: list[str] = []
        self.pushed: set[str] = set()
        self.consumed: Counter[str] = Counter()
        self.statuses: Counter[int] = Counter()
        self.failures: list[str] = []
        self._progress = asyncio.Condition()
        self._stopping = False
        self._http = httpx.AsyncClient(timeout=20)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[Traffic]:
        tasks = [asyncio.create_task(self._push(lane)) for lane in range(3)]
        tasks += [asyncio.create_task(self._consume(number)) for number in range(2)]
        try:
            yield self
        finally:
            self._stopping = True
            await asyncio.gather(*tasks)
            await self._http.aclose()

    async def step(self) -> None:
        """Wait until so many more messages were pushed and consumed."""
        pushed, consumed = len(self.pushed) + STEP, len(self.consumed) + STEP
        async with asyncio.timeout(MOST_SECONDS), self._progress:
            await self._progress.wait_for(
                lambda: len(self.pushed) >= pushed and len(self.consumed) >= consumed
            )

    async def _ask(self, number: int, method: str, path: str, **request: object) -> httpx.Response | None:
        address = self.addresses[number % len(self.addresses)]
        try:
            answer = await self._http.request(method, f"{address}{path}", **request)  # type: ignore[arg-type]
        except httpx.TransportError:
            return None
        self.statuses[answer.status_code] += 1
        if answer.status_code >= 500 and answer.status_code != 503:
            self.failures.append(f"{method} {path}: {answer.status_code} {answer.text}")
        return answer

    async def _push(self, lane: int) -> None:
        number = 0
        while not self._stopping:
            name = f"{lane}-{number}"
            item = {"queue": "q", "partition": f"p{number % 5}", "transactionId": name, "payload": name}
            answer = await self._ask(number + lane, "POST", "/api/v1/push", json={"items": [item]})
            if answer is not None and answer.status_code == 201:
                self.pushed.add(name)
                number += 1
                await self._tell()
            else:
                await asyncio.sleep(0.05)

    async def _consume(self, number: int) -> None:
        asked = number
        deadline = 0.0
        while not self._stopping or (self.consumed.keys() < self.pushed and time.monotonic() < deadline):
            if not self._stopping:
                deadline = time.monotonic() + 15
            asked += 1
            query = {"consumerGroup": "g", "batch": "20", "wait": "true", "timeout": "500"}
            answer = await self._ask(asked, "GET", "/api/v1/pop/queue/q", params=query)
            if answer is None or answer.status_code != 200:
                await asyncio.sleep(0.05)
                continue
            messages = answer.json()["messages"]
            acks = [
                {key: m[key] for key in ("transactionId", "partitionId", "leaseId", "consumerGroup")}
                | {"status": "completed"}
                for m in messages
            ]
            while True:  # until a broker answers: the lease outlives the test
                settled = await self._ask(asked, "POST", "/api/v1/ack/batch", json={"acknowledgments": acks})
                if settled is not None and settled.status_code == 200:
                    break
                asked += 1
                await asyncio.sleep(0.05)
            self.consumed.update(m["transactionId"] for m in messages)
            await self._tell()

    async def _tell(self) -> None:
        async with self._progress:
            self._progress.notify_all()


class Brokers:
    """Real brokers of any release on one database."""

    def __init__(self, url: str, traffic: Traffic, stack: AsyncExitStack) -> None:
        self._url = url
        self._traffic = traffic
        self._stack = stack
        self._running: dict[str, Up] = {}

    async def start(self, source: Path) -> str:
        """Start one; gives its address, where traffic goes from now on."""
        up = await asyncio.to_thread(
            Up, "--pg", self._url, "--port", "0", PYTHONPATH=str(source), QUEEN_DRAIN_TIMEOUT="3s"
        )
        self._stack.push_async_callback(asyncio.to_thread, up.stop)
        address = await asyncio.to_thread(up.ready, MOST_SECONDS)
        self._running[address] = up
        self._traffic.addresses.append(address)
        return address

    async def replace(self, address: str, source: Path) -> str:
        """A rolling upgrade's step: one more, then one less."""
        started = await self.start(source)
        await self._traffic.step()
        self._traffic.addresses.remove(address)
        assert await asyncio.to_thread(self._running[address].stop) == 0
        await self._traffic.step()
        return started


async def fetch(url: str, statement: str, *args: object) -> object:
    connection = await asyncpg.connect(url)
    try:
        return await connection.fetchval(statement, *args)
    finally:
        await connection.close()


def check(traffic: Traffic) -> None:
    assert traffic.failures == []
    assert set(traffic.statuses) <= {200, 201, 204, 503}
    assert traffic.pushed <= set(traffic.consumed)


async def test_the_previous_release_is_upgraded_one_broker_at_a_time(
    empty_database_url: str, place: Path
) -> None:
    previous = previous_release(place)
    traffic = Traffic()
    async with AsyncExitStack() as stack:
        brokers = Brokers(empty_database_url, traffic, stack)
        old = [await brokers.start(previous) for _ in range(2)]
        newest = "select max(number) from queen.migrations"
        assert await fetch(empty_database_url, newest) != sql.MIGRATIONS[-1].number
        async with traffic.running():
            await traffic.step()
            for address in old:
                await brokers.replace(address, THIS)
    assert await fetch(empty_database_url, newest) == sql.MIGRATIONS[-1].number
    check(traffic)


async def test_the_next_release_and_this_one_go_both_ways(empty_database_url: str, place: Path) -> None:
    """Up, side by side, a broker of this release started again on the newer schema, and back down."""
    later = next_release(place)
    traffic = Traffic()
    async with AsyncExitStack() as stack:
        brokers = Brokers(empty_database_url, traffic, stack)
        this = await brokers.start(THIS)
        async with traffic.running():
            await traffic.step()
            upgraded = await brokers.start(later)
            await traffic.step()
            this = await brokers.replace(this, THIS)
            await brokers.replace(upgraded, THIS)
    newest = await fetch(empty_database_url, "select max(number) from queen.migrations")
    assert newest == sql.MIGRATIONS[-1].number + 1
    assert await fetch(empty_database_url, "select count(*) from queen.function_sets where name <> ''") == 2
    check(traffic)
