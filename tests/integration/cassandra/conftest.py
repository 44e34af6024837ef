"""One node of Cassandra for all of these tests, with a keyspace; each test has tables of its own."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import pytest

from queenstream import Cassandra
from tests.integration.cassandra.tools import KEYSPACE, Cql, Endpoint, Failing, login
from tests.servers import maven
from tests.servers.cassandra import Node, running

_numbers = itertools.count(1)


@pytest.fixture(scope="session")
def node() -> Iterator[Node]:
    with running(maven.required("cassandra")) as started:
        with started.connected() as session:
            session.execute(
                f"create keyspace {KEYSPACE} with replication = "
                "{'class': 'SimpleStrategy', 'replication_factor': 1}"
            )
        yield started


@pytest.fixture
def cql(node: Node) -> Iterator[Cql]:
    with node.connected() as session:
        yield Cql(session)


@pytest.fixture
def table() -> str:
    """A name that no other test has."""
    return f"t{next(_numbers)}"


@pytest.fixture
def endpoint(node: Node, table: str) -> Endpoint:
    """Describes the test's table, with further options."""

    def describe(name: str = table, **options: Any) -> Cassandra:
        return Cassandra(name, **{**login(node), "keyspace": KEYSPACE, **options})

    return describe


@pytest.fixture
def failing(node: Node) -> Iterator[Failing]:
    """The node, to be killed once."""
    made = Failing(node)
    yield made
    made.end()
