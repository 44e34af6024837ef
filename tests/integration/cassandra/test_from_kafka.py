"""The example with both servers runs as its readers run it, twice."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.integration.cassandra.tools import Cql
from tests.processes import clean_environment
from tests.servers.cassandra import PASSWORD, USER, Node
from tests.servers.kafka import KafkaServer, kafka

__all__ = ["kafka"]

EXAMPLES = Path(__file__).parents[3] / "examples" / "integrations"


def test_from_a_topic_to_a_table(node: Node, cql: Cql, kafka: KafkaServer) -> None:
    kafka.topic("raw-events")
    expected = (EXAMPLES / "expected" / "kafka_to_cassandra.txt").read_text()
    cassandra = {"CASSANDRA_PORT": str(node.port), "CASSANDRA_USER": USER, "CASSANDRA_PASSWORD": PASSWORD}
    for _ in range(2):
        run = subprocess.run(
            [sys.executable, "-W", "error", EXAMPLES / "kafka_to_cassandra.py"],
            capture_output=True,
            text=True,
            timeout=100,
            env=clean_environment(KAFKA_SERVERS=kafka.servers, **cassandra),
        )
        assert (run.stdout, run.returncode) == (expected, 0), run.stderr
    [first, second] = cql.run(
        "select window_start, total_value, ttl(total_value) from activity.user_activity_summary "
        "where user_id = 1"
    )
    assert (first["total_value"], second["total_value"]) == (15.0, 1.0)
    assert 0 < first["ttl(total_value)"] <= 30 * 86_400
