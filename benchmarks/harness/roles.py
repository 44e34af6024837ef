"""What a load generator may be told to do, and what it tells back. They cross a pipe as JSON."""

from __future__ import annotations

from msgspec import Struct

from queenstream.cli.bench.connections import Tally
from queenstream.cli.bench.end_to_end import Latency
from queenstream.cli.bench.load import Consume, Push


class Copy(Struct, tag="copy"):
    """COPY batches of ``rows`` rows, one transaction each, into a table like the messages'."""

    connections: int
    rows: int
    partitions: int = 100
    table: str = "limit_messages"


class Insert(Struct, tag="insert"):
    """Single-row INSERTs into a table like the messages', each committed before the next."""

    connections: int = 1
    table: str = "limit_messages"


class PgmqSend(Struct, tag="pgmq"):
    """``pgmq.send``, one message a call."""

    connections: int
    queue: str = "bench"


class RedisAdd(Struct, tag="redis"):
    """XADD to one of ``streams`` streams, one message a call."""

    connections: int
    streams: int = 100


Role = Push | Consume | Latency | Copy | Insert | PgmqSend | RedisAdd


class Order(Struct):
    """One run of the load generator. ``address``: host:port, broker or Redis; ``url``: PostgreSQL."""

    roles: list[Role]
    seconds: float
    address: str = ""
    url: str = ""


class Result(Struct):
    """What one role did. ``rate`` counts what was answered in time, ``count`` all."""

    count: int
    rate: float
    p50_ms: float
    p99_ms: float
    errors: int = 0
    error: str = ""


def result_of(tally: Tally, *, whole: bool = True) -> Result:
    """What a tally says. ``whole``: the rate is over all of the time; else up to the last answer."""
    p50, p99 = tally.times.quantiles(0.5, 0.99)
    return Result(tally.count, tally.rate(whole=whole), p50 * 1e3, p99 * 1e3, tally.errors, tally.error)


class Outcome(Struct):
    """The results by role, and the share of a core that the generator took."""

    results: list[Result]
    cpu_share: float
