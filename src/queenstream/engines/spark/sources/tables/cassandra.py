"""Tables of Cassandra as a Python data source: each task reads a part of the ring of tokens, page by page.

An offset is the token up to which the ring was read. How many rows lie between two tokens only the nodes
know, and they count slowly; so a batch is planned from the tokens of the next some thousand rows: tokens are
hashes, and the rest of the ring looks like them. A partition is in one batch, however large it is.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypeVar

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.types import StructType

from queenstream.core.schemas import Schema
from queenstream.engines.spark.datasource.database import AGAIN
from queenstream.engines.spark.sources.tables.options import (
    Limits,
    Offset,
    is_final,
    packed_value,
    span_of,
    unpacked_value,
)
from queenstream.engines.spark.sources.tables.readers import TableReader, stream_reader
from queenstream.engines.spark.sources.tables.rows import Rows
from queenstream.errors import Unavailable
from queenstream.pipeline.endpoints import Cassandra

if TYPE_CHECKING:
    from queenstream.connectors.cassandra.connection import Link  # with its driver: not for who has no table

T = TypeVar("T")

PATIENCE_SECONDS = 30.0  # with nodes that are away
LEAST, MOST = -(1 << 63), (1 << 63) - 1  # tokens
_PAGE_ROWS = 5_000
_SAMPLE_TOKENS = 10_000
_SAMPLE_ROWS = 50
_LEAST_ROWS = 2_000  # a task of its own is not worth it for fewer
_PLACES_SHIFT = 16  # a row's place has 48 bits
_TOKEN = "queen_token"  # noqa: S105 - a column

_links: dict[str, Link] = {}  # of this process, which outlives its tasks


@dataclass(frozen=True)
class Span:
    """The tokens after one, up to another, and about how many rows they have; None: nobody knows."""

    after: int
    upto: int
    rows: int | None


def cut(span: Span, tasks: int) -> list[Span]:
    """A part for each task.

    >>> [(each.after, each.upto) for each in cut(Span(0, 10, None), 2)]
    [(0, 5), (5, 10)]
    """
    if span.rows is not None:
        tasks = min(tasks, span.rows // _LEAST_ROWS)
    width = span.upto - span.after
    tasks = max(1, min(tasks, width))
    edges = [span.after + width * at // tasks for at in range(tasks + 1)]
    return [Span(edges[at], edges[at + 1], None) for at in range(tasks)]


def next_span(after: int, tokens: list[int], *, all_of_them: bool, most: int) -> Span:
    """How far a batch of about ``most`` rows goes, by the tokens of the next rows in order.

    >>> next_span(0, [10, 20, 30], all_of_them=True, most=2)
    Span(after=0, upto=20, rows=2)
    >>> next_span(0, [10, 20, 30, 40], all_of_them=False, most=8)
    Span(after=0, upto=80, rows=8)
    """
    if all_of_them and len(tokens) <= most:
        return Span(after, MOST, len(tokens))
    if len(tokens) > most:
        return Span(after, tokens[most - 1], most)
    whole = [token for token in tokens if token < tokens[-1]]
    if not whole:  # a partition larger than the sample
        return Span(after, tokens[-1], None)
    # The last of them may have more rows than the sample has.
    width = (whole[-1] - after) * most // len(whole)
    return Span(after, min(MOST, after + width), most)


def place_of(token: int) -> int:
    """The place of a row by its token: places rise with tokens."""
    return (token - LEAST) >> _PLACES_SHIFT


class TokenPart(InputPartition):
    """What one task reads. ``ends``: nothing comes after it."""

    def __init__(self, span: Span) -> None:
        super().__init__(None)
        self.span = span
        self.ends = span.upto == MOST


class CassandraSource(DataSource):
    """A table; ``queenstream.engines.spark.sources.tables.load`` gives the options."""

    @classmethod
    def name(cls) -> str:
        """As in ``format("queen-cassandra")``."""
        return "queen-cassandra"

    def reader(self, schema: StructType) -> DataSourceReader:
        """For ``spark.read``: the rows of a batch that was read before."""
        return TableReader(CassandraReading(self.options, schema), *span_of(self.options))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802
        """For ``spark.readStream``."""
        return stream_reader(CassandraReading(self.options, schema), final=is_final(self.options))


class CassandraReading:
    """How a table is planned and read, in the order of tokens, until the ring was read once."""

    behind = 0

    def __init__(self, options: Mapping[str, str], schema: StructType) -> None:
        self._options = {name.lower(): value for name, value in options.items()}
        self._columns = schema
        self.limits = Limits.of(self._options)
        self._planned: tuple[Offset, Offset, int | None] | None = None
        self.title: str = unpacked_value(self._options["source"]).title

    @property
    def _schema(self) -> Schema | None:
        schema: Schema | None = unpacked_value(self._options["schema"])
        return schema

    def finalize(self) -> None:
        """It ends by itself."""

    def advance(self, start: Offset, limits: Limits) -> Offset:
        """How far the next batch goes; where it is, at the end of the ring and while nodes are away."""
        from queenstream.connectors.cassandra.connection import AWAY

        if start["done"]:
            return start
        try:
            span = self._ahead(_token(start), limits)
        except AWAY:
            time.sleep(1.0)
            return start
        place, done = place_of(span.upto) + 1, span.upto == MOST
        end: Offset = {"after": [str(span.upto)], "seq": place, "done": done}
        self._planned = (start, end, span.rows)
        return end

    def _ahead(self, after: int, limits: Limits) -> Span:
        from queenstream.connectors.cassandra.reader import select_of, token_of

        link = kept_link(self._options)
        token = token_of(link)
        first = select_of(link, self._schema).bind((after, MOST))
        first.fetch_size = _SAMPLE_ROWS
        sizes = [len(repr(row)) for row in link.session.execute(first).current_rows]
        most = limits.most(sum(sizes) / len(sizes) if sizes else None)
        wanted = min(most + 1, _SAMPLE_TOKENS)
        select = link.prepare(
            f"select {token} as {_TOKEN} from {link.place} "  # noqa: S608 - all quoted
            f"where {token} > ? and {token} <= ? limit {wanted}"
        )
        tokens = [row[_TOKEN] for row in link.ask(select, after, MOST)]
        return next_span(after, tokens, all_of_them=len(tokens) < wanted, most=most)

    def parts(self, start: Offset, end: Offset, *, again: bool = False) -> list[InputPartition]:  # noqa: ARG002
        """One for each task of a batch."""
        planned = self._planned
        rows = planned[2] if planned is not None and planned[:2] == (start, end) else None
        return [TokenPart(each) for each in cut(Span(_token(start), _token(end), rows), self.limits.tasks)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """A task's rows, as Arrow batches."""
        if isinstance(partition, TokenPart):  # or Spark's own, when there is nothing to read
            yield from self._read(partition)

    def _read(self, part: TokenPart) -> Iterator[pa.RecordBatch]:
        from queenstream.connectors.cassandra.reader import decoders_of, select_of

        link, schema = kept_link(self._options), self._schema
        rows = Rows(self._columns, schema)
        select = patiently(link, lambda: select_of(link, schema, f", {{token}} as {_TOKEN}"))
        decoders = decoders_of(select)
        place = place_of(part.span.after) - 1
        for page in pages(link, select, (part.span.after, part.span.upto), _PAGE_ROWS):
            places: list[int] = []
            for row in page:
                place = max(place + 1, place_of(row.pop(_TOKEN)))
                places.append(place)
            if page:
                yield rows.of_rows(page, places, decoders)
        if part.ends:
            yield rows.end(place + 1)

    def close(self) -> None:
        """The connections are the process's."""


def _token(offset: Offset) -> int:
    return LEAST if offset["after"] is None else int(offset["after"][0])


def options_of(source: Cassandra) -> dict[str, str]:
    """What the data source has to know of a table; what is secret apart."""
    return {
        "source": packed_value(replace(source, user=None, password=None, schema=None)),
        "password": packed_value((source.user, source.password)),
    }


def check_table(source: Cassandra, schema: Schema | None) -> None:
    """What is wrong with a table is an error, and so are nodes that do not answer."""
    from queenstream.connectors.cassandra.connection import Link
    from queenstream.connectors.cassandra.reader import select_of

    link = Link(source)
    try:
        link.connect()
        select_of(link, schema)
    finally:
        link.close()


def kept_link(options: Mapping[str, str]) -> Link:
    """This process's connections with a cluster, made if there are none."""
    from queenstream.connectors.cassandra.connection import Link

    name = options["source"] + options["password"]
    if name not in _links:
        user, password = unpacked_value(options["password"])
        link = Link(replace(unpacked_value(options["source"]), user=user, password=password))
        link.connect()
        _links[name] = link
    return _links[name]


def pages(link: Link, select: Any, tokens: tuple[int, int], rows: int) -> Iterator[list[dict[str, Any]]]:
    """The rows between two tokens, page by page; nodes that are away are waited for."""
    statement = select.bind(tokens)
    statement.fetch_size = rows
    state = None
    while True:
        result = patiently(link, lambda: link.session.execute(statement, paging_state=state))  # noqa: B023
        yield list(result.current_rows)
        state = result.paging_state
        if state is None:
            return


def patiently(link: Link, work: Callable[[], T]) -> T:
    """What ``work`` gives; it is done again while no node answers."""
    from queenstream.connectors.cassandra.connection import AWAY, told

    ends = time.monotonic() + PATIENCE_SECONDS
    while True:
        try:
            return work()
        except AWAY as error:
            if time.monotonic() > ends:
                raise Unavailable(f"{link.server} does not answer: {told(error)}; {AGAIN}") from None
            time.sleep(0.5)
