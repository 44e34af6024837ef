"""Payloads: JSON bytes to the Arrow array that the type of ``data`` asks for.

Arrow's own JSON reader takes a whole batch at once, if every payload fits the schema; on a million payloads
it took half the time of ``from_json`` in the JVM. If one does not fit, the batch is read payload by payload:
what does not fit its type is null, as ``from_json`` has it. With ``coerce`` it is made to fit a schema of
ours, as the source of a pipeline does; and a payload that cannot be is null as a whole.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal, InvalidOperation
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json as pj
from pyspark.sql import types as spark

from queenstream.core.schemas import Schema
from queenstream.core.schemas.types import Struct
from queenstream.engines.spark.datasource import arrays, variants
from queenstream.engines.spark.tasks.records import encode_failure
from queenstream.engines.spark.types import arrow_type
from queenstream.errors import ConfigError, PayloadInvalid

Reader = Callable[[pa.Array], pa.Array]
Convert = Callable[[Any], Any]

_NOTHING, _NEW_LINE = arrays.texts([b"", b"\n"], pa.binary())
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def reader(kind: spark.DataType, arrow: pa.DataType, coerce: str | None = None) -> Reader:
    """What turns a binary array of JSON texts into an array of ``arrow``.

    ``coerce``: a payload has these fields, which must all fit; those of ``arrow`` are some of them.

    >>> kind = spark.StructType([spark.StructField("n", spark.LongType())])
    >>> read = reader(kind, pa.struct([("n", pa.int64())]))
    >>> read(pa.array([b'{"n": 1}', b'{"n": "one"}', b"[]"])).to_pylist()
    [{'n': 1}, {'n': None}, None]
    >>> coerced = reader(kind, pa.struct([("n", pa.int64())]), "n bigint")
    >>> coerced(pa.array([b'{"n": "1"}', b'{"n": "one"}', b"[]"])).to_pylist()
    [{'n': 1}, None, None]
    """
    if isinstance(kind, spark.StringType):
        return lambda texts: texts.cast(pa.string())
    if isinstance(kind, spark.VariantType):
        return lambda texts: _variants(texts, arrow)
    fields = None if coerce is None else Schema.of(coerce)
    convert = _converter(kind) if fields is None else _coercer(fields)
    whole = arrow if fields is None else arrow_type(Struct(fields.fields))

    def one_by_one(texts: pa.Array) -> pa.Array:
        decode = msgspec.json.decode
        return pa.array([convert(decode(text)) for text in texts.to_pylist()], arrow)

    plain = _plain(whole)
    if plain is None or not pa.types.is_struct(arrow):
        return one_by_one
    schema = pa.schema(list(plain))

    def at_once(texts: pa.Array) -> pa.Array:
        try:
            return _at_once(texts, schema, whole, arrow)
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
            return one_by_one(texts)

    return at_once


def misfits(coerce: str | None) -> Callable[[pa.Array, pa.Array], pa.Array]:
    """What says of texts and of what was read of them which do not fit a schema of ours, and why.

    >>> why = misfits("n bigint not null")
    >>> told = why(pa.array([b'{"n": 1}', b"{}"]), pa.array([{"n": 1}, {"n": None}]))
    >>> told.is_null().to_pylist()
    [True, False]
    """
    if coerce is None:
        raise ConfigError("the column misfit goes with the option coerce, which says what a payload must fit")
    schema = Schema.of(coerce)

    def find(texts: pa.Array, data: pa.Array) -> pa.Array:
        bad = unfit(schema, data)
        if not bad.true_count:
            return pa.nulls(len(data), pa.binary())
        told = zip(texts.to_pylist(), bad.to_pylist(), strict=True)
        return pa.array([_misfit(schema, text) if wrong else None for text, wrong in told], pa.binary())

    return find


def unfit(schema: Schema, data: pa.Array) -> pa.Array:
    """Which records did not fit: they are null, or a field is that must not be."""
    bad = data.is_null()
    for each in schema.fields:
        if each.required:
            bad = pc.or_(bad, data.field(each.name).is_null())
    return bad


def _misfit(schema: Schema, text: bytes) -> bytes:
    payload = msgspec.json.decode(text)
    try:
        schema.coerce(payload)
    except PayloadInvalid as error:
        return encode_failure(payload, error)
    return encode_failure(payload, PayloadInvalid("its values are not what its columns can hold"))


def check(kind: spark.DataType) -> None:
    """Say that JSON has no such type before anything runs.

    >>> check(spark.CalendarIntervalType())  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    queenstream.errors.ConfigError: the option schema has a interval, which JSON has not; ...
    """
    if not isinstance(kind, spark.StringType | spark.VariantType):
        _converter(kind)


def _variants(texts: pa.Array, arrow: pa.DataType) -> pa.Array:
    encoded = [variants.encode(text) for text in texts.to_pylist()]
    by_name = {"value": [value for value, _ in encoded], "metadata": [names for _, names in encoded]}
    columns = [arrays.texts(by_name[field.name], pa.binary()) for field in arrow]
    return pa.StructArray.from_arrays(columns, fields=list(arrow))


def _at_once(texts: pa.Array, schema: pa.Schema, whole: pa.DataType, arrow: pa.DataType) -> pa.Array:
    """``schema`` is what can be read of ``whole``, of which ``arrow`` has some fields."""
    lines = pc.binary_join_element_wise(texts, _NOTHING, _NEW_LINE)
    data = lines.buffers()[2]
    table = pj.read_json(
        pa.BufferReader(data),
        read_options=pj.ReadOptions(use_threads=False, block_size=data.size + 1),
        parse_options=pj.ParseOptions(explicit_schema=schema, unexpected_field_behavior="ignore"),
    ).combine_chunks()
    if table.num_rows != len(texts):
        raise pa.ArrowInvalid("two payloads became one row, or one became two")
    wanted = {field.name: field.type for field in [*whole, *arrow]}  # lists have other names inside in Spark
    columns = {name: _typed(table.column(name), kind) for name, kind in wanted.items()}
    return pa.StructArray.from_arrays([columns[field.name] for field in arrow], fields=list(arrow))


def _typed(column: pa.ChunkedArray, wanted: pa.DataType) -> pa.Array:
    array = column.combine_chunks()
    if isinstance(array, pa.ChunkedArray):
        array = pa.concat_arrays(array.chunks) if array.num_chunks else pa.array([], array.type)
    return array if array.type == wanted else array.cast(wanted)


def _plain(kind: pa.DataType) -> pa.DataType | None:
    """What Arrow's reader is told to read; times as text, which are cast. None: it cannot read this."""
    types = pa.types
    if types.is_struct(kind):
        fields = [(field.name, _plain(field.type)) for field in kind]
        return None if any(plain is None for _, plain in fields) else pa.struct(fields)
    if types.is_list(kind):
        item = _plain(kind.value_type)
        return None if item is None else pa.list_(item)
    if types.is_timestamp(kind) or types.is_date(kind):
        return pa.string()
    plain = (
        types.is_string(kind) or types.is_boolean(kind) or types.is_floating(kind) or types.is_integer(kind)
    )
    return kind if plain else None


# Payload by payload


def _coercer(schema: Schema) -> Convert:
    def convert(value: Any) -> dict[str, Any] | None:
        try:
            return schema.coerce(value)
        except PayloadInvalid:
            return None

    return convert


def _converter(kind: spark.DataType) -> Convert:
    """What makes a decoded value fit a type; None for what does not."""
    if isinstance(kind, spark.StructType):
        return _struct(kind)
    if isinstance(kind, spark.ArrayType):
        item = _converter(kind.elementType)
        return lambda value: [item(each) for each in value] if isinstance(value, list) else None
    if isinstance(kind, spark.MapType):
        if not isinstance(kind.keyType, spark.StringType):
            raise ConfigError("the keys of a MAP in the option schema are STRING: those of a JSON object are")
        item = _converter(kind.valueType)
        return lambda value: [(k, item(v)) for k, v in value.items()] if isinstance(value, dict) else None
    if isinstance(kind, spark.ByteType | spark.ShortType | spark.IntegerType | spark.LongType):
        return _integer({spark.ByteType: 8, spark.ShortType: 16, spark.IntegerType: 32}.get(type(kind), 64))
    if isinstance(kind, spark.DecimalType):
        return _decimal(kind)
    simple = _SIMPLE.get(type(kind))
    if simple is None:
        raise ConfigError(
            f"the option schema has a {kind.simpleString()}, which JSON has not; read it as STRING and cast"
        )
    return simple


def _struct(kind: spark.StructType) -> Convert:
    fields = [(field.name, _converter(field.dataType)) for field in kind]

    def convert(value: Any) -> dict[str, Any] | None:
        if not isinstance(value, dict):
            return None
        return {name: None if value.get(name) is None else make(value[name]) for name, make in fields}

    return convert


def _integer(bits: int) -> Convert:
    low, high = -(1 << bits - 1), 1 << bits - 1
    return lambda value: value if type(value) is int and low <= value < high else None


def _decimal(kind: spark.DecimalType) -> Convert:
    places = Decimal(1).scaleb(-kind.scale)

    def convert(value: Any) -> Decimal | None:
        if isinstance(value, bool) or not isinstance(value, int | float | str):
            return None
        try:
            exact = Decimal(str(value)).quantize(places)
        except InvalidOperation:
            return None
        return exact if len(exact.as_tuple().digits) <= kind.precision else None

    return convert


def _text(value: Any) -> str | None:
    """A text, or the JSON of what is not one."""
    return value if isinstance(value, str) or value is None else msgspec.json.encode(value).decode()


def _float(value: Any) -> float | None:
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


def _boolean(value: Any) -> bool | None:
    return value if isinstance(value, bool) else None


def _timestamp(value: Any) -> datetime | None:
    """ISO 8601, in UTC unless it says otherwise; a number is seconds since 1970."""
    try:
        if isinstance(value, str):
            at = datetime.fromisoformat(value)
            return at if at.tzinfo else at.replace(tzinfo=UTC)
        if isinstance(value, int | float) and not isinstance(value, bool):
            return _EPOCH + timedelta(seconds=value)
    except (ValueError, OverflowError):
        pass
    return None


def _date(value: Any) -> date | None:
    at = _timestamp(value) if isinstance(value, str) else None
    return at.date() if at is not None else None


def _binary(value: Any) -> bytes | None:
    try:
        return base64.b64decode(value, validate=True) if isinstance(value, str) else None
    except binascii.Error:
        return None


_SIMPLE: dict[type[spark.DataType], Convert] = {
    spark.StringType: _text,
    spark.DoubleType: _float,
    spark.FloatType: _float,
    spark.BooleanType: _boolean,
    spark.TimestampType: _timestamp,
    spark.DateType: _date,
    spark.BinaryType: _binary,
}
