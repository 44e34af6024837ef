"""Deletes what is past its time, in batches: each task is isolated, measured and reported.

A task that fails is logged and counted, tried again at its next turn, and keeps no other task from its own.
``queen_upkeep_*`` and ``queen status`` show every task. All of it pauses in maintenance.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable
from datetime import UTC, datetime
from time import monotonic
from typing import TYPE_CHECKING, Any, NamedTuple

from queenstream.broker.ops import audit
from queenstream.broker.schemas.system import UpkeepState
from queenstream.broker.storage import sql
from queenstream.core import durations
from queenstream.errors import Unavailable

if TYPE_CHECKING:
    from queenstream.broker.app import Broker

log = logging.getLogger(__name__)

EXPIRE_MESSAGES = 20_000  # in one batch
OVERDUE_CURSORS = 100
BATCH_ROWS = 5_000
LOOKED_PARTITIONS = 5_000  # in one run
FORGOTTEN_GROUPS = 20
BATCH_STAGED = 200  # a row of these may hold megabytes
TURN_SECONDS = 20.0  # a task with more to do lets the others have their turn after this
COMPACT_SECONDS = 2.0
COMPACT_ROWS = 50_000  # live cursors, about 0.4 s; more would take too long while everybody waits
COMPACT_PAUSE = 60.0  # at most, between attempts at a table that is never free
PIPELINE_SERIES_SECONDS = 6 * 3600.0  # what is kept of a pipeline's figures
UNUSED_SECONDS = 86_400.0  # the functions of a release are kept so long after its last broker has gone
PIPELINE_SECONDS = 30 * 86_400.0  # what is kept of a pipeline that tells nothing any more


class Batch(NamedTuple):
    """What one batch of a task did."""

    rows: int
    more: bool


class Task(NamedTuple):
    """A named task; ``step`` does one batch."""

    name: str
    step: Callable[[Broker], Awaitable[Batch]]


def deletion(
    name: str, query: str, arguments: Callable[[Broker], Iterable[Any]] = lambda _: (), most: int = BATCH_ROWS
) -> Task:
    """A task that is a named query: ``$1`` is the most rows it may delete; it gives ``done``."""

    async def step(broker: Broker) -> Batch:
        [row] = await broker.database.upkeep(query, most, *arguments(broker))
        return Batch(row["done"], row["done"] >= most)

    return Task(name, step)


async def _expire(broker: Broker) -> Batch:
    rows = await broker.database.upkeep("expire", EXPIRE_MESSAGES, broker.database.now())
    for row in rows:
        broker.metrics.queue(row["queue_name"]).expired += row["deleted"]
    return Batch(sum(row["deleted"] for row in rows), bool(rows) and rows[0]["more"])


async def _forget_partitions(broker: Broker) -> Batch:
    """Look at some partitions, from where the last run ended on: all of a large database in some hours."""
    seconds = broker.settings.empty_partition_retention
    if not seconds:
        return Batch(0, False)
    upkeep, now = broker.background.upkeep, broker.database.now()
    [row] = await broker.database.upkeep(
        "forget_partitions", upkeep.looked_up_to, LOOKED_PARTITIONS, seconds, now
    )
    upkeep.looked_up_to = row["last"] or 0
    for queue in row["queues"]:
        broker.changed(queue)
    return Batch(row["deleted"], False)


async def _forget_groups(broker: Broker) -> Batch:
    seconds = broker.settings.group_retention
    if not seconds:
        return Batch(0, False)
    rows = await broker.database.upkeep("forget_groups", FORGOTTEN_GROUPS, seconds, broker.database.now())
    for row in rows:
        log.warning(
            "group %s took none of its messages of queue %s for %s; its progress is forgotten",
            row["group_name"], row["queue_name"], durations.format(seconds),
        )  # fmt: skip
        broker.changed(row["queue_name"])
    return Batch(len(rows), len(rows) >= FORGOTTEN_GROUPS)


def _now(broker: Broker) -> tuple[datetime | None]:
    return (broker.database.now(),)


MESSAGES = (  # every few seconds
    Task("expire", _expire),
    deletion("bury_overdue", "bury_overdue", _now, OVERDUE_CURSORS),
)
RECORDS = (  # every minute
    deletion("dead_letters", "forget_dead_letters", lambda b: (*_now(b), b.settings.dead_letter_retention)),
    deletion("traces", "forget_traces", lambda b: (*_now(b), b.settings.trace_retention)),
    deletion("audit", "forget_acts", lambda b: (*_now(b), b.settings.audit_retention, audit.MOST_ACTS)),
    deletion("statistics", "forget_stats"),
    deletion("first_pops", "forget_first_pops"),
    deletion("brokers", "forget_brokers"),
    deletion(
        "functions", "forget_functions", lambda _: (sql.FUNCTION_SET, sql.INTERFACE_NAMES, UNUSED_SECONDS)
    ),
    deletion("windows", "forget_windows", _now),
    deletion("pipeline_figures", "forget_pipeline_stats", lambda b: (*_now(b), PIPELINE_SERIES_SECONDS)),
    deletion("pipelines", "forget_pipelines", lambda b: (*_now(b), PIPELINE_SECONDS), 100),
    Task("partitions", _forget_partitions),
    Task("groups", _forget_groups),
    deletion("staged", "forget_staged", lambda b: (*_now(b), b.settings.staged_retention), BATCH_STAGED),
    deletion("sinks", "forget_sinks", lambda b: (*_now(b), b.settings.sink_retention)),
)


class Upkeep:
    """Runs the tasks of one broker, and keeps a report of each.

    >>> await broker.upkeep.run(RECORDS)  # doctest: +SKIP
    >>> broker.metrics.upkeep["traces"].rows  # doctest: +SKIP
    12
    """

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self.looked_up_to = 0  # the last partition that was looked at for being empty
        self._compact_pause = 0.0
        self._compact_after = 0.0

    async def run(self, tasks: Iterable[Task]) -> None:
        """Give each task its turn."""
        for task in tasks:
            await self._run_task(task)

    async def compact(self) -> None:
        """Write the cursors anew when somebody's open transaction keeps their dead versions."""
        if monotonic() >= self._compact_after:
            await self._run_task(Task("compact", self._compact))

    async def _run_task(self, task: Task) -> None:
        broker = self._broker
        if broker.maintenance:
            return
        report = broker.metrics.upkeep.setdefault(task.name, UpkeepState())
        started = monotonic()
        report.runs += 1
        try:
            while not broker.maintenance:
                batch = await task.step(broker)
                report.rows += batch.rows
                if not batch.more or monotonic() - started > TURN_SECONDS:
                    break
                await asyncio.sleep(0.01)
            report.last_success_at = datetime.now(UTC)
            report.error = None
        except Exception as error:
            if isinstance(error, Unavailable):
                log.warning("upkeep, %s: %s", task.name, error)
            else:
                log.exception("upkeep, %s", task.name)
            report.errors += 1
            report.error = type(error).__name__
            broker.metrics.background_failed("upkeep")
        finally:
            report.seconds += monotonic() - started

    async def _compact(self, broker: Broker) -> Batch:
        [row] = await broker.database.upkeep("compact", COMPACT_ROWS)
        if row["outcome"] == "busy":  # each attempt makes everybody wait a little: try less and less often
            self._compact_pause = min(COMPACT_PAUSE, max(COMPACT_SECONDS, self._compact_pause * 2))
            self._compact_after = monotonic() + self._compact_pause
            log.debug("compact: cursors could not be locked; again in %.0f s", self._compact_pause)
            return Batch(0, False)
        self._compact_pause = 0.0
        if row["outcome"] != "done":
            return Batch(0, False)
        log.info(
            "compact: %d cursors written anew in %.0f ms, %d pages before, %d now; "
            "a transaction held open somewhere keeps vacuum from it",
            row["live"], row["seconds"] * 1000, row["pages_before"], row["pages_after"],
        )  # fmt: skip
        return Batch(row["live"], False)
