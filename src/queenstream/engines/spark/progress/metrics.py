"""The figures of a run: what the delivery of its batches counts, and what Spark's progress of them says."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from queenstream.core.metric_names import step_figure
from queenstream.engines.spark.keyed.base import FOREVER
from queenstream.engines.spark.sinks.names import sinks_of
from queenstream.engines.spark.tasks import rows
from queenstream.engines.spark.versions import parse_offset
from queenstream.pipeline.plan.planner import Plan
from queenstream.runtime.metrics import Counts, Meter, percentiles, step_stats
from queenstream.runtime.phases import PhaseMeter
from queenstream.runtime.utilization import Work

if TYPE_CHECKING:
    from queenstream.engines.spark.native.frames import Clock

_DURATIONS = 1_000  # batches that the percentiles are of
Late = Callable[[Any], int]
"""By Spark's progress of a batch, how many of its records were too late."""

STEPS = ""
"""Who works while Spark computes a batch: all steps but the sinks; none of them is called so."""

# Spark asks the sources what there is, plans the batch, and logs its offsets.
_READ_DURATIONS = ("latestOffset", "getBatch", "queryPlanning", "walCommit")
_COMMIT_DURATIONS = ("commitOffsets",)

BEHIND = "behind"  # in what our own source reports: how many messages its last batch has left


@dataclass(frozen=True)
class Observed:
    """What Spark counts for a query without Python: by its names the step and what is counted there.

    ``late_at``: the step that may find records late; ``all_of``: the step that takes every row of the input.
    ``clock``: what Spark's watermark is of, if there is one. ``first``: what was wrong with the
    first record of those that a row counts, if it says so. ``letters``: what is counted at several steps, by
    the columns of a row.
    """

    names: Mapping[str, tuple[str, tuple[str, ...]]]
    late_at: str | None
    all_of: str | None
    clock: Clock | None = None
    first: Callable[[Any], str | None] = lambda _: None
    letters: Mapping[str, Mapping[str, tuple[str, str]]] = field(default_factory=dict)


class RunMeter:
    """The counts of one run.

    ``told``: what to look for in the progress of a query without Python; ``late_in``: what counts its late
    records. ``failed`` is told of records that a step of such a query has left out: how many, and the first.
    """

    def __init__(self, plan: Plan, failed: Callable[[str, int, str], None] = lambda *_: None) -> None:
        self.batches = 0
        self._failed = failed
        self.told: Observed | None = None
        self.late_in: Late = lambda _: 0
        self._sources = [read.name for read in plan.sources]
        self._with_state = [node.name for node in plan.nodes if node.keeps_state]
        sinks = {write.name for write in plan.sinks}
        self.work = Work(
            plan,
            done_by={node.name: STEPS for node in plan.nodes if node.name not in sinks},
            held_by={name: name for name in self._sources},  # they are read with the rest, and wait for it
        )
        self.phases = PhaseMeter(("read", "compute", "stage", "commit"), sinks_of(plan), with_bytes=True)
        self._meter = Meter()
        self._counts = {node.name: {"failed": 0, "late": 0} for node in plan.nodes}
        self._sink_counts: Counts = {}
        self._durations: deque[tuple[float, int]] = deque(maxlen=_DURATIONS)
        self._batch = -1  # the last one that counted
        self._taken = 0  # in the one that was counted last
        self._unseen: dict[int, int] = {}  # what batches took whose progress has not come yet
        self._of_spark = {"state_rows": 0.0, "state_bytes": 0.0, "queue_depth": 0.0}
        self._watermark: str | None = None
        self._files: dict[str, int] = {}  # by what Spark calls the source

    def count(self, batch: int, counts: Counts, at_sinks: Counts) -> None:
        """What happened in a batch, and at the sinks so far."""
        self.batches += 1
        self._batch = batch
        self._sink_counts = at_sinks
        if self.told is None:
            self._take(counts)
            self._unseen[batch] = self._taken
        else:
            self._add(counts)  # the rest is in Spark's progress

    def begin(self, counted: Mapping[str, Iterable[str]]) -> None:
        """These are counted at the steps: what does not happen is 0, and not unknown."""
        self._add({step: dict.fromkeys(numbers, 0) for step, numbers in counted.items()})

    @property
    def last_batch(self) -> int | None:
        """The number of the last batch that is done; None: none is."""
        return None if self._batch < 0 else self._batch

    @property
    def counts(self) -> dict[str, dict[str, int]]:
        """What happened at each step so far."""
        found = {step: dict(numbers) for step, numbers in self._counts.items()}
        for step, more in self._sink_counts.items():
            found[step] = {**found.get(step, {}), **more}
        return found

    def progress(self, progress: Any) -> None:
        """Take Spark's progress of a batch: of each batch once, in order."""
        batch, durations = progress["batchId"], progress["durationMs"]
        if self.told is not None:
            self._take(_observed(progress, self.told, self.late_in))
            self._unseen[batch] = self._taken
            for step, number, first in _failures(progress, self.told):
                self._failed(step, number, first)
        seconds = progress["batchDuration"] / 1_000
        self._durations.append((seconds, 1))
        if batch in self._unseen:
            self._meter.delivered(self._unseen[batch], seconds)
        self._unseen = {number: taken for number, taken in self._unseen.items() if number > batch}
        self.phases.add_time(batch, "read", _seconds(durations, _READ_DURATIONS))
        self.phases.add_time(batch, "commit", _seconds(durations, _COMMIT_DURATIONS))
        self.phases.complete(batch)
        state = progress["stateOperators"]
        self._of_spark = {
            "state_rows": float(sum(each["numRowsTotal"] for each in state)),
            "state_bytes": float(sum(each["memoryUsedBytes"] for each in state)),
            "queue_depth": float(sum(_behind(source) for source in progress["sources"])),
        }
        self._watermark = dict(progress["eventTime"]).get("watermark")
        for source in progress["sources"]:
            self._files[source["description"]] = _offset(source["endOffset"]).get("logOffset", -1) + 1

    def shown_batches(self) -> list[dict[str, float]]:
        """The last batches, the oldest first."""
        return self._meter.batches()

    def files_taken(self, folder: Path) -> int:
        """How many files the query has taken from a folder."""
        return max((taken for name, taken in self._files.items() if f"{folder}]" in name), default=0)

    def stats(self, *, live: bool, fed_behind: float) -> dict[str, float]:
        """All figures. ``fed_behind``: what is fed from the driver, and the query has not taken yet."""
        counts = self.counts
        watermark = self._reached()
        marks = {} if watermark is None else dict.fromkeys(self._with_state, watermark)  # a query has one
        return {
            **self._meter.stats(),
            **step_stats(counts, self._sources),
            **self.work.stats(),
            **self.phases.stats(),
            **{step_figure(step, "watermark_timestamp_seconds"): at for step, at in marks.items()},
            **percentiles("batch_duration", self._durations.copy()),
            **self._of_spark,
            "queue_depth": self._of_spark["queue_depth"] + fed_behind,
            "watermark_lag_seconds": 0.0 if watermark is None else max(0.0, time.time() - watermark),
            "dropped": 0.0,  # Spark slows its sources
            "batches": float(self.batches),
            "live": float(live),
        }

    def _add(self, counts: Counts) -> None:
        for step, numbers in counts.items():
            known = self._counts.setdefault(step, {})
            for what, number in numbers.items():
                known[what] = known.get(what, 0) + number

    def _take(self, counts: Counts) -> None:
        self._add(counts)
        read = [counts.get(name, {}) for name in self._sources]
        self._taken = sum(each.get("taken", 0) + each.get("failed", 0) for each in read)
        self._meter.took(self._taken)

    def _reached(self) -> float | None:
        """The query's watermark, in seconds since 1970; None, where there is none, or none any more."""
        if self._watermark is None:
            return None
        try:
            shown = datetime.fromisoformat(self._watermark)
        except ValueError:  # the end of all input: a year with more than four digits
            return None
        ms = int(shown.timestamp() * 1_000)
        reached = rows.from_watermark(ms)
        if reached is None or reached == FOREVER:
            return None
        if self.told is not None and self.told.clock is not None:
            reached = self.told.clock.time_of(ms * 1_000)
        return reached / 1e6


def _seconds(durations: Mapping[str, int], names: Iterable[str]) -> float:
    return sum(durations.get(name, 0) for name in names) / 1_000


def _observed(progress: Any, told: Observed, late_in: Late) -> dict[str, dict[str, int]]:
    """What a query without Python does not tell with its rows."""
    found: dict[str, dict[str, int]] = {}
    if told.late_at is not None:
        found[told.late_at] = {"late": late_in(progress)}
    for name, (step, numbers) in told.names.items():
        row = progress["observedMetrics"].get(name)
        if row is not None:
            known = found.setdefault(step, {})
            known.update({what: known.get(what, 0) + row[what] for what in numbers})
    for name, columns in told.letters.items():
        row = progress["observedMetrics"].get(name)
        for column, (step, what) in columns.items() if row is not None else ():
            known = found.setdefault(step, {})
            known[what] = known.get(what, 0) + row[column]
    if told.all_of is not None:
        all_of = found.setdefault(told.all_of, {})
        all_of["taken"] = progress["numInputRows"] - all_of.get("failed", 0) - _shows_end(progress)
    return found


def _shows_end(progress: Any) -> bool:
    """Whether one of the rows said that the source has ended.

    Its time is past all years of four digits, or an offset says so: that of a table.
    """
    if str(dict(progress["eventTime"]).get("max", "")).startswith("+"):
        return True
    ends = [(_offset(each["startOffset"]), _offset(each["endOffset"])) for each in progress["sources"]]
    return any(end.get("done", False) and not start.get("done", False) for start, end in ends)


def _failures(progress: Any, told: Observed) -> Iterator[tuple[str, int, str]]:
    """What steps have left out of a batch: how many records, and what was wrong with the first."""
    for name, (step, what) in told.names.items():
        row = progress["observedMetrics"].get(name)
        first = None if row is None or "failed" not in what else told.first(row)
        if first is not None:
            yield step, row["failed"], first


def _behind(source: Any) -> int:
    """How much of a source was there that the batch did not take."""
    latest, end = _offset(source["latestOffset"]), _offset(source["endOffset"])
    for offset in (latest, end):  # the second on Spark 4.1, which has no other place for it
        if BEHIND in offset:
            return int(offset[BEHIND])
    # Of a topic: offsets by partition, by topic.
    return sum(
        newest - end.get(topic, {}).get(partition, 0)
        for topic, places in latest.items()
        if isinstance(places, dict)
        for partition, newest in places.items()
    )


def _offset(told: str | None) -> dict[str, Any]:
    """An offset of a source of ours, or of files; empty, where there is none or it is not such a one."""
    try:
        found = parse_offset(told)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}
