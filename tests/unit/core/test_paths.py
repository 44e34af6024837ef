"""Paths: what they find in payloads of all makes, and that nothing makes them raise."""

from __future__ import annotations

import doctest
from collections import ChainMap, namedtuple
from dataclasses import dataclass
from datetime import UTC, datetime

import msgspec
import pydantic
import pytest
from hypothesis import given
from hypothesis import strategies as st

from queenstream.core import paths
from queenstream.core.paths import getter, join, segments, strip
from queenstream.errors import ConfigError


@dataclass(slots=True)
class Address:
    city: str


class User(msgspec.Struct):
    address: Address
    _secret: str = "s"

    @property
    def broken(self) -> str:
        raise RuntimeError("no")


class Order(pydantic.BaseModel):
    items: list[dict[str, int]]


Pair = namedtuple("Pair", "left right")
USER = User(Address("Bonn"))


def test_examples() -> None:
    assert doctest.testmod(paths).failed == 0


@pytest.mark.parametrize(
    ("path", "value", "found"),
    [
        ("a", {"a": 1}, 1),
        ("a.b.c", {"a": {"b": {"c": 1}}}, 1),
        ("a.1", {"a": ["x", "y"]}, "y"),
        ("1", ("x", "y"), "y"),
        ("1", {"1": "a key, not a position"}, "a key, not a position"),
        ("a", ChainMap({"a": 1}), 1),
        ("address.city", USER, "Bonn"),
        ("user.address.city", {"user": USER}, "Bonn"),
        ("items.0.n", Order(items=[{"n": 7}]), 7),
        ("right", Pair(1, 2), 2),
        ("`a.b`.c", {"a.b": {"c": 1}}, 1),
        ("first name", {"first name": "Ann"}, "Ann"),
        ("", {"a": 1}, {"a": 1}),
        ("a", {"a": False}, False),
    ],
)
def test_what_is_there(path: str, value: object, found: object) -> None:
    assert getter(path)(value) == found


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("a", {}),
        ("a", None),
        ("a.b", {"a": None}),
        ("a.b", {"a": 5}),
        ("a.2", {"a": ["x", "y"]}),
        ("a.-1", {"a": ["x", "y"]}),
        ("a.99999999999999999999", {"a": ["x", "y"]}),
        ("a.x", {"a": ["x", "y"]}),
        ("upper", "a text has no fields"),
        ("year", datetime(2025, 11, 3, tzinfo=UTC)),
        ("model_dump", Order(items=[])),
        ("_secret", USER),
        ("__class__.__name__", USER),
        ("broken", USER),
        ("count", [1]),
    ],
)
def test_what_is_not_there_is_none(path: str, value: object) -> None:
    assert getter(path)(value) is None


@pytest.mark.parametrize("path", [".a", "a.", "a..b", "a`b", "`a", "`a`b", "."])
def test_a_malformed_path_is_refused_when_it_is_written(path: str) -> None:
    with pytest.raises(ConfigError, match="is not a path; write names with dots between them"):
        getter(path)


@pytest.mark.parametrize(
    ("path", "stripped"),
    [
        ("data.user.id", "user.id"),
        ("payload.x", "x"),
        ("data", ""),
        ("x", "x"),
        ("database.x", "database.x"),
        ("x.data.y", "x.data.y"),
        ("data.data", "data"),
    ],
)
def test_the_prefix_of_a_message(path: str, stripped: str) -> None:
    assert strip(path) == stripped


@given(st.lists(st.text(), max_size=4))
def test_names_survive_the_way_through_a_path(names: list[str]) -> None:
    assert list(segments(join(names))) == names


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from("ab01"), inner, max_size=3),
)


@given(
    JSON,
    st.lists(st.sampled_from(["a", "b", "0", "1", "real", "upper", "__class__"]), min_size=1, max_size=4),
)
def test_a_path_finds_what_plain_indexing_finds_and_never_raises(value: object, names: list[str]) -> None:
    expected = value
    for name in names:
        if isinstance(expected, dict):
            expected = expected.get(name)
        elif isinstance(expected, list) and name.isdigit() and int(name) < len(expected):
            expected = expected[int(name)]
        else:
            expected = None
    assert getter(join(names))(value) == expected
