"""Pipelines on Spark against the same jobs by hand in PySpark, with as many rows as fill the cores.

python benchmarks/spark_scale.py                     all jobs at full size
python benchmarks/spark_scale.py --quick             a tenth of the rows, one round
python benchmarks/spark_scale.py --quick --only files,queues
"""

from __future__ import annotations

import argparse
import os
import shutil
import tempfile
from pathlib import Path

from harness import report, sparks
from queenstream.testing.brokers import TemporaryBrokers
from scale_jobs import Job, Setup, files, queues, stateful

QUESTION = "pipelines on Spark against the same jobs by hand in PySpark"
GROUPS = {"files": files.jobs, "queues": queues.jobs, "stateful": stateful.jobs}


def run(out: report.Report, options: argparse.Namespace) -> None:
    groups = options.only.split(",") if options.only else list(GROUPS)
    scale, rounds = (0.1, 1) if options.quick else (1.0, 3)
    base = Path(tempfile.mkdtemp(prefix="queenstream-scale-"))
    try:
        with TemporaryBrokers() as brokers, brokers.start() as broker:
            report.postgres_version(out, broker.database_url)
            os.environ["QUEEN_PG"] = broker.database_url
            setup = Setup(sparks.start(), base, broker, scale)
            for group in groups:
                for job in GROUPS[group](setup):
                    measure(out, job, base, rounds)
            setup.spark.stop()
    finally:
        shutil.rmtree(base, ignore_errors=True)
    out.figures["scale"] = scale


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


if __name__ == "__main__":
    report.main(QUESTION, run, add_arguments)
