"""Which dead letters a command acts on."""

from __future__ import annotations

import doctest

import pytest

from queenstream.cli.support import dead_letters
from queenstream.cli.support.dead_letters import chosen
from queenstream.errors import ConfigError


def test_the_example_is_true() -> None:
    assert doctest.testmod(dead_letters).failed == 0


@pytest.mark.parametrize(
    ("ids", "filtered", "everything"),
    [
        (None, False, False),
        (["1"], True, False),
        (["1"], False, True),
        (None, True, True),
        ([], False, False),
    ],
)
def test_exactly_one_way_to_say_which(ids: list[str] | None, filtered: bool, everything: bool) -> None:
    with pytest.raises(ConfigError, match=r"their ids, or --step, or --all; one of the three"):
        chosen(ids, list, lambda: ["2", "1"], by="--step", filtered=filtered, everything=everything)


def test_named_ones_keep_their_order_and_found_ones_come_as_they_failed() -> None:
    assert chosen(["9", "3"], list, list, by="", filtered=False, everything=False) == ["9", "3"]
    assert chosen(None, list, lambda: ["2", "1"], by="", filtered=True, everything=False) == ["1", "2"]
