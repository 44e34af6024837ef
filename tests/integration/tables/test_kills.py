"""kill -9 of a pipeline between tables and of their server: the sinks hold what an undisturbed run gives.

On Spark once, both of them at the same time; ``QUEENSTREAM_LONG=1``: more often.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import asyncpg
import psutil
import pyarrow.parquet as pq
import pytest

from queenstream import postgres
from queenstream.pipeline.engine_api import EngineName
from tests.processes import clean_environment, folder, free_port
from tests.sparks import QUICK

ROOT = Path(__file__).parents[3]
LONG = bool(os.environ.get("QUEENSTREAM_LONG"))
KILLS = {"local": 20 if LONG else 6, "spark": 6 if LONG else 1}
PATIENCE_SECONDS = 240.0
ROWS = 40  # of a round

SCHEMA = """
    create table events (id bigserial primary key, person text);
    create table copies (id bigint, person text, tag text);
    create table latest (id bigint, person text primary key, tag text);
"""


class Scene:
    """A server and a pipeline: both may be killed, and come back."""

    def __init__(self, place: Path, engine: EngineName) -> None:
        self._place = place
        self._engine = engine
        self._log = place / "job.log"
        self._port = free_port()
        self.start_server()
        url = self._server.tcp_url
        assert url is not None
        self._url = url
        self._runner = asyncio.Runner()
        self.ask(SCHEMA)
        self.start()

    def start(self) -> None:
        with self._log.open("ab") as log:
            self._job = subprocess.Popen(
                [sys.executable, "-m", "tests.integration.tables.job", self._engine, self._place, self._url],
                cwd=ROOT,
                env=clean_environment(SPARK_LOCAL_IP="127.0.0.1", JDK_JAVA_OPTIONS=QUICK),
                stdout=log,
                stderr=log,
            )

    def kill_job(self) -> None:
        doomed = [*psutil.Process(self._job.pid).children(recursive=True)]
        self._job.send_signal(signal.SIGKILL)
        self._job.wait(10)
        _kill(doomed)  # Spark's JVM and its workers

    def start_server(self) -> None:
        self._server = postgres.start(self._place / "data", port=self._port)

    def kill_server(self) -> None:
        server = psutil.Process(self._server.pid)
        _kill([server, *server.children(recursive=True)])

    def ask(self, query: str) -> list[tuple[Any, ...]]:
        async def run() -> list[tuple[Any, ...]]:
            connection = await asyncpg.connect(self._url)
            try:
                if query is SCHEMA:
                    await connection.execute(query)
                    return []
                return [tuple(row) for row in await connection.fetch(query)]
            finally:
                await connection.close()

        return self._runner.run(run())

    def add(self) -> None:
        self.ask(f"insert into events (person) select 'p' || n % 7 from generate_series(1, {ROWS}) n")

    def settle(self, rows: int) -> None:
        """Until both kinds of sinks have so many."""
        ends = time.monotonic() + PATIENCE_SECONDS
        while self.ask("select count(*) from copies") < [(rows,)] or len(self.written()) < rows:
            assert time.monotonic() < ends, self._log.read_text("utf-8")
            time.sleep(0.1)

    def written(self) -> list[tuple[Any, ...]]:
        """What is in the files."""
        files = sorted((self._place / "out").glob("part-*"))
        rows = [row for file in files for row in pq.read_table(file).to_pylist()]
        return sorted((row["id"], row["person"], row["tag"]) for row in rows)

    def close(self) -> None:
        if self._job.poll() is None:
            self.kill_job()
        self._runner.close()
        self._server.stop()


def _kill(doomed: list[psutil.Process]) -> None:
    for each in doomed:
        with contextlib.suppress(psutil.NoSuchProcess):
            each.kill()
    psutil.wait_procs(doomed, timeout=10)


@pytest.fixture(params=["local", "spark"])
def scene(request: pytest.FixtureRequest) -> Iterator[Scene]:
    with folder() as place:
        made = Scene(place, request.param)
        yield made
        made.close()


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_killed_again_and_again_nothing_is_lost_or_there_twice(
    scene: Scene, request: pytest.FixtureRequest
) -> None:
    kills = KILLS[request.node.callspec.params["scene"]]
    for number in range(kills):
        scene.add()
        scene.settle((2 * number + 1) * ROWS)
        scene.add()
        job, server = number % 2 == 0, number % 2 == 1 or kills == 1
        if job:
            scene.kill_job()
        if server:
            scene.kill_server()
            scene.start_server()
        if job:
            scene.start()
    scene.settle(2 * kills * ROWS)
    copies = scene.ask("select id, person, tag from copies order by id")
    assert [row[0] for row in copies] == [row[0] for row in scene.ask("select id from events order by id")]
    assert scene.written() == copies
    last = {person: (id, person, tag) for id, person, tag in copies}
    assert sorted(scene.ask("select id, person, tag from latest")) == sorted(last.values())
