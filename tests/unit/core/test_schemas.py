"""Schemas from all that users have, as DDL and back, and what they make of records."""

from __future__ import annotations

import enum
import pickle
import uuid
from dataclasses import dataclass, field
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Annotated, Any, Literal, NotRequired, TypedDict

import msgspec
import pydantic
import pytest
from hypothesis import given
from hypothesis import strategies as st

from queenstream.core.schemas import Field, RecordError, Schema, SchemaError, types
from queenstream.core.schemas.types import List, Map, Struct, Type
from queenstream.errors import ConfigError, PayloadInvalid


class Colour(enum.Enum):
    RED = "red"
    BLUE = "blue"


@dataclass
class Address:
    city: str
    zip: str | None = None


@dataclass
class Order:
    user_id: str
    amount: float
    qty: int
    paid: bool
    at: datetime
    day: date
    price: Decimal
    raw: bytes
    ref: uuid.UUID
    colour: Colour
    size: Literal["s", "m"]
    to: Address
    note: str | None = None
    tags: dict[str, str] = field(default_factory=dict)
    items: list[Address] = field(default_factory=list)
    extra: Any = None
    either: int | str = 0


class OrderStruct(msgspec.Struct, rename="camel"):
    user_id: str
    amount: float | None = None


class OrderModel(pydantic.BaseModel):
    user_id: Annotated[str, "doc"]
    amount: float | None = None
    when: datetime = pydantic.Field(alias="at")


class OrderDict(TypedDict):
    user_id: str
    amount: NotRequired[float]


ORDER_DDL = (
    "user_id string not null, amount double not null, qty bigint not null, paid boolean not null, "
    "at timestamp not null, day date not null, price decimal(38,18) not null, raw binary not null, "
    "ref string not null, colour string not null, size string not null, "
    "to struct<city:string not null,zip:string> not null, note string, tags map<string,string> not null, "
    "items array<struct<city:string not null,zip:string>> not null, extra variant, either variant not null"
)


@pytest.mark.parametrize(
    ("definition", "ddl"),
    [
        (Order, ORDER_DDL),
        (OrderStruct, "userId string not null, amount double"),
        (OrderModel, "user_id string not null, amount double, at timestamp not null"),
        (OrderDict, "user_id string not null, amount double"),
        (
            {"timestamp": "timestamp", "value": "double", "tags": "map<text, text>", "n": int},
            "timestamp timestamp, value double, tags map<string,string>, n bigint",
        ),
        ("USER_ID Text, `odd name` LIST<INT> not null", "USER_ID string, `odd name` array<int> not null"),
        (
            "a double precision, b varchar(20), c decimal(10,2), d decimal(5), e frozen<set<uuid>>, f jsonb",
            "a double, b string, c decimal(10,2), d decimal(5,0), e array<string>, f variant",
        ),
        ("s struct<a: int, b struct<c: map<int, date>>>", "s struct<a:int,b:struct<c:map<int,date>>>"),
    ],
)
def test_what_users_have_becomes_ddl(definition: Any, ddl: str) -> None:
    assert Schema.of(definition).to_ddl() == ddl
    assert Schema.of(ddl).to_ddl() == ddl


def test_a_schema_is_its_own_definition() -> None:
    schema = Schema.of("a int")
    assert Schema.of(schema) is schema


@pytest.mark.parametrize(
    ("text", "place", "message"),
    [
        ("a int, b strng", "strng", "'strng' is no type"),
        ("a map<string int>", "int>", "expected ','"),
        ("a array<int", "", "expected '>'"),
        ("a int b int", "b int", "expected ','"),
        ("a int not nil", "nil", "expected 'null'"),
        ("", "", "expected a field's name"),
        ("a decimal(50,2)", ")", "decimal(50,2) cannot be"),
        ("a map<array<int>,int>", ",int", "a map's keys"),
        ("a int, a string", None, "'a' stands twice"),
    ],
)
def test_a_ddl_error_shows_the_place(text: str, place: str | None, message: str) -> None:
    with pytest.raises(SchemaError) as caught:
        Schema.of(text)
    assert message in str(caught.value)
    assert isinstance(caught.value, ConfigError)
    if place is not None:
        _, excerpt, caret = str(caught.value).split("\n")
        assert excerpt[caret.index("^") :].startswith(place)


@pytest.mark.parametrize("text", ["a " + "array<" * 40 + "int" + ">" * 40, "a int, " * 20_000 + "b int"])
def test_hostile_ddl_is_refused(text: str) -> None:
    with pytest.raises(SchemaError):
        Schema.of(text)


class Holder(msgspec.Struct):
    inner: Holder | None


class Strange(msgspec.Struct):
    value: complex


@pytest.mark.parametrize(("cls", "message"), [(Holder, "holds itself"), (Strange, "Strange.value: complex")])
def test_a_class_that_has_no_columns_says_why(cls: type, message: str) -> None:
    with pytest.raises(SchemaError, match=message):
        Schema.of(cls)


def test_what_is_no_schema_is_refused() -> None:
    with pytest.raises(SchemaError, match="is no schema; give a dataclass"):
        Schema.of(int)


NOON = datetime(2026, 1, 31, 12, tzinfo=UTC)


@pytest.mark.parametrize(
    ("kind", "value", "expected"),
    [
        ("int", "42", 42),
        ("int", 42.0, 42),
        ("bigint", 2**62, 2**62),
        ("double", 3, 3.0),
        ("double", "2.5", 2.5),
        ("decimal(10,2)", "1.005", Decimal("1.00")),
        ("decimal(10,2)", 0.1, Decimal("0.10")),
        ("boolean", "True", True),
        ("string", 42, "42"),
        ("string", Colour.RED, "red"),
        ("string", uuid.UUID(int=1), "00000000-0000-0000-0000-000000000001"),
        ("timestamp", "2026-01-31T12:00:00Z", NOON),
        ("timestamp", "2026-01-31T12:00:00", NOON),
        ("timestamp", 1769860800000, NOON),
        ("timestamp", NOON.replace(tzinfo=None), NOON),
        ("date", "2026-01-31", date(2026, 1, 31)),
        ("binary", "ü", "ü".encode()),
        ("array<int>", ("1", None), [1, None]),
        ("map<string,double>", {1: "2"}, {"1": 2.0}),
        ("struct<a: int>", {"a": "1", "b": 2}, {"a": 1}),
        ("struct<city: string, zip: string>", Address("Ulm"), {"city": "Ulm", "zip": None}),
        ("variant", {"any": [1]}, {"any": [1]}),
        ("int", None, None),
    ],
)
def test_values_are_made_to_fit(kind: str, value: object, expected: object) -> None:
    [found] = Schema.of({"x": kind}).coerce({"x": value}).values()
    assert found == expected
    assert type(found) is type(expected)


@pytest.mark.parametrize(
    ("kind", "value", "problem"),
    [
        ("int", 1.5, "x must be a whole number (int), not 1.5"),
        ("int", True, "x must be a whole number (int), not True"),
        ("tinyint", 128, "x must be a tinyint, from -128 to 127, not 128"),
        ("double", "much", "x must be a number, not 'much'"),
        ("double", True, "x must be a number, not True"),
        ("decimal(3,1)", 1234, "x must be decimal(3,1), not 1234"),
        ("decimal(3,1)", "NaN", "x must be decimal(3,1), not 'NaN'"),
        ("boolean", 1, "x must be true or false, not 1"),
        ("string", True, "x must be text, not True"),
        ("timestamp", "noon", "x must be a time (ISO 8601, or milliseconds since 1970), not 'noon'"),
        ("timestamp", 1e30, "x must be a time (ISO 8601, or milliseconds since 1970), not 1e+30"),
        ("date", NOON, "x must be a date"),
        ("array<int>", "12", "x must be a list, not '12'"),
        ("array<int>", [1, "b"], "x.1 must be a whole number (int), not 'b'"),
        ("map<string,int>", {"k": "v"}, "x.k must be a whole number (int), not 'v'"),
        ("struct<a: struct<b: int>>", {"a": {"b": "?"}}, "x.a.b must be a whole number (int), not '?'"),
        ("struct<a: int>", 5, "x must be a record with named fields, not 5"),
    ],
)
def test_values_that_do_not_fit_are_named(kind: str, value: object, problem: str) -> None:
    schema = Schema.of({"x": kind})
    with pytest.raises(RecordError) as caught:
        schema.coerce({"x": value})
    assert str(caught.value).startswith(problem)
    with pytest.raises(PayloadInvalid):
        schema.check({"x": value})


def test_all_problems_of_a_record_are_said_at_once() -> None:
    schema = Schema.of("a int not null, b struct<c: int, d: int>, e string")
    with pytest.raises(RecordError) as caught:
        schema.coerce({"b": {"c": "x", "d": "y"}, "e": "fine"})
    assert caught.value.problems == (
        "a must be int and is required, not None",
        "b.c must be a whole number (int), not 'x'",
        "b.d must be a whole number (int), not 'y'",
    )
    assert pickle.loads(pickle.dumps(caught.value)).problems == caught.value.problems


def test_a_record_must_be_a_record() -> None:
    with pytest.raises(RecordError, match="must be a record with named fields, not 5"):
        Schema.of("a int").check(5)


def test_a_record_lacks_what_has_a_default() -> None:
    @dataclass
    class Job:
        name: str
        tries: int = 3
        tags: list[str] = field(default_factory=list)

    schema = Schema.of(Job)
    first, second = schema.coerce({"name": "a"}), schema.coerce({"name": "b"})
    assert first == {"name": "a", "tries": 3, "tags": []}
    first["tags"].append("mine")
    assert second["tags"] == []


def test_fields_that_the_schema_does_not_have() -> None:
    schema, record = Schema.of("a int"), {"a": "1", "b": 2}
    assert schema.coerce(record) == {"a": 1}
    assert schema.coerce(record, extra="keep") == {"a": 1, "b": 2}
    with pytest.raises(RecordError, match="b is not in the schema, which has a"):
        schema.coerce(record, extra="refuse")
    assert record == {"a": "1", "b": 2}


@pytest.mark.parametrize(
    ("path", "found"),
    [
        ("user.tags.vip", "double"),
        ("user.`a.b`", "int"),
        ("items.0.city", "string"),
        ("any.thing.below", "variant"),
        ("user", "struct<tags:map<string,double>,`a.b`:int>"),
        ("nobody", None),
        ("user.nobody", None),
        ("items.first", None),
        ("user.`a.b`.deeper", None),
    ],
)
def test_paths_lead_to_types(path: str, found: str | None) -> None:
    schema = Schema.of(
        "user struct<tags: map<string, double>, `a.b`: int>, items array<struct<city: string>>, any variant"
    )
    kind = schema.find(path)
    assert (None if kind is None else str(kind)) == found


def test_a_used_schema_travels_to_another_process() -> None:
    schema = Schema.of("a int")
    schema.check({"a": 1})
    assert pickle.loads(pickle.dumps(schema)) == schema


SCALARS = [types.STRING, types.BOOLEAN, types.INT, types.BIGINT, types.DOUBLE, types.TIMESTAMP, types.VARIANT]
NAMES = st.text(st.characters(codec="utf-8", exclude_categories=("C", "Z")), min_size=1, max_size=8)


def fields_of(kinds: st.SearchStrategy[Type]) -> st.SearchStrategy[tuple[Field, ...]]:
    made = st.builds(Field, NAMES, kinds, st.booleans())
    return st.lists(made, min_size=1, max_size=4, unique_by=lambda each: each.name).map(tuple)


KINDS: st.SearchStrategy[Type] = st.recursive(
    st.sampled_from(SCALARS) | st.builds(types.Decimal, st.integers(10, 38), st.integers(0, 10)),
    lambda inner: (
        inner.map(List)
        | st.builds(Map, st.sampled_from([types.STRING, types.INT]), inner)
        | fields_of(inner).map(Struct)
    ),
    max_leaves=8,
)


@given(fields_of(KINDS))
def test_every_schema_reads_its_own_ddl(fields: tuple[Field, ...]) -> None:
    schema = Schema(fields)
    assert Schema.of(schema.to_ddl()) == schema
