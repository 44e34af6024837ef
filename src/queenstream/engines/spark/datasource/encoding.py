"""Rows to messages: an Arrow batch becomes a row of ``queen.staged``, laid out as ``queen.push`` takes it."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import types as spark
from pyspark.sql.types import VariantVal

from queenstream.engines.spark.datasource import arrays
from queenstream.engines.spark.datasource.options import SinkOptions
from queenstream.errors import ConfigError, PayloadInvalid

MOST_ROWS = 20_000  # in a chunk; ids of one push have 16 bits
MOST_BYTES = 8 << 20
DEFAULT_PARTITION = "Default"
_NAME_BYTES = 255
_ID_DIGITS = 32  # of a new transaction id

_raw = msgspec.json.Decoder(msgspec.Raw)
_encoder = msgspec.json.Encoder(decimal_format="number")
_OURS = ("partition", "transaction_id", "trace_id")


@dataclass(frozen=True)
class Chunk:
    """Some messages, as ``queen.push`` wants them: partition by partition, payloads one behind the other."""

    partitions: pa.Array
    counts: arrays.Numbers
    transactions: pa.Array
    traces: pa.Array | None
    payloads: pa.Buffer
    ends: arrays.Numbers

    def __len__(self) -> int:
        return len(self.transactions)

    def row(self, sink: str, batch_id: int, attempt: str, number: int) -> pa.RecordBatch:
        """The row of ``queen.staged``."""

        def one(items: pa.Array) -> pa.Array:
            return arrays.lists(np.array([0, len(items)], np.int32), items)

        columns = {
            "sink": arrays.texts([sink.encode()], pa.string()),
            "batch_id": arrays.integers(np.array([batch_id], np.int64)),
            "attempt": arrays.texts([attempt.encode()], pa.string()),
            "chunk": arrays.integers(np.array([number], np.int32)),
            "partitions": one(self.partitions),
            "counts": one(arrays.integers(self.counts)),
            "transactions": one(self.transactions),
            "payloads": arrays.texts([self.payloads.to_pybytes()], pa.binary()),
            "ends": one(arrays.integers(self.ends)),
        }
        if self.traces is not None:
            columns["traces"] = one(self.traces)
        return pa.RecordBatch.from_arrays([*columns.values()], [*columns])


@dataclass(frozen=True)
class Layout:
    """Which column is what. Without a column ``data``, all that are nothing else make up the payload."""

    data: spark.DataType | None
    fields: tuple[spark.StructField, ...]
    partition: str | None  # a column
    fixed_partition: str
    transaction_id: bool
    trace_id: bool
    encoded: bool = False  # ``data`` is JSON of our own making


def layout(schema: spark.StructType, options: SinkOptions) -> Layout:
    """Check the columns of what is written."""
    names = schema.names
    if options.partition_by is not None and options.partition_by not in names:
        raise ConfigError(f"the option partitionBy names {options.partition_by}, and there is no such column")
    partition = options.partition_by
    if partition is None and options.partition is None and "partition" in names:
        partition = "partition"
    for name in ("transaction_id", "trace_id"):
        if name in names and not isinstance(schema[name].dataType, spark.StringType):
            raise ConfigError(f"the column {name} must be a STRING; cast it")
    data = schema["data"].dataType if "data" in names else None
    fields = tuple(field for field in schema if field.name not in _OURS) if data is None else ()
    if data is None and not fields:
        raise ConfigError(
            "there is nothing to write: give a column data, or columns that make up the payload"
        )
    return Layout(
        data,
        fields,
        partition,
        options.partition or DEFAULT_PARTITION,
        "transaction_id" in names,
        "trace_id" in names,
    )


def chunks(batch: pa.RecordBatch, layout: Layout) -> Iterator[Chunk]:
    """The messages of a batch, in pieces that are small enough."""
    texts = _payloads(batch, layout)
    sizes = np.diff(arrays.ends(texts))
    names = _partitions(batch, layout)
    start = 0
    while start < len(texts):
        held = np.cumsum(sizes[start : start + MOST_ROWS], dtype=np.int64)
        rows = max(1, int(np.searchsorted(held, MOST_BYTES, "right")))
        yield _chunk(batch.slice(start, rows), texts.slice(start, rows), names.slice(start, rows), layout)
        start += rows


def _chunk(batch: pa.RecordBatch, texts: pa.Array, names: pa.Array, layout: Layout) -> Chunk:
    """Partition by partition, each in the order of its rows."""
    encoded = names.dictionary_encode()
    places = arrays.numbers(encoded.indices.cast(pa.int64()))
    order = arrays.integers(np.argsort(places, kind="stable"))
    ordered = texts.take(order)
    ends = arrays.ends(ordered)
    payloads = ordered.buffers()[2].slice(int(ends[0]), int(ends[-1] - ends[0]))
    counts = np.bincount(places, minlength=len(encoded.dictionary)).astype(np.int32)
    traces = batch.column("trace_id").take(order) if layout.trace_id else None
    return Chunk(
        encoded.dictionary, counts, _transactions(batch, layout, order), traces, payloads, ends - ends[0]
    )


def _transactions(batch: pa.RecordBatch, layout: Layout, order: pa.Array) -> pa.Array:
    """Those given, and new ones where there is none."""
    digits = secrets.token_hex(_ID_DIGITS // 2 * batch.num_rows).encode()
    ends = np.arange(batch.num_rows + 1, dtype=np.int32) * _ID_DIGITS
    buffers = [None, pa.py_buffer(ends), pa.py_buffer(digits)]
    new = pa.Array.from_buffers(pa.string(), batch.num_rows, buffers)
    if not layout.transaction_id:
        return new
    return pc.coalesce(batch.column("transaction_id").take(order), new)


def _partitions(batch: pa.RecordBatch, layout: Layout) -> pa.Array:
    """The partition of each row, as text; null is the default one."""
    fixed, default = arrays.texts([layout.fixed_partition.encode(), DEFAULT_PARTITION.encode()], pa.string())
    if layout.partition is None:
        return pa.repeat(fixed, batch.num_rows)
    names = pc.fill_null(batch.column(layout.partition).cast(pa.string()), default)
    lengths = pc.min_max(pc.binary_length(names))
    if len(names) and (lengths["min"].as_py() < 1 or lengths["max"].as_py() > _NAME_BYTES):
        raise PayloadInvalid(
            f"a partition's name has 1 to {_NAME_BYTES} bytes; see the column {layout.partition}"
        )
    return names


def _payloads(batch: pa.RecordBatch, layout: Layout) -> pa.Array:
    """The JSON of each row, as a binary array."""
    if layout.encoded:
        return batch.column("data")
    if isinstance(layout.data, spark.StringType):
        texts = batch.column("data").cast(pa.binary())
        for text in texts.to_pylist():
            _check(text)
        return texts
    if layout.data is not None:
        values = batch.column("data").to_pylist()
        convert = _plain(layout.data)
        return arrays.texts([_encoder.encode(convert(value)) for value in values], pa.binary())
    columns = [batch.column(field.name).to_pylist() for field in layout.fields]
    names = [field.name for field in layout.fields]
    converts = [_plain(field.dataType) for field in layout.fields]
    columns = [
        column if convert is _same else [convert(value) for value in column]
        for column, convert in zip(columns, converts, strict=True)
    ]
    rows = [_encoder.encode(dict(zip(names, row, strict=True))) for row in zip(*columns, strict=True)]
    return arrays.texts(rows, pa.binary())


def _check(text: bytes | None) -> None:
    try:
        _raw.decode(text if text is not None else b"")
    except msgspec.DecodeError as error:
        shown = "null" if text is None else text[:60].decode(errors="replace")
        raise PayloadInvalid(
            f"the column data holds {shown}, which is not JSON ({error}); write to_json(…), or a struct"
        ) from None


def _same(value: Any) -> Any:
    return value


def _plain(kind: spark.DataType) -> Any:
    """What makes of Arrow's Python values what JSON knows: maps come as pairs, a VARIANT as two bytes."""
    if isinstance(kind, spark.StructType):
        fields = [(field.name, _plain(field.dataType)) for field in kind]
        if all(convert is _same for _, convert in fields):
            return _same
        return lambda value: (
            None if value is None else {name: convert(value[name]) for name, convert in fields}
        )
    if isinstance(kind, spark.ArrayType):
        item = _plain(kind.elementType)
        return (
            _same
            if item is _same
            else lambda value: None if value is None else [item(each) for each in value]
        )
    if isinstance(kind, spark.MapType):
        item = _plain(kind.valueType)
        return lambda value: None if value is None else {str(key): item(each) for key, each in value}
    if isinstance(kind, spark.VariantType):
        return lambda value: (
            None if value is None else VariantVal(value["value"], value["metadata"]).toPython()
        )
    return _same
