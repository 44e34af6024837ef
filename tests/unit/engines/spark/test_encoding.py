"""State as text: what goes in comes out, and people can read it."""

from __future__ import annotations

import json
import math
from collections import OrderedDict, defaultdict
from dataclasses import dataclass
from datetime import UTC, date, datetime
from decimal import Decimal
from enum import IntEnum
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from queenstream.engines.spark.keyed.encoding import pack, unpack

SCALARS = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False)
    | st.text(max_size=5)
    | st.datetimes(timezones=st.just(UTC), allow_imaginary=False).filter(lambda at: not at.fold)
    | st.dates()
    | st.decimals(allow_nan=False)
)
KEYS = st.text(max_size=3) | st.integers() | st.sampled_from(["$time", "$map", "$"])
VALUES = st.recursive(
    SCALARS,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.lists(inner, max_size=3).map(tuple)
        | st.dictionaries(KEYS, inner, max_size=3)
    ),
    max_leaves=8,
)


@dataclass
class Basket:
    items: list[str]


@given(VALUES)
def test_values_come_back_as_they_were(value: Any) -> None:
    found = unpack(pack(value))
    assert found == value
    assert repr(found) == repr(value)  # 1 is not True, and 1.0 not 1


def test_what_json_has_no_word_for_comes_back_too() -> None:
    assert math.isnan(unpack(pack(math.nan)))
    assert unpack(pack(Basket(["a"]))) == Basket(["a"])


class Colour(IntEnum):
    RED = 1


def test_what_only_looks_like_json_comes_back_as_what_it_was() -> None:
    """These equal the plain values that JSON would make of them."""
    counts: defaultdict[str, int] = defaultdict(int, a=1)
    for value in (counts, OrderedDict(a=1), Colour.RED, [Colour.RED], {"a": [1, {"b": Colour.RED}]}):
        found = unpack(pack(value))
        assert (found, repr(found)) == (value, repr(value))


def test_people_can_read_it() -> None:
    state = {
        "seen": 2,
        "since": datetime(2026, 1, 31, tzinfo=UTC),
        "day": date(2026, 1, 31),
        "price": Decimal("1.50"),
    }
    assert json.loads(pack(state)) == {
        "seen": 2,
        "since": {"$time": "2026-01-31T00:00:00+00:00"},
        "day": {"$date": "2026-01-31"},
        "price": {"$decimal": "1.50"},
    }
