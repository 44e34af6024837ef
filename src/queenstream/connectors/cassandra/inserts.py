"""Requests for rows: a statement for each, or one for several of the same partition."""

from __future__ import annotations

import struct
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeAlias

from cassandra.query import BatchStatement, BatchType, BoundStatement, PreparedStatement

from queenstream.connectors.base import Refusal
from queenstream.connectors.cassandra.requests import Request
from queenstream.connectors.cassandra.rows import Rows
from queenstream.core import paths
from queenstream.core.records import event_time
from queenstream.errors import PayloadInvalid

CHUNK_ROWS = 1_000  # looked at together, for those that share a partition
BATCH_ROWS = 100  # in one request, of one partition
BATCH_BYTES = 64 << 10

_LONG = struct.Struct(">q").pack
_INT = struct.Struct(">i").pack

Stamper: TypeAlias = Callable[[int, Any, list[Any]], int]
"""Gives a row its time: by its index, the record, and its values."""


class Inserts:
    """Makes requests of rows. ``prepared`` takes the values, a time, and a time to live if there is one.

    ``key`` says at which places of the values the primary key is.
    """

    def __init__(
        self, prepared: PreparedStatement, rows: Rows, key: Sequence[int], timestamp_by: str | None
    ) -> None:
        self._prepared = prepared
        self._rows = rows
        self._key = key
        self._routing: list[int] = prepared.routing_key_indexes
        self._timestamp_by = timestamp_by

    def requests(
        self, rows: Sequence[Any], begun: int, ttl: int | None, refused: list[Refusal]
    ) -> Iterator[Request]:
        """Requests for all rows of an epoch that began then; those that do not fit go to ``refused``."""
        values_of, stamp_of = self._rows.values, self._stamper(begun)
        last = () if ttl is None else (_INT(ttl),)
        for start in range(0, len(rows), CHUNK_ROWS):
            partitions: dict[Any, list[tuple[int, list[Any]]]] = {}
            for index in range(start, min(start + CHUNK_ROWS, len(rows))):
                try:
                    values = values_of(rows[index])
                    values += (_LONG(stamp_of(index, rows[index], values)), *last)
                except PayloadInvalid as error:
                    refused.append((index, error))
                    continue
                partitions.setdefault(self._partition_of(values), []).append((index, values))
            for together in partitions.values():
                yield from self._cut(together)

    def alone(self, request: Request) -> list[Request]:
        """The rows of a request, each in one of its own."""
        return [self._request([row]) for row in request.rows]

    def _partition_of(self, values: list[Any]) -> Any:
        routing = self._routing
        return values[routing[0]] if len(routing) == 1 else tuple([values[at] for at in routing])

    def _cut(self, together: list[tuple[int, list[Any]]]) -> Iterator[Request]:
        """Rows of one partition, in as few requests as may be."""
        if len(together) == 1:
            yield self._request(together)
            return
        part: list[tuple[int, list[Any]]] = []
        size = 0
        for row in together:
            more = sum(len(value) for value in row[1] if type(value) is bytes)
            if part and (len(part) >= BATCH_ROWS or size + more > BATCH_BYTES):
                yield self._request(part)
                part, size = [], 0
            part.append(row)
            size += more
        yield self._request(part)

    def _request(self, rows: list[tuple[int, list[Any]]]) -> Request:
        if len(rows) == 1:
            return Request(rows, self._bound(rows[0][1]))
        batch = BatchStatement(BatchType.UNLOGGED)
        batch.is_idempotent = True
        for _, values in rows:
            batch.add(self._bound(values))
        return Request(rows, batch)

    def _bound(self, values: list[Any]) -> BoundStatement:
        """What the driver's ``bind`` gives, of values that are bytes already."""
        bound = BoundStatement(self._prepared)
        bound.values = values
        bound.raw_values = ()  # nothing of a row gets into a log
        return bound

    def _stamper(self, begun: int) -> Stamper:
        """Of several rows with one key in an epoch, the later has the later time."""
        if self._timestamp_by is None:
            return lambda index, _row, _values: begun + index
        name, read, key = self._timestamp_by, paths.getter(self._timestamp_by), self._key
        before: Counter[tuple[Any, ...]] = Counter()

        def stamp(_index: int, row: Any, values: list[Any]) -> int:
            try:
                at = event_time(read(row))
            except ValueError as error:
                raise PayloadInvalid(f"{name}: {error}") from None
            mark = (at, *[values[each] for each in key])
            before[mark] += 1
            return at + before[mark] - 1

        return stamp
