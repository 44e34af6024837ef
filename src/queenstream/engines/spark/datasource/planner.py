"""How far a queue can be read, and how that is cut into tasks.

An offset is one number: every message of the queue up to it is committed, and none that commits later comes
before it (``queen.committed_to`` says why). What a batch reads is all that lies between two such numbers.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from pyspark.sql.datasource import InputPartition

from queenstream.engines.spark.datasource.database import Database
from queenstream.engines.spark.datasource.options import SourceOptions
from queenstream.errors import ConfigError, Unavailable

PATIENCE_MS = 30_000  # with a push that stays open, where there is nothing to fall back on
LEAST_ROWS = 2_000  # a task of its own is not worth it for fewer
UNEVEN = 1.5  # a partition this much larger than a task's share is cut
_SAMPLED_PARTITIONS = 20  # are looked at for the size of messages
_SAMPLED_MESSAGES = 10  # of each


@dataclass(frozen=True)
class Lane:
    """A queue to read: one of its own name, or the one that holds a stream's windows."""

    id: int
    name: str
    by_position: bool = False  # of a stream: its windows count messages


@dataclass(frozen=True)
class Span:
    """The messages of one partition after one id, up to another."""

    partition_id: int
    after: int
    upto: int
    messages: int


@dataclass(frozen=True)
class Where:
    """When a message must have been created: microseconds since 1970."""

    first_us: int | None = None  # created then or later
    last_us: int | None = None  # created then or earlier


class Part(InputPartition):
    """What one task reads."""

    def __init__(self, spans: Sequence[Span], where: Where, *, ordered: bool) -> None:
        super().__init__(None)
        self.spans = tuple(spans)
        self.where = where
        self.ordered = ordered  # each partition in its order


def find(database: Database, options: SourceOptions) -> Lane:
    """The queue that was named; one that cannot be read is refused."""
    if options.stream is not None:
        found = database.rows(
            "select q.id, q.name, s.window_type = 'count' "
            "from queen.streams s join queen.queues q on q.id = s.queue_id where s.name = $1",
            options.stream,
        )
        if not found:
            raise ConfigError(f"there is no stream {options.stream}; define it first, or check its name")
        return Lane(*found[0])
    found = database.rows(
        "select id, name, encryption_enabled, stream_id is not null from queen.queues where name = $1",
        options.queue or "",
    )
    if not found:
        raise ConfigError(
            f"there is no queue {options.queue}; push into it or create it first, or check its name"
        )
    number, name, encrypted, of_stream = found[0]
    if encrypted:
        raise ConfigError(
            f"queue {name} is encrypted, and Spark has no key; read it through a client of the broker"
        )
    if of_stream:
        raise ConfigError(f"queue {name} holds the windows of a stream; read them with the option stream")
    return Lane(number, name)


def committed(database: Database, lane: Lane, wait_ms: int = 200) -> int | None:
    """The highest id up to which everything is there; None if a push stayed open all the time."""
    found: int | None = database.row("select queen.committed_to($1::integer, $2 / 1000.0)", lane.id, wait_ms)[
        0
    ]
    return found


def committed_surely(database: Database, lane: Lane) -> int:
    """The same, with patience."""
    found = committed(database, lane, PATIENCE_MS)
    if found is None:
        raise Unavailable(
            f"a push into queue {lane.name} has been open for {PATIENCE_MS // 1000} s; "
            "see pg_stat_activity, end it and start again"
        )
    return found


def spans(database: Database, lane: Lane, after: int, upto: int) -> list[Span]:
    """The partitions that have something in between, and how much."""
    rows = database.rows(
        "select partition_id, last_id, messages from queen.span($1::integer, $2, $3)", lane.id, after, upto
    )
    return [Span(number, after, min(last, upto), messages) for number, last, messages in rows]


def limited(database: Database, found: Sequence[Span], after: int, upto: int, rows: int) -> int:
    """The id up to which there are at most so many messages: about as many, at least one."""
    if sum(span.messages for span in found) <= rows:
        return upto
    partitions = "{" + ",".join(str(span.partition_id) for span in found) + "}"
    end: int = database.row("select queen.id_after($1::bigint[], $2, $3, $4)", partitions, after, upto, rows)[
        0
    ]
    return end


def message_bytes(database: Database, found: Sequence[Span]) -> int:
    """About how many bytes a message of these has in the table: the average of a sample, at least 1."""
    step = -(-len(found) // _SAMPLED_PARTITIONS)
    sampled = found[::step]
    partitions, after, upto = (
        "{" + ",".join(str(number) for number in numbers) + "}"
        for numbers in zip(*((span.partition_id, span.after, span.upto) for span in sampled), strict=True)
    )
    size: float | None = database.row(
        "select avg(pg_column_size(m.payload))::float8 "
        "from unnest($1::bigint[], $2::bigint[], $3::bigint[]) as s (partition_id, after, upto) "
        "cross join lateral (select payload from queen.messages where partition_id = s.partition_id "
        "and id > s.after and id <= s.upto order by id limit $4) m",
        partitions,
        after,
        upto,
        _SAMPLED_MESSAGES,
    )[0]
    return max(1, round(size or 1))


def parts(
    database: Database, found: Sequence[Span], where: Where, wanted: int, *, ordered: bool
) -> list[Part]:
    """Tasks of about the same size. A partition stays in one, unless it is too large."""
    total = sum(span.messages for span in found)
    share = max(1, math.ceil(total / wanted))
    tasks: list[list[Span]] = [[] for _ in range(wanted)]
    before = 0
    for span in found:
        pieces = _cut(database, span, share) if span.messages > share * UNEVEN else [span]
        for piece in pieces:
            middle = before + piece.messages / 2
            tasks[min(wanted - 1, int(middle * wanted / total))].append(piece)
            before += piece.messages
    return [Part(task, where, ordered=ordered) for task in tasks if task]


def _cut(database: Database, span: Span, share: int) -> list[Span]:
    pieces: list[Span] = []
    after, left = span.after, span.messages
    while left > share * UNEVEN:
        upto = limited(database, [Span(span.partition_id, after, span.upto, left)], after, span.upto, share)
        pieces.append(Span(span.partition_id, after, upto, share))
        after, left = upto, left - share
    return [*pieces, Span(span.partition_id, after, span.upto, left)]


def tasks_for(found: Sequence[Span], asked: int | None, cores: int) -> int:
    """How many tasks: as asked, else one for each core, fewer for little."""
    if asked is not None:
        return asked
    return max(1, min(cores, sum(span.messages for span in found) // LEAST_ROWS))


def only(database: Database, lane: Lane, found: Sequence[Span], names: Collection[str] | None) -> list[Span]:
    """Those of the partitions named; None: all."""
    if names is None:
        return list(found)
    wanted: set[int] = set()
    for name in names:
        rows = database.rows(
            "select id from queen.partitions where queue_id = $1::integer and name = $2", lane.id, name
        )
        wanted.update(row[0] for row in rows)
    return [span for span in found if span.partition_id in wanted]


def horizon_us(database: Database, lane: Lane) -> int | None:
    """When what is too old to be delivered (ttl, retention) was created, at the latest; None: nothing is."""
    found: int | None = database.row(
        "select queen.to_us(clock_timestamp() - make_interval(secs => horizon_seconds)) "
        "from queen.queues where id = $1::integer",
        lane.id,
    )[0]
    return found


def start_at(database: Database, lane: Lane, options: SourceOptions) -> tuple[int, int | None]:
    """Where to begin: an id, and the time (in microseconds) before which messages are left out."""
    if options.start == "earliest":
        return 0, None
    if options.start == "latest":
        return committed_surely(database, lane), None
    if isinstance(options.start, int):
        return options.start, None
    at_us = to_us(options.start)
    # First how far everything is there, then the look: what commits later comes behind.
    latest = committed_surely(database, lane)
    before = database.row(
        "select queen.queue_id_before($1::integer, timestamptz 'epoch' + $2 * interval '1 microsecond')",
        lane.id,
        at_us,
    )[0]
    return (latest if before is None else min(before, latest)), at_us


def to_us(at: datetime) -> int:
    """Microseconds since 1970, exactly.

    >>> to_us(datetime(1970, 1, 1, 0, 0, 1, 5, UTC))
    1000005
    """
    since = at.astimezone(UTC) - datetime(1970, 1, 1, tzinfo=UTC)
    return (since.days * 86_400 + since.seconds) * 1_000_000 + since.microseconds
