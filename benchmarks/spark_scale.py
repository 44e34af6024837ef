"""Pipelines on Spark against the same jobs by hand in PySpark, with as many rows as fill the cores.

python benchmarks/spark_scale.py                     all jobs at full size
python benchmarks/spark_scale.py --quick             a tenth of the rows, one round
python benchmarks/spark_scale.py --quick --only files,queues
python benchmarks/spark_scale.py --scaling           instead: each job on local[2] against local[1]
python benchmarks/spark_scale.py --memory            instead: memory of the driver with a long backlog
"""

from __future__ import annotations

import argparse
import contextlib
import os
import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path

from harness import report, sparks
from queenstream.testing.brokers import TemporaryBrokers
from scale_jobs import Job, Setup, files, kafka, memory, queues, scaling, stateful, tables

QUESTION = "pipelines on Spark against the same jobs by hand in PySpark"
GROUPS = {
    "files": files.jobs,
    "kafka": kafka.jobs,
    "queues": queues.jobs,
    "stateful": stateful.jobs,
    "tables": tables.jobs,
}
SCALING_QUICK = {"files": 0.5}  # of the rows: a tenth of them takes less time than the noise


def run(out: report.Report, options: argparse.Namespace) -> None:
    groups = options.only.split(",") if options.only else list(GROUPS)
    scale, rounds = (0.1, 1) if options.quick else (1.0, 3)
    out.figures["scale"] = scale
    if options.memory:
        memory.measure(out, quick=options.quick)
    if options.scaling:
        for group in groups:
            enough = SCALING_QUICK.get(group, scale) if options.quick else scale
            scaling.measure(out, GROUPS[group], enough, jars_of([group]))
    if options.memory or options.scaling:
        return
    base = Path(tempfile.mkdtemp(prefix="queenstream-scale-"))
    try:
        with TemporaryBrokers() as brokers, brokers.start() as broker, contextlib.ExitStack() as closing:
            report.postgres_version(out, broker.database_url)
            os.environ["QUEEN_PG"] = broker.database_url
            setup = Setup(sparks.start(*jars_of(groups)), base, broker, scale, closing)
            for group in groups:
                for job in GROUPS[group](setup):
                    measure(out, job, base, rounds)
            setup.spark.stop()
    finally:
        shutil.rmtree(base, ignore_errors=True)


def jars_of(groups: Sequence[str]) -> list[Path]:
    """What Spark needs on its class path for some groups."""
    return [sparks.jdbc_driver()] if "tables" in groups else []


def measure(out: report.Report, job: Job, base: Path, rounds: int) -> None:
    """Each way once in every round, after a round that warms up; both must have written the same."""
    taken: dict[str, list[float]] = {"ours": [], "by hand": []}
    for number in range(rounds + 1):
        found = {}
        for name, way in (("ours", job.ours), ("by hand", job.by_hand)):
            folder = base / f"{job.name}-{name}-{number}".replace(" ", "-")
            folder.mkdir()
            seconds = sparks.seconds(lambda way=way, folder=folder: way(folder))  # type: ignore[misc]
            found[name] = job.rows(folder, name)
            if number:
                taken[name].append(seconds)
            shutil.rmtree(folder)
        assert found["ours"] == found["by hand"], f"{job.name}: not the same: {found}"
    ratio = report.median([b / a for a, b in zip(taken["ours"], taken["by hand"], strict=True)])
    middle = {name: report.median(each) for name, each in taken.items()}
    out.table([job.name, "seconds"], [[name, seconds] for name, seconds in middle.items()])
    out.figures[job.name] = middle
    out.at_least(f"{job.name}, against by hand", ratio, job.target)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of this benchmark."""
    parser.add_argument("--only", default="", metavar="GROUPS", help=f"some of {','.join(GROUPS)}")
    parser.add_argument("--scaling", action="store_true", help="measure local[2] against local[1]")
    parser.add_argument("--memory", action="store_true", help="measure the driver's memory")


if __name__ == "__main__":
    report.main(QUESTION, run, add_arguments)
