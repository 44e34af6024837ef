"""Rows of a table of Cassandra by their primary key, many requests at once."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from cassandra.concurrent import execute_concurrent
from cassandra.query import BoundStatement

from queenstream.connectors.base import Context
from queenstream.connectors.cassandra.connection import Link, told
from queenstream.connectors.cassandra.schemas import quoted
from queenstream.connectors.cassandra.types import decoder, encoder
from queenstream.connectors.lookups import Key
from queenstream.core.schemas.coercion import Misfit
from queenstream.errors import ConfigError, PayloadInvalid
from queenstream.pipeline.endpoints import Cassandra
from queenstream.pipeline.lookups import Found
from queenstream.pipeline.plan import nodes


class CassandraLookup:
    """Asks for each key by itself, as Cassandra likes it, in a thread: the driver blocks."""

    def __init__(self, node: nodes.Lookup, context: Context) -> None:  # noqa: ARG002 - as all
        assert isinstance(node.table, Cassandra)
        self._source = node.table
        self._on = [theirs for _, theirs in node.on]
        self._wanted = None if node.fields is None else [theirs for _, theirs in node.fields]
        self._link = Link(node.table)

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
        link = self._link
        table = link.table()
        key = [each.name for each in table.primary_key]
        if set(key) != set(self._on):
            raise ConfigError(
                f"{self._source.title} has one row for each {', '.join(key)}; look it up by all of that, "
                f"not by {', '.join(self._on)}"
            )
        names = list(table.columns) if self._wanted is None else self._wanted
        unknown = [name for name in names if name not in table.columns]
        if unknown:
            raise ConfigError(
                f"{self._source.title} has no column {', '.join(unknown)}; it has {', '.join(table.columns)}"
            )
        equal = " and ".join(f"{quoted(name)} = ?" for name in self._on)
        selected = ", ".join(map(quoted, names))
        self._select = link.prepare(f"select {selected} from {link.place} where {equal}")  # noqa: S608 - quoted
        self._encoders = [
            (each.name, encoder(each.type, link.protocol, table.columns[each.name].cql_type))
            for each in self._select.column_metadata
        ]
        self._decoders = [
            (name, made)
            for _, _, name, kind in self._select.result_metadata
            if (made := decoder(kind)) is not None
        ]

    async def fetch(self, keys: Sequence[Key]) -> list[Found]:
        return await asyncio.to_thread(self._fetch, keys)

    def _fetch(self, keys: Sequence[Key]) -> list[Found]:
        found: list[Found] = [None] * len(keys)
        asked: dict[int, BoundStatement] = {}
        for index, key in enumerate(keys):
            try:
                asked[index] = self._bound(key)
            except PayloadInvalid as error:
                found[index] = error
        requests = [(statement, None) for statement in asked.values()]
        answers = execute_concurrent(
            self._link.session, requests, self._source.concurrency, raise_on_first_error=False
        )
        for index, (success, answer) in zip(asked, answers, strict=True):
            found[index] = self._row(answer.one()) if success else told(answer)
        return found

    def _bound(self, key: Key) -> BoundStatement:
        values: list[Any] = []
        for (name, encode), value in zip(self._encoders, key, strict=True):
            try:
                values.append(encode(value))
            except Misfit as misfit:
                raise PayloadInvalid(str(misfit.under(name))) from None
        bound = BoundStatement(self._select)
        bound.values = values
        bound.raw_values = ()  # nothing of a key gets into a log
        return bound

    def _row(self, row: dict[str, Any] | None) -> Found:
        if row is None:
            return None
        try:
            for name, decode in self._decoders:
                if row[name] is not None:
                    row[name] = decode(row[name])
        except Misfit as misfit:
            return PayloadInvalid(str(misfit))
        return row

    async def close(self) -> None:
        await asyncio.to_thread(self._link.close)
