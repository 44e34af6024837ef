"""Tables of Cassandra, read.

The ring of tokens is cut into ranges of equal size, which are read one after the other, page by page. A
position is a range with the place in it where the next page begins; None: it is done. Rows that are written
meanwhile may come or not.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
from dataclasses import dataclass
from typing import Any

from cassandra import Unauthorized
from cassandra.protocol import ProtocolException
from cassandra.query import PreparedStatement

from queenstream.connectors.base import Context, Positions
from queenstream.connectors.broker.connection import Patience
from queenstream.connectors.cassandra.connection import AWAY, REFUSED, Link, told
from queenstream.connectors.cassandra.schemas import quoted
from queenstream.connectors.cassandra.types import Decoder, decoder
from queenstream.connectors.validation import fit, schema_of
from queenstream.core.batches import Batch
from queenstream.core.schemas import Schema
from queenstream.core.schemas.coercion import Misfit
from queenstream.errors import ConfigError, PayloadInvalid, RunFailed
from queenstream.pipeline.endpoints import Cassandra

RANGES = 16
MOST_ROWS = 5_000  # in a page: a node makes one of them in memory
LEAST_TOKEN, MOST_TOKEN = -(1 << 63), (1 << 63) - 1  # tokens


@dataclass(frozen=True, slots=True)
class Page:
    """Some rows of a range, and where the next page begins; None: there is none."""

    rows: list[dict[str, Any]]
    following: str | None


def ranges() -> dict[str, tuple[int, int]]:
    """The whole ring in parts, by name: tokens above the first number, up to the second.

    >>> list(ranges().items())[0]
    ('0', (-9223372036854775808, -8070450532247928832))
    """
    step = (MOST_TOKEN - LEAST_TOKEN + 1) // RANGES
    edges = [LEAST_TOKEN + at * step for at in range(RANGES)] + [MOST_TOKEN]
    return {str(at): (edges[at], edges[at + 1]) for at in range(RANGES)}


def select_of(link: Link, schema: Schema | None, more: str = "") -> PreparedStatement:
    """The statement for the rows of a table between two tokens, with the columns of a schema, or all.

    ``more`` is selected too, where ``{token}`` is a row's token.
    """
    table, title = link.table(), link.endpoint.title
    names = list(table.columns) if schema is None else list(schema.names)
    unknown = [name for name in names if name not in table.columns]
    if unknown:
        raise ConfigError(
            f"{title} has no column {', '.join(unknown)}, which the schema names; it has "
            f"{', '.join(table.columns)}"
        )
    token = token_of(link)
    wanted = ", ".join(map(quoted, names)) + more.format(token=token)
    return link.prepare(
        f"select {wanted} from {link.place} where {token} > ? and {token} <= ?"  # noqa: S608 - all quoted
    )


def token_of(link: Link) -> str:
    """A row's token, as CQL has it."""
    return f"token({', '.join(quoted(each.name) for each in link.table().partition_key)})"


def decoders_of(select: PreparedStatement) -> dict[str, Decoder]:
    """What makes a record's values of those of the driver, by column."""
    return {name: made for _, _, name, kind in select.result_metadata if (made := decoder(kind)) is not None}


class CassandraReader:
    """Reads a table once, in threads: the driver blocks."""

    def __init__(self, source: Cassandra, context: Context) -> None:
        self._source = source
        self._link = Link(source)
        self._schema = schema_of(source.schema)
        self._patience = Patience(context.node, self._link.server)
        self._places: dict[str, str | None] = {}
        self._moved: set[str] = set()

    async def open(self, positions: Positions) -> None:
        self._places = dict.fromkeys(ranges(), "") | dict(positions)
        await asyncio.to_thread(self._open)

    def _open(self) -> None:
        self._link.connect()
        try:
            self._prepare()
        except BaseException:
            self._link.close()
            raise

    def _prepare(self) -> None:
        self._select = select_of(self._link, self._schema)
        self._decoders = decoders_of(self._select)

    async def read(self, most: int, wait_seconds: float) -> Batch | None:
        try:
            rows = await asyncio.to_thread(self._next, min(most, MOST_ROWS))
        except AWAY as error:
            await self._patience.wait(told(error), wait_seconds)
            return Batch([])
        self._patience.reset()
        return None if not rows else self._batch(rows)

    def _next(self, most: int) -> list[dict[str, Any]]:
        """The next rows, of as many ranges as it takes; none: that was the end."""
        rows: list[dict[str, Any]] = []
        for name, tokens in ranges().items():
            while len(rows) < most and (place := self._places[name]) is not None:
                try:
                    page = self._page(tokens, place, most - len(rows))
                except AWAY:
                    if rows:  # those first
                        return rows
                    raise
                rows += page.rows
                self._places[name] = page.following
                self._moved.add(name)
        return rows

    def _page(self, tokens: tuple[int, int], place: str, most: int) -> Page:
        statement = self._select.bind(tokens)
        statement.fetch_size = most
        try:
            state = base64.b64decode(place, validate=True) or None
            result = self._link.session.execute(statement, paging_state=state)
        except Unauthorized as error:
            raise RunFailed(f"{self._source.title} cannot be read: {error}; ask for that right") from error
        except (*REFUSED, ProtocolException, binascii.Error) as error:
            raise RunFailed(
                f"{self._source.title} cannot be read on from where it was left: {error}; "
                "has it changed? Start afresh with another checkpoint"
            ) from error
        following = result.paging_state
        return Page(
            list(result.current_rows), None if following is None else base64.b64encode(following).decode()
        )

    def _batch(self, rows: list[dict[str, Any]]) -> Batch:
        """The records of rows; what a schema or a calendar has no place for is a failure."""
        records: list[Any] = []
        failures: list[tuple[Any, Exception]] = []
        for row in rows:
            try:
                for name, decode in self._decoders.items():
                    if row[name] is not None:
                        row[name] = decode(row[name])
            except Misfit as misfit:
                failures.append(
                    ({key: str(value) for key, value in row.items()}, PayloadInvalid(str(misfit)))
                )
            else:
                records.append(row)
        batch = fit(self._schema, records)
        batch.failures = failures + batch.failures
        return batch

    def changes(self) -> dict[str, Any]:
        changed = {name: self._places[name] for name in self._moved}
        self._moved.clear()
        return changed

    async def commit(self) -> None:
        """There is nobody to tell."""

    def drained(self) -> bool:
        return all(place is None for place in self._places.values())

    def lag(self) -> float | None:
        return None

    async def close(self) -> None:
        await asyncio.to_thread(self._link.close)
