"""Sources and sinks: what a pipeline reads and writes, as plain descriptions. Nothing is opened here.

One class for each noun, whether it is read or written. What is only for one side says so; an option on the
wrong side is found when the pipeline is checked.

>>> Queue("orders", group="totals", start="latest").title
'queue orders'
"""

from __future__ import annotations

import inspect
import re
from collections.abc import AsyncIterable, Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import KW_ONLY, MISSING, dataclass, field, fields
from datetime import datetime, timedelta
from pathlib import PurePath
from typing import Any, ClassVar, Generic, Literal, TypeAlias, TypeVar, get_args
from urllib.parse import urlsplit

from queenstream.core import durations
from queenstream.core.schemas import Definition, Field, Schema, types
from queenstream.errors import ConfigError

Record: TypeAlias = dict[str, Any]
"""What flows through a pipeline: fields by name."""

T_co = TypeVar("T_co", covariant=True)

Start: TypeAlias = Literal["earliest", "latest"] | str | datetime
Offsets: TypeAlias = Mapping[str, Mapping[int, int]]
"""Places in topics: offsets by partition, by topic."""
FileFormat: TypeAlias = Literal["ndjson", "csv", "parquet", "text", "orc"]
ValueFormat: TypeAlias = Literal["json", "avro", "string", "bytes"]
Side: TypeAlias = Literal["reading", "writing"]
Delivery: TypeAlias = Literal["exactly once", "at least once", "idempotent"]
Consistency: TypeAlias = Literal[
    "one", "two", "three", "quorum", "all", "local_quorum", "each_quorum", "local_one"
]

_SUFFIXES: dict[str, FileFormat] = {
    ".ndjson": "ndjson",
    ".jsonl": "ndjson",
    ".json": "ndjson",
    ".csv": "csv",
    ".parquet": "parquet",
    ".txt": "text",
    ".orc": "orc",
}
_REMOTE = re.compile(r"(?!file:)[a-z][a-z0-9+.-]+:/")


_MESSAGE = "id string, transaction_id string, queue string, partition string, created_at timestamp"
_TOPIC_MESSAGE = (
    "topic string, partition int, offset bigint, timestamp timestamp, key string, headers map<string, string>"
)

_CQL_NAME = re.compile(r"\w{1,48}", re.ASCII)
_CQL_LONGEST = timedelta(days=20 * 365)  # as long as Cassandra lets a row live

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
    …); written, it needs ``data``, and may say ``partition`` and ``transaction_id``. ``partition`` is the one
    partition to read from or write into, ``partition_by`` the field that names it for each record.

    >>> Queue("totals", partition_by="user_id").options()
    {'partition_by': 'user_id'}
    """

    name: str
    _: KW_ONLY
    group: str | None = field(default=None, metadata=_READING)
    start: Start = field(default="earliest", metadata=_READING)
    envelope: bool = False
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
        if self.envelope and self.partition_by is not None:
            raise ConfigError(f"{self.title}: with envelope=True a row says its partition; no partition_by")

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
    """A file, a folder of files or a pattern (``in/*.ndjson``), of one format (which the suffix tells, if
    nobody says it). A record of a text file is ``{"value": line}``; text and ORC are only read.

    Written files are placed whole, under their final name, when their batch is done. ``follow``: the folder
    grows. ``max_files`` is how many files a batch on Spark takes at most. On Spark, ``s3a://``, ``hdfs://``
    and every other file system that Hadoop knows can be read; Parquet of a plan of expressions can be
    written there.

    >>> Files("in/orders.ndjson").format
    'ndjson'
    """

    path: str | PurePath
    _: KW_ONLY
    format: FileFormat | None = None
    follow: bool = field(default=False, metadata=_READING)
    max_files: int | None = field(default=None, metadata=_READING)
    schema: Definition | None = None

    kind: ClassVar[str] = "files"
    delivery: ClassVar[Delivery] = "exactly once"

    def __post_init__(self) -> None:
        self._settle()
        known = self.format or _SUFFIXES.get(PurePath(self.path).suffix)
        if known not in _SUFFIXES.values():
            formats = "'ndjson', 'csv', 'parquet', 'text' or 'orc'"
            raise ConfigError(f"the format of {str(self.path)!r} is not known; write format={formats}")
        object.__setattr__(self, "format", known)
        if self.remote and isinstance(self.path, PurePath):
            raise ConfigError(f"{str(self.path)!r} has lost a slash as a Path; write it as text: 's3a://…'")
        if self.max_files is not None and (isinstance(self.max_files, bool) or self.max_files < 1):
            raise ConfigError(
                f"max_files is {self.max_files!r}; write a whole number from 1 on, or leave it out"
            )

    @property
    def remote(self) -> bool:
        """Whether it is on a file system that only Hadoop reaches, such as ``s3a://``."""
        return _REMOTE.match(str(self.path)) is not None

    @property
    def place(self) -> str:
        """The path, without the scheme that says it is one of this machine."""
        return str(self.path).removeprefix("file://")

    @property
    def columns(self) -> Schema | None:
        text = Schema((Field("value", types.STRING),)) if self.format == "text" else None
        return super().columns or text

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
    ``key``, ``value``, ``headers``, ``timestamp``, ``topic``, ``partition`` and ``offset``; written, it needs
    ``value``, and may say ``key``, ``headers`` and ``timestamp``. ``start`` may also be offsets, ``{topic:
    {partition: offset}}``. ``key_by`` is the field that becomes a message's key. ``avro_schema`` is Avro's
    own text, in JSON, for ``format="avro"``. ``settings`` go to the client library as they are (TLS, SASL),
    and no description shows them.

    >>> Kafka("orders", start={"orders": {0: 17}}, format="string").options()
    {'start': "{'orders': {0: 17}}", 'format': 'string'}
    """

    topic: str | Sequence[str]
    _: KW_ONLY
    servers: str = "localhost:9092"
    group: str | None = field(default=None, metadata=_READING)
    start: Start | Offsets = field(default="earliest", metadata=_READING)
    pattern: bool = field(default=False, metadata=_READING)
    envelope: bool = False
    key_by: str | None = field(default=None, metadata=_WRITING)
    format: ValueFormat = "json"
    avro_schema: str | None = field(default=None, repr=False, metadata=_HIDDEN)
    schema: Definition | None = None
    settings: Mapping[str, str] = field(default_factory=dict, repr=False, metadata=_HIDDEN)

    kind: ClassVar[str] = "kafka"
    has_time: ClassVar[bool] = True

    def __post_init__(self) -> None:
        self._settle()
        if not isinstance(self.topic, str):
            object.__setattr__(self, "topic", tuple(self.topic))
        if isinstance(self.start, Mapping):
            _check_offsets(self.title, self.topics, self.start)
        if self.pattern:
            if len(self.topics) != 1:
                raise ConfigError(f"{self.title}: a pattern is one text; join them with | instead")
            try:
                re.compile(self.topics[0])
            except re.error as error:
                raise ConfigError(f"{self.title} is no regular expression: {error}; correct it") from None
        if self.envelope and self.key_by is not None:
            raise ConfigError(f"{self.title}: with envelope=True a row says its key; leave key_by out")
        if (self.format == "avro") != (self.avro_schema is not None):
            raise ConfigError(f"{self.title}: format='avro' and avro_schema='{{…}}' go together; give both")

    @property
    def topics(self) -> tuple[str, ...]:
        """The names, or the one pattern."""
        return (self.topic,) if isinstance(self.topic, str) else tuple(self.topic)

    @property
    def label(self) -> str:
        return ",".join(self.topics)

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
    """A table of Cassandra: ``Cassandra("metrics", keyspace="plant")`` or ``Cassandra("plant.metrics")``.

    Written, a row has the time of its epoch, or with ``timestamp_by`` the one in that field: so a repeat
    changes nothing, and of several rows with one key the last one stays. ``ttl``: rows live so long.
    ``create_table`` makes the table from the schema, with ``partition_key`` and ``clustering_key``;
    ``create_keyspace`` is the number of replicas that a keyspace gets which is not there. ``concurrency``:
    how many requests are under way at once. ``tls``: connections are encrypted, and the nodes' certificates
    are checked, against those of the system or of a file. docs/cassandra.md has the rules.

    >>> Cassandra("plant.metrics", partition_key="metric_name", ttl="1d").options()
    {'keyspace': 'plant', 'partition_key': 'metric_name', 'ttl': '1d'}
    """

    table: str
    _: KW_ONLY
    keyspace: str | None = None
    hosts: str | Sequence[str] = ("127.0.0.1",)
    port: int = 9042
    tls: bool | str | PurePath = False
    consistency: Consistency = "local_quorum"
    partition_key: str | Sequence[str] = field(default=(), metadata=_WRITING)
    clustering_key: str | Sequence[str] = field(default=(), metadata=_WRITING)
    ttl: str | float | timedelta | None = field(default=None, metadata=_WRITING)
    timestamp_by: str | None = field(default=None, metadata=_WRITING)
    create_table: bool = field(default=False, metadata=_WRITING)
    create_keyspace: int | None = field(default=None, metadata=_WRITING)
    concurrency: int = field(default=64, metadata=_WRITING)
    schema: Definition | None = None
    user: str | None = field(default=None, repr=False, metadata=_HIDDEN)
    password: str | None = field(default=None, repr=False, metadata=_HIDDEN)

    kind: ClassVar[str] = "cassandra"
    delivery: ClassVar[Delivery] = "idempotent"

    def __post_init__(self) -> None:
        self._settle()
        keyspace, dot, table = self.table.partition(".")
        if dot and self.keyspace is None:
            object.__setattr__(self, "keyspace", keyspace)
            object.__setattr__(self, "table", table)
        for name in ("hosts", "partition_key", "clustering_key"):
            value = getattr(self, name)
            object.__setattr__(self, name, (value,) if isinstance(value, str) else tuple(value))
        if self.ttl is not None:
            object.__setattr__(self, "ttl", durations.parse(self.ttl))
        self._check()

    def _check(self) -> None:
        for name in (self.table, self.keyspace):
            if name is not None and not _CQL_NAME.fullmatch(name):
                raise ConfigError(
                    f"{name!r} names no table or keyspace of Cassandra; take up to 48 letters, digits and _"
                )
        if isinstance(self.ttl, timedelta) and not timedelta(seconds=1) <= self.ttl <= _CQL_LONGEST:
            raise ConfigError(
                f"{self.title}: ttl is from 1s to {_CQL_LONGEST.days}d; leave it out for no end"
            )
        if self.consistency not in get_args(Consistency):
            known = ", ".join(get_args(Consistency))
            raise ConfigError(f"{self.title}: consistency is {self.consistency!r}; write one of {known}")
        if self.concurrency < 1 or (self.create_keyspace is not None and self.create_keyspace < 1):
            raise ConfigError(f"{self.title}: concurrency and create_keyspace are 1 or more")

    @property
    def label(self) -> str:
        return f"{self.keyspace}.{self.table}" if self.keyspace else self.table

    @property
    def bounded(self) -> bool:
        return True

    @property
    def needs(self) -> tuple[str, ...]:
        stamp = () if self.timestamp_by is None else (self.timestamp_by,)
        return (*self.partition_key, *self.clustering_key, *stamp)


@dataclass(frozen=True)
class Postgres(Source[Record], Sink):
    """A table of PostgreSQL: appended to, or with ``key`` one row for each key (the last one written stays).

    Read, it is a snapshot; with ``cursor``, a column that only grows, it goes on with the rows after it.
    ``table`` may name its schema; ``url`` is the server's, else ``QUEEN_PG`` has it. ``create_table`` makes
    the table from the schema, or from the fields that are known. docs/tables.md has the rules.

    >>> Postgres("sales.orders", key="id").options()
    {'key': 'id'}
    """

    table: str
    _: KW_ONLY
    url: str | None = field(default=None, repr=False, metadata=_HIDDEN)
    key: str | Sequence[str] = field(default=(), metadata=_WRITING)
    create_table: bool = field(default=False, metadata=_WRITING)
    cursor: str | None = field(default=None, metadata=_READING)
    schema: Definition | None = None

    kind: ClassVar[str] = "postgres"
    delivery: ClassVar[Delivery] = "exactly once"

    def __post_init__(self) -> None:
        self._settle()
        object.__setattr__(self, "key", (self.key,) if isinstance(self.key, str) else tuple(self.key))

    @property
    def label(self) -> str:
        return self.table

    @property
    def address(self) -> tuple[str, ...]:
        # The database and not the server: that one may move.
        database = "" if self.url is None else urlsplit(self.url).path.removeprefix("/")
        return (self.kind, *([database] if database else []), self.label)

    @property
    def bounded(self) -> bool:
        return self.cursor is None

    @property
    def needs(self) -> tuple[str, ...]:
        return tuple(self.key)


@dataclass(frozen=True)
class Function(Sink):
    """A function that takes each record; with ``batch_size``, lists of up to so many. It may be async.

    ``batch``: lists of all that is written at once, however many that are. After a crash the function may
    see records again. ``where``: on Spark, ``"driver"`` calls it in the process of the run with all records
    in order, ``"tasks"`` in the tasks, at once and in no order. In-process there is no difference.

    >>> Function(print, batch_size=500).options()
    {'batch_size': '500'}
    """

    function: Callable[[Any], object] | Callable[[Any], Awaitable[object]]
    _: KW_ONLY
    name: str | None = None
    batch: bool = False
    batch_size: int | None = None
    where: Literal["driver", "tasks"] = "driver"

    kind: ClassVar[str] = "function"

    def __post_init__(self) -> None:
        if self.where not in ("driver", "tasks"):
            raise ConfigError(f"where is {self.where!r}; write 'driver' or 'tasks'")
        size = self.batch_size
        if size is not None and (isinstance(size, bool) or size < 1):
            raise ConfigError(f"batch_size is {size!r}; write how many records a call may get, from 1")

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


def _check_offsets(title: str, topics: tuple[str, ...], start: Offsets) -> None:
    for topic, places in start.items():
        if topic not in topics:
            raise ConfigError(f"{title}: start names the topic {topic!r}, which is not read; leave it out")
        told: list[Any] = [*places, *places.values()]
        if not all(isinstance(number, int) and number >= 0 for number in told):
            raise ConfigError(f"{title}: start is {{topic: {{partition: offset}}}}, in whole numbers from 0")


def _shown(value: object) -> str:
    if isinstance(value, timedelta):
        return durations.format(value)
    if isinstance(value, datetime):
        return value.isoformat()
    if isinstance(value, tuple):
        return ", ".join(map(str, value))
    return str(value).lower() if isinstance(value, bool) else str(value)
