"""Topics and tables of Cassandra give and take more than Spark's driver could hold."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pyarrow.dataset as ds
import pytest

from tests.integration.cassandra.tools import KEYSPACE, login
from tests.processes import clean_environment
from tests.servers import maven
from tests.servers.cassandra import Node
from tests.servers.kafka import KafkaServer, kafka

__all__ = ["kafka"]

ROOT = Path(__file__).parents[3]
ROWS = 10_000  # of more than 200 bytes: twice what the driver takes


@pytest.mark.timeout(400)
def test_records_pass_from_topic_to_table_in_the_tasks(
    kafka: KafkaServer, node: Node, table: str, tmp_path: Path
) -> None:
    maven.required("spark-kafka")
    lines = [json.dumps({"n": n, "text": f"{n:0200}"}) for n in range(ROWS)]
    (tmp_path / "in.ndjson").write_text("\n".join(lines) + "\n")
    settings = {
        "folder": str(tmp_path),
        "servers": kafka.servers,
        "topic": kafka.topic(partitions=2),
        "table": {"table": table, "keyspace": KEYSPACE, **login(node)},
    }
    done = subprocess.run(
        [sys.executable, "-m", "tests.integration.cassandra.small_driver", json.dumps(settings)],
        cwd=ROOT,
        env=clean_environment(PYTHONPATH=f"{ROOT}{os.pathsep}{ROOT / 'src'}"),
        timeout=300,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4_000:]
    found = ds.dataset(tmp_path / "out").to_table().to_pylist()
    assert sorted(row["n"] for row in found) == list(range(1, ROWS + 1))
    assert all(row["text"] == f"{row['n'] - 1:0200}" for row in found)
