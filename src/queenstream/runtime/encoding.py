"""Values as bytes, as checkpoints keep them: MessagePack, which runs no code when it is read.

MessagePack has numbers, text, bytes, lists, maps and times. What Python has beyond that is marked by an
extension type, so that a row that is delivered again after a crash is written as it was the first time:

| code | value | content |
|---|---|---|
| 1, 2, 3 | tuple, set, frozenset | a list of the items |
| 4, 5, 6 | whole number over 64 bits, Decimal, UUID | text |
| 7, 8, 9 | date, time, datetime that is not UTC | ISO 8601 |
| 10 | timedelta | microseconds |
| 11 | dict with keys that are not all text | a list of [key, value] |
| 12 | dataclass, Struct or pydantic model | [module, name of the class, map of the fields] |
| 13 | member of an Enum | [module, name of the class, name of the member] |
| 14 | OrderedDict, Counter, deque, defaultdict | [name, content] |
| 15 | text that UTF-8 cannot hold | bytes, with ``surrogatepass`` |
| 16 | what cannot be kept (rows for sinks only) | text that says why: a sink refuses such a row |

To read an object (12, 13) imports its module as an ``import`` statement does; a class that is not found
there, or is none of these kinds, gives a map of the fields. Classes of a script (``__main__``) are found in
the driver, and in tasks that were given them (``script_classes``).

>>> unpack(pack({"at": datetime(2026, 1, 31, tzinfo=UTC), "sum": Decimal("9.50")}))["sum"]
Decimal('9.50')
"""

from __future__ import annotations

import enum
import importlib
import sys
import zlib
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Iterable, Mapping
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from typing import Any
from uuid import UUID

import msgspec

_ENCODER = msgspec.msgpack.Encoder()
_PLAIN = frozenset((str, float, bool, type(None), bytes))
_INT_64 = range(-(1 << 63), 1 << 64)

_TUPLE, _SET, _FROZEN_SET, _NUMBER, _DECIMAL, _UUID, _DATE, _TIME, _DATETIME, _SPAN, _MAP = range(1, 12)
_OBJECT, _MEMBER, _CONTAINER, _TEXT, _UNKEPT = range(12, 17)
_INSTANTS = (b"\xd6\xff", b"\xd7\xff", b"\xc7\x0c\xff")  # what times begin with in MessagePack
_FACTORIES = {each.__name__: each for each in (int, float, str, list, dict, set)}  # of a defaultdict
_SCRIPT = "__main__"
_script_classes: dict[str, type] = {}  # those that this process was given


class Damaged(ValueError):
    """The bytes are not those that were written."""


class Unkept:
    """Stands for a row that cannot be kept; ``why`` is what its sink refuses it with."""

    def __init__(self, why: str) -> None:
        self.why = why

    def __repr__(self) -> str:
        return f"<{self.why}>"


def pack(value: object) -> bytes:
    """A value as bytes, with a checksum before them."""
    body = encode(value)
    return zlib.crc32(body).to_bytes(4, "big") + body


def encode(value: object) -> bytes:
    """The same without a checksum. A named number or text (``IntEnum``) becomes a plain one."""
    # Nearly everything needs no mark. To read it back and compare costs half of a walk through it.
    try:
        body = _ENCODER.encode(value)
        if any(each in body for each in _INSTANTS):  # equal times may have other zones
            return _ENCODER.encode(_marked(value))
        if _DECODER.decode(body) == value:
            return body
    except (TypeError, ValueError, OverflowError, NotImplementedError):
        pass  # what MessagePack does not have
    return _ENCODER.encode(_marked(value))


def encode_exactly(value: object) -> bytes:
    """The same, and what only equals a plain value comes back as what it was, too."""
    return _ENCODER.encode(_marked(value, exact=True))


def encode_row(record: object) -> bytes:
    """A record for a sink. What cannot be kept becomes ``Unkept``, which the sink then refuses."""
    try:
        return encode(record)
    except (TypeError, ValueError, RecursionError) as error:
        return _ENCODER.encode(_ext(_UNKEPT, str(error)))


def unpack(data: bytes) -> Any:
    """The value again; ``Damaged`` if a bit has changed.

    >>> unpack(pack([1])[:-1] + b"x")
    Traceback (most recent call last):
    queenstream.runtime.encoding.Damaged: the checksum is wrong
    """
    if len(data) < 5 or zlib.crc32(data[4:]).to_bytes(4, "big") != data[:4]:
        raise Damaged("the checksum is wrong")
    return _DECODER.decode(data[4:])


def decode(data: bytes) -> Any:
    """The value of bytes that have no checksum."""
    return _DECODER.decode(data)


def script_classes() -> dict[str, type]:
    """The classes of the script that runs, by name: for processes that cannot import it."""
    found = vars(sys.modules[_SCRIPT]).items()
    return {name: each for name, each in found if _is_kept(each) and each.__module__ == _SCRIPT}


def use_script_classes(classes: Mapping[str, type]) -> None:
    """Read objects of these classes in this process."""
    _script_classes.update(classes)


def _marked(value: Any, *, exact: bool = False) -> Any:
    """The value with marks where MessagePack alone would give back something else."""
    kind = type(value)
    if kind is str:
        return value if value.isascii() else _text(value)
    if kind in _PLAIN:
        return value
    if kind is dict:
        if all(type(key) is str and key.isascii() for key in value):
            return {key: _marked(item, exact=exact) for key, item in value.items()}
        return _ext(_MAP, _pairs(value, exact=exact))
    if kind is list:
        return [_marked(item, exact=exact) for item in value]
    if kind is int:
        return value if value in _INT_64 else _ext(_NUMBER, str(value))
    if kind is datetime:
        return value if value.tzinfo is UTC else _ext(_DATETIME, value.isoformat())
    return _rare(value, exact=exact)


def _text(value: str) -> Any:
    try:
        value.encode()
    except UnicodeEncodeError:
        return _ext(_TEXT, value.encode("utf-8", "surrogatepass"))
    return value


def _pairs(value: Mapping[Any, Any], *, exact: bool) -> list[Any]:
    return [[_marked(key, exact=exact), _marked(item, exact=exact)] for key, item in value.items()]


def _rare(value: Any, *, exact: bool) -> Any:
    if isinstance(value, enum.Enum) and (exact or not isinstance(value, int | str)):
        return _ext(_MEMBER, [type(value).__module__, type(value).__qualname__, value.name])
    for kinds, code, written in _WRITTEN:
        if isinstance(value, kinds):
            if type(value) is not kinds and exact:
                break
            return _ext(code, written(value, exact))
    container = _container(value, exact=exact)
    if container is not None:
        return _ext(_CONTAINER, container)
    fields = _fields(value)
    if fields is not None:
        kept = {name: _marked(each, exact=exact) for name, each in fields.items()}
        return _ext(_OBJECT, [type(value).__module__, type(value).__qualname__, kept])
    if isinstance(value, bytearray | memoryview):
        return bytes(value)
    if type(value).__module__ == "numpy" and getattr(value, "shape", None) == ():
        return _marked(value.item(), exact=exact)
    if not exact:
        if isinstance(value, Mapping):
            return _marked(dict(value))
        for plain in (str, int, float, list):
            if isinstance(value, plain):  # of a subclass: an IntEnum, a list with a name
                return _marked(plain(value))  # type: ignore[arg-type]
    raise TypeError(
        f"{type(value).__name__} cannot be kept in a checkpoint; use numbers, text, times, lists, dicts, "
        "dataclasses, Structs or pydantic models"
    )


def _container(value: Any, *, exact: bool) -> list[Any] | None:
    kind = type(value)
    if kind is deque:
        return ["deque", [_marked(item, exact=exact) for item in value], value.maxlen]
    if kind is OrderedDict or kind is Counter:
        return [kind.__name__, _pairs(value, exact=exact)]
    if kind is defaultdict:
        factory = value.default_factory
        name = getattr(factory, "__name__", "")
        if factory is None or _FACTORIES.get(name) is factory:
            return ["defaultdict", _pairs(value, exact=exact), name or None]
    return None


def _is_kept(kind: Any) -> bool:
    """Whether objects of a class are kept with its name."""
    if not isinstance(kind, type):
        return False
    return issubclass(kind, enum.Enum) or any(
        hasattr(kind, name) for name in ("__struct_fields__", "__dataclass_fields__", "model_fields")
    )


def _fields(value: Any) -> dict[str, Any] | None:
    names: Iterable[str] | None = None
    for listing in ("__struct_fields__", "__dataclass_fields__", "model_fields"):
        names = getattr(type(value), listing, names)
    return None if names is None else {name: getattr(value, name) for name in names}


_WRITTEN: tuple[tuple[Any, int, Any], ...] = (
    (tuple, _TUPLE, lambda value, exact: [_marked(item, exact=exact) for item in value]),
    (set, _SET, lambda value, exact: [_marked(item, exact=exact) for item in value]),
    (frozenset, _FROZEN_SET, lambda value, exact: [_marked(item, exact=exact) for item in value]),
    (Decimal, _DECIMAL, lambda value, _: str(value)),
    (UUID, _UUID, lambda value, _: str(value)),
    (datetime, _DATETIME, lambda value, _: value.isoformat()),
    (date, _DATE, lambda value, _: value.isoformat()),
    (time, _TIME, lambda value, _: value.isoformat()),
    (timedelta, _SPAN, lambda value, _: _marked(value // timedelta(microseconds=1))),  # may pass 64 bits
)


def _ext(code: int, value: object) -> msgspec.msgpack.Ext:
    return msgspec.msgpack.Ext(code, _ENCODER.encode(value))


def _class(module: str, name: str) -> Any:
    """The class of that name, if it is one whose objects are kept; None: there is none."""
    if module == _SCRIPT and name in _script_classes:
        return _script_classes[name]
    try:
        found: Any = sys.modules.get(module) or importlib.import_module(module)
        for part in name.split("."):
            found = getattr(found, part)
    except (ImportError, AttributeError, ValueError):
        return None
    return found if _is_kept(found) else None


def _object(content: list[Any]) -> Any:
    module, name, fields = content
    kind = _class(module, name)
    if kind is None or issubclass(kind, enum.Enum):
        return fields
    if hasattr(kind, "__struct_fields__"):
        return kind(**fields)
    if hasattr(kind, "model_construct"):
        return kind.model_construct(**fields)
    made = object.__new__(kind)
    for field, value in fields.items():
        object.__setattr__(made, field, value)
    return made


def _member(content: list[Any]) -> Any:
    module, name, member = content
    kind = _class(module, name)
    return kind[member] if kind is not None and issubclass(kind, enum.Enum) else member


def _read_container(content: list[Any]) -> Any:
    name, items, *more = content
    if name == "deque":
        return deque(items, more[0])
    if name == "defaultdict":
        return defaultdict(None if more[0] is None else _FACTORIES[more[0]], items)
    return OrderedDict(items) if name == "OrderedDict" else Counter(dict(items))


_READ: dict[int, Any] = {
    _TUPLE: tuple,
    _SET: set,
    _FROZEN_SET: frozenset,
    _NUMBER: int,
    _DECIMAL: Decimal,
    _UUID: UUID,
    _DATETIME: datetime.fromisoformat,
    _DATE: date.fromisoformat,
    _TIME: time.fromisoformat,
    _SPAN: lambda value: timedelta(microseconds=value),
    _MAP: dict,
    _OBJECT: _object,
    _MEMBER: _member,
    _CONTAINER: _read_container,
    _TEXT: lambda data: data.decode("utf-8", "surrogatepass"),
    _UNKEPT: Unkept,
}


def _unmarked(code: int, data: memoryview) -> Any:
    return _READ[code](_DECODER.decode(data))


_DECODER: msgspec.msgpack.Decoder[Any] = msgspec.msgpack.Decoder(ext_hook=_unmarked)
