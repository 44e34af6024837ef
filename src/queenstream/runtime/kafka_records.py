"""Messages of Kafka as records, and rows as messages: the same on every engine, and without a server.

>>> make = records_of(Kafka("orders", schema="n int"))
>>> make(Found("orders", 0, 17, 1_700_000_000_000, None, b'{"n": "1"}', ()))
{'n': 1}
"""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple, TypeAlias

import msgspec

from queenstream.core import paths
from queenstream.core.records import event_time
from queenstream.core.schemas import Schema
from queenstream.errors import ConfigError, PayloadInvalid
from queenstream.pipeline.endpoints import Kafka

Headers: TypeAlias = Iterable[tuple[str, bytes | None]]

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_US = 1_000  # in a millisecond, which is what Kafka's times are in


class Found(NamedTuple):
    """A message as it lies in a topic; ``timestamp`` is in ms since 1970."""

    topic: str
    partition: int
    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: Headers = ()

    @property
    def time(self) -> int:
        """The event time in µs."""
        return self.timestamp * _US


def records_of(source: Kafka) -> Callable[[Found], Any]:
    """What makes a record of a message, or raises ``PayloadInvalid``."""
    decode = _decoder(source)
    schema = None if source.schema is None else Schema.of(source.schema)
    plain = source.format in ("string", "bytes")

    def value_of(found: Found) -> Any:
        if found.value is None:
            if source.envelope:  # of a compacted topic: the key was deleted
                return None
            raise PayloadInvalid("the message has no value; read it with envelope=True, or skip it")
        value = decode(found.value)
        return value if schema is None or plain else schema.coerce(value)

    if source.envelope:
        return lambda found: {**_coordinates(found), "value": value_of(found)}
    if plain:
        return lambda found: {"value": value_of(found)}
    return value_of


def coordinates(found: Found) -> dict[str, Any]:
    """Where a message lies, with its key and its value as it is: what a dead letter says of one.

    Bytes that are no text are written with ``\\x``, since a dead letter is JSON.

    >>> coordinates(Found("orders", 0, 17, 0, b"a", b"{\\xff", ()))["value"]
    '{\\\\xff'
    """
    return {**_coordinates(found), "value": text(found.value)}


def _coordinates(found: Found) -> dict[str, Any]:
    return {
        "topic": found.topic,
        "partition": found.partition,
        "offset": found.offset,
        "timestamp": _EPOCH + timedelta(milliseconds=found.timestamp),
        "key": text(found.key),
        "headers": {name: text(value) for name, value in found.headers or ()},
    }


def text(raw: bytes | None) -> str | None:
    """Bytes as text; what is no UTF-8 is shown as ``\\x…``."""
    return None if raw is None else raw.decode("utf-8", "backslashreplace")


def _decoder(source: Kafka) -> Callable[[bytes], Any]:
    if source.format == "bytes":
        return lambda raw: raw
    if source.format == "string":
        return _string
    return _avro_decoder(_parsed(source)) if source.format == "avro" else _json


def _json(raw: bytes) -> Any:
    try:
        return msgspec.json.decode(raw)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise PayloadInvalid(
            f"the value is no JSON: {error}; mend it, or read it with format='bytes'"
        ) from None


def _string(raw: bytes) -> str:
    try:
        return raw.decode()
    except UnicodeDecodeError as error:
        raise PayloadInvalid(f"the value is no text: {error}; read it with format='bytes'") from None


def _parsed(endpoint: Kafka) -> Any:
    try:
        import fastavro
    except ImportError:
        raise ConfigError("format='avro' needs fastavro: pip install 'queenstream[kafka]'") from None
    assert endpoint.avro_schema is not None, "it was checked with the format"
    try:
        return fastavro.parse_schema(json.loads(endpoint.avro_schema))
    except Exception as error:
        raise ConfigError(f"{endpoint.title}: avro_schema is no Avro schema: {error}; correct it") from error


def _avro_decoder(schema: Any) -> Callable[[bytes], Any]:
    import fastavro

    def decode(raw: bytes) -> Any:
        file = io.BytesIO(raw)
        try:
            value = fastavro.schemaless_reader(file, schema, None)
        except Exception as error:  # noqa: BLE001 - it raises what the bytes lead it to
            raise _no_avro(f"{type(error).__name__}: {error}") from None
        if file.tell() != len(raw):
            raise _no_avro(f"{len(raw) - file.tell()} bytes are left over")
        return value

    return decode


def _no_avro(why: str) -> PayloadInvalid:
    return PayloadInvalid(f"the value is no Avro of the schema: {why}; mend it, or correct avro_schema")


# The other way


class Sent(NamedTuple):
    """A message to be; ``timestamp`` in ms since 1970, 0: the time when it is sent."""

    key: bytes | None
    value: bytes | None
    headers: list[tuple[str, bytes | None]]
    timestamp: int = 0


def messages_of(sink: Kafka, encode: Callable[[Any], bytes]) -> Callable[[Any], Sent]:
    """What makes a message of a row, or raises ``PayloadInvalid``; ``encode`` writes JSON.

    >>> messages_of(Kafka("out", key_by="user"), msgspec.json.encode)({"user": "ann"})
    Sent(key=b'ann', value=b'{"user":"ann"}', headers=[], timestamp=0)
    """
    schema = None if sink.schema is None else Schema.of(sink.schema)
    write = _encoder(sink, encode)

    def value_of(row: Any) -> bytes:
        return write(row if schema is None else schema.coerce(row))

    if sink.envelope:
        return lambda row: _whole(row, value_of)
    key_of = _keys(sink)
    return lambda row: Sent(key_of(row), value_of(row), [])


def _whole(row: Any, value_of: Callable[[Any], bytes]) -> Sent:
    if not isinstance(row, Mapping) or "value" not in row:
        raise PayloadInvalid("the row has no 'value', and is to be a whole message; add it to the row")
    key, value, at = row.get("key"), row["value"], row.get("timestamp")
    headers = [(str(name), _bytes(each)) for name, each in (row.get("headers") or {}).items()]
    time = 0 if at is None else event_time(at) // _US
    return Sent(_bytes(key), None if value is None else value_of(value), headers, time)


def _bytes(value: Any) -> bytes | None:
    if value is None or isinstance(value, bytes):
        return value
    return value.encode() if isinstance(value, str) else msgspec.json.encode(value)


def _encoder(sink: Kafka, encode: Callable[[Any], bytes]) -> Callable[[Any], bytes]:
    if sink.format == "json":
        return encode
    if sink.format == "avro":
        return _avro_encoder(_parsed(sink))
    return _text_of if sink.format == "string" else _bytes_of


def _text_of(row: Any) -> bytes:
    value = _field(row)
    if isinstance(value, str):
        return value.encode()
    raise PayloadInvalid("the row has no text in its field 'value'; put it there, or write format='json'")


def _bytes_of(row: Any) -> bytes:
    value = _field(row)
    if isinstance(value, bytes):
        return value
    raise PayloadInvalid("the row has no bytes in its field 'value'; put them there, or write format='json'")


def _field(row: Any) -> Any:
    """The one field of a row of text or bytes, or the row if it is that itself."""
    return row["value"] if isinstance(row, Mapping) and "value" in row else row


def _avro_encoder(schema: Any) -> Callable[[Any], bytes]:
    import fastavro

    def encode(row: Any) -> bytes:
        file = io.BytesIO()
        try:
            fastavro.schemaless_writer(file, schema, row)
        except Exception as error:  # noqa: BLE001 - it raises what the row leads it to
            raise PayloadInvalid(
                f"the row does not fit avro_schema: {type(error).__name__}: {error}; correct one of them"
            ) from None
        return file.getvalue()

    return encode


def _keys(sink: Kafka) -> Callable[[Any], bytes | None]:
    path = sink.key_by
    if path is None:
        return lambda _: None
    read = paths.getter(path)

    def key_of(row: Any) -> bytes | None:
        value = read(row)
        if value is None:
            raise PayloadInvalid(f"the row has no {path}, which is its key; add it, or filter such rows")
        return _bytes(value)

    return key_of


@dataclass(frozen=True)
class MessageKey:
    """The key of the message that a row becomes: messages of one key are in order.

    >>> MessageKey(Kafka("out", key_by="user")).reader()({"user": "ann"})
    b'ann'
    """

    sink: Kafka

    def reader(self) -> Callable[[Any], bytes | None]:
        """What gives the key of a row; None: it has none."""
        if self.sink.envelope:
            return lambda row: _bytes(row.get("key"))
        return _keys(self.sink)
