"""A run of a pipeline in this process: a thread with an event loop of its own.

run = Pipeline("totals").source(…) … .start(engine="local", checkpoint="state/")
run.get_stats()["messages_per_second"]
run.stop()
run.wait()
"""

from __future__ import annotations

import asyncio
import signal
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Any

from queenstream.connectors import Context, reader_for, writer_for
from queenstream.connectors.reporter import reporter_for, without_secrets
from queenstream.connectors.rules import with_rules
from queenstream.core.metric_names import step_figure
from queenstream.core.windows import to_us
from queenstream.engines.local.checkpoints.locations import opened
from queenstream.engines.local.checkpoints.state_view import find_entries
from queenstream.engines.local.delivery import sinks_of
from queenstream.engines.local.failures import Counts
from queenstream.engines.local.intake import Intake, Pressure
from queenstream.engines.local.loop import Loop
from queenstream.errors import ConfigError, RunAborted
from queenstream.pipeline.endpoints import Files
from queenstream.pipeline.engine_api import RunOptions
from queenstream.pipeline.errors import PipelineError, Problem
from queenstream.pipeline.plan.planner import Plan
from queenstream.runtime.metrics import Meter, prometheus_text, serve_prometheus, step_stats
from queenstream.runtime.progress import ProgressDisplay, shows_figures
from queenstream.runtime.state_view import prefixes
from queenstream.runtime.summary import (
    Checkpoint,
    State,
    Summarized,
    Summary,
    make_summary,
    print_summary,
)

__all__ = ["LocalRun", "start"]

_MOST_SHOWN = 20  # checkpoints, and entries of a step


def start(plan: Plan, options: RunOptions) -> LocalRun:
    """Start a plan in the background. What this engine cannot do it says here, before anything runs."""
    if options.master is not None:
        raise ConfigError("the local engine has no master; leave master out, or run with engine='spark'")
    if options.partitions is not None:
        raise ConfigError(
            "the local engine has no partitions; leave partitions out, or run with engine='spark'"
        )
    if options.from_checkpoint is not None and options.checkpoint is None:
        raise ConfigError("from_checkpoint needs to know where it is; add checkpoint='folder or URL'")
    _refuse_remote_files(plan)
    for read in plan.sources:
        reader_for(read.source, Context(plan.name, read.name, options.url, token=options.token))
    for name, sink in sinks_of(plan).items():
        writer_for(sink, Context(plan.name, name, options.url, token=options.token))
    run = LocalRun(with_rules(plan, options), options)
    run.start()
    return run


def _refuse_remote_files(plan: Plan) -> None:
    """Say by line which sources and sinks are on file systems that only Spark reaches."""
    problems = [
        Problem(
            str(read.where),
            read.name,
            f"reads {read.source.label}, and the local engine reads files of this machine only",
            "run with engine='spark', or copy the files into a folder",
        )
        for read in plan.sources
        if isinstance(read.source, Files) and read.source.remote
    ]
    problems += [
        Problem(
            str(node.where),
            node.name,
            f"{does} {sink.label}, and the local engine writes files of this machine only",
            "run with engine='spark', or name a folder (NFS is one, too)",
        )
        for node, does, sink in plan.remote_files
    ]
    if problems:
        raise PipelineError(plan.name, tuple(problems))


class LocalRun(Summarized):
    """A run. Its methods may be called from any thread.

    >>> with run.stopping_on_signals():  # doctest: +SKIP
    ...     run.wait()
    """

    def __init__(self, plan: Plan, options: RunOptions) -> None:
        self.plan = plan
        self._meter = Meter()
        self._loop = Loop(plan, options, self._meter)
        self._thread = threading.Thread(target=self._run, name=f"queenstream {plan.name}", daemon=True)
        self._lock = threading.Lock()
        # Under the lock:
        self._events: asyncio.AbstractEventLoop | None = None
        self._task: asyncio.Task[None] | None = None
        self._stops = 0
        self._error: BaseException | None = None
        self._options = options
        self._began = time.monotonic()
        self._ended: float | None = None
        self._over = threading.Event()
        self._reporter = reporter_for(plan, "local", options, self.get_stats, look=self.look)
        shown = shows_figures(plan, comes_to_an_end=plan.bounded or options.until == "caught_up")
        self._display: ProgressDisplay | None = None
        if options.summary and shown:
            self._display = ProgressDisplay(plan.name, self.get_stats, shows_figures=True)

    def start(self) -> None:
        """Begin; ``start(plan, options)`` does."""
        if self._reporter is not None:
            self._reporter.start()
        if self._display is not None:
            self._display.start()
        self._thread.start()

    def wait(self, timeout: float | None = None) -> bool:
        """Until it has ended; False if it had not after ``timeout`` seconds. Raises what made it fail.

        Interrupted by Ctrl-C, it stops the run, waits for its end, and only then goes on.
        """
        try:
            # Not join(): interrupted, Python up to 3.12 takes the thread for one that has ended.
            if not self._over.wait(timeout):
                return False
        except KeyboardInterrupt:
            self.stop()
            self._over.wait()
            raise
        if self._error is not None:
            raise self._error
        return True

    def stop(self) -> None:
        """Finish what is under way, checkpoint, and end. A second time: end at once.

        What was not finished then comes again with the next run, if there is a checkpoint.
        """
        with self._lock:
            self._stops += 1
            self._pass_on_stop()

    @contextmanager
    def stopping_on_signals(self) -> Iterator[None]:
        """Let SIGINT and SIGTERM stop the run, gently at first; only in the main thread."""
        before = {
            each: signal.signal(each, lambda *_: self.stop()) for each in (signal.SIGINT, signal.SIGTERM)
        }
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    @property
    def live(self) -> bool:
        """Whether it has caught up with what its sources had, and works on what comes."""
        return self._loop.live

    @property
    def steps(self) -> Mapping[str, Counts]:
        """What happened at each step so far."""
        return self._loop.engine.counts

    @property
    def pressures(self) -> list[Pressure]:
        """When sources crossed their thresholds, and when they drained, in order."""
        return list(self._loop.pressures)

    @property
    def watermark(self) -> datetime | None:
        """How far event time has come, where the pipeline goes by it."""
        at = self._loop.engine.watermark
        return None if at is None else datetime.fromtimestamp(at / 1e6, UTC)

    def get_stats(self) -> dict[str, float]:
        """Its figures; those of a step are ``steps.<name>.taken`` and so on (``core.metric_names``)."""
        intakes = [source.intake for source in list(self._loop.sources)]
        watermark = self._loop.engine.watermark
        now = to_us(datetime.now(UTC))
        return {
            **self._meter.stats(),
            **step_stats(
                {name: asdict(counts) for name, counts in self.steps.items()},
                [read.name for read in self.plan.sources],
            ),
            **self._steps_now(intakes),
            **self._loop.phases.stats(),
            "queue_depth": float(sum(intake.lag() or 0 for intake in intakes)),
            "dropped": float(sum(intake.dropped for intake in intakes)),
            "watermark_lag_seconds": 0.0 if watermark is None else (now - watermark) / 1e6,
            "live": float(self.live),
        }

    def _steps_now(self, intakes: list[Intake]) -> dict[str, float]:
        """Where event time is at the steps, who works, and who waits; a source, for room, too."""
        engine = self._loop.engine
        found = engine.work.stats()
        for step, at in engine.step_watermarks.items():
            found[step_figure(step, "watermark_timestamp_seconds")] = at / 1e6
        for intake in intakes:
            name = step_figure(intake.node.name, "backpressure_ratio")
            full = min(1.0, intake.waiting / intake.node.backpressure.threshold)
            found[name] = max(found.get(name, 0.0), full)
        return found

    def look(self, key: str | None = None) -> dict[str, Any]:
        """What can be seen inside: batches, samples of rows, checkpoints, and what is remembered of a key.

        Samples are kept only while somebody looks: there are none the first time.

        >>> run.look()["samples"]["parse"]  # doctest: +SKIP
        ['{"user":"ann"}']
        """
        samples = self._loop.engine.samples
        samples.ask()
        found: dict[str, Any] = {"batches": self._meter.batches(), "samples": samples.rows()}
        if self._options.checkpoint is not None:
            found |= asyncio.run(_stored(self._options.checkpoint, self.plan.name, key))
        return found

    def summary(self) -> Summary:
        """What it has done so far, or did in all: also its ``repr``, and its HTML in a notebook."""
        where, ended = self._options.checkpoint, self._ended
        checkpoint = None if where is None else Checkpoint(self._loop.checkpoint_id, without_secrets(where))
        return make_summary(
            self.plan,
            self._loop.counts,
            state=self._state(),
            seconds=(time.monotonic() if ended is None else ended) - self._began,
            checkpoint=checkpoint,
            error=self._error,
        )

    def _state(self) -> State:
        if self._ended is None:
            return "running"
        if self._error is not None:
            return "failed"
        return "stopped" if self._stops else "ended"

    def metrics(self) -> bytes:
        """The figures as text for Prometheus."""
        return prometheus_text(self.plan.name, self.get_stats)

    def serve_metrics(self, port: int = 0, host: str = "127.0.0.1", path: str = "/metrics") -> int:
        """Serve them over HTTP while the process lives; gives the port, which is a free one for 0."""
        return serve_prometheus(self.plan.name, self.get_stats, port, host, path)

    def _run(self) -> None:
        try:
            asyncio.run(self._main())
        except asyncio.CancelledError:
            self._error = RunAborted(
                f"{self.plan.name} was told to stop twice, and ended without finishing; with a checkpoint, "
                "the next run goes on from there"
            )
        except BaseException as error:  # noqa: BLE001 - wait() raises it
            self._error = error
        self._ended = time.monotonic()
        try:
            self._tell_of_the_end()
        finally:
            self._over.set()

    def _tell_of_the_end(self) -> None:
        if self._display is not None:
            self._display.end()
        if self._options.summary:
            print_summary(self.summary())
        if self._reporter is not None:
            self._reporter.end(self._error)

    async def _main(self) -> None:
        with self._lock:
            self._events = asyncio.get_running_loop()
            self._task = asyncio.current_task()
            self._pass_on_stop()
        try:
            await self._loop.run()
        finally:
            with self._lock:
                self._events = None

    def _pass_on_stop(self) -> None:
        """Tell the loop how often it was told to stop; under the lock."""
        if self._events is None or not self._stops:
            return
        self._events.call_soon_threadsafe(self._loop.stopping.set)
        if self._stops > 1 and self._task is not None:
            self._events.call_soon_threadsafe(self._task.cancel)


async def _stored(where: str, pipeline: str, key: str | None) -> dict[str, Any]:
    """The checkpoints of a pipeline, and what is in the newest one of a key."""
    async with opened(where, pipeline) as store:
        infos = await store.checkpoints()
        found: dict[str, Any] = {
            "checkpoints": [
                {"id": each.id, "committedAt": each.committed_at, "clean": each.clean}
                for each in infos[:_MOST_SHOWN]
            ]
        }
        if key is not None and infos:
            found["state"] = {"key": key, "entries": await find_entries(store, prefixes(key), _MOST_SHOWN)}
        return found
