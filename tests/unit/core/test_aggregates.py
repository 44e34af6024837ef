"""Aggregates: each against a plain computation over all values, and any split and order against the whole."""

from __future__ import annotations

import doctest
import json
import math
import pickle
import statistics
from collections.abc import Callable
from dataclasses import FrozenInstanceError
from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal
from enum import IntEnum
from fractions import Fraction
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from queenstream.core import aggregates
from queenstream.core.aggregates import (
    Aggregate,
    avg,
    collect_list,
    collect_set,
    count,
    count_distinct,
    custom,
    first,
    from_dict,
    last,
    max_,
    min_,
    percentile,
    stddev,
    sum_,
)
from queenstream.errors import ConfigError

NAN, INF = math.nan, math.inf


class Level(IntEnum):
    LOW = 1
    HIGH = 2


def longest() -> Aggregate:
    """A user's own: the longest text."""

    def add(held: str, value: object) -> str:
        return max(held, value, key=lambda text: (len(text), text)) if isinstance(value, str) else held

    return custom(str, add, add, str.upper, "v")


ALL: dict[str, Aggregate] = {
    "count": count("v"),
    "count all": count(),
    "sum": sum_("v"),
    "avg": avg("v"),
    "min": min_("v"),
    "max": max_("v"),
    "first": first("v"),
    "last": last("v"),
    "collect_list": collect_list("v"),
    "collect_set": collect_set("v"),
    "count_distinct": count_distinct("v"),
    "percentile": percentile("v", 0.3),
    "custom": longest(),
}


def of(aggregate: Aggregate, *values: object) -> Any:
    return aggregate.over([{"v": value} for value in values])


def test_examples() -> None:
    assert doctest.testmod(aggregates).failed == 0


# The rules, by example


@pytest.mark.parametrize(
    ("aggregate", "nothing"),
    [
        (count(), 0),
        (count("v"), 0),
        (sum_("v"), 0),
        (avg("v"), None),
        (min_("v"), None),
        (max_("v"), None),
        (first("v"), None),
        (last("v"), None),
        (collect_list("v"), []),
        (collect_set("v"), []),
        (count_distinct("v"), 0),
        (stddev("v"), None),
        (percentile("v", 0.5), None),
        (longest(), ""),
    ],
    ids=str,
)
def test_of_nothing(aggregate: Aggregate, nothing: object) -> None:
    assert aggregate.over([]) == nothing
    merged = aggregate.finish(aggregate.merge(aggregate.init(), aggregate.init()))
    assert merged == nothing


def test_null_is_ignored_but_where_every_event_counts() -> None:
    values = (None, 4, None)
    assert of(count(), *values) == 3
    assert of(count("v"), *values) == 1
    assert of(sum_("v"), *values) == 4
    assert of(avg("v"), *values) == 4
    assert of(min_("v"), *values) == 4
    assert of(collect_list("v"), *values) == [4]
    assert of(collect_set("v"), *values) == [4]
    assert of(count_distinct("v"), *values) == 1
    assert of(first("v"), *values) is None
    assert of(last("v"), *values) is None


@pytest.mark.parametrize("aggregate", [sum_("v"), avg("v"), stddev("v"), percentile("v", 1)], ids=str)
def test_the_numeric_ones_ignore_what_is_no_number(aggregate: Aggregate) -> None:
    strangers = (True, "5", NAN, Decimal("sNaN"), [1], {"a": 1}, datetime.now(UTC))
    assert of(aggregate, *strangers) == aggregate.over([])
    assert of(aggregate, 3, *strangers, 3) == of(aggregate, 3, 3)


def test_whole_numbers_stay_whole_and_exact() -> None:
    total = of(sum_("v"), 2**63, 2**63, 1, Level.HIGH)
    assert total == 2**64 + 3
    assert type(total) is int
    assert of(sum_("v"), 10**400, 1.5) == INF
    assert of(avg("v"), 10**400) == INF
    assert of(avg("v"), -(10**400)) == -INF


def test_floats_are_rounded_once() -> None:
    assert of(sum_("v"), *[0.1] * 10) == 1.0
    assert of(sum_("v"), 1e16, 1.0, -1e16) == 1.0
    assert of(sum_("v"), 1e16, 1, -1e16) == 1.0
    assert of(sum_("v"), Decimal("0.25"), 1) == 1.25
    assert type(of(sum_("v"), 2.0)) is float


def test_infinities() -> None:
    assert of(sum_("v"), INF, 1, *[2.0] * 40) == INF
    assert math.isnan(of(sum_("v"), INF, -INF))
    assert math.isnan(of(sum_("v"), INF, *[1.0] * 20, -INF, *[1.0] * 20))
    assert of(sum_("v"), *[1e308] * 40) == INF
    assert of(max_("v"), 1, INF) == INF
    assert math.isnan(of(stddev("v"), 1, INF))
    assert of(percentile("v", 0), -(10**400), 1) == -INF


def test_min_and_max_of_mixed_kinds() -> None:
    noon = datetime(2025, 11, 3, 12, tzinfo=UTC)
    kinds = [True, 7, "a", noon]
    for shift in range(4):
        turned = kinds[shift:] + kinds[:shift]
        assert of(min_("v"), *turned) is True
        assert of(max_("v"), *turned) == noon
    assert of(max_("v"), 3, [9], {"a": 9}, b"z") == 3
    assert of(min_("v"), NAN, 2.5, NAN, 10**400, Decimal("2.25"), Decimal("NaN")) == Decimal("2.25")


def test_min_and_max_of_times_go_by_the_instant() -> None:
    early = datetime(2025, 11, 3, 12, tzinfo=timezone(timedelta(hours=2)))
    naive = datetime(2025, 11, 3, 11)  # noqa: DTZ001 - read as UTC
    assert of(min_("v"), naive, early) == early
    assert of(max_("v"), naive, early) == naive
    assert of(min_("v"), early, date(2025, 11, 3)) == date(2025, 11, 3)


def test_first_and_last_go_by_event_time_then_arrival() -> None:
    events = [("b", (5, 1)), ("a", (3, 2)), ("d", (9, 3)), ("c", (9, 0))]
    for aggregate, expected in ((first("v"), "a"), (last("v"), "d")):
        held = aggregate.init()
        for value, order in events:
            held = aggregate.add(held, value, order)
        assert aggregate.finish(held) == expected


def test_collections_stand_by_event_time() -> None:
    for aggregate, expected in ((collect_list("v"), ["x", "y", "x"]), (collect_set("v"), ["x", "y"])):
        held = aggregate.init()
        for value, order in (("x", (9, 0)), ("y", (5, 1)), ("x", (1, 2))):
            held = aggregate.add(held, value, order)
        assert aggregate.finish(held) == expected


@pytest.mark.parametrize(
    ("values", "distinct"),
    [
        ((1, 1.0, Decimal("1.00"), Level.LOW), 1),
        ((0, -0.0, False), 2),
        ((True, 1, "1", "True", b"1"), 5),
        ((NAN, float("nan"), Decimal("NaN")), 1),
        ((INF, -INF, 1e300), 3),
        ((0.1, Decimal("0.1"), Decimal("0.10")), 2),
        ((Decimal("1E+400"), Decimal("10E+399"), Decimal("2E+400")), 2),
        ((10**5000, 10**5000 + 1), 2),
        (([1, [2]], [1, [2.0]], (1, (2,)), [1, 2]), 2),
        (({"a": 1, "b": 2}, {"b": 2, "a": 1}, {"a": 1}), 2),
        ((["ab", "c"], ["a", "bc"], ["a,b", "c"]), 3),
        (([], {}, "", [None], [[]]), 5),
        ((datetime(2025, 1, 1, tzinfo=UTC), datetime(2025, 1, 1, 1, tzinfo=timezone(timedelta(hours=1)))), 1),
    ],
)
def test_which_values_are_the_same(values: tuple[object, ...], distinct: int) -> None:
    assert of(count_distinct("v"), *values, *values) == distinct
    assert len(of(collect_set("v"), *values, *values)) == distinct


def test_percentile_as_spark_computes_it() -> None:
    # What Spark 4.3.0 gives for percentile(v, p) over these rows, to the last digit.
    values = (30, 0, 20, 10)
    assert [of(percentile("v", p), *values) for p in (0, 0.1, 0.5, 0.7, 1)] == [
        0.0,
        3.0000000000000004,
        15.0,
        20.999999999999996,
        30.0,
    ]
    assert of(percentile("v", 0.7), 5) == 5.0


@pytest.mark.parametrize("p", [-0.1, 1.5, 95, NAN])
def test_a_percentile_is_a_share(p: float) -> None:
    with pytest.raises(ConfigError, match=r"not between 0 and 1; for the 95th write 0\.95"):
        percentile("v", p)


def test_a_custom_one_without_a_field_gets_the_record() -> None:
    def add(held: int, record: dict[str, int]) -> int:
        return held + record["a"] * record["b"]

    product = custom(int, add, int.__add__, float)
    assert product.over([{"a": 2, "b": 3}, {"a": 1, "b": 1}]) == 7.0


def test_fields_are_paths() -> None:
    assert sum_("order.items.0").over([{"order": {"items": [3]}}, {"order": {}}, {}]) == 3


def test_aggregates_are_values() -> None:
    assert percentile("v", 0.5) == percentile("v", 0.5) != percentile("v", 0.6)
    assert len({sum_("a"), sum_("a"), sum_("b")}) == 2
    assert str(percentile("v", 0.95)) == "percentile(v, p=0.95)"
    for aggregate in (sum_("a"), percentile("a", 0.5), from_dict({"n": {"$sum": 2}})["n"]):
        assert pickle.loads(pickle.dumps(aggregate)) == aggregate
    with pytest.raises(FrozenInstanceError):
        sum_("a").field = "b"  # type: ignore[misc]


# The dictionary form


def test_the_dictionary_form() -> None:
    found = from_dict(
        {
            "n": {"$sum": 1},
            "fives": {"$sum": 5},
            "total": {"$sum": "value"},
            "mongo": {"$sum": "$value"},
            "mean": {"$avg": "value"},
            "low": {"$min": "value"},
            "high": {"$max": "value"},
            "earliest": {"$first": "value"},
            "latest": {"$last": "value"},
            "all": {"$push": "user"},
            "users": {"$addToSet": "user"},
            "events": {"$count": {}},
            "known": {"$count": "user"},
            "spread": {"$stdDevPop": "value"},
        }
    )
    records = [{"value": 1, "user": "ann"}, {"value": 3, "user": "ann"}, {"value": 5}]
    assert {name: aggregate.over(records) for name, aggregate in found.items()} == {
        "n": 3,
        "fives": 15,
        "total": 9,
        "mongo": 9,
        "mean": 3.0,
        "low": 1,
        "high": 5,
        "earliest": 1,
        "latest": 5,
        "all": ["ann", "ann"],
        "users": ["ann"],
        "events": 3,
        "known": 2,
        "spread": statistics.pstdev([1, 3, 5]),
    }
    assert found["n"] == count()


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ({"$median": "v"}, r"'x': no operator '\$median'; there are \$addToSet, \$avg, .*\$sum"),
        ({"$avg": 1}, r"\$avg of 1; write the name of a field"),
        ({"$sum": True}, r"\$sum of True; write the name of a field"),
        ({"$sum": INF}, r"\$sum of inf"),
        ({"$sum": ""}, "write the name of a field"),
        ({"$sum": 1, "$avg": "v"}, "write one operator and its field"),
        ({}, "write one operator and its field"),
        ("sum", "write one operator and its field"),
    ],
)
def test_what_the_dictionary_form_refuses(entry: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        from_dict({"x": entry})


# Against plain computations, and any split against the whole

# So far from the largest float that no sum of theirs comes near it.
NUMBERS = st.integers(-(10**20), 10**20) | st.floats(-1e300, 1e300)
JSON_VALUES = (
    st.none() | st.booleans() | NUMBERS | st.text(max_size=3) | st.lists(st.integers(0, 2), max_size=2)
)
MIXED = JSON_VALUES | st.just(NAN) | st.datetimes(timezones=st.just(UTC)) | st.dates()


def numbers_of(values: list[Any]) -> list[Any]:
    return [v for v in values if type(v) in (int, float) and v == v]


def exact(values: list[Any]) -> float:
    return float(sum(map(Fraction, values)))


def interpolated(values: list[Any], p: float) -> float | None:
    """By exact arithmetic."""
    if not values:
        return None
    ordered = sorted(map(Fraction, map(float, values)))
    position = Fraction((len(values) - 1) * p)
    low = math.floor(position)
    high = min(low + 1, len(values) - 1)
    return float(ordered[low] + (ordered[high] - ordered[low]) * (position - low))


@given(st.lists(MIXED))
def test_sum_avg_and_count_are_the_exact_ones(values: list[Any]) -> None:
    numbers = numbers_of(values)
    total = of(sum_("v"), *values)
    whole = all(type(number) is int for number in numbers)
    assert total == (sum(numbers) if whole else exact(numbers))
    assert type(total) is (int if whole else float)
    assert of(count("v"), *values) == len([value for value in values if value is not None])
    mean = of(avg("v"), *values)
    assert mean == (total / len(numbers) if numbers else None)


@given(st.lists(st.floats(-1e9, 1e9) | st.integers(-(10**9), 10**9), min_size=1), st.floats(0, 1))
def test_stddev_and_percentile(values: list[Any], p: float) -> None:
    spread = max(max(map(abs, values)), 1e-100)  # the square of less is nothing
    assert of(stddev("v"), *values) == pytest.approx(
        statistics.pstdev(map(Fraction, values)), abs=spread * 1e-9
    )
    assert of(percentile("v", p), *values) == pytest.approx(interpolated(values, p), abs=spread * 1e-12)


def test_stddev_does_not_drown_in_a_large_mean() -> None:
    values = [1e9 + x for x in (4, 7, 13, 16)] * 1000
    assert of(stddev("v"), *values) == pytest.approx(statistics.pstdev((4, 7, 13, 16)), rel=1e-9)


@given(st.lists(st.integers() | st.floats(allow_nan=False), min_size=1), st.lists(st.text(), min_size=1))
def test_min_and_max_of_one_kind(numbers: list[float], texts: list[str]) -> None:
    for values in (numbers, texts):
        assert of(min_("v"), *values) == min(values)
        assert of(max_("v"), *values) == max(values)


def folded(aggregate: Aggregate, events: list[tuple[Any, tuple[int, int]]]) -> Any:
    held = aggregate.init()
    for value, order in events:
        held = aggregate.add(held, value, order)
    return held


def same(one: object, two: object) -> bool:
    """Equal, and of one type; NaN is equal to itself."""
    return repr(one) == repr(two)


Store = Callable[[Any], Any]


def split_and_merged(aggregate: Aggregate, events: list[Any], random: Random, store: Store) -> Any:
    """The events in any order, in any parts, merged in any order; stored and read in between."""
    shuffled = random.sample(events, len(events))
    parts: list[list[Any]] = [[] for _ in range(random.randint(1, 4))]
    for event in shuffled:
        random.choice(parts).append(event)
    held = [store(folded(aggregate, part)) for part in parts]
    while len(held) > 1:
        other = held.pop(random.randrange(len(held)))
        held[0] = store(aggregate.merge(held[0], other))
    return aggregate.finish(held[0])


def unstored(held: Any) -> Any:
    return held


def as_json(held: Any) -> Any:
    return json.loads(json.dumps(held))


# Values that are equal and yet not alike (1 and 1.0) leave open which of them min and max keep.
APART = st.integers().map(lambda n: n * 2) | st.integers(-(2**40), 2**40).map(lambda n: n + 0.5)
SPLIT = st.lists(
    st.none() | st.booleans() | APART | st.text(max_size=3) | st.lists(st.booleans(), max_size=2)
)


@pytest.mark.parametrize("aggregate", ALL.values(), ids=ALL)
@given(values=SPLIT, times=st.randoms(use_true_random=False))
def test_any_split_in_any_order_equals_the_whole(
    aggregate: Aggregate, values: list[Any], times: Random
) -> None:
    events = [(value, (times.randrange(3), arrival)) for arrival, value in enumerate(values)]
    whole = aggregate.finish(folded(aggregate, events))
    assert same(split_and_merged(aggregate, events, times, unstored), whole)
    assert same(split_and_merged(aggregate, events, times, as_json), whole)


@given(values=st.lists(NUMBERS, max_size=60), random=st.randoms(use_true_random=False))
def test_the_order_of_floats_cannot_show(values: list[Any], random: Random) -> None:
    events = [(value, (0, arrival)) for arrival, value in enumerate(values)]
    for aggregate in (sum_("v"), avg("v")):
        whole = aggregate.finish(folded(aggregate, events))
        assert same(split_and_merged(aggregate, events, random, as_json), whole)


@given(values=st.lists(st.floats(-1e6, 1e6)), random=st.randoms(use_true_random=False))
def test_stddev_merges(values: list[float], random: Random) -> None:
    events = [(value, (0, arrival)) for arrival, value in enumerate(values)]
    merged = split_and_merged(stddev("v"), events, random, as_json)
    expected = statistics.pstdev(map(Fraction, values)) if values else None
    assert merged == (None if expected is None else pytest.approx(expected, abs=1e-4))


@given(st.lists(MIXED | st.binary(max_size=2) | st.decimals() | st.dictionaries(st.text(), MIXED)))
def test_no_value_makes_an_aggregate_raise(values: list[Any]) -> None:
    for aggregate in (*ALL.values(), stddev("v")):
        of(aggregate, *values)
