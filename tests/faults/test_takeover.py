"""A driver is paused in the middle of a batch, another run takes its checkpoint over, and it wakes up.

The checkpoint is on a file system without locks, as ``s3a://`` is. The paused run must write nothing more,
and say who took over; the sinks hold what one try of the batch gave.
"""

from __future__ import annotations

import contextlib
import json
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

from queenstream.testing.brokers import TemporaryBroker, TemporaryBrokers
from tests.faults.takeover_job import LOST
from tests.integration.spark.test_delivery_kills import messages
from tests.processes import clean_environment

ROOT = Path(__file__).parents[2]
RECORDS = 200
SECONDS = 180.0
ALL = [("stage", True), ("prepared", False), ("stage", False), ("prepared", True)]
pytestmark = pytest.mark.timeout(400)


@contextlib.contextmanager
def started(settings: dict[str, Any], log: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A run as a process; it ends with all that it has started."""
    command = [sys.executable, "-m", "tests.faults.takeover_job", json.dumps(settings)]
    with log.open("ab") as out:
        process = subprocess.Popen(
            command, cwd=ROOT, env=clean_environment(PYTHONPATH=str(ROOT)), stdout=out, stderr=out
        )
        try:
            yield process
        finally:
            for each in tree(process):
                with contextlib.suppress(psutil.NoSuchProcess):
                    each.kill()
            process.wait()


@pytest.fixture
def broker(queen_brokers: TemporaryBrokers, monkeypatch: pytest.MonkeyPatch) -> Iterator[TemporaryBroker]:
    """A broker with a database of its own, which Spark's tasks find, too."""
    with queen_brokers.start() as running:
        monkeypatch.setenv("QUEEN_PG", running.database_url)
        yield running


def tree(process: subprocess.Popen[bytes]) -> list[psutil.Process]:
    """A process and all that it has started: the JVM, and the Python workers."""
    try:
        parent = psutil.Process(process.pid)
        return [parent, *parent.children(recursive=True)]
    except psutil.NoSuchProcess:
        return []


def signal_all(process: subprocess.Popen[bytes], number: int) -> None:
    """Send a signal to a process and all that it has started; workers of Python may end meanwhile."""
    for each in tree(process):
        with contextlib.suppress(psutil.NoSuchProcess):
            each.send_signal(number)


def wait_for(path: Path, log: Path) -> None:
    deadline = time.monotonic() + SECONDS
    while not path.exists():
        assert time.monotonic() < deadline, log.read_text()[-4_000:]
        time.sleep(0.05)


@pytest.mark.parametrize(("moment", "state"), ALL if os.environ.get("QUEENSTREAM_LONG") else ALL[:2])
async def test_a_paused_driver_writes_nothing_after_another_run_took_over(
    broker: TemporaryBroker, empty_database_url: str, tmp_path: Path, moment: str, state: bool
) -> None:
    events: list[dict[str, Any]] = [{"n": n, "user": "abc"[n % 3]} for n in range(RECORDS)]
    with broker.client() as queen:
        queen.queue("events").push(events)
    settings = {
        "folder": str(tmp_path), "database": empty_database_url, "broker": broker.address, "moment": moment,
        "state": state, "last": RECORDS - 1,
    }  # fmt: skip
    first, second = tmp_path / "first.log", tmp_path / "second.log"
    with started({**settings, "waits": True}, first) as paused:
        wait_for(tmp_path / "waiting", first)
        signal_all(paused, signal.SIGSTOP)
        with started({**settings, "waits": False}, second) as successor:
            assert successor.wait(SECONDS) == 0, second.read_text()[-4_000:]
        (tmp_path / "go on").touch()
        signal_all(paused, signal.SIGCONT)
        assert paused.wait(SECONDS) == LOST, first.read_text()[-4_000:]
    assert f"process {successor.pid} on " in first.read_text()
    assert "has taken over" in first.read_text()

    with broker.client() as queen:
        copies, dead = messages(queen, "copies"), messages(queen, "dead")
    wanted = {event["n"] for event in events if event["n"] % 10 != 3}
    drawn = {row["n"]: row["drawn"] for row in copies}
    assert sorted(row["n"] for row in copies) == sorted(wanted)
    assert sorted(letter["record"]["n"] for letter in dead) == sorted({e["n"] for e in events} - wanted)
    lines = [
        json.loads(line)
        for path in (tmp_path / "lines").glob("part-*")
        for line in path.read_text().splitlines()
    ]
    columns = [
        row for path in (tmp_path / "columns").glob("part-*") for row in pq.read_table(path).to_pylist()
    ]
    connection = await asyncpg.connect(empty_database_url)
    appended, kept = [await connection.fetch(f"select n, drawn from {name}") for name in ("appended", "kept")]
    await connection.close()
    for name, rows in {"lines": lines, "columns": columns, "appended": appended, "kept": kept}.items():
        assert sorted((row["n"], row["drawn"]) for row in rows) == sorted(drawn.items()), name
