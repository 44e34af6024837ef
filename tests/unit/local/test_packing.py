"""What a checkpoint keeps comes back as it was, or is found damaged."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import msgspec
import pydantic
import pytest
from hypothesis import given
from hypothesis import strategies as st

from queenstream.local._packing import Damaged, pack, unpack

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


def test_a_time_with_another_zone_is_kept_as_an_instant() -> None:
    there = datetime(2026, 1, 31, 12, tzinfo=timezone(timedelta(hours=2)))
    found = unpack(pack([there, {1}]))[0]
    assert found == there
    assert found.utcoffset() == timedelta(0)


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


@pytest.mark.parametrize("value", [Struct(1, {"a"}), Data(1, {"a"}), Model(x=1, tags={"a"})])
def test_objects_become_maps_of_their_fields(value: object) -> None:
    assert unpack(pack({"row": value})) == {"row": {"x": 1, "tags": {"a"}}}


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
