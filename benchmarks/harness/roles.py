"""What a load generator may be told to do, and what it tells back. They cross a pipe as JSON."""

from __future__ import annotations

from msgspec import Struct


class Push(Struct, tag="push"):
    """Keep ``connections`` pushes of ``batch`` messages in flight."""

    connections: int
    batch: int
    partitions: int = 100
    queue: str = "bench"
    most: int = 0  # stop after so many messages; 0: when the time is over
    walk: bool = False  # visit the partitions in order instead of from a random one on


class Consume(Struct, tag="consume"):
    """Pop and acknowledge, on ``connections`` connections."""

    connections: int
    batch: int
    group: str
    queue: str = "bench"
    auto_ack: bool = False
    until_empty: bool = False  # end at the first empty answer
    wait_ms: int = 0  # a long poll


class Latency(Struct, tag="latency"):
    """Send ``rate`` messages a second, and see when long-polling consumers get them."""

    rate: int
    consumers: int
    producers: int = 32
    partitions: int = 100
    queue: str = "latency"
    group: str = "latency"


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


class Outcome(Struct):
    """The results by role, and the share of a core that the generator took."""

    results: list[Result]
    cpu_share: float
