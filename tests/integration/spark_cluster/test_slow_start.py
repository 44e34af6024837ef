"""A cluster whose executors register after the driver has begun."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from tests.integration.spark_cluster.driving import ROOT
from tests.sparks import QUICK


@pytest.mark.timeout(300)
def test_partitions_are_those_of_all_executors() -> None:
    """Right after its start a cluster has none, and Spark takes two cores for granted."""
    said = subprocess.run(
        [sys.executable, "-m", "tests.integration.spark_cluster.slow_start", QUICK],
        capture_output=True, text=True, timeout=250, check=False, cwd=ROOT, env=dict(os.environ),
    )  # fmt: skip
    assert said.returncode == 0, said.stderr
    assert json.loads(said.stdout.splitlines()[-1]) == ["3", 3]
