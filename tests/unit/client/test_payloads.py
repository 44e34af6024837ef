"""Payloads out and in: plain JSON, and the types that users have."""

from __future__ import annotations

import decimal
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import Enum
from typing import Annotated, Any, NamedTuple, TypedDict

import msgspec
import pydantic
import pytest

from queenstream.client._base.payloads import ANY, Codec, encode
from queenstream.errors import ConfigError, PayloadInvalid


@dataclass
class Order:
    user: str
    amount: int = 0


class Click(msgspec.Struct):
    page: str
    at: datetime


class Person(pydantic.BaseModel):
    name: str
    age: int = pydantic.Field(ge=0)


class Point(NamedTuple):
    x: int
    y: int


class Reading(TypedDict):
    sensor: str
    value: float


class Colour(Enum):
    RED = "red"


NOON = datetime(2026, 1, 2, 12, tzinfo=UTC)


# Writing


@pytest.mark.parametrize(
    ("value", "written"),
    [
        ({"n": 1, "x": [True, None, 1.5, "ü"]}, '{"n":1,"x":[true,null,1.5,"ü"]}'),
        (Order("ann", 5), '{"user":"ann","amount":5}'),
        (Click("/", NOON), '{"page":"/","at":"2026-01-02T12:00:00Z"}'),
        (Person(name="ann", age=5), '{"name":"ann","age":5}'),
        ({"who": [Person(name="ann", age=5)]}, '{"who":[{"name":"ann","age":5}]}'),
        (Point(1, 2), "[1,2]"),
        (Colour.RED, '"red"'),
        (decimal.Decimal("1.10"), '"1.10"'),
        (uuid.UUID(int=0), '"00000000-0000-0000-0000-000000000000"'),
        (None, "null"),
    ],
)
def test_what_json_takes(value: object, written: str) -> None:
    assert encode(value) == written.encode()


def _knot() -> list[Any]:
    knot: list[Any] = []
    knot.append(knot)
    return knot


@pytest.mark.parametrize(
    "value",
    [object(), {1: 2, (3,): 4}, {"f": print}, _knot(), "\ud800"],
    ids=["object", "key", "function", "knot", "surrogate"],
)
def test_what_it_does_not(value: object) -> None:
    with pytest.raises(PayloadInvalid, match="cannot be written as JSON"):
        encode(value)


# Reading


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        (Order, Order("ann", 5)),
        (Click, Click("/", NOON)),
        (Person, Person(name="ann", age=5)),
        (Point, Point(1, 2)),
        (Reading, {"sensor": "s", "value": 1.5}),
        (Colour, Colour.RED),
        (list[int], [1, 2]),
        (list[Order], [Order("ann"), Order("bob")]),
        (dict[str, int], {"a": 1}),
        (Order | None, None),
        (Annotated[int, msgspec.Meta(ge=0)], 3),
        (datetime, NOON),
        (int, 3),
        (float, 3.5),
        (str, "x"),
    ],
    ids=lambda kind: getattr(kind, "__name__", str(kind)) if not isinstance(kind, list | dict) else "",
)
def test_what_was_pushed_is_what_is_popped(kind: Any, value: Any) -> None:
    codec: Codec[Any] = Codec(kind)
    assert codec.typed
    found = codec.decode(encode(codec.check(value)))
    assert found == value
    assert type(found) is type(value)


@pytest.mark.parametrize(
    ("kind", "raw", "named"),
    [
        (Order, b'{"amount":1}', "Order"),
        (Order, b'{"user":"ann","amount":"much"}', "Order"),
        (Click, b'{"page":"/","at":"yesterday"}', "Click"),
        (Person, b'{"name":"ann","age":-1}', "Person"),
        (Person, b"[]", "Person"),
        (list[int], b'[1,"x"]', "list"),
        (Annotated[int, msgspec.Meta(ge=0)], b"-3", "int"),
    ],
)
def test_what_does_not_fit_says_why_in_one_line(kind: Any, raw: bytes, named: str) -> None:
    with pytest.raises(PayloadInvalid) as caught:
        Codec(kind).decode(msgspec.Raw(raw))
    said = str(caught.value)
    assert said.startswith("the payload is no ")
    assert named in said.split(":", maxsplit=1)[0]
    assert "\n" not in said


# What a typed queue takes


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        (Order, {"user": "ann"}),
        (Order, Click("/", NOON)),
        (Click, None),
        (Person, {"name": "ann", "age": 5}),
        (list[int], 1),  # one of a list that was meant as one payload
        (dict[str, int], [1]),
        (Reading, [1]),
        (int, "3"),
        (int, True),  # JSON's true is no number: it would not come back
    ],
)
def test_another_type_is_refused_before_it_is_pushed(kind: Any, value: Any) -> None:
    codec: Codec[Any] = Codec(kind)
    with pytest.raises(PayloadInvalid, match="the queue takes"):
        codec.check(value)


@pytest.mark.parametrize(
    ("kind", "value"),
    [(float, 3), (Mapping[str, int], {"a": 1}), (object, 3), (Any, 3), (bool, True)],
)
def test_what_python_takes_for_it_is_taken(kind: Any, value: Any) -> None:
    codec: Codec[Any] = Codec(kind)
    assert codec.check(value) is value


def test_a_subclass_is_one_too() -> None:
    class Rush(Order):
        pass

    orders: Codec[Order] = Codec(Order)
    rush = Rush("ann")
    assert orders.check(rush) is rush


def test_without_a_type_everything_goes() -> None:
    assert not ANY.typed
    assert ANY.check({"any": 1}) == {"any": 1}


def test_a_type_that_no_json_is() -> None:
    class Odd:
        pass

    with pytest.raises(ConfigError, match="no type that JSON can be read as"):
        Codec(set[Odd] | Odd)


def test_where_bad_ones_go_is_checked() -> None:
    wrong: Any = "drop"
    with pytest.raises(ConfigError, match="dead_letter, skip, raise, or a function"):
        Codec(Order, wrong)
    for right in ("dead_letter", "skip", "raise", lambda message, error: None):
        Codec(Order, right)
