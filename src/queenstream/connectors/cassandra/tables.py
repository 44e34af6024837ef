"""Tables of Cassandra, read and written.

Writing, a row is typed by the table: what does not fit a column is refused, and the rest goes on. Rows that
share a partition travel together, others alone, ``concurrency`` requests at once. Every row carries a time
that a repeat has too: the one in its field ``timestamp_by``, or that of its epoch; of several rows with one
key the last one stays. While no node can take a row, the pipeline waits.
"""

from __future__ import annotations

import asyncio
import itertools
import math
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta
from typing import Any, TypeVar

from cassandra.metadata import TableMetadata
from cassandra.query import PreparedStatement

from queenstream.connectors.base import Context, Refusal, RowKey
from queenstream.connectors.broker.connection import Patience
from queenstream.connectors.cassandra.connection import AWAY, REFUSED, Link, told
from queenstream.connectors.cassandra.epochs import Epochs
from queenstream.connectors.cassandra.inserts import Inserts
from queenstream.connectors.cassandra.keys import KeyColumn, PrimaryKey
from queenstream.connectors.cassandra.reader import CassandraReader
from queenstream.connectors.cassandra.requests import Outcome, Request, Sender
from queenstream.connectors.cassandra.rows import Column, Rows
from queenstream.connectors.cassandra.schemas import quoted
from queenstream.connectors.cassandra.types import encoder, scalar_encoder, type_name
from queenstream.connectors.provenance import Provenance
from queenstream.connectors.validation import schema_of
from queenstream.core import paths
from queenstream.errors import ConfigError, PayloadInvalid, RunFailed
from queenstream.pipeline.endpoints import Cassandra

__all__ = ["CassandraReader", "CassandraWriter"]

T = TypeVar("T")

_SECOND_US = 1_000_000


class CassandraWriter:
    """Writes rows by a prepared ``insert``, in threads: the driver blocks."""

    def __init__(self, sink: Cassandra, context: Context) -> None:
        self._sink = sink
        self._context = context
        self._link = Link(sink)
        self._schema = schema_of(sink.schema)
        self._ttl = math.ceil(sink.ttl.total_seconds()) if isinstance(sink.ttl, timedelta) else None
        self._patience = Patience(context.node, self._link.server)

    # Opening

    async def open(self) -> None:
        await asyncio.to_thread(self._open)

    def _open(self) -> None:
        self._link.connect()
        try:
            self._prepare()
        except BaseException:
            self._link.close()
            raise

    def _prepare(self) -> None:
        sink, link = self._sink, self._link
        if sink.create_keyspace is not None:
            link.make_keyspace(sink.create_keyspace)
        if sink.create_table:
            if self._schema is None:
                raise ConfigError(f"{sink.title} cannot be made without a schema; write schema=…")
            link.make_table(self._schema)
        table = link.table()
        self._check(table)
        names = list(table.columns) if self._schema is None else list(self._schema.names)
        columns = ", ".join(map(quoted, names))
        using = "using timestamp ?" if self._ttl is None else "using timestamp ? and ttl ?"
        values = ", ".join("?" * len(names))
        self._insert = f"insert into {link.place} ({columns}) values ({values}) {using}"  # noqa: S608 - quoted
        prepared = link.prepare(self._insert)
        key = [names.index(each.name) for each in table.primary_key]
        self._key = self._key_columns(table, prepared)
        self._inserts = Inserts(prepared, self._typed(table, names, prepared), key, sink.timestamp_by)
        self._sender = Sender(link.session, sink.concurrency)
        self._epochs: Epochs | None = None
        if sink.timestamp_by is None:
            self._epochs = Epochs(link, f"{self._context.pipeline}:{self._context.node}")

    def _check(self, table: TableMetadata) -> None:
        """That the table is one that these rows can go into."""
        sink = self._sink
        counters = [each.name for each in table.columns.values() if each.cql_type == "counter"]
        if counters:
            raise ConfigError(
                f"{sink.title} counts in {', '.join(counters)}, and what comes again would count twice; "
                "write the totals into a table without counters"
            )
        for said, has, what in (
            (sink.partition_key, table.partition_key, "partition_key"),
            (sink.clustering_key, table.clustering_key, "clustering_key"),
        ):
            names = tuple(each.name for each in has)
            if said and said != names:
                raise ConfigError(
                    f"{sink.title} has the {what} {names}, not {said}; say the same, or take another table"
                )
        if self._schema is None:
            return
        unknown = [name for name in self._schema.names if name not in table.columns]
        missing = [each.name for each in table.primary_key if each.name not in self._schema.names]
        if unknown or missing:
            problem = (
                f"has no column {', '.join(unknown)}" if unknown else f"has {', '.join(missing)} in its key"
            )
            raise ConfigError(f"{sink.title} {problem}, unlike the schema; make them agree")

    def _typed(self, table: TableMetadata, names: Sequence[str], prepared: PreparedStatement) -> Rows:
        keys = {each.name for each in table.primary_key}
        fields = {} if self._schema is None else {each.name: each for each in self._schema.fields}
        kinds = {each.name: each.type for each in prepared.column_metadata}
        columns = [
            Column(
                name,
                encoder(kinds[name], self._link.protocol, table.columns[name].cql_type),
                name in keys or (name in fields and fields[name].required),
                fields[name].default if name in fields else None,
            )
            for name in names
        ]
        if self._schema is not None:  # it says which fields are wanted: others are dropped
            return Rows(columns, None)
        aside = {paths.segments(self._sink.timestamp_by)[0]} if self._sink.timestamp_by else set()
        return Rows(columns, frozenset(aside))

    def _key_columns(self, table: TableMetadata, prepared: PreparedStatement) -> tuple[KeyColumn, ...]:
        kinds = {each.name: type_name(each.type) for each in prepared.column_metadata}
        fields = () if self._schema is None else self._schema.fields
        defaults = {each.name: each.default for each in fields}
        names = [each.name for each in table.primary_key if scalar_encoder(kinds[each.name]) is not None]
        return tuple(KeyColumn(name, kinds[name], defaults.get(name)) for name in names)

    def row_key(self) -> RowKey | None:
        return PrimaryKey(self._key) if self._key else None

    async def provenance(self) -> Provenance | None:
        """None also for rows that say their own time: no repeat of them wins over newer ones."""
        return None if self._epochs is None else await self._patiently(self._epochs.provenance)

    async def store_provenance(self, provenance: Provenance) -> None:
        if self._epochs is not None:
            await self._patiently(self._epochs.store_provenance, provenance)

    # Writing

    async def write(self, epoch: str, rows: Sequence[Any]) -> list[Refusal]:
        return await self.write_at(await self.time_of(epoch, len(rows)), rows)

    async def time_of(self, epoch: str, rows: int) -> int:
        if self._epochs is None:  # each row says its own
            return 0
        return await self._patiently(self._epochs.time_of, epoch, rows)

    async def write_at(self, started: int, rows: Sequence[Any]) -> list[Refusal]:
        refused: list[Refusal] = []
        ttl = self._ttl
        if self._epochs is not None:
            ttl = self._left(started)
            if ttl == 0:  # they would be gone by now
                return []
        requests = self._inserts.requests(rows, started, ttl, refused)
        while True:
            outcome = await self._send(requests)
            again = await self._judge(outcome, refused)
            if not again:
                break
            requests = itertools.chain(again, requests)
            if outcome.away:
                await self._patience.wait(told(outcome.away[0][1]))
        self._patience.reset()
        return sorted(refused, key=lambda refusal: refusal[0])

    def _left(self, begun: int) -> int | None:
        """How many seconds the rows of an epoch have to live: a repeat must not make them live longer."""
        if self._ttl is None:
            return None
        passed = max(0, time.time_ns() // 1_000 - begun) // _SECOND_US
        return max(0, self._ttl - passed)

    async def _send(self, requests: Iterator[Request]) -> Outcome:
        stopping = threading.Event()
        sending = asyncio.ensure_future(asyncio.to_thread(self._sender.send, requests, stopping))
        try:
            return await asyncio.shield(sending)
        except asyncio.CancelledError:
            stopping.set()
            await asyncio.gather(sending, return_exceptions=True)
            raise

    async def _judge(self, outcome: Outcome, refused: list[Refusal]) -> list[Request]:
        """What is to be sent again; a row that no node will ever take goes to ``refused``."""
        again = [request for request, _ in outcome.away]
        if outcome.failed:  # is it the rows, or has the table gone or changed?
            await self._patiently(self._link.prepare, self._insert)
        for request, error in outcome.failed:
            if not isinstance(error, REFUSED):
                raise RunFailed(f"{self._sink.title} cannot be written: {error}; mend that") from error
            if len(request.rows) == 1:
                refused.append((request.rows[0][0], PayloadInvalid(f"Cassandra refused the row: {error}")))
            else:
                again += self._inserts.alone(request)
        return again

    async def _patiently(self, work: Callable[..., T], *args: Any) -> T:
        """Until a node is there for it."""
        while True:
            try:
                return await asyncio.to_thread(work, *args)
            except AWAY as error:
                await self._patience.wait(told(error))

    async def close(self) -> None:
        await asyncio.to_thread(self._link.close)
