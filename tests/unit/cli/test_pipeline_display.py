"""What is shown of a run, made from its figures."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from queenstream.cli.pipeline.display import Progress, State

NOW = datetime(2026, 1, 31, 12, tzinfo=UTC)
STATS = {
    "messages": 750.0,
    "messages_per_second": 10.0,
    "queue_depth": 2250.0,
    "late": 2.0,
    "errors": 1.0,
    "dead_letters": 1.0,
    "latency_p99_ms": 1.23456,
    "watermark_lag_seconds": 90.0,
    "live": 0.0,
    "steps.parse v1.2.taken": 750.0,
    "steps.parse v1.2.given": 749.0,
    "steps.parse v1.2.failed": 1.0,
    "steps.parse v1.2.late": 0.0,
    "sinks.out.rows": 749.0,
    "phases.commit.seconds": 1.5,
}


def progress(state: State = "catching up", **more: float) -> Progress:
    return Progress("totals", state, {**STATS, **more}, {"parse v1.2": "apply"}, NOW)


def test_what_programs_read() -> None:
    record = progress().record("stats")
    assert record == {
        "event": "stats",
        "pipeline": "totals",
        "state": "catching up",
        "at": NOW,
        "messages": 750,
        "messages_per_second": 10.0,
        "queue_depth": 2250,
        "late": 2,
        "errors": 1,
        "dead_letters": 1,
        "latency_p99_ms": 1.235,
        "watermark_lag_seconds": 90.0,
        "watermark": NOW - timedelta(seconds=90),
        "steps": {"parse v1.2": {"taken": 750, "given": 749, "failed": 1, "late": 0}},
        "sinks": {"out": {"rows": 749.0}},
        "phases": {"commit": {"seconds": 1.5}},
    }


@pytest.mark.parametrize(
    ("state", "more", "left"),
    [
        ("catching up", {}, "25%, about 3m left"),
        ("catching up", {"queue_depth": 0.0}, ""),  # not known, or done
        ("catching up", {"messages_per_second": 0.0}, ""),
        ("live", {}, ""),
    ],
)
def test_how_far_it_is(state: State, more: dict[str, float], left: str) -> None:
    assert progress(state, **more).left == left


def test_without_event_time_there_is_no_watermark() -> None:
    assert progress(watermark_lag_seconds=0.0).watermark is None
