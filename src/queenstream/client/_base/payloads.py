"""Payloads in and out: any JSON, or a type of the user's: dataclass, msgspec Struct, pydantic model …"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from types import UnionType
from typing import Annotated, Any, Generic, Literal, TypeVar, Union, get_args, get_origin, is_typeddict

import msgspec

from queenstream.client._base.codec import make_decoder
from queenstream.errors import ConfigError, PayloadInvalid

T = TypeVar("T")
OnInvalid = Literal["dead_letter", "skip", "raise"]
ON_INVALID = ("dead_letter", "skip", "raise")
_REMEDY = (
    "JSON takes dict, list, str, int, float, bool, None, dataclasses, Structs, pydantic models and times"
)


def _foreign(value: object) -> object:
    """What msgspec does not know: a pydantic model, at any depth."""
    dump = getattr(value, "model_dump", None)
    if dump is None:
        raise NotImplementedError(f"{type(value).__name__} cannot be written as JSON")
    return dump(mode="json")


_ENCODER = msgspec.json.Encoder(enc_hook=_foreign)


def encode(value: object) -> bytes:
    """A value as JSON, or a ``PayloadInvalid`` that says what does not fit.

    >>> encode({"n": 1})
    b'{"n":1}'
    """
    try:
        return _ENCODER.encode(value)
    except (TypeError, ValueError, NotImplementedError, RecursionError, msgspec.MsgspecError) as error:
        raise PayloadInvalid(f"the payload cannot be written as JSON: {error}; {_REMEDY}") from None


def encode_all(values: Iterable[object]) -> list[bytes]:
    """Several values as JSON; raises whatever ``encode`` makes a ``PayloadInvalid`` of.

    >>> encode_all([{"n": 1}, None])
    [b'{"n":1}', b'null']
    """
    return list(map(_ENCODER.encode, values))


class Codec(Generic[T]):
    """How the payloads of a queue are read; without a type they are plain JSON.

    >>> Codec(list[int]).decode(b"[1,2]")
    [1, 2]
    """

    def __init__(
        self,
        kind: Any = None,  # a type of T
        on_invalid: OnInvalid | Callable[[Any, PayloadInvalid], object] = "dead_letter",
    ) -> None:
        if not callable(on_invalid) and on_invalid not in ON_INVALID:
            raise ConfigError(
                f"on_invalid is {on_invalid!r}; use one of {', '.join(ON_INVALID)}, "
                "or a function of (message, error)"
            )
        self.kind = kind
        self.on_invalid = on_invalid
        self._decode: Callable[[bytes], T] | None = None
        self._classes = _classes(kind)
        self.checks = bool(self._classes)  # whether ``check`` looks at anything
        if kind is not None:
            validate = getattr(kind, "model_validate_json", None)
            try:
                self._decode = validate or make_decoder(kind).decode
            except TypeError as error:
                raise ConfigError(f"type={kind!r} is no type that JSON can be read as: {error}") from None

    @property
    def typed(self) -> bool:
        return self._decode is not None

    def check(self, value: T) -> T:
        """A value that is pushed must be what the queue was said to hold."""
        if self._classes and not isinstance(value, self._classes):
            raise self._other(value)
        if isinstance(value, bool) and int in self._classes:  # for Python a number, for JSON none
            raise self._other(value)
        return value

    def _other(self, value: object) -> PayloadInvalid:
        return PayloadInvalid(
            f"the queue takes {_named(self.kind)}, not {type(value).__name__}; push one of those, "
            "or leave out type= to push any JSON"
        )

    def decode(self, raw: bytes | msgspec.Raw) -> T:
        """The value, or ``PayloadInvalid`` with the reason."""
        assert self._decode is not None
        try:
            return self._decode(bytes(raw))
        except (ValueError, TypeError) as error:  # msgspec's and pydantic's are ValueErrors
            said = " ".join(str(error).split())
            raise PayloadInvalid(f"the payload is no {_named(self.kind)}: {said}") from None


def _classes(kind: Any) -> tuple[type, ...]:
    """What a value must be one of, as far as ``isinstance`` can tell; nothing: that is not checked."""
    while get_origin(kind) is Annotated:
        kind = get_args(kind)[0]
    if is_typeddict(kind):
        return (dict,)
    if kind is float:
        return (float, int)
    found = get_origin(kind) or kind
    known = inspect.isclass(found) and found not in (Any, Union, UnionType)
    return (found,) if known else ()


def _named(kind: Any) -> str:
    return kind.__name__ if inspect.isclass(kind) else str(kind)


ANY: Codec[Any] = Codec()
