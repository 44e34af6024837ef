"""Topics of Kafka as Spark reads them: by its own source, ``spark-sql-kafka-0-10``, in the tasks.

That source does not come with PySpark. A session of ours has it if its jars are in the cache folder
(``jars``); another one is given them, or Spark fetches them from Maven Central.

Offsets are in Spark's checkpoint. A record is made of a message by the same functions as on the local engine
(``runtime/kafka_records.py``), so that both give the same records and the same failures. Where the rest of a
plan needs no Python, values are read into typed columns, a batch at a time, and the rest is Spark's own.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.errors import AnalysisException, PySparkException
from pyspark.sql import DataFrame, DataFrameReader, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.streaming.readwriter import DataStreamReader
from pyspark.sql.types import StructType

from queenstream.core.schemas import Schema
from queenstream.core.schemas.types import Struct
from queenstream.core.windows import to_us
from queenstream.engines.spark.datasource import payloads
from queenstream.engines.spark.session.jars import KAFKA, kafka_jars
from queenstream.engines.spark.sources.sources import SOURCE_BITS, Decoded
from queenstream.engines.spark.tasks.records import Item, encode_failure
from queenstream.engines.spark.types import arrow_type
from queenstream.engines.spark.versions import kafka_version
from queenstream.errors import ConfigError, PayloadInvalid
from queenstream.pipeline.endpoints import Kafka
from queenstream.runtime.kafka_records import Found, coordinates, records_of

PACKAGE = f"org.apache.spark:{KAFKA}"

_NOT_THERE = "Failed to find data source"
_MOST, _MOST_TYPED = 200_000, 1_000_000  # messages in a batch: for steps in Python, and without any
_FROM_THE_BEGINNING = -2  # Spark's word for it
_NULL = b"null"  # fits no schema
_COLUMNS = ("key", "value", "topic", "partition", "offset", "timestamp")

# What the two client libraries call differently. Files of this machine go to the tasks as what is in them.
_JAVA_FILES = {
    "ssl.ca.location": "ssl.truststore.certificates",
    "ssl.certificate.location": "ssl.keystore.certificate.chain",
    "ssl.key.location": "ssl.keystore.key",
}
_JAVA_TEXTS = {
    "ssl.ca.pem": "ssl.truststore.certificates",
    "ssl.certificate.pem": "ssl.keystore.certificate.chain",
    "ssl.key.pem": "ssl.keystore.key",
    "sasl.mechanisms": "sasl.mechanism",
}
_STORES = {"ssl.truststore.certificates": "ssl.truststore.type", "ssl.keystore.key": "ssl.keystore.type"}
_LOGIN = {
    "PLAIN": "org.apache.kafka.common.security.plain.PlainLoginModule",
    "SCRAM-SHA-256": "org.apache.kafka.common.security.scram.ScramLoginModule",
    "SCRAM-SHA-512": "org.apache.kafka.common.security.scram.ScramLoginModule",
}


def read_kafka(
    spark: SparkSession, source: Kafka, pipeline: str, max_batch_rows: int | None, *, typed: bool
) -> DataFrame:
    """The messages of topics, as Spark's source has them. ``typed``: they are for ``typed_rows``."""
    most = max_batch_rows or (_MOST_TYPED if typed else _MOST)
    options = {
        **_place(source),
        "groupIdPrefix": source.group or pipeline,
        "maxOffsetsPerTrigger": str(most),
        **_start(source),
    }
    return _load(spark, spark.readStream.format("kafka").options(**options))


def batch_of_kafka(spark: SparkSession, source: Kafka, start: Any, end: Any) -> DataFrame:
    """The messages between two of Spark's offsets: a batch that was read before."""
    places = {
        "startingOffsets": "earliest" if start is None else json.dumps(start),
        "endingOffsets": json.dumps(end),
    }
    return _load(spark, spark.read.format("kafka").options(**_place(source), **places))


def _load(spark: SparkSession, reader: DataStreamReader | DataFrameReader) -> DataFrame:
    """What a reader gives. A session may know the source in one thread, and not in another."""
    try:
        return _messages(reader.load())
    except AnalysisException as error:
        if _NOT_THERE not in str(error):
            raise
    _add_source(spark)
    return _messages(reader.load())


def _messages(rows: DataFrame) -> DataFrame:
    """Messages with their headers as text: an array of structs takes Python longer than all the rest."""
    return rows.select(*_COLUMNS, f.to_json("headers").alias("headers"))


def _place(source: Kafka) -> dict[str, str]:
    return {
        "kafka.bootstrap.servers": source.servers,
        "subscribePattern" if source.pattern else "subscribe": source.label,
        "includeHeaders": "true",
        **{f"kafka.{name}": value for name, value in java_settings(source.settings).items()},
    }


def _start(source: Kafka) -> dict[str, str]:
    start = source.start
    if isinstance(start, Mapping):
        return {"startingOffsets": json.dumps(_completed(source, start))}
    if start in ("earliest", "latest"):
        return {"startingOffsets": str(start)}
    moment = datetime.fromisoformat(start) if isinstance(start, str) else start
    moment = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
    return {
        "startingTimestamp": str(int(moment.timestamp() * 1_000)),
        "startingOffsetsByTimestampStrategy": "latest",
    }


def _completed(source: Kafka, start: Mapping[str, Mapping[int, int]]) -> dict[str, dict[str, int]]:
    """With every partition that there is, as Spark wants it; those that nobody named from the beginning."""
    from queenstream.connectors.kafka.reader import partitions_of  # with its library, only on the driver

    return {
        topic: {str(each): start.get(topic, {}).get(each, _FROM_THE_BEGINNING) for each in partitions}
        for topic, partitions in partitions_of(source).items()
    }


def java_settings(settings: Mapping[str, str]) -> dict[str, str]:
    """Settings for librdkafka as Java's client calls them.

    >>> java_settings({"security.protocol": "SSL", "ssl.ca.pem": "-----BEGIN…"})["ssl.truststore.type"]
    'PEM'
    """
    found: dict[str, str] = {}
    for name, value in settings.items():
        if name in _JAVA_FILES:
            found[_JAVA_FILES[name]] = _content(name, value)
        elif name not in ("sasl.username", "sasl.password"):
            found[_JAVA_TEXTS.get(name, name)] = value
    found |= {kind: "PEM" for store, kind in _STORES.items() if store in found}
    if "sasl.username" in settings:
        found["sasl.jaas.config"] = _login(found.get("sasl.mechanism", "PLAIN"), settings)
    return found


def _login(mechanism: str, settings: Mapping[str, str]) -> str:
    module = _LOGIN.get(mechanism)
    if module is None:
        raise ConfigError(f"sasl.mechanism {mechanism} has no user and password; write sasl.jaas.config")
    user, password = (json.dumps(settings.get(name, "")) for name in ("sasl.username", "sasl.password"))
    return f"{module} required username={user} password={password};"


def _content(name: str, path: str) -> str:
    try:
        return Path(path).read_text("utf-8")
    except OSError as error:
        raise ConfigError(f"{name} in settings: {path} cannot be read: {error.strerror}") from None


# The source itself


def _add_source(spark: SparkSession) -> None:
    """Give the session the source, from the cache folder or from Maven Central."""
    package = f"{PACKAGE}:{kafka_version(spark.version)}"
    wanted = [str(jar) for jar in kafka_jars(spark.version)] or [f"ivy://{package}"]
    try:
        for each in wanted:
            spark.sql(f"ADD JAR '{each}'")
    except PySparkException as error:
        raise ConfigError(
            f"Spark's source for Kafka could not be fetched: {str(error).partition(chr(10))[0]}; start Spark "
            f"with --packages {package}, or put its jars into the cache folder"
        ) from None


# Messages as typed columns, and as records


def typed_rows(messages: DataFrame, source: Kafka, schema: Schema, columns: str) -> DataFrame:
    """Messages as those of a queue come: values in typed columns, null as a whole if one does not fit the
    source's schema. ``schema`` has those of its fields that are wanted.

    Arrow reads a batch of values at once (``datasource/payloads.py``); what comes after it is Spark's own.
    """
    assert source.columns is not None, "it is typed"
    arrow, fields = arrow_type(Struct(schema.fields)), source.columns.to_ddl()

    def typed(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        read = payloads.reader(StructType(), arrow, fields)
        for batch in batches:
            data = typed_values(batch.column("value").fill_null(_NULL), read)
            made = [data, batch.column("offset"), batch.column("timestamp"), misfits(batch, data)]
            yield pa.RecordBatch.from_arrays(made, names=["data", "id", "created_at", "misfit"])

    def misfits(batch: pa.RecordBatch, data: pa.Array) -> pa.Array:
        bad = payloads.unfit(schema, data)
        if not bad.true_count:
            return pa.nulls(len(data), pa.binary())
        make = records_of(source)
        told = iter([_misfit(row, make) for row in batch.filter(bad).to_pylist()])
        return pa.array([next(told) if wrong else None for wrong in bad.to_pylist()], pa.binary())

    return messages.mapInArrow(typed, columns)


def _misfit(row: dict[str, Any], make: Callable[[Found], Any]) -> bytes:
    found = _found(row)
    try:
        make(found)
    except PayloadInvalid as error:
        return encode_failure(coordinates(found), error)
    return encode_failure(coordinates(found), PayloadInvalid("its values are not what its columns can hold"))


def _found(row: dict[str, Any]) -> Found:
    return Found(
        row["topic"],
        row["partition"],
        row["offset"],
        to_us(row["timestamp"]) // 1_000,
        row["key"],
        row["value"],
        _headers(row["headers"]),
    )


def _headers(text: str | None) -> list[tuple[str, bytes | None]]:
    """Headers of what Spark makes of them: their values are in base64.

    >>> _headers('[{"key":"h","value":"MQ=="},{"key":"empty"}]')
    [('h', b'1'), ('empty', None)]
    """
    found = [] if text is None else json.loads(text)
    return [(each["key"], base64.b64decode(each["value"]) if "value" in each else None) for each in found]


def typed_values(values: pa.Array, read: Callable[[pa.Array], pa.Array]) -> pa.Array:
    """Values in typed columns. Unlike a queue's, they may be anything: what is no JSON does not fit."""
    if _are_objects(values):
        try:
            return read(values)
        except msgspec.DecodeError:
            pass
    return read(pa.array([value if _is_json(value) else _NULL for value in values.to_pylist()], pa.binary()))


def _are_objects(values: pa.Array) -> bool:
    """Whether each looks like one object: then none passes for two when they are read one after another."""
    try:
        values.cast(pa.string())
    except pa.ArrowInvalid:  # it is no text
        return False
    whole = pc.and_(pc.starts_with(values, b"{"), pc.ends_with(values, b"}"))
    return bool(pc.all(whole, min_count=0).as_py())


def _is_json(value: bytes) -> bool:
    try:
        msgspec.json.decode(value)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return False
    return True


class KafkaDecoder:
    """A record is a message's value, or with ``envelope`` the message; made as on the local engine."""

    def __init__(self, number: int, source: Kafka) -> None:
        self._base = number << SOURCE_BITS
        self._source = source

    def decode(self, batch: pa.RecordBatch) -> Decoded:
        """The records of some messages."""
        make = records_of(self._source)
        decoded = Decoded()
        for row in batch.to_pylist():
            found = _found(row)
            try:
                record = make(found)
            except PayloadInvalid as error:
                decoded.failures.append((coordinates(found), error))
                continue
            decoded.items.append(Item(record, found.time, None, self._base + found.offset))
        return decoded
