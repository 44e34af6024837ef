"""Sources and sinks: what a pipeline reads and writes, as plain descriptions. Nothing is opened here.

One class for each noun, whether it is read or written. What is only for one side says so; an option on the
wrong side is found when the pipeline is checked.

>>> Queue("orders", group="totals", start="latest").title
'queue orders'
"""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterable, Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import KW_ONLY, MISSING, dataclass, field, fields
from datetime import datetime, timedelta
from pathlib import PurePath
from typing import Any, ClassVar, Generic, Literal, TypeAlias, TypeVar

from queenstream import durations
from queenstream.errors import ConfigError
from queenstream.schemas import Definition, Field, Schema, types

Record: TypeAlias = dict[str, Any]
"""What flows through a pipeline: fields by name."""

T_co = TypeVar("T_co", covariant=True)

Start: TypeAlias = Literal["earliest", "latest"] | str | datetime
FileFormat: TypeAlias = Literal["ndjson", "csv", "parquet"]
ValueFormat: TypeAlias = Literal["json", "avro", "string", "bytes"]
Side: TypeAlias = Literal["reading", "writing"]
Delivery: TypeAlias = Literal["exactly once", "at least once", "idempotent"]

_SUFFIXES: dict[str, FileFormat] = {
    ".ndjson": "ndjson",
    ".jsonl": "ndjson",
    ".json": "ndjson",
    ".csv": "csv",
    ".parquet": "parquet",
}


_MESSAGE = "id string, transaction_id string, queue string, partition string, created_at timestamp"
_TOPIC_MESSAGE = (
    "topic string, partition int, offset bigint, timestamp timestamp, key string, headers map<string, string>"
)


# Marks on options: only for one side, or never to be shown, as it may hold a password.
_READING = {"side": "reading"}
_WRITING = {"side": "writing"}
_HIDDEN = {"hidden": True}


@dataclass(frozen=True)
class Endpoint:
    """What sources and sinks have in common. Subclasses are frozen dataclasses."""

    kind: ClassVar[str]

    @property
    def label(self) -> str:
        """Its name among others of its kind."""
        return str(getattr(self, "name", self.kind))

    @property
    def title(self) -> str:
        """How people call it: ``queue orders``."""
        return f"{self.kind} {self.label}"

    @property
    def slug(self) -> str:
        """What a step that reads or writes it is called: ``queue:orders``."""
        return f"{self.kind}:{self.label}"

    @property
    def address(self) -> tuple[str, ...]:
        """Two endpoints with one address are the same thing."""
        return (self.kind, self.label)

    def options(self) -> dict[str, str]:
        """What was said beyond the name, as text, without anything that may be secret."""
        said = {}
        for each in fields(self):
            value = getattr(self, each.name)
            if each.default is MISSING:  # the name, or what may hold a password
                continue
            if value != each.default and each.name != "schema" and not each.metadata.get("hidden"):
                said[each.name] = _shown(value)
        return said

    def said(self, side: Side) -> list[str]:
        """The options for one side that were given."""
        return [
            each.name
            for each in fields(self)
            if each.metadata.get("side") == side and getattr(self, each.name) != each.default
        ]

    def _settle(self) -> None:
        """Called by subclasses when they are made: a schema in any form becomes a ``Schema``."""
        schema = getattr(self, "schema", None)
        if schema is not None:
            object.__setattr__(self, "schema", Schema.of(schema))
        _check_start(getattr(self, "start", None))


class Source(Endpoint, Generic[T_co]):
    """What can be read. ``has_time``: its records have a time of their own (a queue's ``created_at``)."""

    has_time: ClassVar[bool] = False

    @property
    def columns(self) -> Schema | None:
        """The fields of its records, if they are known."""
        schema = getattr(self, "schema", None)
        return schema if isinstance(schema, Schema) else None

    @property
    def bounded(self) -> bool:
        """Whether it has an end. At the end of all sources every window closes."""
        return False


class Sink(Endpoint):
    """What can be written. ``delivery``: what it holds after a crash and a restart."""

    delivery: ClassVar[Delivery] = "at least once"

    @property
    def needs(self) -> tuple[str, ...]:
        """The fields that its options name: a record must have them."""
        return ()


@dataclass(frozen=True)
class Queue(Source[Record], Sink):
    """A queue of the broker. A record is a message's payload, its event time the message's ``created_at``.

    ``group`` is the pipeline's name unless it says otherwise; ``start`` is for a group's first time.
    ``envelope``: a record is the whole message (``data``, ``created_at``, ``partition``, ``transaction_id``
    …). ``partition`` is the one partition to read from or write into, ``partition_by`` the field that names
    it for each record.

    >>> Queue("totals", partition_by="user_id").options()
    {'partition_by': 'user_id'}
    """

    name: str
    _: KW_ONLY
    group: str | None = field(default=None, metadata=_READING)
    start: Start = field(default="earliest", metadata=_READING)
    envelope: bool = field(default=False, metadata=_READING)
    partition: str | None = None
    partition_by: str | None = field(default=None, metadata=_WRITING)
    schema: Definition | None = None
    url: str | None = field(default=None, repr=False, metadata=_HIDDEN)

    kind: ClassVar[str] = "queue"
    has_time: ClassVar[bool] = True
    delivery: ClassVar[Delivery] = "exactly once"

    def __post_init__(self) -> None:
        self._settle()
        if self.partition is not None and self.partition_by is not None:
            raise ConfigError(f"{self.title}: give partition or partition_by, not both")

    @property
    def columns(self) -> Schema | None:
        return _within(_MESSAGE, "data", types.VARIANT, super().columns) if self.envelope else super().columns

    @property
    def needs(self) -> tuple[str, ...]:
        return (self.partition_by,) if self.partition_by else ()


@dataclass(frozen=True)
class Stream(Source[Record]):
    """A stream of the broker: a record is a closed window.

    It has ``key``, ``window_start``, ``window_end`` and ``messages``; its event time is the window's start.
    """

    name: str
    _: KW_ONLY
    group: str | None = field(default=None, metadata=_READING)
    start: Start = field(default="earliest", metadata=_READING)
    url: str | None = field(default=None, repr=False, metadata=_HIDDEN)

    kind: ClassVar[str] = "stream"
    has_time: ClassVar[bool] = True

    def __post_init__(self) -> None:
        self._settle()

    @property
    def columns(self) -> Schema | None:
        return Schema.of(
            "key string, window_start timestamp, window_end timestamp, "
            "messages array<struct<id: string, data: variant, created_at: timestamp, "
            "queue: string, partition: string>>"
        )


@dataclass(frozen=True)
class Files(Source[Record], Sink):
    """A file, or a folder of files, of one format (which the suffix tells, if nobody says it).

    Written files are placed whole, under their final name, when their batch is done. ``follow``: the folder
    grows.

    >>> Files("in/orders.ndjson").format
    'ndjson'
    """

    path: str | PurePath
    _: KW_ONLY
    format: FileFormat | None = None
    follow: bool = field(default=False, metadata=_READING)
    schema: Definition | None = None

    kind: ClassVar[str] = "files"
    delivery: ClassVar[Delivery] = "exactly once"

    def __post_init__(self) -> None:
        self._settle()
        known = self.format or _SUFFIXES.get(PurePath(self.path).suffix)
        if known not in _SUFFIXES.values():
            formats = "'ndjson', 'csv' or 'parquet'"
            raise ConfigError(f"the format of {str(self.path)!r} is not known; write format={formats}")
        object.__setattr__(self, "format", known)

    @property
    def label(self) -> str:
        return str(self.path)

    @property
    def bounded(self) -> bool:
        return not self.follow


@dataclass(frozen=True)
class Memory(Source[T_co]):
    """Records that are at hand: for tests and small jobs.

    >>> Memory([{"user": "a"}, {"user": "b"}]).title
    'memory 2 records'
    """

    records: Sequence[T_co]
    _: KW_ONLY
    schema: Definition | None = None

    kind: ClassVar[str] = "memory"

    def __post_init__(self) -> None:
        self._settle()
        object.__setattr__(self, "records", tuple(self.records))

    @property
    def label(self) -> str:
        return "1 record" if len(self.records) == 1 else f"{len(self.records)} records"

    @property
    def slug(self) -> str:
        return self.kind

    @property
    def address(self) -> tuple[str, ...]:
        return (self.kind,)

    @property
    def bounded(self) -> bool:
        return True


@dataclass(frozen=True)
class Generator(Source[T_co]):
    """A function that gives records: an iterable or an async iterable.

    After a restart it goes on where the checkpoint stands: a function with one parameter is told how many
    records were taken and gives those after them; one without gives all again, in the same order, and those
    are passed over.
    """

    function: Callable[..., Iterable[T_co] | AsyncIterable[T_co]]
    _: KW_ONLY
    name: str | None = None
    endless: bool = False
    schema: Definition | None = None

    kind: ClassVar[str] = "generator"

    def __post_init__(self) -> None:
        self._settle()

    @property
    def label(self) -> str:
        return self.name or function_name(self.function)

    @property
    def resumable(self) -> bool:
        """Whether the function takes the number of records to pass over."""
        return bool(inspect.signature(self.function).parameters)

    @property
    def bounded(self) -> bool:
        return not self.endless


@dataclass(frozen=True)
class Kafka(Source[Record], Sink):
    """A topic, or several: a name, a list of names, or with ``pattern`` a regular expression.

    A record is the message's value, its event time the message's timestamp. ``envelope``: a record has
    ``key``, ``value``, ``headers``, ``timestamp``, ``topic``, ``partition`` and ``offset``. ``settings`` go
    to the client library as they are (TLS, SASL), and no description shows them.
    """

    topic: str | Sequence[str]
    _: KW_ONLY
    servers: str = "localhost:9092"
    group: str | None = field(default=None, metadata=_READING)
    start: Start = field(default="earliest", metadata=_READING)
    pattern: bool = field(default=False, metadata=_READING)
    envelope: bool = field(default=False, metadata=_READING)
    key_by: str | None = field(default=None, metadata=_WRITING)
    format: ValueFormat = "json"
    schema: Definition | None = None
    settings: Mapping[str, str] = field(default_factory=dict, repr=False, metadata=_HIDDEN)

    kind: ClassVar[str] = "kafka"
    has_time: ClassVar[bool] = True

    def __post_init__(self) -> None:
        self._settle()
        if not isinstance(self.topic, str):
            object.__setattr__(self, "topic", tuple(self.topic))

    @property
    def label(self) -> str:
        return self.topic if isinstance(self.topic, str) else ",".join(self.topic)

    @property
    def address(self) -> tuple[str, ...]:
        return (self.kind, self.servers, self.label)

    @property
    def columns(self) -> Schema | None:
        # Of a text or of bytes there is nothing to name: such a value is a record's one field.
        plain = {"string": types.STRING, "bytes": types.BINARY}.get(self.format, types.VARIANT)
        if self.envelope:
            return _within(_TOPIC_MESSAGE, "value", plain, super().columns)
        return super().columns if plain == types.VARIANT else Schema((Field("value", plain),))

    @property
    def needs(self) -> tuple[str, ...]:
        return (self.key_by,) if self.key_by else ()


@dataclass(frozen=True)
class Cassandra(Source[Record], Sink):
    """A table of Cassandra. Rows are written with the record's event time, so that a replay changes nothing.

    ``create_table`` makes it from the schema, with ``partition_key`` and ``clustering_key``.
    """

    table: str
    _: KW_ONLY
    keyspace: str | None = None
    hosts: tuple[str, ...] = ("127.0.0.1",)
    port: int = 9042
    partition_key: tuple[str, ...] = field(default=(), metadata=_WRITING)
    clustering_key: tuple[str, ...] = field(default=(), metadata=_WRITING)
    ttl: str | float | timedelta | None = field(default=None, metadata=_WRITING)
    create_table: bool = field(default=False, metadata=_WRITING)
    concurrency: int = field(default=64, metadata=_WRITING)
    schema: Definition | None = None
    user: str | None = field(default=None, repr=False, metadata=_HIDDEN)
    password: str | None = field(default=None, repr=False, metadata=_HIDDEN)

    kind: ClassVar[str] = "cassandra"
    delivery: ClassVar[Delivery] = "idempotent"

    def __post_init__(self) -> None:
        self._settle()
        if self.ttl is not None:
            object.__setattr__(self, "ttl", durations.parse(self.ttl))

    @property
    def label(self) -> str:
        return f"{self.keyspace}.{self.table}" if self.keyspace else self.table

    @property
    def bounded(self) -> bool:
        return True

    @property
    def needs(self) -> tuple[str, ...]:
        return (*self.partition_key, *self.clustering_key)


@dataclass(frozen=True)
class Postgres(Source[Record], Sink):
    """A table of PostgreSQL: appended to, or with ``key`` one row for each key (the last one written stays).

    Read, it is a snapshot; with ``cursor``, a column that only grows, it goes on with the rows after it.
    """

    table: str
    _: KW_ONLY
    url: str | None = field(default=None, repr=False, metadata=_HIDDEN)
    key: tuple[str, ...] = field(default=(), metadata=_WRITING)
    create_table: bool = field(default=False, metadata=_WRITING)
    cursor: str | None = field(default=None, metadata=_READING)
    schema: Definition | None = None

    kind: ClassVar[str] = "postgres"
    delivery: ClassVar[Delivery] = "exactly once"

    def __post_init__(self) -> None:
        self._settle()

    @property
    def label(self) -> str:
        return self.table

    @property
    def bounded(self) -> bool:
        return self.cursor is None

    @property
    def needs(self) -> tuple[str, ...]:
        return self.key


@dataclass(frozen=True)
class Function(Sink):
    """A function that takes each record; with ``batch``, a list of them. It may be async.

    After a crash it may see records again.
    """

    function: Callable[[Any], object] | Callable[[Any], Awaitable[object]]
    _: KW_ONLY
    name: str | None = None
    batch: bool = False

    kind: ClassVar[str] = "function"

    @property
    def label(self) -> str:
        return self.name or function_name(self.function)


def function_name(function: Callable[..., object]) -> str:
    """What a callable is called in a plan.

    >>> function_name(len), function_name(lambda record: record)
    ('len', 'lambda')
    """
    name = getattr(function, "__qualname__", None) or type(function).__qualname__
    last = str(name).replace("<locals>.", "").rpartition("<lambda>")
    return "lambda" if last[1] else str(name).rpartition("<locals>.")[2]


def _within(envelope: str, name: str, kind: types.Type, inner: Schema | None) -> Schema:
    """The fields of a whole message, of which one has the payload."""
    payload = Field(name, kind if inner is None else types.Struct(inner.fields))
    return Schema((*Schema.of(envelope).fields, payload))


def _check_start(start: object) -> None:
    if isinstance(start, str) and start not in ("earliest", "latest"):
        try:
            datetime.fromisoformat(start)
        except ValueError:
            raise ConfigError(f"start is {start!r}; write 'earliest', 'latest' or an ISO 8601 time") from None


def _shown(value: object) -> str:
    if isinstance(value, timedelta):
        return durations.format(value)
    if isinstance(value, datetime):
        return value.isoformat()
    if isinstance(value, tuple):
        return ", ".join(map(str, value))
    return str(value).lower() if isinstance(value, bool) else str(value)
