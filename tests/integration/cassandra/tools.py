"""What these tests share: statements, writers and readers as an engine uses them, a node that is killed."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any

from cassandra.cluster import Session

from queenstream import Cassandra
from queenstream.connectors import Context, Reader, Writer, reader_for, writer_for
from queenstream.connectors.base import Positions, Refusal
from tests.servers.cassandra import PASSWORD, READY_SECONDS, USER, Node

KEYSPACE = "tests"
Row = dict[str, Any]
Endpoint = Callable[..., Cassandra]


def login(node: Node) -> dict[str, Any]:
    """What an endpoint has to know of a node."""
    return {"port": node.port, "user": USER, "password": PASSWORD}


class Cql:
    """Statements of a test, by the driver itself."""

    def __init__(self, session: Session) -> None:
        self._session = session

    def run(self, statement: str, *values: Any) -> list[dict[str, Any]]:
        return list(self._session.execute(statement, values or None))

    def rows(self, table: str, columns: str = "*", where: str = "") -> list[dict[str, Any]]:
        return self.run(f"select {columns} from {KEYSPACE}.{table} {where}")


@contextlib.asynccontextmanager
async def writer(sink: Cassandra, pipeline: str = "") -> AsyncIterator[Writer]:
    made = writer_for(sink, Context(pipeline or sink.table, sink.slug))
    await made.open()
    try:
        yield made
    finally:
        await made.close()


async def written(
    sink: Cassandra, rows: Sequence[Any], epoch: str = "a-0000000001", pipeline: str = ""
) -> list[Refusal]:
    """Write one epoch, as a run does that then ends."""
    async with writer(sink, pipeline) as made:
        return await made.write(epoch, rows)


@contextlib.asynccontextmanager
async def reader(source: Cassandra, positions: Positions | None = None) -> AsyncIterator[Reader]:
    made = reader_for(source, Context(source.table, source.slug))
    await made.open(positions or {})
    try:
        yield made
    finally:
        await made.close()


async def read(source: Cassandra, most: int = 1_000) -> list[Any]:
    """All records of a table."""
    records: list[Any] = []
    async with reader(source) as made:
        while (batch := await made.read(most, 1.0)) is not None:
            assert len(batch) <= most
            assert not batch.failures
            records += batch.records
    return records


def row(n: int) -> Row:
    """Some keys come twice; the later row is to stay."""
    return {"k": n % 2_000, "n": 1, "text": f"row {n}", "tags": {"n": str(n)}}


def stored(cql: Cql, table: str) -> list[Row]:
    return sorted(cql.rows(table), key=lambda each: (each["k"], each["n"]))


class Failing:
    """A node that is killed, and comes back by itself."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._thread: threading.Thread | None = None

    def kill(self) -> None:
        """Now; later calls do nothing."""
        if self._thread is None:
            self._node.kill()
            self._start(self._node.start)

    def kill_at(self, table: str, rows: int) -> None:
        """When a table has so many rows: while others are on their way."""
        self._start(lambda: self._watch(table, rows))

    def _watch(self, table: str, rows: int) -> None:
        ends = time.monotonic() + READY_SECONDS
        with self._node.connected() as session:
            while len(Cql(session).rows(table, "k")) < rows:
                assert time.monotonic() < ends, f"{table} never had {rows} rows"
        self._node.kill()
        self._node.start()

    def _start(self, work: Callable[[], None]) -> None:
        self._thread = threading.Thread(target=work)
        self._thread.start()

    def wait(self) -> None:
        """Until it is back."""
        assert self._thread is not None, "it was not killed"
        self._thread.join()

    def end(self) -> None:
        """The test is over: others need the node."""
        if self._thread is not None:
            self._thread.join()
