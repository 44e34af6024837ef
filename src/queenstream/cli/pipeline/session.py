"""A run from its start to its end: shown while it goes on, and stopped by signals."""

from __future__ import annotations

import contextlib
import signal
import sys
from collections.abc import Iterator
from dataclasses import replace
from types import FrameType
from typing import TYPE_CHECKING

import typer

from queenstream.cli.pipeline.display import Progress, State, View
from queenstream.cli.pipeline.finder import told, user_line
from queenstream.cli.support.exit_codes import INTERRUPTED
from queenstream.errors import QueenstreamError
from queenstream.runtime.progress import ProgressDisplay

if TYPE_CHECKING:
    from queenstream.pipeline.engine_api import Engine, Run, RunOptions
    from queenstream.pipeline.plan.planner import Plan
    from queenstream.runtime.summary import Summary

POLL_SECONDS = 0.1  # between two looks: at the run, at signals, at files


class PipelineFailed(QueenstreamError):
    """A pipeline ended with an error that is not ours; the message has the user's line, if there is one."""


class Stops:
    """Counts the signals that ask for an end. What they mean is decided where it is safe, not in them."""

    def __init__(self) -> None:
        self.asked = 0

    @contextlib.contextmanager
    def listening(self) -> Iterator[None]:
        """From here on SIGINT and SIGTERM are counted."""
        before = {each: signal.signal(each, self._count) for each in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _count(self, number: int, frame: FrameType | None) -> None:  # noqa: ARG002 - as handlers are called
        self.asked += 1


class Active:
    """One run of one version of a pipeline."""

    def __init__(self, plan: Plan, run: Run) -> None:
        self.plan = plan
        self.run = run
        self._told = 0

    def progress(self, state: State | None = None) -> Progress:
        """Where it is."""
        stats = self.run.get_stats()
        if state is None:
            state = "stopping" if self._told else "live" if stats.get("live") else "catching up"
        return Progress.of(self.plan, state, stats)

    def summary(self) -> Summary:
        """What it did; the error is told by whoever gets it."""
        return replace(self.run.summary(), error=None)

    def wait(self, stops: int = 0) -> bool:
        """Whether it has ended; it is told to stop as often as somebody asked for it."""
        while self._told < stops:
            self._told += 1
            self.run.stop()
        return self.run.wait(POLL_SECONDS)

    def close(self) -> None:
        """Let it finish, if nobody waits for it any more: who read what it shows went away."""
        with contextlib.suppress(Exception):  # of a run that failed before: somebody has it already
            self.run.stop()
            self.run.wait()


def explained(plan: Plan, error: Exception) -> QueenstreamError:
    """An error that ended a run, with the user's line if it came from there."""
    if isinstance(error, QueenstreamError):
        return error
    line = user_line(error)
    where = "" if line is None else f"{line}: "
    return PipelineFailed(
        f"the pipeline {plan.name!r} failed: {where}{told(error)}; mend that, and start it again"
    )


def begin(plan: Plan, engine: Engine, options: RunOptions) -> Active:
    """Start a run. What a start on Spark is at is shown until the view of the run takes over."""
    display = ProgressDisplay(plan.name, dict)
    display.start()
    try:
        run = engine.start(plan, replace(options, progress=display))
    except BaseException:
        display.end()
        raise
    if sys.stderr.isatty():
        display.end()
    return Active(plan, run)


def run_once(plan: Plan, engine: Engine, options: RunOptions, view: View) -> None:
    """Run a plan until it has ended, or somebody asks for its end; raises what made it fail.

    A second Ctrl-C does not wait for what is under way.
    """
    stops = Stops()
    with stops.listening(), contextlib.closing(begin(plan, engine, options)) as active:
        while not _is_over(active, stops, view):
            view.show(active.progress())
        view.end(active.progress("ended"), active.summary())


def _is_over(active: Active, stops: Stops, view: View) -> bool:
    try:
        return active.wait(stops.asked)
    except Exception as error:
        view.end(active.progress("failed"), active.summary())
        if stops.asked > 1:
            view.say("aborted", str(error))
            raise typer.Exit(INTERRUPTED) from None
        raise explained(active.plan, error) from error
