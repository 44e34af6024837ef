"""The fields of a class: a dataclass, a msgspec Struct, a TypedDict, a pydantic model (not imported here)."""

from __future__ import annotations

import collections.abc
import dataclasses
import decimal
import enum
import types as python
import typing
import uuid
from collections.abc import Iterator
from datetime import date, datetime
from typing import Any

from queenstream.core.schemas import types
from queenstream.core.schemas.ddl import SchemaError
from queenstream.core.schemas.types import Decimal, Field, List, Map, Struct, Type

_DEEPEST = 32  # classes within classes; a class that holds itself has no end

_SIMPLE: dict[object, Type] = {
    str: types.STRING,
    bool: types.BOOLEAN,
    int: types.BIGINT,
    float: types.DOUBLE,
    datetime: types.TIMESTAMP,
    date: types.DATE,
    bytes: types.BINARY,
    bytearray: types.BINARY,
    decimal.Decimal: Decimal(),
    uuid.UUID: types.STRING,
    object: types.VARIANT,
    Any: types.VARIANT,
    dict: types.VARIANT,
    list: List(types.VARIANT),
}
_LISTS = (
    list,
    tuple,
    set,
    frozenset,
    collections.abc.Sequence,
    collections.abc.Iterable,
    collections.abc.Set,
)
_MAPS = (dict, collections.abc.Mapping, collections.abc.MutableMapping)


def is_record(cls: object) -> bool:
    """Whether ``fields_of`` can read it."""
    return isinstance(cls, type) and (
        dataclasses.is_dataclass(cls)
        or hasattr(cls, "__struct_fields__")
        or typing.is_typeddict(cls)
        or _is_pydantic(cls)
    )


def fields_of(cls: type, depth: int = 0) -> tuple[Field, ...]:
    """The fields of a class, by the names that records have (after renaming and aliases)."""
    if depth > _DEEPEST:
        raise SchemaError(f"{cls.__name__} holds itself; type that field as Any")
    try:
        hints = typing.get_type_hints(cls, include_extras=True)
    except NameError as error:
        raise SchemaError(f"{cls.__name__}: {error}; import that type where the class is defined") from None
    return tuple(
        _field(f"{cls.__name__}.{attribute}", name, hints[attribute], default, depth)
        for attribute, name, default in _members(cls)
    )


def type_of(where: str, hint: object) -> Type:
    """The type of one Python type; ``where`` is for the error."""
    return _type(where, hint, 0)


def _is_pydantic(cls: type) -> bool:
    return any(base.__module__.partition(".")[0] == "pydantic" for base in cls.__mro__) and hasattr(
        cls, "model_fields"
    )


def _members(cls: type) -> Iterator[tuple[str, str, object]]:
    """Each field's attribute, its name in a record, and its default (None without one)."""
    if _is_pydantic(cls):
        for attribute, info in cls.model_fields.items():  # type: ignore[attr-defined]
            default = None if info.is_required() else info.get_default(call_default_factory=True)
            yield attribute, info.alias or attribute, default
    elif hasattr(cls, "__struct_fields__"):
        import msgspec

        for field in msgspec.structs.fields(cls):
            yield (
                field.name,
                field.encode_name,
                _default(field.default, field.default_factory, msgspec.NODEFAULT),
            )
    elif typing.is_typeddict(cls):
        for attribute in cls.__annotations__:
            yield attribute, attribute, None
    else:
        for member in dataclasses.fields(cls):
            yield (
                member.name,
                member.name,
                _default(member.default, member.default_factory, dataclasses.MISSING),
            )


def _default(value: object, factory: object, nothing: object) -> object:
    if factory is not nothing and callable(factory):
        return factory()
    return None if value is nothing else value


def _field(where: str, name: str, hint: object, default: object, depth: int) -> Field:
    inner, nullable = _without_none(hint)
    nullable = nullable or typing.get_origin(hint) is typing.NotRequired
    return Field(name, _type(where, inner, depth), nullable, default)


def _without_none(hint: object) -> tuple[object, bool]:
    """The hint without ``None``, and whether it had it; several other types together are anything."""
    hint = _bare(hint)
    if typing.get_origin(hint) not in (typing.Union, python.UnionType):
        return hint, hint in (Any, object, None, type(None))
    members = [_bare(member) for member in typing.get_args(hint)]
    rest = [member for member in members if member is not type(None)]
    # msgspec writes "may be missing" as a union with UnsetType.
    rest = [member for member in rest if getattr(member, "__name__", "") != "UnsetType"]
    return (rest[0] if len(rest) == 1 else Any), len(rest) < len(members)


def _bare(hint: object) -> object:
    """Without Annotated, Required and NewType around it."""
    while True:
        if typing.get_origin(hint) in (typing.Annotated, typing.Required, typing.NotRequired):
            hint = typing.get_args(hint)[0]
        elif hasattr(hint, "__supertype__"):
            hint = hint.__supertype__
        else:
            return hint


def _type(where: str, hint: object, depth: int) -> Type:
    hint, _ = _without_none(hint)
    if hint in _SIMPLE:
        return _SIMPLE[hint]
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if origin is typing.Literal:
        return _of_values(args)
    if origin in _LISTS:
        return List(_type(where, args[0], depth + 1))
    if origin in _MAPS:
        return Map(_type(where, args[0], depth + 1), _type(where, args[1], depth + 1))
    if isinstance(hint, type):
        if is_record(hint):
            return Struct(fields_of(hint, depth + 1))
        if issubclass(hint, enum.Enum):
            return _of_values(tuple(member.value for member in hint))
    shown = getattr(hint, "__name__", hint)
    raise SchemaError(
        f"{where}: {shown} has no column type; use a plain type, a dataclass, or Any for any JSON"
    )


def _of_values(values: tuple[object, ...]) -> Type:
    kinds = {_SIMPLE.get(type(value), types.VARIANT) for value in values}
    return kinds.pop() if len(kinds) == 1 else types.VARIANT
