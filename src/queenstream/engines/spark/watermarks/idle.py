"""Idle sources: decides which groups of sources hold the watermark back no longer.

Spark's watermark is the least of those of its sources, and waits for all of them. A group of sources that was
read to its end and quiet for its ``idle_timeout`` is idle until its next record. Its watermark is raised to
that of the others, and follows them, by rows of the source of watermarks (``source.py``).

A batch shows how far each group came before the batch is done, so the decision is made and stored by then.
What Spark knows of each source is gone when a query ends: a query that starts gets the marks of all groups as
its first rows. Only plans that have sources with an ``idle_timeout``, and others to wait for, need any of it.
"""

from __future__ import annotations

import json
import shutil
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.types import TimestampType

from queenstream.engines.spark.sinks.storage import SmallFiles
from queenstream.engines.spark.watermarks.log import last_batch, positions
from queenstream.engines.spark.watermarks.marks import Marks, beginning, is_marks, latest
from queenstream.engines.spark.watermarks.source import CLOCK, GROUP, read_watermarks
from queenstream.errors import CheckpointError
from queenstream.pipeline.plan.nodes import Read

_STORED = "watermarks.json"
_MOST_LOOK_SECONDS, _LEAST_LOOK_SECONDS = 1.0, 0.05

Groups = Sequence[Sequence[Read]]
"""The sources whose event times move one clock, by clock (``compile.clock_groups``)."""


def has_idle(groups: Groups) -> bool:
    """Whether a group may be idle, and another one waits for it."""
    return len(groups) > 1 and any(_may_be_idle(group) for group in groups)


def _may_be_idle(group: Sequence[Read]) -> bool:
    return all(read.idle_timeout is not None for read in group)


def check_sources(storage: SmallFiles, groups: Groups) -> None:
    """Refuse a checkpoint whose query had other sources: with that of watermarks, or without."""
    before = last_batch(storage)
    logged = [] if before is None else positions(storage, before)
    if not logged:  # Spark says what is wrong with its log
        return
    had = any(is_marks(each) for each in logged)
    if had != has_idle(groups):
        told = "has sources with an idle_timeout" if had else "has no source with an idle_timeout"
        raise CheckpointError(
            f"the checkpoint {storage.root} is of a plan that {told}, and this plan is different; undo that, "
            "or take another checkpoint folder to begin anew"
        )


class IdleSources:
    """Decides which groups of sources are idle, and tells Spark. ``storage``: the home of the run."""

    def __init__(
        self, groups: Groups, storage: SmallFiles, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._groups = groups
        self._storage = storage
        self._clock = clock
        self._reads = [read for group in groups for read in group]
        self._folder = Path(tempfile.mkdtemp(prefix="queenstream-watermarks-"))
        self._lock = threading.Lock()
        self._marks = beginning(len(groups))
        self._issued = self._marks
        self._batch = -1
        self._seen = dict.fromkeys(self._reads, 0.0)  # when each source had records last

    @property
    def look_seconds(self) -> float:
        """How often to look whether a group is idle while no batch runs."""
        least = min(
            each.idle_timeout.total_seconds() for each in self._reads if each.idle_timeout is not None
        )
        return min(_MOST_LOOK_SECONDS, max(_LEAST_LOOK_SECONDS, least / 4))

    def rows(self, spark: SparkSession) -> DataFrame:
        """The rows of the source of watermarks."""
        return read_watermarks(spark, self._file, len(self._groups))

    def begin(self) -> None:
        """A query is about to start: its first rows are the marks that are known."""
        with self._lock:
            self._seen = dict.fromkeys(self._reads, self._clock())
            before = last_batch(self._storage)
            logged = None if before is None else _logged(self._storage, before)
            batch, stored = _stored(self._storage)
            if stored is not None and before is not None and batch <= before:
                found = stored
            else:  # none, or of batches that the run has gone back behind
                found = logged or beginning(len(self._groups))
            self._batch = -1 if before is None else before
            number = max(each.number for each in (found, stored, logged) if each is not None)
            self._marks = found
            self._issue(number + 1 if any(high is not None for high in found.highest) else 0)

    def after_batch(self, batch: int, query: StreamingQuery, begun: float) -> None:
        """Take what a batch has shown, before it is done. ``begun``: when it began, by the clock."""
        found = [_observed(query, _clock_of(number)) for number in range(len(self._groups))]
        active = {each for each in self._reads if _observed(query, _rows_of(each))}
        with self._lock:
            self._batch = batch
            self._seen |= dict.fromkeys(active, begun)
            idle = [
                idle and not active & set(group)
                for idle, group in zip(self._marks.idle, self._groups, strict=True)
            ]
            highest = latest(self._marks.highest, found)
            self._change(replace(self._marks, highest=highest, idle=tuple(idle)))
            self._decide(self._quiet(begun))

    def look(self) -> None:
        """Look who is idle, while no batch runs and there was nothing to read."""
        with self._lock:
            self._decide(self._quiet(self._clock()))

    def declare(self, source: str) -> None:
        """The group of a source is idle, whatever the clock says: for tests."""
        with self._lock:
            self._decide(
                [
                    number
                    for number, group in enumerate(self._groups)
                    if source in {each.name for each in group}
                ]
            )

    def close(self) -> None:
        """The run is over."""
        shutil.rmtree(self._folder, ignore_errors=True)

    @property
    def _file(self) -> Path:
        return self._folder / "marks.json"

    def _quiet(self, now: float) -> list[int]:
        def is_quiet(read: Read) -> bool:
            limit = read.idle_timeout
            return limit is not None and now - self._seen[read] >= limit.total_seconds()

        return [number for number, group in enumerate(self._groups) if all(map(is_quiet, group))]

    def _decide(self, numbers: Iterable[int]) -> None:
        """These groups are idle. Spark gets to know of it if it makes a difference."""
        new = set(numbers)
        idle = tuple(idle or number in new for number, idle in enumerate(self._marks.idle))
        self._change(replace(self._marks, idle=idle))
        clocks, known = self._marks.clocks(), self._issued.clocks()
        if any(idle and clock != before for idle, clock, before in zip(idle, clocks, known, strict=True)):
            self._issue(self._issued.number + 1)

    def _change(self, marks: Marks) -> None:
        if marks != self._marks:
            self._marks = marks
            text = json.dumps({"batch": self._batch, **marks.offset()})
            self._storage.write(_STORED, text.encode())

    def _issue(self, number: int) -> None:
        self._issued = self._marks = replace(self._marks, number=number)
        hidden = self._file.with_suffix(".new")
        hidden.write_text(json.dumps(self._issued.offset()))
        hidden.rename(self._file)


def _stored(storage: SmallFiles) -> tuple[int, Marks | None]:
    """The marks that the last run has stored, and in which batch."""
    text = storage.read(_STORED)
    if text is None:
        return -1, None
    with suppress(ValueError, LookupError, TypeError):
        told = json.loads(text)
        return int(told["batch"]), Marks.of(told)
    raise CheckpointError(f"{storage.root}/{_STORED} is damaged; put a copy back, or delete it: then windows "
                          "that wait for an idle source close with the next records")  # fmt: skip


def _logged(storage: SmallFiles, batch: int) -> Marks | None:
    """The marks in Spark's log of a batch."""
    return next((Marks.of(each) for each in positions(storage, batch) if is_marks(each)), None)


# In the query


def observed(rows: DataFrame, number: int) -> DataFrame:
    """Rows of a group with their clock, in µs or as a time; a batch tells the highest."""
    is_time = rows.schema[CLOCK].dataType == TimestampType()
    clock = f.unix_micros(CLOCK) if is_time else f.col(CLOCK)
    return rows.observe(_clock_of(number), f.max(clock).alias(CLOCK))


def counted(rows: DataFrame, read: Read) -> DataFrame:
    """Rows of a source; a batch tells how many they are, also of those that have no time."""
    return rows.observe(_rows_of(read), f.count(f.lit(1)).alias("rows"))


def raised(watermarks: DataFrame, number: int) -> DataFrame:
    """The clocks that raise the watermark of a group."""
    return watermarks.where(f.col(GROUP) == number).select(CLOCK)


def _clock_of(group: int) -> str:
    return f"queenstream clock {group}"


def _rows_of(read: Read) -> str:
    return f"queenstream rows {read.name}"


def _observed(query: StreamingQuery, name: str) -> int | None:
    """What was observed in the batch that runs now; None: nothing, or of no rows."""
    of_java: Any = query._jsq
    found = of_java.streamingQuery().lastExecution().observedMetrics().get(name)
    if not found.isDefined() or found.get().isNullAt(0):
        return None
    return int(found.get().getLong(0))
