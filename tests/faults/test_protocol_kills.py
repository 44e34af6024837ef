"""The driver is killed at each step of the protocol of a batch; the sinks are those of an undisturbed run.

The steps are seen from outside, by the files that appear in the checkpoint: the batch is planned, prepared,
in one of its sinks, in all of them, and noted by Spark. Three kills, or 50 with ``QUEENSTREAM_LONG=1``, which
writes its count to docs/reliability.md. ``QUEENSTREAM_SEED`` repeats the choices of an earlier run.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import asyncpg
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from queenstream.testing.brokers import TemporaryBroker, TemporaryBrokers
from tests.faults import reliability
from tests.integration.spark.test_delivery_kills import messages
from tests.integration.spark_cluster.cluster import Cluster
from tests.processes import clean_environment
from tests.sparks import QUICK

ROOT = Path(__file__).parents[2]
LONG = bool(os.environ.get("QUEENSTREAM_LONG"))
STEPS = ("planned", "prepared", "half", "delivered", "noted")
KILLS = 50 if LONG else 3
BATCH_ROWS = 40
SECONDS = 180.0
USERS = "abc"
pytestmark = [pytest.mark.slow, pytest.mark.timeout(60 * KILLS + 600)]

Record = dict[str, Any]


class Job:
    """A pipeline as a process. It is killed with all that it has started."""

    def __init__(self, folder: Path, pipeline: str, broker: TemporaryBroker, **settings: Any) -> None:
        self.state = folder / "state" / pipeline
        self.lines = folder / "lines"
        self._log = folder / "log"
        self._settings = {
            "folder": str(folder), "checkpoint": str(folder / "state"), "pipeline": pipeline,
            "broker": broker.address, **settings,
        }  # fmt: skip

    @contextlib.contextmanager
    def started(self) -> Any:
        """One life."""
        command = [sys.executable, "-m", "tests.faults.protocol_job", json.dumps(self._settings)]
        environment = clean_environment(
            PYTHONPATH=f"{ROOT}{os.pathsep}{ROOT / 'src'}", JDK_JAVA_OPTIONS=QUICK
        )
        with self._log.open("ab") as out:
            process = subprocess.Popen(
                command, cwd=ROOT, env=environment, stdout=out, stderr=out, start_new_session=True
            )
            try:
                yield process
            finally:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait()

    def kill_at(self, step: str, ahead: int) -> bool:
        """Run until a step of a batch that is so far ahead; False if all was done before that."""
        batch = self.noted() + ahead
        reached = self._reached(step, batch)
        deadline = time.monotonic() + SECONDS
        with self.started() as process:
            while not reached():
                if process.poll() is not None:
                    assert process.returncode == 0, self.words()
                    return False
                assert time.monotonic() < deadline, f"{step} of batch {batch}: {self.words()}"
                time.sleep(0.002)
        return True

    def _reached(self, step: str, batch: int) -> Callable[[], bool]:
        prepared = self.state / "prepared" / f"{batch:010}"
        match step:
            case "planned":
                return (self.state / "spark" / "offsets" / str(batch)).exists
            case "prepared":
                return (prepared / "batch.json").exists
            case "first prepared":  # whichever batch it is
                return lambda: any(self.state.glob("prepared/*/batch.json"))
            case "half":  # the folder is the second of the sinks
                return lambda: any(self.lines.glob(f"part-*-{batch:010}-*"))
            case "delivered":
                return (prepared / "done").exists
        return (self.state / "spark" / "commits" / str(batch)).exists

    def noted(self) -> int:
        """The last batch that Spark has noted as done; -1: none."""
        commits = (self.state / "spark" / "commits").glob("*")
        return max((int(each.name) for each in commits if each.name.isdecimal()), default=-1)

    def finish(self) -> None:
        """Run to the end."""
        with self.started() as process:
            assert process.wait(SECONDS) == 0, self.words()

    def words(self) -> str:
        return self._log.read_text()[-4_000:]


@pytest.fixture
def broker(queen_brokers: TemporaryBrokers) -> Any:
    with queen_brokers.start() as running:
        yield running


async def table(url: str, name: str) -> list[Record]:
    connection = await asyncpg.connect(url)
    try:
        return [dict(row) for row in await connection.fetch(f"select n, drawn from {name}")]
    finally:
        await connection.close()


def lines(folder: Path) -> list[Record]:
    return [json.loads(line) for path in folder.glob("part-*") for line in path.read_text().splitlines()]


def test_a_kill_at_each_step_changes_nothing(
    broker: TemporaryBroker, empty_database_url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    seed = int(os.environ.get("QUEENSTREAM_SEED", "0")) or random.randrange(1, 1_000_000)
    chance = random.Random(seed)
    begun = time.monotonic()
    records = BATCH_ROWS * (3 * KILLS + 3)
    # Each record twice, far apart: only state that survives knows that it was there.
    events: list[Record] = [{"n": n, "user": USERS[n % 3]} for n in range(records // 2)]
    with broker.client() as queen:
        for some in (events, events):
            for first in range(0, len(some), 1_000):
                queen.queue("events").push(some[first : first + 1_000])
    job = Job(tmp_path, "copies", broker, database=empty_database_url, state=True, rows=BATCH_ROWS)
    steps = [*STEPS] * (KILLS // len(STEPS)) or [*STEPS[1:4]]
    chance.shuffle(steps)
    told = f"seed {seed}: {', '.join(steps)}"
    with capsys.disabled():
        for step in steps:
            assert job.kill_at(step, chance.randint(1, 2)), f"nothing was left to kill: {told}"
        job.finish()

    with broker.client() as queen:
        copied = messages(queen, "copies")
    found = {
        "copies": copied,
        "lines": lines(tmp_path / "lines"),
        "appended": asyncio.run(table(empty_database_url, "appended")),
        "kept": asyncio.run(table(empty_database_url, "kept")),
    }
    drawn = {row["n"]: row["drawn"] for row in found["kept"]}
    assert sorted(drawn) == list(range(records // 2)), told
    for name, rows in found.items():
        assert sorted((row["n"], row["drawn"]) for row in rows) == sorted(drawn.items()), f"{name}: {told}"
    for user in USERS:  # messages() has the newest first
        numbers = [row["n"] for row in reversed(copied) if row["user"] == user]
        assert numbers == sorted(numbers), f"the order of {user}: {told}"
    if LONG:
        reliability.record("kill at each step of a batch", len(steps), seed, time.monotonic() - begun)


def test_a_batch_that_closes_many_windows(broker: TemporaryBroker, tmp_path: Path) -> None:
    """100,000 windows in the long form; killed when the batch that closes them is prepared."""
    number = 100_000 if LONG else 10_000
    start = datetime(2026, 1, 31, tzinfo=UTC)
    (tmp_path / "in").mkdir()
    times = [start + timedelta(seconds=n // 10) for n in range(number)] + [start + timedelta(days=9)]
    rows = pa.table(
        {
            "n": pa.array(range(number + 1), pa.int64()),
            "user": [f"u{n % 10}" for n in range(number + 1)],
            "at": pa.array(times, pa.timestamp("us", "UTC")),
        }
    )
    pq.write_table(rows, tmp_path / "in" / "rows.parquet")
    job = Job(tmp_path, "windows", broker)
    assert job.kill_at("first prepared", 1)
    job.finish()
    closed = [row for path in (tmp_path / "out").glob("part-*") for row in pq.read_table(path).to_pylist()]
    assert len(closed) == len({(row["user"], row["window_start"]) for row in closed}) == number + 1
    assert {row["number"] for row in closed} == {1}
    with broker.client() as queen:
        pushed = queen.admin.queue("totals").messages.total
    assert pushed == number + 1


def test_a_window_with_10_000_rows_in_a_list(broker: TemporaryBroker, tmp_path: Path) -> None:
    at = datetime(2026, 1, 31, tzinfo=UTC).timestamp() * 1_000
    events: list[Record] = [{"n": n, "at": at + n} for n in range(10_000)]
    with broker.client() as queen:
        for first in range(0, len(events), 1_000):
            queen.queue("events").push(events[first : first + 1_000])
        queen.queue("events").push([{"n": -1, "at": at + 3 * 86_400_000}])
    job = Job(tmp_path, "lists", broker, rows=4_000)
    assert job.kill_at("first prepared", 1)
    job.finish()
    with broker.client() as queen:
        queue = [row for row in messages(queen, "totals") if -1 not in row["numbers"]]
    files = [row for row in lines(tmp_path / "out") if -1 not in row["numbers"]]
    for [row] in (queue, files):
        assert Counter(row["numbers"]) == Counter(range(10_000))


def test_a_replay_after_the_ttl_has_the_messages_of_the_first_try(
    broker: TemporaryBroker, empty_database_url: str, tmp_path: Path
) -> None:
    """A batch that was planned and not prepared is computed again with the same messages."""
    events: list[Record] = [{"n": n, "user": USERS[n % 3]} for n in range(BATCH_ROWS)]
    job = Job(tmp_path, "copies", broker, database=empty_database_url, state=False)
    with broker.client() as queen:
        queen.queue("events").push(events)
        assert job.kill_at("planned", 1)
        queen.admin.set_maintenance(True)  # nothing is deleted: a batch that is read again is there
        queen.queue("events").config(ttl=1).create()
        time.sleep(2)
        job.finish()
    assert sorted(row["n"] for row in lines(tmp_path / "lines")) == list(range(BATCH_ROWS))


if LONG:  # it starts a cluster

    def test_a_task_that_spark_runs_twice_counts_once(
        broker: TemporaryBroker, empty_database_url: str, tmp_path: Path
    ) -> None:
        """Speculation: one try of a task hangs, Spark starts another one, and both have staged rows."""
        events: list[Record] = [{"n": n, "user": USERS[n % 3]} for n in range(BATCH_ROWS)]
        with broker.client() as queen:
            for n in range(0, BATCH_ROWS, 10):
                queen.queue("events").partition(f"p{n}").push(events[n : n + 10])
        conf = {
            "spark.speculation": "true", "spark.speculation.quantile": "0.1",
            "spark.speculation.minTaskRuntime": "1s", "spark.speculation.multiplier": "1.1",
            "spark.speculation.task.duration.threshold": "2s",  # also where a stage has one task
        }  # fmt: skip
        with Cluster(tmp_path, Path(sys.executable), apart=True) as cluster:
            job = Job(
                tmp_path, "copies", broker, database=empty_database_url, state=False, slow=BATCH_ROWS - 1,
                master=cluster.master, conf=conf,
            )  # fmt: skip
            job.finish()
        assert (tmp_path / "again").exists(), "Spark ran no task twice"
        with broker.client() as queen:
            copied = messages(queen, "copies")
        drawn = {row["n"]: row["drawn"] for row in asyncio.run(table(empty_database_url, "kept"))}
        assert sorted(drawn) == list(range(BATCH_ROWS))
        appended = asyncio.run(table(empty_database_url, "appended"))
        for rows in (copied, lines(tmp_path / "lines"), appended):
            assert sorted((row["n"], row["drawn"]) for row in rows) == sorted(drawn.items())
