"""The progress of a run on standard error."""

from __future__ import annotations

import io
import os
import pty
import threading
from typing import Any

import pytest

from queenstream.pipeline.builder import Pipeline
from queenstream.pipeline.endpoints import Files, Memory
from queenstream.runtime.progress import Phase, ProgressDisplay, shows_figures

PHASES: list[Phase] = ["session", "plan", "first batch", "running"]


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.mark.parametrize(("seconds", "lines"), [(0.6, 0), (2.5, 4)])
def test_a_log_is_told_of_a_start_that_takes_long_and_where_the_time_went(seconds: float, lines: int) -> None:
    log, clock = io.StringIO(), Clock()
    display = ProgressDisplay("totals", dict, stream=log, clock=clock)
    for phase in PHASES:
        display(phase)
        if phase == "running":
            break
        clock.now += seconds
        display.show()
    said = log.getvalue().splitlines()
    assert len(said) == lines
    if lines:
        assert said[0] == "totals: starting Spark …"
        assert said[-1] == "totals: started in 7.5 s: session 2.5 s, plan 2.5 s, first batch 2.5 s"
    assert "\x1b" not in log.getvalue()


def test_a_start_that_is_over_when_a_log_is_told_of_it_is_one_line() -> None:
    log, clock = io.StringIO(), Clock()
    display = ProgressDisplay("totals", dict, stream=log, clock=clock)
    for phase in PHASES:
        clock.now += 1
        display(phase)
    expected = "totals: started in 3.0 s: session 1.0 s, plan 1.0 s, first batch 1.0 s\n"
    assert log.getvalue() == expected


def drawn(display: ProgressDisplay, reading: int) -> str:
    display.show()
    return os.read(reading, 1_000).decode()


def test_a_terminal_has_one_line_which_is_gone_at_the_end() -> None:
    reading, writing = pty.openpty()
    clock = Clock()
    stats = {"messages": 12_300.0, "messages_per_second": 1_500.0, "queue_depth": 30_000.0}
    with os.fdopen(writing, "w") as terminal:
        display = ProgressDisplay("p", lambda: stats, shows_figures=True, stream=terminal, clock=clock)
        display("session")
        assert drawn(display, reading) == "\r\x1b[Kp: starting Spark … 0 ms"
        clock.now = 3
        assert drawn(display, reading) == "\r\x1b[Kp: starting Spark … 3.0 s"
        display("running")
        assert drawn(display, reading) == "\r\x1b[Kp: 12,300 records, 1,500 per second, 30,000 left"
        display.end()
        assert os.read(reading, 1_000) == b"\r\x1b[K"
    os.close(reading)


def test_figures_are_not_shown_where_functions_print_or_there_is_no_end() -> None:
    source: Memory[Any] = Memory([])
    begun = Pipeline("p").source(source)
    printing, quiet = begun.to(print).plan(), begun.to(Files("out.ndjson")).plan()
    assert shows_figures(quiet, comes_to_an_end=True)
    assert not shows_figures(quiet, comes_to_an_end=False)
    assert not shows_figures(printing, comes_to_an_end=True)


def test_it_ends_with_the_run() -> None:
    display = ProgressDisplay("p", dict, stream=io.StringIO())
    display.start()
    display("session")
    [thread] = [each for each in threading.enumerate() if each.name == "queenstream progress p"]
    display("running")
    thread.join(10)
    assert not thread.is_alive()
