"""The files of a source as a plan wants them.

Spark's own file source reads them, in one of three ways:

- ``columns``: Parquet whose types are those of the schema, or widen to them without a loss. The JVM reads
  them, and no Python stands between a file and a plan without Python.
- ``lines``: NDJSON and text. The JVM cuts files into blocks and lines, and Python makes records of them.
- ``whole``: CSV, where a value may hold line ends, ORC, and Parquet of other types or without a schema. A
  task opens a file with the reader that the local engine has, and reads it piece by piece.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Literal
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as f

from queenstream.core import paths
from queenstream.core.schemas import Schema, types
from queenstream.core.schemas.types import Struct, Type
from queenstream.engines.spark.checkpoints.directory import Home, slug
from queenstream.engines.spark.sources.files.manifest import FILE_BITS, Manifest, files_of_batches
from queenstream.engines.spark.sources.files.records import (
    PLACE_BITS,
    ColumnsDecoder,
    Lines,
    PieceDecoder,
    TypedLines,
    TypedPieces,
    Whole,
)
from queenstream.engines.spark.sources.files.storage import LocalStorage, RemoteStorage, Storage, local_path
from queenstream.engines.spark.sources.sources import Decoder
from queenstream.engines.spark.types import arrow_type, is_bare, parts_of, spark_type
from queenstream.pipeline.endpoints import Files
from queenstream.pipeline.engine_api import RunOptions
from queenstream.pipeline.plan import nodes
from queenstream.pipeline.plan.planner import Plan

Way = Literal["columns", "lines", "whole"]
Load = Callable[[str, str, Mapping[str, str]], DataFrame]
"""Gives the rows of files, by format, columns and options."""

_END = "__queenstream_end"
_CORE_BYTES = 128 << 20  # of files in a batch, for each core; Spark cuts files into blocks of as many
_URI, _SECONDS, _PLACE, _FILE, _KNOWN = "uri", "seconds", "place", "file", "known"
_BINARY = "path STRING, modificationTime TIMESTAMP, length LONG, content BINARY"
_ORDERLESS = frozenset({"count", "sum", "avg", "min", "max", "stddev", "percentile", "count_distinct"})
_THREADS = 8  # that look into files


def has_end(plan: Plan, source: Files) -> bool:
    """Whether something comes after the last file: time ends there, for steps that wait for it."""
    return source.bounded and any(node.keeps_state for node in plan.nodes)


class FileSource:
    """A source of files in one run. ``open`` it before anything is read.

    ``in_order``: some sink of the plan gets its rows in the order of the files.
    """

    def __init__(
        self,
        spark: SparkSession,
        plan: Plan,
        read: nodes.Read,
        told: RunOptions,
        home: Home,
        *,
        in_order: bool = True,
    ) -> None:
        assert isinstance(read.source, Files)
        self._spark = spark
        self._plan = plan
        self._read = read
        self._source: Files = read.source
        most = told.max_batch_bytes or _CORE_BYTES * max(2, spark.sparkContext.defaultParallelism)
        self._most_bytes = most
        local = home.folder is not None
        root = str(home.folder) if local else home.root
        self._storage: Storage = LocalStorage(spark) if local else RemoteStorage(spark)
        self._log = f"{root}/spark/sources"
        self.manifest = Manifest(
            self._storage,
            _storage_of(spark, self._source),
            f"{root}/feed/{slug(read.name)}",
            str(self._source.path) if self._source.remote else self._source.place,
            grows=self._source.follow,
            end=_end_file(self._source) if has_end(plan, self._source) else None,
            least_size=0 if self._source.max_files is None else -(-most // self._source.max_files),
        )
        self._in_order = in_order
        self._way: Way = "lines"

    def open(self) -> None:
        """Look which files there are, and how they can be read."""
        self.manifest.open()
        self._way = self._find_way()

    @property
    def look_seconds(self) -> float:
        """How often to look for files that come: a listing elsewhere takes longer, and may cost money."""
        return 2.0 if self._source.remote else 0.2

    def look(self) -> bool:
        """Take in files that have come since, if some have."""
        return self.manifest.look()

    def typed(self, schema: Schema) -> DataFrame:
        """For a plan without Python: the columns of ``records.COLUMNS``, with some fields of the schema.

        Without ``misfit``, where every record fits or lacks what must be there.
        """
        return self._typed(self._stream, schema)

    def plain(self) -> DataFrame:
        """As the decoder takes it."""
        if self._way == "columns":
            assert self._source.columns is not None, "it has a schema"
            return self._columns(self._stream, self._source.columns, ordered=True)
        return self._blocks(self._stream)

    def decoder(self, number: int) -> Decoder:
        """What makes records of the plain rows."""
        schema = self._schema
        if self._way == "columns":
            assert schema is not None, "it has one"
            return ColumnsDecoder(number, schema)
        return PieceDecoder(number, self._made(schema))

    def again(self, schema: Schema, number: int, start: Any, end: Any) -> DataFrame:
        """The typed rows of a batch that was read before, by Spark's offsets; the source has this number."""
        after = -1 if start is None else start["logOffset"]
        files = files_of_batches(self._storage, f"{self._log}/{number}", after, end["logOffset"])
        end = self.manifest.end_prefix
        files = [each for each in files if end is None or not each.startswith(end)]

        def load(form: str, columns: str, options: Mapping[str, str]) -> DataFrame:
            there = self._spark.read.schema(columns).options(**options).format(form)
            return there.load([*map(unquote, files)])

        return self._typed(load, schema)

    @property
    def _schema(self) -> Schema | None:
        return None if self._source.schema is None else Schema.of(self._source.schema)

    @property
    def _names(self) -> dict[int, str]:
        return {place: uri for uri, place in self.manifest.places.items()}

    def _made(self, schema: Schema | None) -> Lines | Whole:
        assert self._source.format is not None
        if self._way == "lines":
            return Lines(self._source.format, schema, self._names)
        return Whole(self._source.format, schema)

    def _find_way(self) -> Way:
        if self._source.format in ("ndjson", "text"):
            return "lines"
        schema = self._schema
        if self._source.format != "parquet" or schema is None or not _can_be_columns(schema):
            return "whole"
        kinds = self._arrow_schemas()
        return "columns" if all(each is not None and _fits(schema, each) for each in kinds) else "whole"

    def _arrow_schemas(self) -> list[pa.Schema | None]:
        """What is in the files that are there; None for one that cannot be read."""
        uris = [*self.manifest.places]
        if not self._source.remote:
            with ThreadPoolExecutor(_THREADS) as threads:
                return [*threads.map(_arrow_schema, uris)]
        if not uris:
            return []
        try:
            found = self._spark.read.option("mergeSchema", "true").parquet(*map(unquote, uris)).schema
        except PySparkException:  # they do not go together, or hold what Spark has not
            return [None]
        return [self._spark.createDataFrame([], found).toArrow().schema]

    def _stream(self, form: str, columns: str, options: Mapping[str, str]) -> DataFrame:
        """By Spark's file source, from the folder of the manifest."""
        reader = self._spark.readStream.schema(columns).options(**options).format(form)
        reader = reader.option("recursiveFileLookup", "true")  # the files lie elsewhere
        reader = reader.option("maxFileAge", "1000000d").option("maxBytesPerTrigger", str(self._most_bytes))
        return reader.load(self.manifest.folder)

    def _typed(self, load: Load, schema: Schema) -> DataFrame:
        if self._way == "columns":
            return self._columns(load, schema, ordered=_needs_order(self._plan, in_order=self._in_order))
        whole = self._source.columns
        assert whole is not None, "it has a schema"
        assert self._source.format is not None
        made: TypedLines | TypedPieces
        if self._way == "lines":
            made = TypedLines(self._source.format, whole, schema, self._names)
        else:
            made = TypedPieces(self._made(whole), schema)
        record = spark_type(Struct(schema.fields))
        columns = f"record {record}, seq LONG, misfit BINARY, ended BOOLEAN"
        return self._blocks(load).mapInArrow(made, columns)

    def _columns(self, load: Load, schema: Schema, *, ordered: bool) -> DataFrame:
        """Records, read by the JVM."""
        columns = [f"{paths.quote(each.name)} {spark_type(each.type)}" for each in schema.fields]
        rows = load("parquet", ", ".join([*columns, f"{_END} BOOLEAN"]), {})
        record = f.struct(*(f.col(paths.quote(each.name)) for each in schema.fields)).alias("record")
        ended = f.col(_END).isNotNull().alias("ended")
        if not ordered:
            return rows.select(record, f.lit(0).cast("bigint").alias("seq"), ended)
        placed = self._placed(rows, [record, ended], f.col("_metadata.row_index"))
        return placed.select("record", f.col(_PLACE).alias("seq"), "ended")

    def _blocks(self, load: Load) -> DataFrame:
        """Lines, or whole files: with the place where their block begins, and the file's name if need be."""
        uri = f.col("_metadata.file_path")
        end = self.manifest.end_prefix
        ended = (f.lit(False) if end is None else uri.startswith(end)).alias("ended")
        if self._way == "lines":
            rows = load("text", "value STRING", {"lineSep": "\n"})
            value = f.col("value").cast("binary").alias("value")
            placed = self._placed(rows, [value, ended], f.col("_metadata.file_block_start"))
            later = f.when(f.col(_FILE).isNull(), f.col(_URI)).alias("uri")
            return placed.select("value", f.col(_PLACE).alias("block"), later, "ended")
        rows = load("binaryFile", _BINARY, {})
        content = [f.col("content")] if self._source.remote else []  # a task opens what is on its machine
        placed = self._placed(rows, [ended, *content], f.lit(0).cast("bigint"))
        names = [each for each in ("content",) if content]
        return placed.select(f.col(_URI).alias("uri"), f.col(_PLACE).alias("block"), "ended", *names)

    def _placed(self, rows: DataFrame, columns: list[Column], at: Column) -> DataFrame:
        """With the place of each row: first by its file, as the manifest has them, then in it.

        Files that come while the query runs follow by the second when they were placed.
        """
        seconds = f.unix_seconds(f.col("_metadata.file_modification_time"))
        uri = f.col("_metadata.file_path")
        named = rows.select(*columns, uri.alias(_URI), seconds.alias(_SECONDS), at.alias("at"))
        places = self.manifest.places
        known = pa.table(
            [pa.array(places.keys(), pa.string()), pa.array(places.values(), pa.int64())],
            names=[_KNOWN, _FILE],
        )
        if self.manifest.grows or len(places) != 1:
            beside = f.broadcast(self._spark.createDataFrame(known))
            named = named.join(beside, f.col(_URI) == f.col(_KNOWN), "left")
        else:
            named = named.withColumn(_FILE, f.lit(0).cast("bigint"))
        since = f.lit(self.manifest.since)
        later = f.lit(self.manifest.next_place) + f.greatest(f.lit(0), f.col(_SECONDS) - since)
        file = f.least(f.coalesce(f.col(_FILE), later), f.lit((1 << FILE_BITS) - 1).cast("bigint"))
        return named.withColumn(_PLACE, f.shiftleft(file.cast("bigint"), PLACE_BITS) + f.col("at"))


def _storage_of(spark: SparkSession, source: Files) -> Storage:
    return RemoteStorage(spark) if source.remote else LocalStorage(spark)


def _end_file(source: Files) -> bytes:
    """What comes after all files. Of Parquet it has a column of its own, so that a row shows it."""
    if source.format != "parquet":
        return b"end\n"
    written = io.BytesIO()
    pq.write_table(pa.table({_END: [True]}), written)
    return written.getvalue()


def _needs_order(plan: Plan, *, in_order: bool) -> bool:
    """Whether it matters to a plan without Python which record comes before which.

    ``in_order``: it does to a sink.
    """
    if any(node.policy.outcomes != ("fail",) or node.policy.callback is not None for node in plan.nodes):
        return True
    [*stateful] = (node for node in plan.nodes if node.keeps_state)
    if not stateful:
        return in_order
    return not (
        len(stateful) == 1
        and isinstance(stateful[0], nodes.Aggregation)
        and stateful[0].emit == "final"
        and all(each.kind in _ORDERLESS for _, each in stateful[0].aggregates)
    )


def _arrow_schema(uri: str) -> pa.Schema | None:
    path = local_path(uri)
    assert path is not None, "it is a file of this machine"
    try:
        # What Spark writes as times by default (INT96) seems to have nanoseconds, and Spark reads it.
        with pq.ParquetFile(path, coerce_int96_timestamp_unit="us") as file:
            return file.schema_arrow
    except (pa.ArrowException, OSError):
        return None


def _can_be_columns(schema: Schema) -> bool:
    """Whether records in columns say all that a schema does. What lacks a field is told as JSON: no bytes."""
    required = any(each.required for each in schema.fields)
    return (
        is_bare(schema.fields)
        and not any(_has(each.type, (types.VARIANT,)) for each in schema.fields)
        and not (required and any(_has(each.type, (types.BINARY,)) for each in schema.fields))
        and not any(each.name == _END for each in schema.fields)
    )


def _has(kind: Type, which: tuple[Type, ...]) -> bool:
    return kind in which or any(_has(each, which) for each in parts_of(kind))


def _fits(schema: Schema, found: pa.Schema) -> bool:
    """Whether the JVM reads columns as our own rules would make them of the file's values."""
    return _fields_fit(Struct(schema.fields), found)


def _fields_fit(kind: Struct, found: Any) -> bool:
    there = {each.name: each.type for each in found}
    lowered = [name.lower() for name in there]
    for each in kind.fields:
        if each.name not in there:
            if each.name.lower() in lowered:  # to Spark it would be the same column
                return False
        elif lowered.count(each.name.lower()) > 1 or not _type_fits(each.type, there[each.name]):
            return False
    return True


def _type_fits(kind: Type, found: pa.DataType) -> bool:
    if isinstance(kind, Struct):
        return pa.types.is_struct(found) and _fields_fit(kind, found)
    if isinstance(kind, types.List):
        return pa.types.is_list(found) and _type_fits(kind.of, found.value_type)
    if isinstance(kind, types.Map):  # to Python, a map of a file is a list of pairs
        return False
    if kind in types.INTEGERS:
        return bool(pa.types.is_signed_integer(found) and found.bit_width <= types.INTEGERS[kind])
    if kind in types.FRACTIONS:
        return found in (pa.float32(), pa.float64(), pa.int8(), pa.int16(), pa.int32())
    if kind == types.TIMESTAMP:
        return bool(pa.types.is_timestamp(found) and found.unit in ("us", "ms"))
    if kind == types.STRING:
        return found in (pa.string(), pa.large_string())
    return bool(found == arrow_type(kind))
