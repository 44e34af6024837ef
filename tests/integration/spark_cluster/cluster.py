"""A standalone Spark cluster on loopback: a master and workers, each a process of its own."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from pathlib import Path
from types import TracebackType
from typing import Self

import httpx
import psutil
import pyspark

from queenstream.engines.spark.session import java
from tests.integration.spark_cluster.driving import EXECUTOR, spark_home, words_of
from tests.processes import free_port
from tests.sparks import QUICK

HOST = "127.0.0.1"
READY_SECONDS = 60.0
_HOME = Path(pyspark.__file__).parent


class Cluster:
    """A master and workers with one core and one executor each.

    ``python`` is what executors run Python with. ``apart``: each worker has a host of its own, as Spark
    runs no task twice on one host. Everything ends with the block, executors and their Python processes too,
    whatever happened in it.
    """

    def __init__(self, folder: Path, python: Path, workers: int = 2, *, apart: bool = False) -> None:
        self._apart = apart
        self._folder = folder
        self._python = python
        self._port, self._page = free_port(), free_port()
        self._wanted = workers
        self.master = f"spark://{HOST}:{self._port}"
        self.workers: list[psutil.Process] = []
        self._started: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> Self:
        home = java.launchable(java.find(os.environ, java.wheel_home()), self._folder)
        self.environment = without_paths() | {
            "JAVA_HOME": str(home),
            "SPARK_HOME": str(spark_home(self._folder / "spark")),
            "SPARK_LOCAL_IP": HOST,
            "JDK_JAVA_OPTIONS": QUICK,
            "PYSPARK_PYTHON": str(self._python),
        }
        with contextlib.ExitStack() as opened:
            opened.callback(self.stop)
            self._start("master.Master", "--port", str(self._port), "--webui-port", str(self._page))
            self._wait_for(0)  # a worker that does not find it asks again after some ten seconds
            for _ in range(self._wanted):
                self._add_worker()
            self._wait_for(self._wanted)
            self._opened = opened.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._opened.close()

    def _add_worker(self) -> None:
        """One more, with a core and the memory for one executor."""
        scratch = self._folder / f"worker-{len(self._started)}"
        flags = ("--port", "0", "--webui-port", "0", "--cores", "1", "--memory", "1g")
        host = f"127.0.0.{len(self.workers) + 1}" if self._apart else HOST
        work = ("--work-dir", str(scratch), self.master)
        self.workers.append(self._start("worker.Worker", *flags, *work, host=host))

    def _wait_for(self, workers: int) -> None:
        """Until the master knows so many that live."""
        deadline = time.monotonic() + READY_SECONDS
        while self._alive() != workers:
            assert time.monotonic() < deadline, f"no {workers} workers at {self.master}; see {self._folder}"
            time.sleep(0.1)

    def kill_around(self, pid: int) -> None:
        """kill -9 of the executor whose Python runs as ``pid``, and of its worker."""
        [worker] = [each for each in psutil.Process(pid).parents() if each in self.workers]
        self.workers.remove(worker)
        doomed = [each for each in worker.children() if EXECUTOR in " ".join(words_of(each))]
        assert doomed, "the worker has no executor"
        for each in (worker, *doomed):
            each.kill()
        psutil.wait_procs([worker, *doomed], timeout=10)

    def stop(self) -> None:
        """End all there is; a daemon of Python workers is in a process group of its own."""
        below = [child for each in self._started for child in _children(each.pid)]
        for started in self._started:
            started.kill()
            started.wait()
        for each in below:
            with contextlib.suppress(psutil.NoSuchProcess):
                each.kill()
        psutil.wait_procs(below, timeout=10)

    def _start(self, name: str, *arguments: str, host: str = HOST) -> psutil.Process:
        program = [str(_HOME / "bin" / "spark-class"), f"org.apache.spark.deploy.{name}", "--host", host]
        with (self._folder / f"{name}-{len(self._started)}.log").open("wb") as log:
            started = subprocess.Popen(
                [*program, *arguments],
                stdout=log,
                stderr=subprocess.STDOUT,
                env=self.environment | {"SPARK_LOCAL_IP": host},
                cwd=self._folder,
            )
        self._started.append(started)
        return psutil.Process(started.pid)

    def _alive(self) -> int | None:
        try:
            answer = httpx.get(f"http://{HOST}:{self._page}/json/", timeout=5, verify=False)
        except httpx.HTTPError:
            return None
        return int(answer.json()["aliveworkers"]) if answer.status_code == 200 else None  # 404: not yet


def _children(pid: int) -> list[psutil.Process]:
    try:
        return list(psutil.Process(pid).children(recursive=True))
    except psutil.NoSuchProcess:
        return []


def without_paths() -> dict[str, str]:
    """Our environment, without what would tell a Python where to look for modules."""
    return {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}


def python_without_us(folder: Path) -> Path:
    """A Python with everything that we depend on, and without our package.

    It has the libraries of the one that runs here, by a ``.pth`` file; what their ``.pth`` files add, ours
    among it if it is installed in place, it has not.
    """
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True)
    python = folder / "bin" / "python"
    [libraries] = folder.glob("lib/python*/site-packages")
    here = {Path(each.__file__ or "").parents[1] for each in (pyspark, psutil)}
    (libraries / "libraries.pth").write_text("".join(f"{each}\n" for each in sorted(here)))
    return python
