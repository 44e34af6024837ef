"""Which failures of a query are followed by a restart, and how many."""

from __future__ import annotations

import pytest

from queenstream.engines.spark.restarts import MOST, MOST_RECENT, RECENT_SECONDS, Restarts

AWAY = "queenstream.errors.Unavailable: Spark cannot reach PostgreSQL at db/queen: Connection refused"


@pytest.mark.parametrize(
    "failure",
    [
        AWAY,
        "queenstream.errors.DatabaseUnusable: … is gone (did PostgreSQL crash?); the batch must run again",
        "org.apache.spark.SparkException: Python worker exited unexpectedly (crashed)",
    ],
)
def test_what_passes_is_tried_again_once_there_was_a_batch(failure: str) -> None:
    assert not Restarts().allows(failure, batches=0), "something is set up wrong"
    assert Restarts().allows(failure, batches=1)


def test_a_busy_machine_is_no_reason_to_give_up() -> None:
    assert Restarts().allows("Python worker failed to connect back.", batches=0)


def test_other_failures_end_the_run() -> None:
    assert not Restarts().allows("AnalysisException: there is no column user", batches=5)


def test_without_a_batch_in_between_it_ends_at_some_time() -> None:
    restarts = Restarts()
    assert [restarts.allows(AWAY, batches=1) for _ in range(MOST + 1)] == [True] * MOST + [False]
    assert restarts.exhausted == f"after {MOST} restarts without a batch in between"
    assert restarts.allows(AWAY, batches=2)


def test_their_number_is_limited_by_time_too_and_they_come_ever_more_slowly() -> None:
    now = [0.0]
    restarts = Restarts(lambda: now[0])
    assert restarts.allows(AWAY, batches=1)
    assert restarts.pause_seconds < 0.1
    assert all(restarts.allows(AWAY, batches=batch) for batch in range(2, MOST_RECENT + 1))
    assert restarts.pause_seconds > 1
    assert not restarts.allows(AWAY, batches=MOST_RECENT + 1)
    assert restarts.exhausted == f"after {MOST_RECENT} restarts in 10 minutes"
    now[0] += RECENT_SECONDS
    assert restarts.allows(AWAY, batches=MOST_RECENT + 1)
    assert restarts.total == MOST_RECENT + 1
