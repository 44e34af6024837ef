"""Batches grow while they are quickly done, and shrink when they take long."""

from __future__ import annotations

from collections.abc import Sequence

from queenstream.engines.spark.datasource.batch_size import MOST_TIMES, BatchSize


def times_of(seconds: Sequence[float], *, full: bool = True) -> list[int]:
    """What follows batches that took so long."""
    now = 0.0
    size = BatchSize(clock=lambda: now)
    found = []
    for taken in seconds:
        found.append(size.next_times())
        size.planned(full=full)
        now += taken
    return found


def test_a_batch_that_is_quickly_done_is_followed_by_a_larger_one_up_to_a_limit() -> None:
    assert times_of([0.5] * 6) == [1, 2, 4, 8, 8, 8]
    assert MOST_TIMES == 8


def test_a_batch_that_takes_long_is_followed_by_a_smaller_one() -> None:
    assert times_of([0.5, 0.5, 5, 20, 20, 20, 20]) == [1, 2, 4, 4, 2, 1, 1]


def test_a_batch_that_is_not_full_says_nothing() -> None:
    assert times_of([0.5] * 4, full=False) == [1, 1, 1, 1]
