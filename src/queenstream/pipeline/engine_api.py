"""How a pipeline is handed to an engine. The engine is looked for when it is asked to run, never before.

An engine is a module ``queenstream.<engine>.run`` with a function ``start(plan, options)`` that gives a
``Run``.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeAlias, TypedDict, cast, get_args

from queenstream.core import durations
from queenstream.errors import ConfigError

if TYPE_CHECKING:
    from queenstream.pipeline.plan.planner import Plan
    from queenstream.runtime.progress import Progress
    from queenstream.runtime.summary import Summary

EngineName: TypeAlias = Literal["spark", "local"]
Until: TypeAlias = Literal["stopped", "caught_up"]

# What an engine needs beyond the package itself, and the extra that brings it.
_EXTRAS = {"pyspark": "spark", "pandas": "spark", "pyarrow": "spark"}


class RunKeywords(TypedDict, total=False):
    """What ``run(…)`` takes; ``RunOptions`` says what it means."""

    master: str | None
    checkpoint: str | None
    from_checkpoint: str | None
    start_over: bool
    interval: str | float | timedelta | None
    until: Until
    url: str | None
    token: str | None
    max_batch_rows: int | None
    max_batch_bytes: int | None
    partitions: int | None
    progress: Progress | None
    summary: bool


@dataclass(frozen=True, kw_only=True)
class RunOptions:
    """What a run is told. Engines ignore nothing: an option that one does not know, it refuses.

    ``checkpoint`` is a folder or a PostgreSQL URL; ``from_checkpoint`` the id of an older one to go
    back to, or the folder of a savepoint to start from. ``start_over``: deliver into sinks that were written
    from another checkpoint, though they may get again what they have; a run whose checkpoint has batches
    continues after them. ``interval``: how often to checkpoint (Spark: how often a batch starts). ``until``:
    run on, or only up to
    what is there when it starts. ``url`` and ``token``: of the broker whose queues and streams it uses, where
    they name none; without them ``QUEEN_URL`` and ``QUEEN_TOKEN`` are taken, as a client does.
    ``max_batch_rows`` and ``max_batch_bytes`` (approximate) limit what a batch reads from each source; each
    engine has defaults that keep memory flat whatever the backlog. ``partitions``: on Spark, how many tasks
    read a queue or table, at most, and how many partitions a shuffle has; unless told, as many as cores.
    ``progress`` is called with each phase of the start on Spark; the local engine has none that takes long.
    ``summary``: whether it writes its progress and, when it ends, its summary to standard error.
    """

    master: str | None = None
    checkpoint: str | None = None
    from_checkpoint: str | None = None
    start_over: bool = False
    interval: timedelta | None = None
    until: Until = "stopped"
    url: str | None = None
    token: str | None = field(default=None, repr=False)
    max_batch_rows: int | None = None
    max_batch_bytes: int | None = None
    partitions: int | None = None
    progress: Progress | None = field(default=None, repr=False, compare=False)
    summary: bool = True

    @classmethod
    def of(cls, said: RunKeywords) -> RunOptions:
        """The options from what ``run(…)`` was told."""
        unknown = set(said) - {each.name for each in fields(cls)}
        if unknown:
            known = ", ".join(each.name for each in fields(cls))
            raise ConfigError(f"run() does not know {', '.join(sorted(unknown))}; it knows engine, {known}")
        if said.get("until", "stopped") not in get_args(Until):
            raise ConfigError(f"until is {said['until']!r}; write 'stopped' or 'caught_up'")
        for name, most in (
            ("max_batch_rows", said.get("max_batch_rows")),
            ("max_batch_bytes", said.get("max_batch_bytes")),
            ("partitions", said.get("partitions")),
        ):
            if most is not None and (isinstance(most, bool) or most < 1):
                raise ConfigError(f"{name} is {most!r}; write a whole number from 1 on, or leave it out")
        interval = said.get("interval")
        if said.get("start_over") and said.get("checkpoint") is None:
            raise ConfigError(
                "start_over is about sinks that another checkpoint has written, and a run without a "
                "checkpoint delivers everything each time; add checkpoint=…, or leave start_over out"
            )
        return cls(
            master=said.get("master"),
            checkpoint=said.get("checkpoint"),
            from_checkpoint=said.get("from_checkpoint"),
            start_over=said.get("start_over", False),
            interval=None if interval is None else durations.parse(interval),
            until=said.get("until", "stopped"),
            url=said.get("url"),
            token=said.get("token"),
            max_batch_rows=said.get("max_batch_rows"),
            max_batch_bytes=said.get("max_batch_bytes"),
            partitions=said.get("partitions"),
            progress=said.get("progress"),
            summary=said.get("summary", True),
        )


class Run(Protocol):
    """A pipeline that runs."""

    def wait(self, timeout: float | None = None) -> bool:
        """Until it has ended; False if it had not after ``timeout`` seconds. Raises what made it fail."""
        ...

    def stop(self) -> None:
        """Finish what is under way, checkpoint, and end."""
        ...

    def get_stats(self) -> Mapping[str, float]:
        """Its figures: ``messages_per_second``, latencies, ``error_rate``, ``watermark_lag_seconds`` …"""
        ...

    def summary(self) -> Summary:
        """What it has done so far: records per step and sink, time, checkpoint, warnings."""
        ...

    def metrics(self) -> bytes:
        """The figures as text for Prometheus."""
        ...

    def serve_metrics(self, port: int = 0, host: str = "127.0.0.1", path: str = "/metrics") -> int:
        """Serve them over HTTP while the process lives; gives the port, which is a free one for 0."""
        ...

    def look(self, key: str | None = None) -> Mapping[str, Any]:
        """What can be seen inside: its last batches, sample rows, checkpoints, what it remembers of a key."""
        ...


class Engine(Protocol):
    """What runs a plan."""

    def start(self, plan: Plan, options: RunOptions) -> Run:
        """Start it in the background, or say by node and line what this engine cannot do."""
        ...


def find_engine(name: EngineName) -> Engine:
    """The engine of that name.

    >>> find_engine("flink")
    Traceback (most recent call last):
    queenstream.errors.ConfigError: there is no engine 'flink'; write engine='spark' or engine='local'
    """
    if name not in get_args(EngineName):
        raise ConfigError(f"there is no engine {name!r}; write engine='spark' or engine='local'")
    try:
        return cast(Engine, importlib.import_module(f"queenstream.engines.{name}.run"))
    except ModuleNotFoundError as error:
        missing = (error.name or "").partition(".")[0]
        if missing not in _EXTRAS:
            raise
        extra = _EXTRAS[missing]
        raise ConfigError(
            f"the engine {name!r} needs {missing}; install it with pip install 'queenstream[{extra}]', "
            "or run with engine='local'"
        ) from error
