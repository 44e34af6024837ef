"""A database that tests push into without a broker, and a broker where they want one."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Iterator, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

import asyncpg
import pytest
from pyspark.sql import DataFrame, SparkSession

from queenstream.broker.storage.sql import bind
from queenstream.testing.brokers import TemporaryBroker, TemporaryBrokers

Json = Any
_PUSH = bind(
    "select status from queen.push(array[$1::integer], "
    "array[(select version from queen.queues where id = $1)], array[$2::bigint % 1024]::integer[], "
    "array[$2], array[0], array_fill(1, array[cardinality($3::text[])]), $3, $4, $5, "
    "null, null, null, 1, false, null, null, null, $6)"
)


class Sql:
    """Statements against the test's database, from tests that are not async: Spark blocks the thread."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.runner = asyncio.Runner()
        self._connections: list[asyncpg.Connection[asyncpg.Record]] = []

    def connect(self) -> asyncpg.Connection[asyncpg.Record]:
        """A connection of its own; closed at the end of the test."""
        made = self.runner.run(asyncpg.connect(self.url))
        self._connections.append(made)
        return made

    def rows(self, query: str, *args: Any, on: Any = None) -> list[tuple[Any, ...]]:
        connection = on or (self._connections[0] if self._connections else self.connect())
        return [tuple(row) for row in self.runner.run(connection.fetch(query, *args))]

    def queue(self, name: str, **options: Json) -> None:
        """Make a queue, with options by the names of its columns; what Spark reads should not expire."""
        self.rows("insert into queen.queues (name, ttl_seconds) values ($1, 0) on conflict do nothing", name)
        for column, value in options.items():
            self.rows(f"update queen.queues set {column} = $2 where name = $1", name, value)

    def push(
        self,
        queue: str,
        payloads: Sequence[Json],
        partition: str = "Default",
        *,
        on: Any = None,
        transactions: Sequence[str] | None = None,
        now: datetime | None = None,
    ) -> None:
        """Store messages as a broker does; ``on`` a connection, perhaps in a transaction that stays open."""
        self.queue(queue)
        ensure = bind("select queue_id, partition_ids[1] from queen.ensure_partitions($1, array[$2::text])")
        [(number, lane)] = self.rows(ensure, queue, partition)
        self.runner.run(store(on or self._connections[0], number, lane, payloads, transactions, now))

    def stored(self, queue: str) -> dict[str, list[Json]]:
        """Every payload of a queue, by partition, in order."""
        found: dict[str, list[Json]] = {}
        for name, payload in self.rows(
            "select p.name, m.payload from queen.messages m join queen.partitions p on p.id = m.partition_id "
            "join queen.queues q on q.id = p.queue_id where q.name = $1 order by p.name, m.id", queue,
        ):  # fmt: skip
            found.setdefault(name, []).append(json.loads(payload))
        return found

    def close(self) -> None:
        for connection in self._connections:
            self.runner.run(connection.close())
        self.runner.close()


async def store(
    connection: Any,
    queue: int,
    partition: int,
    payloads: Sequence[Json],
    transactions: Sequence[str] | None = None,
    now: datetime | None = None,
) -> None:
    """One call of ``queen.push``."""
    texts = [payload if isinstance(payload, bytes) else json.dumps(payload).encode() for payload in payloads]
    ends = [0]
    for text in texts:
        ends.append(ends[-1] + len(text))
    names = [*(transactions or (f"{partition}-{id(texts)}-{n}-{asyncio.get_running_loop().time()}"
                                for n in range(len(texts))))]  # fmt: skip
    status = await connection.fetchval(_PUSH, queue, partition, names, b"".join(texts), ends, now)
    assert status == "ok"


@pytest.fixture
def sql(database_url: str) -> Iterator[Sql]:
    """The test's database."""
    opened = Sql(database_url)
    opened.connect()
    yield opened
    opened.close()


@pytest.fixture
def broker(queen_brokers: TemporaryBrokers, monkeypatch: pytest.MonkeyPatch) -> Iterator[TemporaryBroker]:
    """A broker with a database of its own, which Spark's tasks find, too."""
    with queen_brokers.start() as started:
        monkeypatch.setenv("QUEEN_PG", started.database_url)
        yield started


@pytest.fixture
def elsewhere(spark: SparkSession, tmp_path: Path) -> Iterator[str]:
    """A file system that only Hadoop knows: a mount table over a folder."""
    conf: Any = spark._jsc.hadoopConfiguration()
    (tmp_path / "data").mkdir()
    name = f"test{time.monotonic_ns()}"  # Hadoop keeps a file system that it knows
    conf.set(f"fs.viewfs.mounttable.{name}.link./data", f"file:{tmp_path}/data")
    conf.set("fs.AbstractFileSystem.viewfs.impl", "org.apache.hadoop.fs.viewfs.ViewFs")
    yield f"viewfs://{name}/data"
    conf.unset(f"fs.viewfs.mounttable.{name}.link./data")


class Queen:
    """``format("queen")`` on the test's database."""

    def __init__(self, spark: SparkSession, url: str) -> None:
        self.spark = spark
        self.url = url

    def read(self, **options: str) -> DataFrame:
        return self.spark.read.format("queen").options(pg=self.url, **options).load()

    def stream(self, **options: str) -> DataFrame:
        return self.spark.readStream.format("queen").options(pg=self.url, **options).load()


@pytest.fixture
def queen(spark: SparkSession, sql: Sql) -> Queen:
    return Queen(spark, sql.url)
