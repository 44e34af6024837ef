"""How fast a caller may create names."""

from __future__ import annotations

import doctest

import pytest

from queenstream.broker.http import quota
from queenstream.broker.http.quota import Quota
from queenstream.errors import QueueFull


def test_examples() -> None:
    assert doctest.testmod(quota).failed == 0


def test_what_is_used_up_comes_back_with_time_and_for_each_caller() -> None:
    now = 0.0
    names = Quota(60, monotonic=lambda: now)
    names.take("ann", 90)  # more than there is: it passes, and what follows waits
    for seconds in (0.0, 29.0):
        now = seconds
        with pytest.raises(QueueFull):
            names.take("ann", 1)
    names.take("bob", 1)
    now = 31.0
    names.take("ann", 1)
    now = 1000.0
    names.take("ann", 60)  # not more than a minute's are saved up
    with pytest.raises(QueueFull):
        names.take("ann", 1)


def test_no_limit_and_the_broker_itself() -> None:
    for _ in range(3):
        Quota(0).take("ann", 1_000_000)
    names = Quota(1)
    for _ in range(3):
        names.take("", 1_000)
