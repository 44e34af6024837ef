"""A driver as a process of its own: started, watched, killed with its JVM, and started again."""

from __future__ import annotations

import asyncio
import contextlib
import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

import asyncpg
import psutil
import pyspark

EXECUTOR = "CoarseGrainedExecutorBackend"
ROOT = Path(__file__).parents[3]
T = TypeVar("T")


class Driver:
    """``python -m module arguments``, from the project's folder; what it says is in ``log``."""

    def __init__(self, log: Path, environment: Mapping[str, str], module: str, *arguments: str) -> None:
        self._log = log
        self._environment = dict(environment)
        self._command = [sys.executable, "-m", module, *arguments]
        self.starts = 0

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.kill()

    def start(self) -> None:
        """Start it, or start it again."""
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                self._command, cwd=ROOT, env=self._environment, stdout=log, stderr=log
            )
        self.starts += 1

    def kill(self) -> None:
        """kill -9, of its JVM too: nothing of it can still write when this returns."""
        doomed = self.below()
        self._process.kill()
        for each in doomed:
            with contextlib.suppress(psutil.NoSuchProcess):
                each.kill()
        self._process.wait()
        psutil.wait_procs(doomed, timeout=10)

    def end(self) -> None:
        """As Ctrl-C does."""
        self._process.send_signal(signal.SIGINT)
        try:
            self._process.wait(60)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"the driver did not end: {self.words()}") from None

    @property
    def alive(self) -> bool:
        """Whether it runs."""
        return self._process.poll() is None

    def below(self) -> list[psutil.Process]:
        """Its JVM, and all that this has started."""
        with contextlib.suppress(psutil.NoSuchProcess):
            return list(psutil.Process(self._process.pid).children(recursive=True))
        return []

    def executors(self) -> list[psutil.Process]:
        """The executors that its JVM has started itself (``local-cluster``)."""
        return [each for each in self.below() if EXECUTOR in " ".join(words_of(each))]

    def python_workers(self) -> list[psutil.Process]:
        """The Python processes that do tasks, and those that Spark asks about data sources: forks."""
        return [each for each in self.below() if _is_fork(each) and "daemon" in " ".join(words_of(each))]

    def words(self) -> str:
        """The last of what it said."""
        return self._log.read_text(errors="replace")[-4000:]

    def wait_until(self, what: str, look: Callable[[], T | None], seconds: float) -> T:
        """What ``look`` gives once it gives something, as long as the driver lives."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            found = look()
            if found:
                return found
            assert self.alive, f"the driver ended: {self.words()}"
            time.sleep(0.05)
        raise AssertionError(f"{what} did not come in {seconds:.0f} s: {self.words()}")


_STORED = """
select m.payload from queen.messages m
join queen.partitions p on p.id = m.partition_id join queen.queues q on q.id = p.queue_id
where q.name = $1 order by p.name, m.id"""


def stored(url: str, queue: str) -> list[Any]:
    """All that is in a queue, those of a partition in their order: looked at, so that no answer gets lost."""

    async def look() -> list[Any]:
        connection = await asyncpg.connect(url)
        try:
            return [json.loads(row[0]) for row in await connection.fetch(_STORED, queue)]
        finally:
            await connection.close()

    return asyncio.run(look())


def spark_home(folder: Path) -> Path:
    """Spark as it is installed, in a folder where ``local-cluster`` may write.

    Without the zip that pyspark is in once more: every Python process would compile that anew.
    """
    folder.mkdir()
    for each in Path(pyspark.__file__).parent.iterdir():
        if each.name != "python":
            (folder / each.name).symlink_to(each)
    return folder


def words_of(process: psutil.Process) -> list[str]:
    """Its command line; nothing, if it is gone."""
    try:
        return list(process.cmdline())
    except psutil.Error:
        return []


def _is_fork(process: psutil.Process) -> bool:
    """Whether it looks like its parent."""
    try:
        parent = process.parent()
    except psutil.Error:
        return False
    return parent is not None and words_of(parent) == words_of(process) != []
