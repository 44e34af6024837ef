"""What users write, as what nodes hold: texts as expressions, names as keys, short forms as their values."""

from __future__ import annotations

import inspect
import typing
from collections.abc import AsyncIterable, Callable, Iterable, Mapping, Sequence
from datetime import timedelta
from typing import Any, TypeAlias

from queenstream.core import aggregates, durations, paths, windows
from queenstream.core.aggregates import Aggregate
from queenstream.core.schemas import Definition, Schema, SchemaError, classes
from queenstream.errors import ConfigError
from queenstream.pipeline.endpoints import Function, Generator, Sink, Source
from queenstream.pipeline.expr import parser
from queenstream.pipeline.expr.expressions import Expr, col
from queenstream.pipeline.plan.nodes import Key, Mode
from queenstream.pipeline.policies import Duration, ErrorPolicy, OnError, policy_of

On: TypeAlias = str | tuple[str, str] | Sequence[str | tuple[str, str]]


def choice(name: str, value: str, allowed: tuple[str, ...]) -> None:
    """Refuse what is not one of a few words.

    >>> choice("how", "outer", ("inner", "full"))
    Traceback (most recent call last):
    queenstream.errors.ConfigError: how is 'outer'; write 'inner' or 'full'
    """
    if value not in allowed:
        *most, last = map(repr, allowed)
        raise ConfigError(f"{name} is {value!r}; write {', '.join(most)} or {last}")


def duration(value: Duration | None) -> timedelta | None:
    """A duration, if there is one."""
    return None if value is None else durations.parse(value)


def policy(on_error: OnError | None) -> ErrorPolicy | None:
    """An error policy, if there is one."""
    return None if on_error is None else policy_of(on_error)


def expression(value: Expr | str) -> Expr:
    """An expression, or its text."""
    return value if isinstance(value, Expr) else parser.parse(value)


def source(value: Source[Any] | Callable[..., Any]) -> Source[Any]:
    """A source, or a function that gives records."""
    if isinstance(value, Source):
        return value
    if callable(value):
        return Generator(value)
    raise ConfigError(
        f"{value!r} is no source; write Queue('name'), Files('path'), Memory([…]) or a function"
    )


def sink(value: Sink | Callable[[Any], object]) -> Sink:
    """A sink, or a function that takes records."""
    if isinstance(value, Sink):
        return value
    if callable(value):
        return Function(value)
    raise ConfigError(
        f"{value!r} is no sink; write Queue('name'), Files('path'), Postgres('table') or a function"
    )


def window(value: windows.Definition | str | timedelta) -> windows.Definition:
    """A window; a duration alone is tumbling."""
    return windows.Tumbling(durations.parse(value)) if isinstance(value, str | timedelta) else value


def last_name(path: str) -> str:
    """What a field is called when it is taken from deep inside.

    >>> last_name("user.address.city")
    'city'
    """
    return paths.segments(path)[-1] if path else path


def key(of: str | Expr | Callable[[Any], object], name: str | None = None) -> Key:
    """A part of a key; a path goes by its last name, anything else is called ``key``."""
    if isinstance(of, str):
        return Key(name or last_name(of), col(of))
    return Key(name or "key", of)


def pairs(on: On) -> tuple[tuple[str, str], ...]:
    """What a join compares.

    >>> pairs("id"), pairs(("user_id", "id")), pairs(["shop", ("user_id", "id")])
    ((('id', 'id'),), (('user_id', 'id'),), (('shop', 'shop'), ('user_id', 'id')))
    """
    if isinstance(on, str):
        return ((on, on),)
    if isinstance(on, tuple) and len(on) == 2 and all(isinstance(each, str) for each in on):
        return (typing.cast("tuple[str, str]", on),)
    return tuple((each, each) if isinstance(each, str) else (each[0], each[1]) for each in on)


def named_aggregates(
    by_name: Mapping[str, Aggregate | Mapping[str, object]], named: Mapping[str, Aggregate]
) -> tuple[tuple[str, Aggregate], ...]:
    """Aggregates and their names, from the dictionary form and the keywords."""
    found: dict[str, Aggregate] = {}
    for name, each in {**by_name, **named}.items():
        if isinstance(each, Aggregate):
            found[name] = each
        elif isinstance(each, Mapping):
            found |= aggregates.from_dict({name: each})
        else:
            raise ConfigError(
                f"{name} is {each!r}, no aggregate; write {name}=count() or {name}=sum_('field')"
            )
    return tuple(found.items())


def check_calls(function: object, concurrency: int) -> None:
    """Refuse what cannot be called, or not that often."""
    if not callable(function):
        remedy = "give a function, or an expression such as col('x') > 1"
        raise ConfigError(f"{function!r} is no function; {remedy}")
    if isinstance(concurrency, bool) or concurrency < 1:
        raise ConfigError(f"concurrency is {concurrency!r}; write how many calls may be under way, from 1")


def refuse_for_expression(*said: object) -> None:
    """Refuse options that only mean something for a function: an expression neither waits nor fails."""
    if any(each not in (None, False) for each in said):
        raise ConfigError("concurrency, timeout, schema and on_error are for functions; leave them out")


def refuse_beside_rules(step: str, *said: object) -> None:
    """Refuse what a set of rules says already."""
    if any(each is not None for each in said):
        raise ConfigError(
            f"{step}(rules=…) goes by the set that the broker keeps; say the rest there, or leave rules out"
        )


def is_async(function: Callable[..., Any]) -> bool:
    """Whether calling it gives something to wait for."""
    # An object of a class may have an async __call__; nothing else shows it.
    call = getattr(function, "__call__", None)  # noqa: B004
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(call)


def returned(function: Callable[..., Any], mode: Mode, given: Definition | None) -> Schema | None:
    """The schema of what a function gives: as the user said, or as its annotation says."""
    if given is not None:
        return Schema.of(given)
    hint = returned_class(function, mode)
    try:
        return None if hint is None else Schema.of(hint)
    except SchemaError:
        return None  # it has fields without a column type; nobody asked for columns here


def returned_class(function: Callable[..., Any], mode: Mode) -> type | None:
    """The class of the records that a function gives, if its annotation names one with fields."""
    try:
        hint: Any = typing.get_type_hints(function).get("return")
    except (NameError, TypeError):
        return None  # an annotation that only a type checker can read
    if mode == "flat_map":
        origin, args = typing.get_origin(hint), typing.get_args(hint)
        several = isinstance(origin, type) and issubclass(origin, Iterable | AsyncIterable)
        hint = args[0] if several and args else None
    members = [member for member in typing.get_args(hint) if member is not type(None)]
    hint = members[0] if len(members) == 1 and type(None) in typing.get_args(hint) else hint
    return hint if classes.is_record(hint) else None
