"""What can be done with the messages of a window."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, TypeVar

import pytest

from queenstream.client._base.window import BaseWindow, WindowMessage
from queenstream.errors import ConfigError

T = TypeVar("T")
NOON = datetime(2026, 1, 2, 12, tzinfo=UTC)


def message(number: int, data: T) -> WindowMessage[T]:
    return WindowMessage(str(number), data, NOON, "clicks", "p")


def window(*payloads: T) -> BaseWindow[T]:
    found: BaseWindow[T] = BaseWindow()
    found.all_messages = [message(number, data) for number, data in enumerate(payloads)]
    return found.reset()


@pytest.fixture
def some() -> BaseWindow[Any]:
    return window(
        {"user": "ann", "amount": 5},
        {"user": "bob", "amount": 20},
        {"user": "ann", "amount": 2.5, "tags": ["x"]},
        {"amount": "much"},
    )


def numbers(found: list[WindowMessage[Any]]) -> list[str]:
    return [one.id for one in found]


def test_a_filter_works_on_the_copy_and_can_be_chained(some: BaseWindow[Any]) -> None:
    same = some.filter(lambda m: m.data.get("user") == "ann").filter(lambda m: m.data["amount"] > 3)
    assert same is some
    assert numbers(some.messages) == ["0"]
    assert len(some.all_messages) == 4


def test_reset_brings_all_back(some: BaseWindow[Any]) -> None:
    assert some.filter(lambda m: False).messages == []
    assert numbers(some.reset().messages) == ["0", "1", "2", "3"]
    some.messages.clear()
    assert len(some.reset().messages) == 4


@pytest.mark.parametrize("path", ["data.user", "payload.user", "user"])
def test_groups_by_every_spelling(some: BaseWindow[Any], path: str) -> None:
    found = some.group_by(path)
    assert {key: numbers(members) for key, members in found.items()} == {
        "ann": ["0", "2"],
        "bob": ["1"],
        None: ["3"],
    }


def test_groups_of_what_is_left(some: BaseWindow[Any]) -> None:
    assert list(some.filter(lambda m: m.data.get("user") == "bob").group_by("data.user")) == ["bob"]


def test_a_value_that_is_no_key_counts_by_its_text() -> None:
    found = window({"tags": ["x"]}, {"tags": ["x"]}, {"tags": {"y": 1}}).group_by("data.tags")
    assert {key: numbers(members) for key, members in found.items()} == {
        "['x']": ["0", "1"],
        "{'y': 1}": ["2"],
    }


@pytest.mark.parametrize("path", ["data.amount", "payload.amount"])
def test_aggregates_by_both_spellings(some: BaseWindow[Any], path: str) -> None:
    assert some.aggregate(count=True, sum=[path], avg=[path], min=[path], max=[path]) == {
        "count": 4,
        "sum": {path: 27.5},
        "avg": {path: 27.5 / 3},
        "min": {path: 2.5},
        "max": {path: "much"},  # text is above every number
    }


def test_only_what_is_asked_for(some: BaseWindow[Any]) -> None:
    assert some.aggregate() == {}
    assert some.aggregate(count=True) == {"count": 4}
    assert some.aggregate(sum=["data.amount", "data.none"]) == {"sum": {"data.amount": 27.5, "data.none": 0}}


def test_aggregates_of_what_is_left(some: BaseWindow[Any]) -> None:
    left = some.filter(lambda m: m.data.get("user") == "ann")
    assert left.aggregate(count=True, sum=["data.amount"]) == {"count": 2, "sum": {"data.amount": 7.5}}
    assert some.reset().aggregate(count=True) == {"count": 4}


def test_aggregates_of_nothing() -> None:
    empty: BaseWindow[Any] = window()
    assert empty.aggregate(count=True, sum=["data.x"], avg=["data.x"], min=["data.x"], max=["data.x"]) == {
        "count": 0,
        "sum": {"data.x": 0},
        "avg": {"data.x": None},
        "min": {"data.x": None},
        "max": {"data.x": None},
    }


def test_nested_paths_and_positions() -> None:
    found = window(
        {"order": {"lines": [{"price": 2}]}}, {"order": {"lines": [{"price": 3}]}}, {"order": None}
    )
    path = "data.order.lines.0.price"
    assert found.aggregate(sum=[path], avg=[path]) == {"sum": {path: 5}, "avg": {path: 2.5}}


def test_typed_payloads_have_attributes() -> None:
    @dataclass
    class Order:
        user: str
        amount: int

    found = window(Order("ann", 5), Order("bob", 7))
    assert found.aggregate(max=["data.amount"]) == {"max": {"data.amount": 7}}
    assert numbers(found.group_by("payload.user")["bob"]) == ["1"]
    assert numbers(found.filter(lambda m: m.data.amount > 5).messages) == ["1"]


def test_a_payload_that_is_a_number() -> None:
    assert window(1, 2, 3).aggregate(sum=["data"], avg=["payload"]) == {
        "sum": {"data": 6},
        "avg": {"payload": 2.0},
    }


def test_payload_is_another_word_for_data() -> None:
    one = message(1, {"n": 1})
    assert one.payload is one.data


def test_a_path_that_is_none(some: BaseWindow[Any]) -> None:
    with pytest.raises(ConfigError):
        some.group_by("data..user")


def test_percentiles_are_asked_for_as_in_pipelines() -> None:
    found = window(*({"ms": n, "steps": [{"ms": n * 10}]} for n in range(1, 101)), {"ms": "slow"}, {})
    assert found.aggregate(count=True, percentile={"data.ms": [0.5, 0.95, 1], "steps.0.ms": 0}) == {
        "count": 102,
        "percentile": {"data.ms": {0.5: 50.5, 0.95: pytest.approx(95.05), 1: 100}, "steps.0.ms": {0: 10}},
    }
    assert window().aggregate(percentile={"ms": 0.5}) == {"percentile": {"ms": {0.5: None}}}
    assert "percentile" not in found.aggregate(count=True, percentile={})


def test_a_percentile_in_per_cent_says_what_to_write() -> None:
    with pytest.raises(ConfigError, match=r"50 is not between 0 and 1; for the 95th write 0\.95"):
        window({"ms": 1}).aggregate(percentile={"data.ms": [50]})
