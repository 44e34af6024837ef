"""Fixtures: a real PostgreSQL for the session, a fresh database and a real broker for each test."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import httpx
import pytest
from hypothesis import settings
from xdist.remote import Producer
from xdist.scheduler import LoadScopeScheduling

from queenstream import config, postgres
from queenstream.broker.app import Broker
from queenstream.broker.storage.database import prepare
from tests.databases import Databases, database_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# What decides whether a change lands says the same of the same tree each time. The long form looks further.
settings.register_profile("short", derandomize=True, deadline=None, print_blob=True)
settings.register_profile("long", deadline=None, print_blob=True, max_examples=2_000)
settings.load_profile("long" if os.environ.get("QUEENSTREAM_LONG") else "short")

_SPARK = ("tests/integration/spark/", "tests/conformance/pipelines/", "tests/integration/tables/test_both")

# Each starts one server for all.
_SERVERS = ("tests/integration/cassandra/", "tests/integration/kafka/", "tests/browser/")

# What lasts longest begins first, so that both workers come to their end at about the same time.
_LONGEST = (
    *_SPARK,
    "tests/faults/",
    "tests/browser/",
    "tests/integration/cassandra/",
    "tests/integration/spark_cluster/",
    "tests/integration/kafka/",
    "tests/integration/tables/",
    "tests/integration/test_openapi.py",
    "tests/integration/test_up.py",
    "tests/integration/test_dist.py",
    "tests/integration/cli/",
)


class Scheduler(LoadScopeScheduling):  # type: ignore[misc]  # xdist has no types
    """Gives the two workers of ``make test`` whole files; what shares a session or a server goes to one."""

    def _split_scope(self, nodeid: str) -> str:
        if nodeid.startswith(_SPARK):
            return "spark"
        return next((each for each in _SERVERS if nodeid.startswith(each)), nodeid.split("::")[0])


def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> LoadScopeScheduling:
    return Scheduler(config, log)


def _rank(nodeid: str) -> int:
    return next((n for n, each in enumerate(_LONGEST) if nodeid.startswith(each)), len(_LONGEST))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The longest first; the rest as it is."""
    items.sort(key=lambda item: _rank(item.nodeid))


class Clock:
    """The time the broker believes in: turned by a test, never slept for."""

    def __init__(self) -> None:
        self.offset = timedelta()

    def __call__(self) -> datetime:
        return datetime.now(UTC) + self.offset

    def turn(self, seconds: float) -> None:
        self.offset += timedelta(seconds=seconds)


@pytest.fixture(scope="session")
def server() -> Iterator[postgres.Server]:
    """One embedded PostgreSQL for all tests."""
    with postgres.ephemeral(settings={"max_connections": "300"}) as started:
        asyncio.run(prepare(database_of(started.url, "queen")))
        yield started


@pytest.fixture(scope="session")
def databases(server: postgres.Server) -> Databases:
    """Those of the tests."""
    return Databases(server.url)


@pytest.fixture
async def empty_database_url(server: postgres.Server, databases: Databases) -> AsyncIterator[str]:
    """A database of the test's own, without our schema."""
    name = await databases.take(empty=True)
    yield database_of(server.url, name)
    await databases.drop(name)


@pytest.fixture
async def database_url(server: postgres.Server, databases: Databases) -> AsyncIterator[str]:
    """A database of the test's own, with our schema."""
    name = await databases.take()
    yield database_of(server.url, name)
    await databases.give(name)


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """One session of Spark for all tests of a process."""
    from tests.sparks import local_session

    started = local_session()
    yield started
    started.stop()


StartBroker = Callable[..., Awaitable[Broker]]


@pytest.fixture
async def start_broker(database_url: str) -> AsyncIterator[StartBroker]:
    """Starts brokers on the test's database; they are stopped at its end."""
    started: list[Broker] = []

    async def start(*, clock: Clock | None = None, **settings: Any) -> Broker:
        loaded = config.load({"port": 0, "drain_timeout": "2s", **settings}, {}, None)
        broker = Broker(loaded, database_url, clock=clock)
        await broker.start()
        started.append(broker)
        return broker

    yield start
    for broker in started:
        await broker.stop()


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
async def broker(start_broker: StartBroker, clock: Clock) -> Broker:
    """A broker whose clock the test may turn."""
    return await start_broker(clock=clock)


@pytest.fixture
async def http(broker: Broker) -> AsyncIterator[httpx.AsyncClient]:
    """Plain HTTP to that broker; loading certificates would take longer than most tests."""
    async with httpx.AsyncClient(base_url=broker.address, timeout=60, verify=False) as client:
        yield client
