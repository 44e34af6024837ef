"""How a query reads a source. Queues and streams are read by the tasks, through ``format("queen")``, and
topics and files through Spark's own sources (``kafka.py``, ``files/``); tables by the tasks, too
(``tables/``).

Everything else is read here on the driver by its connector, and fed: each batch becomes a file in a folder of
the checkpoint, with the position after it, and a batch of the query is one file. So what was read once is
read the same again after a crash, whatever the source can or cannot do.
"""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, DataFrameReader, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.streaming.readwriter import DataStreamReader

from queenstream.core.batches import Batch
from queenstream.core.schemas import Schema
from queenstream.core.schemas.json_decoder import JsonDecoder
from queenstream.core.schemas.types import Struct
from queenstream.core.windows import to_us
from queenstream.engines.spark.datasource.options import Place, source_options
from queenstream.engines.spark.tasks.records import Item, decode_failure, encode_failure, make_items
from queenstream.engines.spark.types import spark_type
from queenstream.errors import ConfigError
from queenstream.pipeline.endpoints import Cassandra, Files, Kafka, Postgres, Queue, Source, Stream
from queenstream.pipeline.engine_api import RunOptions
from queenstream.runtime.encoding import decode, encode, script_classes, use_script_classes

if TYPE_CHECKING:
    from queenstream.connectors import Reader  # with all that it needs to connect: not in every worker

RECORD, FAILURE, END = 0, 1, 2
FED = "kind INT, seq LONG, time LONG, record BINARY"
BATCH_RECORDS = 10_000
_MOST_MESSAGES = 200_000  # in a batch, unless the run says otherwise
_MOST_WINDOWS = 10_000
_MOST_BYTES = 64 << 20
_GROWING = ("ndjson", "csv", "text")  # formats of which a file can grow

_ARROW = pa.schema([("kind", pa.int32()), ("seq", pa.int64()), ("time", pa.int64()), ("record", pa.binary())])
_RECORD_AT = 3
_MISFIT = pa.field("misfit", pa.binary())  # a record that does not fit its typed column, and why
_POSITIONS = b"queenstream.positions"
_MOMENT = pa.timestamp("us", "UTC")
SOURCE_BITS = 48  # below the source's number in ``seq`` is the record's


@dataclass(slots=True)
class Decoded:
    """A piece of a source's batch: records, what could not be made one, and whether it was the end."""

    items: list[Item] = field(default_factory=list)
    failures: list[tuple[Any, Exception]] = field(default_factory=list)
    ended: bool = False


class Decoder(Protocol):
    """Makes records of the rows of a source."""

    def decode(self, batch: pa.RecordBatch) -> Decoded:
        """The records of some rows."""
        ...


def is_fed(source: Source[Any]) -> bool:
    """Whether a source is read on the driver.

    So are files of lines that grow: Spark's file source reads no file again.
    """
    if isinstance(source, Files):
        return source.follow and source.format in _GROWING and not source.remote
    return not isinstance(source, Queue | Stream | Kafka | Postgres | Cassandra)


def marks_end(source: Source[Any]) -> bool:
    """Whether a source's rows are those of ``FED``: each says what it is, and the last one may be the end."""
    return is_fed(source) or isinstance(source, Postgres | Cassandra)


# Queues and streams


def read_broker(
    spark: SparkSession,
    source: Queue | Stream,
    pipeline: str,
    told: RunOptions,
    schema: Schema | None,
    after: int | None = None,
) -> DataFrame:
    """The messages of a queue, or the windows of a stream, with payloads as text, or some fields of them.

    ``after``: the id after which a query without a checkpoint begins; None: the source says where.
    """
    start = source.start.isoformat() if isinstance(source.start, datetime) else source.start
    start = start if after is None else f"after:{after}"
    rows = _MOST_MESSAGES if isinstance(source, Queue) else _MOST_WINDOWS
    wanted = {
        "group": source.group or pipeline,
        "startingOffsets": start,
        "maxRowsPerBatch": str(told.max_batch_rows or rows),
        "maxBytesPerBatch": str(told.max_batch_bytes or _MOST_BYTES),
        **_columns(source, schema),
    }
    if told.max_batch_rows is None and told.max_batch_bytes is None:
        wanted["adaptiveBatches"] = "true"
    if told.partitions is not None:
        wanted["numPartitions"] = str(told.partitions)
    if told.until == "caught_up":
        wanted["endingOffsets"] = "latest"
    return _only_partition(source, spark.readStream.format("queen").options(**_place(source, told), **wanted))


def batch_of_broker(
    spark: SparkSession,
    source: Queue,
    told: RunOptions,
    start: dict[str, int],
    end: dict[str, int],
    schema: Schema | None,
) -> DataFrame:
    """The messages of a queue between two offsets of a query: a batch that was read before."""
    reader = spark.read.format("queen").options(**_place(source, told), **_columns(source, schema))
    reader = reader.option("expiredUntil", str(end.get("expired_us", 1)))
    rows = _only_partition(source, reader).where((f.col("id") > start["id"]) & (f.col("id") <= end["id"]))
    if "from_us" in start:
        rows = rows.where(f.unix_micros("created_at") >= start["from_us"])
    return rows


def place_of(source: Queue, told: RunOptions) -> Place:
    """Where the database of a queue is."""
    return source_options(_place(source, told)).place


def _place(source: Queue | Stream, told: RunOptions) -> dict[str, str]:
    """What is read, and where it is. The run's token is for the run's broker."""
    found = {"queue" if isinstance(source, Queue) else "stream": source.name}
    place = source.url or os.environ.get("QUEEN_PG") or told.url
    if told.token is not None and source.url is None:
        found["token"] = told.token
    if place is not None:
        found["pg" if place.startswith("postgres") else "url"] = place
    return found


def _columns(source: Queue | Stream, schema: Schema | None) -> dict[str, str]:
    """What is wanted of a message. A typed payload fits the source's schema, or is null as a whole."""
    if schema is None:
        wanted = {"schema": "STRING"}
    else:
        assert source.columns is not None, "it is typed"
        wanted = {"schema": spark_type(Struct(schema.fields)), "coerce": source.columns.to_ddl()}
    if isinstance(source, Queue) and not source.envelope:
        wanted["columns"] = (
            "data,id,created_at" if source.partition is None else "data,id,partition,created_at"
        )
        if schema is not None:
            wanted["columns"] += ",misfit"
    return wanted


def _only_partition(source: Queue | Stream, reader: DataStreamReader | DataFrameReader) -> DataFrame:
    found = reader.load()
    if isinstance(source, Queue) and source.partition is not None:
        return found.where(f.col("partition") == source.partition)
    return found


class QueueDecoder:
    """A record is a message's payload, or with ``envelope`` the message."""

    def __init__(self, number: int, schema: Schema | None, *, envelope: bool) -> None:
        self._base = number << SOURCE_BITS
        self._schema = schema
        self._envelope = envelope
        self._decoder = JsonDecoder(schema)

    def decode(self, batch: pa.RecordBatch) -> Decoded:
        """The records of some messages."""
        failures: list[tuple[Any, Exception]] = []
        texts = batch.column("data").cast(pa.binary()).to_pylist()
        payloads = self._decoder.decode_all(texts)
        if payloads is None:
            payloads, batch = self._one_by_one(texts, batch, failures)
        if self._envelope:
            rows = batch.select([name for name in batch.schema.names if name != "data"]).to_pylist()
            payloads = [_enveloped(row, data) for row, data in zip(rows, payloads, strict=True)]
        times = batch.column("created_at").cast(_MOMENT).cast(pa.int64()).to_pylist()
        seqs = pc.add(batch.column("id"), self._base).to_pylist()
        return Decoded(make_items(payloads, times, seqs), failures)

    def _one_by_one(
        self, texts: list[bytes], batch: pa.RecordBatch, failures: list[tuple[Any, Exception]]
    ) -> tuple[list[Any], pa.RecordBatch]:
        """The payloads that fit, and their messages."""
        payloads: list[Any] = []
        fits: list[bool] = []
        for text in texts:
            payload = msgspec.json.decode(text)
            try:
                payloads.append(payload if self._schema is None else self._schema.coerce(payload))
                fits.append(True)
            except Exception as error:  # noqa: BLE001 - a payload that does not fit: the step's policy decides
                failures.append((payload, error))
                fits.append(False)
        return payloads, batch.filter(pa.array(fits, pa.bool_()))


def _enveloped(row: dict[str, Any], data: Any) -> dict[str, Any]:
    names = ("id", "transaction_id", "queue", "partition", "created_at")
    return {name: str(row[name]) if name == "id" else row[name] for name in names} | {"data": data}


class StreamDecoder:
    """A record is a closed window."""

    def __init__(self, number: int) -> None:
        self._base = number << SOURCE_BITS

    def decode(self, batch: pa.RecordBatch) -> Decoded:
        """The records of some windows."""
        decoded = Decoded()
        for place, row in enumerate(batch.to_pylist()):
            record = {
                "key": row["key"],
                "window_start": row["window_start"],
                "window_end": row["window_end"],
                "messages": [_message(each) for each in row["messages"] or ()],
            }
            decoded.items.append(Item(record, to_us(row["window_start"]), None, self._base + place))
        return decoded


def _message(row: dict[str, Any]) -> dict[str, Any]:
    names = ("id", "created_at", "queue", "partition")
    return {name: str(row[name]) if name == "id" else row[name] for name in names} | {
        "data": msgspec.json.decode(row["data"])
    }


# What is fed


def read_fed(spark: SparkSession, folder: Path, columns: str = FED) -> DataFrame:
    """The batches in a folder, one after the other."""
    return spark.readStream.schema(columns).option("maxFilesPerTrigger", 1).parquet(str(folder))


class FedDecoder:
    """A record is what was fed."""

    def __init__(self, number: int) -> None:
        self._base = number << SOURCE_BITS
        self._classes = script_classes()  # which tasks cannot import

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        use_script_classes(self._classes)

    def decode(self, batch: pa.RecordBatch) -> Decoded:
        """The records of a file, or of a part of one."""
        decoded = Decoded()
        columns = (batch.column(name).to_pylist() for name in _ARROW.names)
        for kind, seq, at, data in zip(*columns, strict=True):
            if kind == END:
                decoded.ended = True
            elif kind == FAILURE:
                decoded.failures.append(decode_failure(data))
            else:
                decoded.items.append(Item(decode(data), at, None, self._base + seq))
        return decoded


def _fed(record: Any) -> bytes:
    try:
        return encode(record)
    except TypeError as error:
        raise ConfigError(f"a record of a source that the driver reads: {error}") from None


class Feed:
    """Writes a source's batches into its folder, each as a file that appears whole.

    With ``record`` records are typed columns of that type, otherwise bytes.
    """

    def __init__(self, folder: Path, record: pa.DataType | None = None) -> None:
        self.folder = folder
        self._rows: dict[int, int] = {}  # in files, by their number
        self._last: tuple[Batch, int] | None = None  # of this run, and where it began
        self._typed = record is not None
        typed = _ARROW.set(_RECORD_AT, pa.field("record", record)).append(_MISFIT) if record else _ARROW
        self._schema = typed
        folder.mkdir(parents=True, exist_ok=True)
        files = sorted(folder.glob("*.parquet"))
        self.written = len(files)
        self._seq = 0
        self.positions: dict[str, Any] = {}
        self.ended = False
        if files:
            last = pq.read_table(files[-1])
            told = json.loads(last.schema.metadata[_POSITIONS])
            self.positions, self._seq, self.ended = told["positions"], told["seq"], told["ended"]

    def write(self, batch: Batch, changes: dict[str, Any] | None = None, *, end: bool = False) -> None:
        """One more batch; ``changes`` are positions that moved with it, ``end``: it is the last one."""
        self.positions |= changes or {}
        self.ended = end
        kinds = [RECORD] * len(batch.records) + [FAILURE] * len(batch.failures) + [END] * end
        times: list[int | None] = [*batch.times] if batch.times else [None] * len(batch.records)
        if self._typed:
            records: list[Any] = [*batch.records, *[None] * (len(kinds) - len(batch.records))]
        else:
            records = [_fed(record) for record in batch.records]
            records += [encode_failure(*failure) for failure in batch.failures] + [b""] * end
        times += [None] * (len(kinds) - len(times))
        first, self._seq = self._seq, self._seq + len(kinds)
        self._last = (batch, first)
        told = {"positions": self.positions, "seq": self._seq, "ended": end}
        columns: list[Any] = [kinds, list(range(first, self._seq)), times, records]
        if self._typed:
            misfits = [encode_failure(*failure) for failure in batch.failures]
            columns.append([None] * len(batch.records) + misfits + [None] * end)
        table = pa.table(
            [pa.array(column, each.type) for column, each in zip(columns, self._schema, strict=True)],
            schema=self._schema,
        ).replace_schema_metadata({_POSITIONS: json.dumps(told).encode()})
        self._place(table)

    def end(self, *, unread: bool) -> None:
        """There is no more. ``unread``: the query has not begun, so the last batch of this run says it too.

        A batch of its own would take as long as one with records.
        """
        if unread and self._last is not None:
            batch, self._seq = self._last
            self.written -= 1
            self.write(batch, end=True)
        else:
            self.write(Batch([]), end=True)

    def behind(self, taken: int) -> int:
        """How many rows there are after the first ``taken`` files."""
        return sum(self._rows_of(number) for number in range(taken, self.written))

    def file(self, number: int) -> Path:
        """The file of a batch: 0, 1, 2 …"""
        return self.folder / f"{number:012}.parquet"

    def _rows_of(self, number: int) -> int:
        if number not in self._rows:  # of an earlier run
            self._rows[number] = pq.read_metadata(self.file(number)).num_rows
        return self._rows[number]

    def _place(self, table: pa.Table) -> None:
        file = self.file(self.written)
        hidden = self.folder / f".{file.name}"
        pq.write_table(table, hidden)
        # Spark takes the oldest first: a second for each, from a day on which nothing else was written.
        os.utime(hidden, (self.written, self.written))
        hidden.rename(file)
        self._rows[self.written] = table.num_rows
        self.written += 1


async def feed(
    reader: Reader,
    into: Feed,
    *,
    most: int,
    until_quiet: bool,
    stopping: Callable[[], bool],
    may_read: Callable[[], bool],
) -> None:
    """Feed what a reader gives until it ends, or, with ``until_quiet``, until it has nothing for now."""
    await reader.open(into.positions)
    try:
        if into.ended:
            batch = await reader.read(1, 0.0)
            if batch is not None and not batch.empty:
                raise ConfigError(
                    "a source that had ended in this checkpoint has more: its windows are closed; take "
                    "another checkpoint folder, or write follow=True for a source that grows"
                )
            return
        while not stopping():
            if not may_read():
                await asyncio.sleep(0.02)
                continue
            batch = await reader.read(most, 0.2)
            if batch is None:
                into.end(unread=until_quiet)
                break
            if not batch.empty:
                into.write(batch, reader.changes())
                await reader.commit()
            elif until_quiet and reader.drained():
                break
    finally:
        await reader.close()
