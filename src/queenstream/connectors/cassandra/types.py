"""CQL's types: how values get into columns, and out of them.

In: a value is made to fit its column by the rules of ``schemas.coercing``, and written as the bytes that the
protocol has for it, in one go: the driver would look at each value once more.

Out: what a schema has no type for comes as what JSON has: a UUID, a time and a duration as text, a set and a
tuple as a list, a type of the user's own as a record.
"""

from __future__ import annotations

import decimal
import ipaddress
import struct
import uuid
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, time, timedelta
from typing import Any, TypeAlias

import msgspec
from cassandra import util
from cassandra.cqltypes import UserType

from queenstream.core.schemas import types
from queenstream.core.schemas.coercion import Coercer, Misfit, coercer
from queenstream.core.schemas.types import Type

CqlType: TypeAlias = Any
"""A class of the driver's ``cqltypes``."""

Encoder: TypeAlias = Callable[[Any], bytes]
Decoder: TypeAlias = Callable[[Any], Any]

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND = timedelta(milliseconds=1)
_LENGTH = struct.Struct(">i").pack
_NULL = _LENGTH(-1)
_MOST_DIGITS = 1_000  # of a varint or a decimal: nobody means more, and text can say anything


# In


def encoder(kind: CqlType, protocol: int, declared: str) -> Encoder:
    """What makes a value the bytes of a column, or raises ``Misfit``; ``declared`` is its type in CQL."""
    if declared.startswith("list<"):
        return _refused("nothing: a list that is not frozen would be longer after a repeat; make it frozen")
    return _encoder(kind, protocol)


def _encoder(kind: CqlType, protocol: int) -> Encoder:
    name = type_name(kind)
    made = _COMPOUND.get(name)
    if made is not None:
        return made(kind, protocol)
    return _SCALARS.get(name) or _refused(f"nothing: values of the type {name} are not known here")


def scalar_encoder(name: str) -> Encoder | None:
    """The encoder of a type that is no collection, tuple or type of the user's own, by its name in CQL.

    >>> scalar_encoder("smallint")("5")
    b'\\x00\\x05'
    """
    return _SCALARS.get(name)


def _refused(expected: str) -> Encoder:
    def refuse(value: Any) -> bytes:
        raise Misfit(expected, value)

    return refuse


def type_name(kind: CqlType) -> str:
    """The name of a type in CQL; ``"type"`` for one of the user's own."""
    if issubclass(kind, UserType):
        return "type"
    return str(kind.typename).rpartition(".")[2]


def _packed(kind: Type, form: str) -> Encoder:
    """A number of a fixed size."""
    fit, pack = coercer(kind), struct.Struct(form).pack

    def encode(value: Any) -> bytes:
        try:
            return pack(fit(value))
        except OverflowError:  # a double in a float
            raise Misfit("a number that fits a float", value) from None

    return encode


def _text(value: Any) -> bytes:
    """Text; an object or a list as JSON, such as the record of a dead letter."""
    if type(value) in (dict, list):
        return msgspec.json.encode(value, enc_hook=str)
    try:
        return (value if type(value) is str else _string(value)).encode()
    except UnicodeEncodeError:
        raise Misfit("text that UTF-8 can hold", value) from None


def _ascii(value: Any) -> bytes:
    try:
        return str(_string(value)).encode("ascii")
    except UnicodeEncodeError:
        raise Misfit("ASCII text", value) from None


def _timestamp(value: Any) -> bytes:
    """It has milliseconds: what is below them is cut off."""
    return _LONG((_time(value) - _EPOCH) // _MILLISECOND)


def _date(value: Any) -> bytes:
    return _UNSIGNED((_day(value) - _EPOCH.date()).days + (1 << 31))


def _time_of_day(value: Any) -> bytes:
    try:
        found = value if isinstance(value, time) else time.fromisoformat(value)
    except (TypeError, ValueError):
        raise Misfit("a time of day (ISO 8601)", value) from None
    seconds = (found.hour * 60 + found.minute) * 60 + found.second
    return _LONG((seconds * 1_000_000 + found.microsecond) * 1_000)


def _uuid(value: Any) -> bytes:
    try:
        return (value if isinstance(value, uuid.UUID) else uuid.UUID(value)).bytes
    except (AttributeError, TypeError, ValueError):
        raise Misfit("a UUID", value) from None


def _time_uuid(value: Any) -> bytes:
    found = _uuid(value)
    if uuid.UUID(bytes=found).version != 1:
        raise Misfit("a UUID with a time in it (version 1)", value)
    return found


def _inet(value: Any) -> bytes:
    try:
        return ipaddress.ip_address(value if not isinstance(value, int) else "").packed
    except ValueError:
        raise Misfit("an address such as 192.0.2.1", value) from None


def _exact(value: Any) -> decimal.Decimal:
    """As exact as it is given; a column of this type has no scale of its own."""
    if isinstance(value, int | float | decimal.Decimal | str) and not isinstance(value, bool):
        try:
            found = decimal.Decimal(str(value) if isinstance(value, float) else value)
        except (decimal.InvalidOperation, ValueError):
            found = decimal.Decimal("NaN")
        if (
            found.is_finite()
            and found.adjusted() < _MOST_DIGITS
            and len(found.as_tuple().digits) <= _MOST_DIGITS
        ):
            return found
    raise Misfit("a number", value)


def _varint(value: Any) -> bytes:
    found = _exact(value)
    if found != found.to_integral_value():
        raise Misfit("a whole number", value)
    return _signed(int(found))


def _decimal(value: Any) -> bytes:
    found = _exact(value)
    scale = -int(found.as_tuple().exponent)
    if abs(scale) > _MOST_DIGITS:
        raise Misfit("a number with an exponent that is not absurd", value)
    with decimal.localcontext(prec=2 * _MOST_DIGITS):
        return _LENGTH(scale) + _signed(int(found.scaleb(scale)))


def _signed(number: int) -> bytes:
    """The fewest bytes in two's complement."""
    return number.to_bytes((number + (number < 0)).bit_length() // 8 + 1, "big", signed=True)


def _part(encode: Encoder, step: str, value: Any) -> bytes:
    """A value within another, with its length before it."""
    if value is None:
        raise Misfit("a value, as null cannot stand there", value, step)
    try:
        data = encode(value)
    except Misfit as misfit:
        raise misfit.under(step) from None
    return _LENGTH(len(data)) + data


def _list(kind: CqlType, protocol: int) -> Encoder:
    encode = _encoder(kind.subtypes[0], protocol)

    def convert(value: Any) -> bytes:
        if not isinstance(value, list | tuple | set | frozenset):
            raise Misfit("a list", value)
        return _LENGTH(len(value)) + b"".join([_part(encode, str(at), item) for at, item in enumerate(value)])

    return convert


def _set(kind: CqlType, protocol: int) -> Encoder:
    encode = _encoder(kind.subtypes[0], protocol)

    def convert(value: Any) -> bytes:
        if not isinstance(value, list | tuple | set | frozenset):
            raise Misfit("a list or a set", value)
        parts = dict.fromkeys(_part(encode, str(at), item) for at, item in enumerate(value))
        return _LENGTH(len(parts)) + b"".join(parts)

    return convert


def _map(kind: CqlType, protocol: int) -> Encoder:
    of_key, of_value = (_encoder(each, protocol) for each in kind.subtypes)

    def convert(value: Any) -> bytes:
        if not isinstance(value, Mapping):
            raise Misfit("a map", value)
        parts = [_LENGTH(len(value))]
        for key, item in value.items():
            parts.append(_part(of_key, str(key), key))
            parts.append(_part(of_value, str(key), item))
        return b"".join(parts)

    return convert


def _tuple(kind: CqlType, protocol: int) -> Encoder:
    encoders = [_encoder(each, protocol) for each in kind.subtypes]

    def convert(value: Any) -> bytes:
        if not isinstance(value, list | tuple) or len(value) != len(encoders):
            raise Misfit(f"a list of {len(encoders)}", value)
        return b"".join(
            _NULL if item is None else _part(encode, str(at), item)
            for at, (encode, item) in enumerate(zip(encoders, value, strict=True))
        )

    return convert


def _own_type(kind: CqlType, protocol: int) -> Encoder:
    encoders = [_encoder(each, protocol) for each in kind.subtypes]
    members = dict(zip(kind.fieldnames, encoders, strict=True))

    def convert(value: Any) -> bytes:
        if not isinstance(value, Mapping):
            raise Misfit(f"a record with {', '.join(members)}", value)
        unknown = next((name for name in value if name not in members), None)
        if unknown is not None:
            raise Misfit(f"one of {', '.join(members)}", unknown, str(unknown))
        return b"".join(
            _NULL if value.get(name) is None else _part(encode, name, value[name])
            for name, encode in members.items()
        )

    return convert


def _vector(kind: CqlType, protocol: int) -> Encoder:
    fit, serialize = _VECTORS.get(type_name(kind.subtype)), kind.serialize
    if fit is None:
        return _refused("nothing: only vectors of numbers are known here")

    def convert(value: Any) -> bytes:
        if not isinstance(value, list | tuple) or len(value) != kind.vector_size:
            raise Misfit(f"a list of {kind.vector_size} numbers", value)
        return bytes(serialize([fit(item) for item in value], protocol))

    return convert


_LONG = struct.Struct(">q").pack
_UNSIGNED = struct.Struct(">I").pack
_string: Coercer = coercer(types.STRING)
_time: Coercer = coercer(types.TIMESTAMP)
_day: Coercer = coercer(types.DATE)
_VECTORS: dict[str, Coercer] = {
    "float": coercer(types.FLOAT),
    "double": coercer(types.DOUBLE),
    "int": coercer(types.INT),
    "bigint": coercer(types.BIGINT),
}
_SCALARS: dict[str, Encoder] = {
    "ascii": _ascii,
    "text": _text,
    "varchar": _text,
    "boolean": _packed(types.BOOLEAN, ">?"),
    "tinyint": _packed(types.TINYINT, ">b"),
    "smallint": _packed(types.SMALLINT, ">h"),
    "int": _packed(types.INT, ">i"),
    "bigint": _packed(types.BIGINT, ">q"),
    "varint": _varint,
    "decimal": _decimal,
    "float": _packed(types.FLOAT, ">f"),
    "double": _packed(types.DOUBLE, ">d"),
    "timestamp": _timestamp,
    "date": _date,
    "time": _time_of_day,
    "uuid": _uuid,
    "timeuuid": _time_uuid,
    "inet": _inet,
    "blob": coercer(types.BINARY),
}
_COMPOUND: dict[str, Callable[[CqlType, int], Encoder]] = {
    "list": _list,
    "set": _set,
    "map": _map,
    "tuple": _tuple,
    "type": _own_type,
    "VectorType": _vector,
}


# Out


def decoder(kind: CqlType) -> Decoder | None:
    """What makes a record's value of what the driver gives; None: it is one already."""
    name = type_name(kind)
    if name in ("list", "set", "VectorType"):
        inner = decoder(kind.subtype if name == "VectorType" else kind.subtypes[0])
        return list if inner is None else lambda value: [inner(item) for item in value]
    if name == "map":
        return _map_decoder(decoder(kind.subtypes[0]), decoder(kind.subtypes[1]))
    if name in ("tuple", "type"):
        inners = [_nullable(decoder(each)) for each in kind.subtypes]
        if name == "tuple":
            return lambda value: [read(item) for read, item in zip(inners, value, strict=False)]
        names = kind.fieldnames
        return lambda value: {
            name: read(item) for name, read, item in zip(names, inners, value, strict=False)
        }
    return _FROM.get(name)


def _map_decoder(of_key: Decoder | None, of_value: Decoder | None) -> Decoder:
    key, item = _nullable(of_key), _nullable(of_value)
    return lambda value: {key(each): item(one) for each, one in value.items()}


def _nullable(read: Decoder | None) -> Decoder:
    if read is None:
        return lambda value: value
    return lambda value: None if value is None else read(value)


def _moment(value: Any) -> datetime:
    if not isinstance(value, datetime):  # before the year 1, or after 9999
        raise Misfit("a time in the years 1 to 9999", value)
    milliseconds = round(value.microsecond / 1_000)  # the driver computes with floats, and may miss by one
    return value.replace(microsecond=0, tzinfo=UTC) + timedelta(milliseconds=milliseconds)


def _calendar(value: util.Date) -> Any:
    try:
        return value.date()
    except (OverflowError, ValueError):
        raise Misfit("a date in the years 1 to 9999", str(value)) from None


_FROM: dict[str, Decoder] = {
    "timestamp": _moment,
    "date": _calendar,
    "time": str,
    "uuid": str,
    "timeuuid": str,
    "duration": str,
}
