"""The driver is killed while a batch for a topic and a table is staged, prepared, or in the middle of either.

After a restart the table is what an undisturbed run leaves. The topic has every row at least once, those of
a key in their order, and both have the rows of one and the same try, though a step gives something else each
time.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from queenstream.connectors.kafka.writer import ID_HEADER
from tests.integration.cassandra.tools import KEYSPACE, Cql, login
from tests.processes import clean_environment
from tests.servers.cassandra import Node
from tests.servers.kafka import KafkaServer, kafka

__all__ = ["kafka"]

ROOT = Path(__file__).parents[3]
RECORDS, USERS, SLOTS = 4_000, 8, 100
SECONDS = 150.0
SHORT = [("kafka", False), ("cassandra", True)]
ALL = [
    *SHORT, ("stage", False), ("stage", True), ("prepared", False), ("prepared", True), ("kafka", True),
    ("cassandra", False),
]  # fmt: skip
pytestmark = pytest.mark.timeout(400)


def run(settings: dict[str, Any], log: Path, may_kill: Callable[[], bool] | None = None) -> int:
    """One life of the driver; it is killed once ``may_kill`` says so, with all that it has started."""
    command = [sys.executable, "-m", "tests.integration.cassandra.spark_job", json.dumps(settings)]
    environment = clean_environment(PYTHONPATH=str(ROOT))
    with log.open("ab") as out:
        process = subprocess.Popen(
            command, cwd=ROOT, env=environment, stdout=out, stderr=out, start_new_session=True
        )
        try:
            end = time.monotonic() + SECONDS
            while may_kill is not None and process.poll() is None and time.monotonic() < end:
                if may_kill():
                    process.send_signal(signal.SIGKILL)
                    break
                time.sleep(0.02)
            return process.wait(max(1.0, end - time.monotonic()))
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)


def record(n: int) -> dict[str, Any]:
    """The records of a user follow each other; in the table many of them have one key."""
    turn = n // USERS
    return {"user": "abcdefgh"[n % USERS], "slot": turn % SLOTS, "n": n}


@pytest.mark.parametrize(("moment", "state"), ALL if os.environ.get("QUEENSTREAM_LONG") else SHORT)
def test_a_topic_and_a_table_have_the_rows_of_one_try(
    kafka: KafkaServer, node: Node, cql: Cql, table: str, tmp_path: Path, moment: str, state: bool
) -> None:
    topic = kafka.topic(partitions=3)
    (tmp_path / "in").mkdir()
    half = RECORDS // 2
    for number, numbers in enumerate((range(half), range(half, RECORDS))):
        lines = "".join(f"{json.dumps(record(n))}\n" for n in numbers)
        (tmp_path / "in" / f"{number}.ndjson").write_text(lines)
    settings = {
        "folder": str(tmp_path),
        "moment": moment,
        "state": state,
        "last": RECORDS - 1,
        "topic": topic,
        "servers": kafka.servers,
        "table": table,
        "cassandra": {**login(node), "keyspace": KEYSPACE},
    }
    log = tmp_path / "log"
    columns = "user text, slot int, n bigint, drawn text, primary key ((user, slot))"
    cql.run(f"create table {KEYSPACE}.{table} ({columns})")

    def in_topic() -> bool:
        return kafka.count(topic) > 100

    def in_table() -> bool:
        return len(cql.rows(table, "user")) > 50

    may_kill = {"kafka": in_topic, "cassandra": in_table}.get(moment)
    assert run(settings, log, may_kill) == -signal.SIGKILL, log.read_text()[-2_000:]
    if moment == "kafka":
        assert 0 < kafka.count(topic) < RECORDS
    elif moment == "cassandra":
        assert {row["n"] for row in cql.rows(table)} != set(range(RECORDS - USERS * SLOTS, RECORDS))
    else:
        assert kafka.count(topic) == 0
    assert run(settings, log) == 0, log.read_text()[-4_000:]

    drawn: dict[int, str] = {}
    ids: dict[int, bytes] = {}
    first: dict[str, list[int]] = defaultdict(list)
    for message in kafka.received(topic):
        row = json.loads(message.value() or b"")
        id = dict(message.headers() or ())[ID_HEADER]
        assert isinstance(id, bytes)
        if row["n"] not in drawn:
            first[row["user"]].append(row["n"])
        assert drawn.setdefault(row["n"], row["drawn"]) == row["drawn"]
        assert ids.setdefault(row["n"], id) == id
    assert sorted(drawn) == list(range(RECORDS))
    assert len(set(ids.values())) == RECORDS
    assert first == {user: sorted(order) for user, order in first.items()}
    stored = {(row["user"], row["slot"]): (row["n"], row["drawn"]) for row in cql.rows(table)}
    last = {(each["user"], each["slot"]): each["n"] for each in map(record, range(RECORDS))}
    assert stored == {key: (n, drawn[n]) for key, n in last.items()}
