"""What a checkpoint keeps comes back as it was, or is found damaged."""

from __future__ import annotations

import enum
from collections import Counter, OrderedDict, defaultdict, deque
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import msgspec
import pydantic
import pytest
from hypothesis import given
from hypothesis import strategies as st

from queenstream.runtime.encoding import (
    Damaged,
    Unkept,
    decode,
    encode_exactly,
    encode_row,
    pack,
    unpack,
)

LEAVES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(allow_nan=False),
    st.text(),
    st.binary(),
    st.decimals(allow_nan=False),
    st.uuids(),
    st.dates(),
    st.times(),
    st.timedeltas(),
    st.datetimes(),
    st.datetimes(timezones=st.just(UTC)),
)
KEYS = st.one_of(st.text(), st.integers(), st.tuples(st.text(), st.integers()))
VALUES: st.SearchStrategy[Any] = st.recursive(
    LEAVES,
    lambda inner: st.one_of(
        st.lists(inner),
        st.lists(inner).map(tuple),
        st.dictionaries(KEYS, inner),
        st.frozensets(st.integers()),
        st.sets(st.text()),
    ),
    max_leaves=10,
)


def typed(value: Any) -> Any:
    """A value with the types in it: 1 and True, 1 and 1.0 are equal to Python."""
    if isinstance(value, dict):
        return {typed(key): typed(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return type(value), tuple(map(typed, value))
    return type(value), value


@given(VALUES)
def test_values_come_back(value: Any) -> None:
    assert typed(unpack(pack(value))) == typed(value)


def test_a_time_with_another_zone_keeps_its_offset() -> None:
    there = datetime(2026, 1, 31, 12, tzinfo=timezone(timedelta(hours=2)))
    for value in ([there], [there, {1}]):
        assert repr(unpack(pack(value))[0]) == repr(there)


class Struct(msgspec.Struct):
    x: int
    tags: set[str]


@dataclass
class Data:
    x: int
    tags: set[str]


class Model(pydantic.BaseModel):
    x: int
    tags: set[str]


class Level(enum.IntEnum):
    HIGH = 3


class Colour(enum.Enum):
    RED = "r"


OBJECTS = [
    Struct(1, {"a"}),
    Data(1, {"a"}),
    Model(x=1, tags={"a"}),
    Colour.RED,
    deque([1], 3),
]


@pytest.mark.parametrize("value", OBJECTS)
def test_objects_come_back(value: object) -> None:
    found = unpack(pack({"row": value}))["row"]
    assert (type(found), found) == (type(value), value)


def test_objects_of_a_class_that_is_not_found_become_maps_of_their_fields() -> None:
    @dataclass
    class Local:
        x: int
        tags: set[str]

    assert unpack(pack({"row": Local(1, {"a"})})) == {"row": {"x": 1, "tags": {"a"}}}


def test_a_class_of_another_kind_is_not_made() -> None:
    body = pack(Data(1, set()))[4:].replace(b"Data", b"Evil")
    assert decode(body) == {"x": 1, "tags": set()}
    assert not Evil.made


class Evil:
    made = False

    def __new__(cls) -> Evil:
        cls.made = True
        return super().__new__(cls)


def test_exactly_what_it_was() -> None:
    for value in (Level.HIGH, defaultdict(int, a=1), OrderedDict(a=1), Counter("aab"), [Level.HIGH]):
        assert repr(decode(encode_exactly(value))) == repr(value)
    with pytest.raises(TypeError, match="Names cannot be kept"):
        encode_exactly(Names())


class Names(list[str]):
    pass


def test_text_that_utf_8_cannot_hold() -> None:
    assert unpack(pack({"\ud800": "\udfff"})) == {"\ud800": "\udfff"}


def test_a_row_that_cannot_be_kept_says_why() -> None:
    found = decode(encode_row({"x": object()}))
    assert isinstance(found, Unkept)
    assert "object cannot be kept in a checkpoint" in found.why


def test_a_named_number_is_a_number() -> None:
    assert typed(unpack(pack([Level.HIGH, (1,)]))) == typed([3, (1,)])


def test_what_has_no_fields_is_refused() -> None:
    with pytest.raises(TypeError, match="function cannot be kept in a checkpoint; use numbers, text, times"):
        pack([test_a_named_number_is_a_number])


@given(VALUES, st.data())
def test_a_changed_bit_is_found(value: Any, data: st.DataObject) -> None:
    packed = bytearray(pack(value))
    packed[data.draw(st.integers(0, len(packed) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    with pytest.raises(Damaged):
        unpack(bytes(packed))
    with pytest.raises(Damaged):
        unpack(b"")
