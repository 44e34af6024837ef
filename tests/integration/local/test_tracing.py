"""OpenTelemetry: each epoch of a run is a span; without the package nothing happens."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[3]


def run(*arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, "-W", "error", *arguments], cwd=ROOT, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_each_epoch_is_a_span_of_its_own() -> None:
    spans = json.loads(run("-m", "tests.integration.local.tracing"))
    first = next(span for span in spans if span["name"] == "epoch traced")
    assert first["parent"] is None
    assert first["attributes"].pop("queenstream.epoch")
    assert first["attributes"] == {
        "queenstream.pipeline": "traced",
        "queenstream.records": 2,
        "queenstream.rows": 1,
    }
    assert first["took_ns"] > 0
    [sink] = [span for span in spans if span["name"] == "sink"]
    assert sink["parent"] == "epoch traced"


def test_without_the_package_a_pipeline_runs_as_well() -> None:
    program = (
        "import sys; sys.modules['opentelemetry'] = None\n"
        "from queenstream import Memory, Pipeline\n"
        "Pipeline('p').source(Memory([{'n': 1}])).to(print).run(engine='local')\n"
    )
    assert run("-c", program) == "{'n': 1}\n"
