"""The example of the guide runs as its readers run it, twice."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.processes import clean_environment, without_summaries
from tests.servers.kafka import KafkaServer

INTEGRATIONS = Path(__file__).parents[3] / "examples" / "integrations"


def test_the_example_prints_what_it_should(kafka: KafkaServer) -> None:
    for topic in ("user-events", "order-events", "user-activity"):
        kafka.topic(topic)
    expected = (INTEGRATIONS / "expected" / "kafka_topics.txt").read_text()
    for _ in range(2):
        run = subprocess.run(
            [sys.executable, "-W", "error", INTEGRATIONS / "kafka_topics.py"],
            capture_output=True,
            text=True,
            timeout=60,
            env=clean_environment(KAFKA_SERVERS=kafka.servers),
        )
        assert (run.stdout, without_summaries(run.stderr), run.returncode) == (expected, "", 0)
