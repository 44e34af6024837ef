"""Time by phase and rows by sink: in all, and in the last batch that is done."""

from __future__ import annotations

import pytest

from queenstream.core import metric_names
from queenstream.runtime.phases import PhaseMeter


class Clock:
    """A clock to turn."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def test_a_batch_is_the_last_one_when_it_is_complete_and_attempts_that_fail_count() -> None:
    clock = Clock()
    meter = PhaseMeter(("read", "compute"), ["out"], with_bytes=True, clock=clock)

    def compute(batch: int, seconds: float) -> None:
        with meter.timed(batch, "compute"):
            clock.now += seconds
            if seconds == 3:
                raise OSError("no room")

    compute(1, 1)
    meter.add_rows(1, "out", rows=5, size=100)
    meter.add_commit(1, "out", 0.5)
    meter.complete(1)
    with pytest.raises(OSError, match="no room"):
        compute(2, 3)
    assert metric_names.PHASE.group(meter.stats())["compute"] == {"seconds": 4, "last_batch_seconds": 1}
    compute(2, 2)
    meter.add_rows(2, "out", rows=5, size=60)
    sink = metric_names.SINK.group(meter.stats())["out"]
    assert (sink["rows"], sink["bytes"], sink["last_batch_rows"], sink["last_batch_bytes"]) == (
        10,
        160,
        5,
        100,
    )
    meter.complete(2)
    stats = meter.stats()
    assert metric_names.PHASE.group(stats)["compute"] == {"seconds": 6, "last_batch_seconds": 5}
    assert metric_names.SINK.group(stats)["out"] == {
        "rows": 10, "rows_per_second": 10 / 6, "bytes": 160, "commit_seconds": 0.5,
        "last_batch_rows": 5, "last_batch_bytes": 60, "last_batch_commit_seconds": 0,
    }  # fmt: skip
    clock.now += 30
    assert meter.stats()["sinks.out.rows_per_second"] == 0


def test_what_has_not_happened_is_0_and_what_is_not_known_is_not_there() -> None:
    stats = PhaseMeter(("read",), ["out"], with_bytes=False).stats()
    assert set(stats.values()) == {0}
    assert "sinks.out.rows" in stats
    assert "phases.read.seconds" in stats
    assert not [name for name in stats if "bytes" in name or "stage" in name]


def test_batches_that_are_never_complete_take_no_memory() -> None:
    meter = PhaseMeter(("read",), [], with_bytes=False)
    for batch in range(1_000):
        meter.add_time(batch, "read", 1)
    assert len(meter._open) < 100
    assert meter.seconds == {"read": 1_000}
