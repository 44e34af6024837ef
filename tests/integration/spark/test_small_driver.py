"""No record passes through Spark's driver: it takes in 1 MB of results, and many times that goes by."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import asyncpg
import pyarrow.dataset as ds
import pytest

from queenstream.pipeline.builder import Pipeline
from queenstream.pipeline.endpoints import Function, Memory
from queenstream.testing.brokers import TemporaryBroker
from tests.processes import clean_environment

ROOT = Path(__file__).parents[3]
MESSAGES = 30_000
pytestmark = pytest.mark.timeout(400)


async def test_every_sink_gets_more_than_the_driver_could_hold(
    broker: TemporaryBroker, empty_database_url: str, tmp_path: Path
) -> None:
    with broker.client() as queen:
        for first in range(0, MESSAGES, 1_000):
            at = f"2026-01-{'31' if first == 0 else '01'}T00:00:00Z"
            events = [{"n": n, "text": f"{n:0200}", "at": at} for n in range(first, first + 1_000)]
            queen.queue("events").push(events)
    settings: dict[str, Any] = {"folder": str(tmp_path), "database": empty_database_url}
    settings |= {"broker": broker.address, "messages": MESSAGES}
    command = [sys.executable, "-m", "tests.integration.spark.small_driver", json.dumps(settings)]
    environment = clean_environment(PYTHONPATH=f"{ROOT}{os.pathsep}{ROOT / 'src'}")
    done = await asyncio.to_thread(
        subprocess.run, command, cwd=ROOT, env=environment, timeout=300, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr[-4_000:]

    assert json.loads((tmp_path / "counts").read_text()) == dict.fromkeys(
        ("native", "python", "state"), MESSAGES
    )
    connection = await asyncpg.connect(empty_database_url)
    with broker.client() as queen:
        for kind in ("native", "python", "state"):
            wanted = (MESSAGES, sum(range(MESSAGES)) + (MESSAGES if kind == "python" else 0))
            lines = [
                json.loads(line)["n"]
                for path in (tmp_path / f"{kind}-lines").glob("part-*")
                for line in path.read_text().splitlines()
            ]
            columns = ds.dataset(tmp_path / f"{kind}-columns").to_table(["n"])["n"].to_pylist()
            [stored] = await connection.fetch(f"select count(*), sum(n) from {kind}_rows")
            assert (len(lines), sum(lines)) == wanted
            assert (len(columns), sum(columns)) == wanted
            assert tuple(stored) == wanted
            assert queen.admin.queue(f"{kind}-copies").messages.total == MESSAGES
    await connection.close()
    totals = [
        json.loads(line)["total"]
        for path in (tmp_path / "totals").glob("part-*")
        for line in path.read_text().splitlines()
    ]
    assert sorted(totals) == list(range(MESSAGES))
    with broker.client() as queen:
        sizes = {
            name: queen.admin.queue(name).messages.total
            for name in ("columns", "failed", "halves", "misfits", "late")
        }
    assert sizes["columns"] == MESSAGES
    assert sizes["failed"] == MESSAGES // 2 + MESSAGES // 4
    assert sizes["halves"] == MESSAGES // 4
    assert sizes["misfits"] == MESSAGES // 2
    hours = [
        json.loads(line)["n"]
        for path in (tmp_path / "hours").glob("part-*")
        for line in path.read_text().splitlines()
    ]
    assert sizes["late"] >= MESSAGES // 3
    assert sizes["late"] + sum(hours) == MESSAGES - 1_000  # the window of the 31st is open


@pytest.mark.usefixtures("spark")
def test_a_function_may_be_called_in_the_tasks(tmp_path: Path) -> None:
    def note(rows: list[dict[str, int]]) -> None:  # in other processes than this one
        with (tmp_path / f"{rows[0]['n']}").open("w") as file:
            file.write(json.dumps(rows))

    records = [{"n": n} for n in range(1_000)]
    sink = Function(note, name="note", batch_size=100, where="tasks")
    Pipeline("noted").source(Memory(records)).map(lambda row: {"n": row["n"] * 2}).to(sink).run()
    noted = [row["n"] for path in tmp_path.iterdir() for row in json.loads(path.read_text())]
    assert sorted(noted) == [2 * n for n in range(1_000)]
