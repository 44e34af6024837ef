"""A run tells the broker of itself every few seconds, so that others can see it: the console, ``queen``.

It does so in a thread of its own, and whatever happens there is no matter of the run: a broker that is away
is told of once in the log, and asked again from time to time.

>>> reporter = reporter_for(plan, "local", RunOptions(), run.get_stats)  # doctest: +SKIP
>>> reporter.start()  # doctest: +SKIP
>>> reporter.end(None)  # doctest: +SKIP
"""

from __future__ import annotations

import logging
import os
import secrets
import socket
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias
from urllib.parse import urlsplit

import msgspec

from queenstream.client._base import addresses
from queenstream.client._base.responses.pipelines import Wanted
from queenstream.client._sync.client import Queen
from queenstream.core import metric_names
from queenstream.errors import QueenstreamError
from queenstream.pipeline.endpoints import Queue, Stream
from queenstream.pipeline.engine_api import EngineName, RunOptions
from queenstream.pipeline.plan import describe
from queenstream.pipeline.plan.planner import Plan

log = logging.getLogger("queenstream.reporting")

CALL_SECONDS = 3.0  # a broker that takes longer is away
END_SECONDS = 2.0  # how long a run that ends waits for its last report, if the broker was there before
FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS = 1.0, 60.0
MOST_ERROR = 10_000  # characters
MOST_PLAN_BYTES, MOST_STATS_BYTES = 250_000, 60_000  # a broker takes a little more
MOST_INSIDE_BYTES = 250_000
_NUMBER_BYTES = 25  # of a figure, with what stands around it


@dataclass(frozen=True)
class Broker:
    """Where it is, and as who to speak to it; without a token, as ``QUEEN_TOKEN`` says."""

    url: str
    token: str | None = field(default=None, repr=False)


Look: TypeAlias = Callable[[str | None], Mapping[str, Any]]
State: TypeAlias = Literal["running", "stopped", "failed"]


class Reporter:
    """Tells one broker of one run. ``error``: what the run has failed with so far, if it has."""

    def __init__(
        self,
        plan: Plan,
        engine: EngineName,
        broker: Broker,
        checkpoint: str | None,
        stats: Callable[[], Mapping[str, float]],
        error: Callable[[], BaseException | None] = lambda: None,
        look: Look | None = None,
    ) -> None:
        self.instance = f"{socket.gethostname()[:100]} {os.getpid()} {secrets.token_hex(4)}"
        self._plan = plan
        self._engine = engine
        self._broker = broker
        self._checkpoint = None if checkpoint is None else without_secrets(checkpoint)
        self._stats = stats
        self._error = error
        self._look = look
        self._wanted: Wanted | None = None  # what somebody wants to see inside
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"queenstream report {plan.name}", daemon=True)
        self._wants_plan = True
        self._failures = 0

    def start(self) -> None:
        """Begin to tell."""
        self._thread.start()

    def end(self, error: BaseException | None) -> None:
        """The run has ended, with that error or well: tell it, if the broker is there. Once is enough."""
        if not self._ended.is_set():
            if error is not None:
                self._error = lambda: error
            self._ended.set()
        if not self._failures:
            self._thread.join(END_SECONDS)

    def _run(self) -> None:
        with Queen(self._broker.url, token=self._broker.token, timeout=CALL_SECONDS) as queen:
            pause = 0.0
            while not self._ended.wait(pause):
                pause = self._tell(queen, "running")
            self._tell(queen, "stopped")

    def _tell(self, queen: Queen, state: State) -> float:
        """Report once; gives how long to wait before the next one."""
        begun = time.monotonic()
        try:
            error = self._error()
            told = queen.admin.report_pipeline(
                self._plan.name,
                engine=self._engine,
                instance=self.instance,
                state=state if error is None else "failed",
                stats=bounded(self._stats()),
                plan=self._described() if self._wants_plan else None,
                error=None if error is None else f"{type(error).__name__}: {error}"[:MOST_ERROR],
                checkpoint=self._checkpoint,
                inside=self._inside(),
            )
        except Exception as failure:  # noqa: BLE001 - nothing that happens here is a matter of the run
            return self._failed(failure)
        self._failures = 0
        self._wants_plan = told.wants_plan
        self._wanted = told.wants_inside
        return max(FIRST_PAUSE_SECONDS, told.next_seconds - (time.monotonic() - begun))

    def _inside(self) -> str | None:
        """What the run looks like inside, if somebody wants to see it and it is not too much."""
        if self._wanted is None or self._look is None:
            return None
        try:
            made = msgspec.json.encode(self._look(self._wanted.key), enc_hook=repr)
        except Exception as failure:  # noqa: BLE001 - a checkpoint may not be readable now
            made = msgspec.json.encode({"error": f"{type(failure).__name__}: {failure}"[:MOST_ERROR]})
        return made.decode() if len(made) <= MOST_INSIDE_BYTES else '{"error":"it is too large to be shown"}'

    def _described(self) -> str | None:
        """The plan, unless it is more than a broker takes."""
        plan = describe.as_json(self._plan)
        return plan if len(plan.encode()) <= MOST_PLAN_BYTES else None

    def _failed(self, failure: Exception) -> float:
        self._failures += 1
        if self._failures == 1:
            log.warning(
                "%s cannot tell the broker of itself, and goes on; it tries again: %s",
                self._plan.name,
                failure,
                exc_info=None if isinstance(failure, QueenstreamError) else failure,
            )
        return float(min(LONGEST_PAUSE_SECONDS, FIRST_PAUSE_SECONDS * 2 ** min(self._failures, 10)))


def reporter_for(
    plan: Plan,
    engine: EngineName,
    options: RunOptions,
    stats: Callable[[], Mapping[str, float]],
    error: Callable[[], BaseException | None] = lambda: None,
    look: Look | None = None,
) -> Reporter | None:
    """What tells of a run; None, if it has no broker. ``look``: what can be seen inside, of a key."""
    broker = broker_of(plan, options)
    if broker is None:
        return None
    return Reporter(plan, engine, broker, options.checkpoint, stats, error, look)


def broker_of(plan: Plan, options: RunOptions) -> Broker | None:
    """The broker of a run: the one that was named, or that of a queue or stream that it reads or writes.

    The run's token is not for a broker that only an endpoint names.
    """
    if options.url and not options.url.startswith("postgres"):  # where Spark finds the queues' database
        return Broker(options.url, options.token)
    ends = [read.source for read in plan.sources] + [write.sink for write in plan.sinks]
    ours = [each for each in (*ends, *plan.dead_letters) if isinstance(each, Queue | Stream)]
    for each in ours:
        if each.url and not each.url.startswith("postgres"):
            return Broker(each.url, None)
    known = os.environ.get("QUEEN_URL") or (addresses.DEFAULT if ours else None)
    return None if known is None else Broker(known, options.token)


def bounded(stats: Mapping[str, float]) -> Mapping[str, float]:
    """As many figures as a broker takes: of a plan with very many steps or sinks, only those of the whole.

    >>> bounded({"messages": 1.0, "steps.in.taken": 1.0})
    {'messages': 1.0, 'steps.in.taken': 1.0}
    """
    if sum(len(name.encode()) + _NUMBER_BYTES for name in stats) <= MOST_STATS_BYTES:
        return stats
    return {name: value for name, value in stats.items() if metric_names.is_of_whole(name)}


def without_secrets(place: str) -> str:
    """Where a checkpoint is, without who may open it.

    >>> without_secrets("postgresql://ann:secret@db.example:5432/queen?sslmode=require")
    'postgresql://db.example:5432/queen'
    >>> without_secrets("state/")
    'state/'
    """
    if "://" not in place:
        return place
    parts = urlsplit(place)
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"
