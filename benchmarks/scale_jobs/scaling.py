"""Each job on ``local[1]`` and on ``local[2]``: how much faster it gets with a second core.

Each master has a process of its own. There a job runs on a quarter of the rows, to warm up and again, and
then on all rows. What counts is the marginal time, of the rows that the larger run has more: starting a
query takes the same on any number of cores.

"Cores busy" counts the whole machine, so PostgreSQL, the JVM's own threads and the Python workers as well.
A job that keeps more than 2 / 1.6 = 1.25 of two cores busy on ``local[1]`` cannot be 1.6 times as fast on
``local[2]``.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import psutil

from harness import report, sparks
from queenstream.testing.brokers import TemporaryBrokers
from scale_jobs import Job, Setup
from scale_jobs.children import child, fresh_broker

TARGET = 1.6
_SMALL = 0.25  # of the rows
_WAYS = ("ours", "by hand")
Seconds = dict[str, dict[str, tuple[float, float]]]
"""By job and way: how long the rows took that the larger run had more, and how many cores were busy."""


def measure(out: report.Report, make: Callable[[Setup], list[Job]], scale: float) -> None:
    """Measure the jobs of a group."""
    found: dict[int, Seconds] = {}
    for cores in (1, 2):
        with child(time_jobs, make, f"local[{cores}]", scale) as taken:
            found[cores] = taken.result()
    for name in found[1]:
        rows = [[f"{way}, local[{cores}]", *found[cores][name][way]] for way in _WAYS for cores in (1, 2)]
        out.table([name, "marginal seconds", "cores busy"], rows)
        gain = {way: found[1][name][way][0] / found[2][name][way][0] for way in _WAYS}
        out.figures[f"{name}, scaling"] = gain
        out.note(f"{name}: by hand local[2] is {gain['by hand']:.2f} times as fast as local[1]")
        out.at_least(f"{name}, local[2] against local[1]", gain["ours"], TARGET)


def time_jobs(make: Callable[[Setup], list[Job]], master: str, scale: float) -> Seconds:
    """In the process of a master: how long its jobs take."""
    runs: dict[float, dict[str, dict[str, tuple[float, float]]]] = {}
    with TemporaryBrokers() as brokers:
        spark = sparks.start(master=master)
        for share in (_SMALL, 1.0):
            with fresh_broker(brokers) as (broker, base):
                jobs = make(Setup(spark, base, broker, scale * share))
                runs[share] = {job.name: _time(job, base, warm=share == _SMALL) for job in jobs}
        spark.stop()
    return {
        name: {way: _difference(runs[_SMALL][name][way], large[way]) for way in _WAYS}
        for name, large in runs[1.0].items()
    }


def _time(job: Job, base: Path, *, warm: bool) -> dict[str, tuple[float, float]]:
    """The seconds of each way, and the CPU seconds of the machine meanwhile."""
    found: dict[str, tuple[float, float]] = {}
    for number in range(1 + warm):
        for way, work in (("ours", job.ours), ("by hand", job.by_hand)):
            folder = base / f"{job.name}-{way}-{number}".replace(" ", "-")
            folder.mkdir()
            before = _busy()
            seconds = sparks.seconds(lambda work=work, folder=folder: work(folder))  # type: ignore[misc]
            found[way] = seconds, _busy() - before
            job.rows(folder, way)
    return found


def _difference(small: tuple[float, float], large: tuple[float, float]) -> tuple[float, float]:
    seconds = max(large[0] - small[0], 0.001)
    return seconds, (large[1] - small[1]) / seconds


def _busy() -> float:
    """CPU seconds that the machine has worked."""
    times = psutil.cpu_times()
    return float(times.user + times.system)
