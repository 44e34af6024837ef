"""The driver is killed while a batch is staged, when it is prepared, and when some sinks have it.

Every sink then has every record once, and all have the same rows, though a step gives something else each
time: what was prepared is what is delivered.
"""

from __future__ import annotations

import contextlib
import csv
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import asyncpg
import pyarrow.parquet as pq
import pytest

from queenstream.client._sync.client import Queen
from queenstream.testing.brokers import TemporaryBroker
from tests.processes import Up, clean_environment

ROOT = Path(__file__).parents[3]
RECORDS = 400
SECONDS = 120.0
ALL = [
    ("stage", "python"), ("stage", "state"), ("prepared", "state"), ("prepared", "python"),
    ("committed", "native"), ("committed", "python"), ("committed", "state"), ("prepared", "native"),
]  # fmt: skip
SHORT = [ALL[0], ALL[2], ALL[4]]
pytestmark = pytest.mark.timeout(400)


def run(settings: dict[str, Any], log: Path, **variables: str) -> int:
    """One life of the driver, which ends with all that it has started."""
    command = [sys.executable, "-m", "tests.integration.spark.delivery_job", json.dumps(settings)]
    environment = clean_environment(PYTHONPATH=f"{ROOT}{os.pathsep}{ROOT / 'src'}", **variables)
    with log.open("ab") as out:
        process = subprocess.Popen(
            command, cwd=ROOT, env=environment, stdout=out, stderr=out, start_new_session=True
        )
        try:
            return process.wait(SECONDS)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)


def messages(queen: Queen, queue: str) -> list[Any]:
    """The payloads of all messages."""
    found: list[Any] = []
    while page := queen.admin.queue_messages(queue, limit=200, offset=len(found)):
        found += [message.data for message in page]
    return found


async def broker_rows(broker: TemporaryBroker, query: str) -> list[Any]:
    """What the broker's database says."""
    connection = await asyncpg.connect(broker.database_url)
    try:
        return list(await connection.fetch(query))
    finally:
        await connection.close()


@pytest.mark.parametrize(("moment", "plan"), ALL if os.environ.get("QUEENSTREAM_LONG") else SHORT)
async def test_all_sinks_have_the_rows_of_one_try(
    broker: TemporaryBroker, empty_database_url: str, tmp_path: Path, moment: str, plan: str
) -> None:
    events: list[dict[str, Any]] = [{"n": n, "user": "abc"[n % 3]} for n in range(RECORDS)]
    with broker.client() as queen:
        queen.queue("events").push(events)
    settings = {
        "folder": str(tmp_path),
        "checkpoint": str(tmp_path / "state"),
        "database": empty_database_url,
        "broker": broker.address,
        "moment": moment,
        "plan": plan,
        "last": RECORDS - 1,
    }
    log = tmp_path / "log"
    assert run(settings, log) == -signal.SIGKILL, log.read_text()[-2_000:]
    assert run(settings, log) == 0, log.read_text()[-4_000:]

    with broker.client() as queen:
        copies, lanes = messages(queen, "copies"), messages(queen, "lanes")
        dead = [] if plan == "native" else messages(queen, "dead")
        refused = messages(queen, "refused")
    wanted = {event["n"] for event in events if event["n"] % 10 != 3}
    drawn = {row["n"]: row["drawn"] for row in copies}
    assert sorted(row["n"] for row in copies) == sorted(wanted)
    if plan != "native":
        assert sorted(letter["record"]["n"] for letter in dead) == sorted({e["n"] for e in events} - wanted)
    assert sorted(letter["record"]["n"] for letter in refused) == sorted(n for n in wanted if n % 10 == 7)
    assert {letter["step"] for letter in refused} == {"queue:lanes"}
    assert {letter["record"]["n"]: letter["record"]["drawn"] for letter in refused}.items() <= drawn.items()
    lines = [
        json.loads(line)
        for path in (tmp_path / "lines").glob("part-*")
        for line in path.read_text().splitlines()
    ]
    columns = [
        row for path in (tmp_path / "columns").glob("part-*") for row in pq.read_table(path).to_pylist()
    ]
    cells = [
        {**row, "n": int(row["n"])}
        for path in (tmp_path / "cells").glob("part-*")
        for row in csv.DictReader(path.read_text().splitlines())
    ]
    connection = await asyncpg.connect(empty_database_url)
    appended, kept = [await connection.fetch(f"select n, drawn from {name}") for name in ("appended", "kept")]
    sinks = [row["sink"] for row in await broker_rows(broker, "select distinct sink from queen.sink_batches")]
    letters = 1 if plan == "native" else 2
    assert sum(" dead-letters:queue:" in sink for sink in sinks) == letters, sinks  # not through the broker
    assert not await broker_rows(broker, "select 1 from queen.staged")
    await connection.close()
    laned = [{"n": each["n"], "drawn": each["drawn"]} for each in lanes]
    laned += [{"n": each["record"]["n"], "drawn": each["record"]["drawn"]} for each in refused]
    found = {
        "lanes": laned, "lines": lines, "columns": columns, "cells": cells, "appended": appended,
        "kept": kept,
    }  # fmt: skip
    for name, rows in found.items():
        assert sorted((row["n"], row["drawn"]) for row in rows) == sorted(drawn.items()), name


@pytest.mark.parametrize("database_first", [False, True])
def test_a_batch_goes_the_way_it_was_prepared_for_in_another_environment(
    database_url: str, empty_database_url: str, tmp_path: Path, database_first: bool
) -> None:
    """The broker does not say where its database is, so it is known only where ``QUEEN_PG`` is set."""
    events: list[dict[str, Any]] = [{"n": n, "user": "abc"[n % 3]} for n in range(RECORDS)]
    broker = Up("--pg", database_url, "--port", "0", "--log-level", "error")
    known = {"QUEEN_PG": database_url}
    (tmp_path / "events.ndjson").write_text("".join(json.dumps(event) + "\n" for event in events))
    log = tmp_path / "log"
    try:
        address = broker.ready()
        with Queen(address) as queen:
            settings = {
                "events": str(tmp_path / "events.ndjson"), "folder": str(tmp_path), "broker": address,
                "checkpoint": str(tmp_path / "state"), "database": empty_database_url, "moment": "committed",
                "plan": "python", "last": RECORDS - 1,
            }  # fmt: skip
            first, second = (known, {}) if database_first else ({}, known)
            assert run(settings, log, **first) == -signal.SIGKILL, log.read_text()[-2_000:]
            assert messages(queen, "copies"), "the batch is in this sink when the run is killed"
            code = run(settings, log, **second)
            if database_first:
                assert code != 0
                assert "batch 0 was prepared for the database of queue copies" in log.read_text()
                code = run(settings, log, **first)
            assert code == 0, log.read_text()[-4_000:]
            copies, lanes = messages(queen, "copies"), messages(queen, "lanes")
    finally:
        broker.stop()
    wanted = sorted(event["n"] for event in events if event["n"] % 10 != 3)
    assert sorted(row["n"] for row in copies) == wanted
    assert sorted(row["n"] for row in lanes) == [n for n in wanted if n % 10 != 7]
    drawn = {row["n"]: row["drawn"] for row in copies}
    assert {row["n"]: row["drawn"] for row in lanes}.items() <= drawn.items()
