"""Each job on ``local[1]`` and on ``local[2]``: how much faster it gets with a second core.

Each master has a process of its own. There a job runs on a tenth of the rows, to warm up and again, and
then on all rows, twice. What counts is the marginal time: that of the faster run on all rows, less that of
the small run. For starting a query takes the same on any number of cores.

"Cores busy" counts the whole machine, so PostgreSQL, the JVM's own threads and the Python workers as well.
A job that keeps more than 2 / 1.6 = 1.25 of two cores busy on ``local[1]`` cannot be 1.6 times as fast on
``local[2]``.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import psutil

from harness import report, sparks
from queenstream.testing.brokers import TemporaryBrokers
from scale_jobs import Job, Setup
from scale_jobs.children import child, fresh_broker

TARGET = 1.6
_SMALL = 0.1  # of the rows
_SHORTEST_SECONDS = 0.5  # of a marginal time that says anything
_WAYS = ("ours", "by hand")


class Run(NamedTuple):
    """How long a job took, and how many cores of the machine were busy meanwhile."""

    seconds: float
    cores: float


Runs = dict[str, dict[str, Run]]
"""By job and way."""


def measure(
    out: report.Report, make: Callable[[Setup], list[Job]], scale: float, jars: Sequence[Path]
) -> None:
    """Measure the jobs of a group."""
    found: dict[int, Runs] = {}
    for cores in (1, 2):
        with child(time_jobs, make, f"local[{cores}]", scale, jars) as taken:
            found[cores] = taken.result()
    for name in found[1]:
        rows = [[f"{way}, local[{cores}]", *found[cores][name][way]] for way in _WAYS for cores in (1, 2)]
        out.table([name, "marginal seconds", "cores busy"], rows)
        gain = {way: _gain(found[1][name][way], found[2][name][way]) for way in _WAYS}
        out.figures[f"{name}, scaling"] = gain
        if gain["by hand"] is not None:
            out.note(f"{name}: by hand local[2] is {gain['by hand']:.2f} times as fast as local[1]")
        if gain["ours"] is None:
            out.note(f"{name}: too few rows to tell local[2] from local[1]")
        else:
            out.at_least(f"{name}, local[2] against local[1]", gain["ours"], TARGET)


def _gain(one: Run, two: Run) -> float | None:
    """How many times as fast two cores are; None: the times are too short to tell."""
    return None if min(one.seconds, two.seconds) < _SHORTEST_SECONDS else one.seconds / two.seconds


def time_jobs(make: Callable[[Setup], list[Job]], master: str, scale: float, jars: Sequence[Path]) -> Runs:
    """In the process of a master: the marginal times of the jobs."""
    runs: dict[float, Runs] = {}
    with TemporaryBrokers() as brokers:
        spark = sparks.start(*jars, master=master)
        for share in (_SMALL, 1.0):
            with fresh_broker(brokers) as (broker, base), contextlib.ExitStack() as closing:
                jobs = make(Setup(spark, base, broker, scale * share, closing))
                runs[share] = {job.name: {way: _best(job, base, way) for way in _WAYS} for job in jobs}
        spark.stop()
    return {
        name: {
            way: Run(large.seconds - runs[_SMALL][name][way].seconds, large.cores)
            for way, large in ways.items()
        }
        for name, ways in runs[1.0].items()
    }


def _best(job: Job, base: Path, way: str) -> Run:
    """The faster one of two runs."""
    found: list[Run] = []
    for number in range(2):
        folder = base / f"{job.name}-{way}-{number}".replace(" ", "-")
        folder.mkdir()
        before = _busy()
        seconds = sparks.seconds(lambda folder=folder: (job.ours if way == "ours" else job.by_hand)(folder))  # type: ignore[misc]
        found.append(Run(seconds, (_busy() - before) / seconds))
        job.rows(folder, way)
    return min(found)


def _busy() -> float:
    """CPU seconds that the machine has worked."""
    times = psutil.cpu_times()
    return float(times.user + times.system)
