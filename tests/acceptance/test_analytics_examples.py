"""The examples of anomalies, patterns and rules run as their readers run them, and print what they should."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.processes import clean_environment, up

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "examples" / "anomalies"
EXAMPLES = sorted(FOLDER.glob("0*.py"))


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    with up("--ephemeral", "--port", "0") as broker:
        yield broker.ready()


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda example: example.stem)
def test_it_prints_what_it_should(example: Path, address: str, tmp_path: Path) -> None:
    run = subprocess.run(
        [sys.executable, "-W", "error", example],
        capture_output=True,
        text=True,
        timeout=120,
        cwd=tmp_path,
        env=clean_environment(QUEEN_URL=address),
    )
    assert run.returncode == 0, run.stderr
    assert run.stdout == (FOLDER / "expected" / f"{example.stem}.txt").read_text()


def test_the_page_lists_every_example() -> None:
    page = (ROOT / "docs" / "analytics.md").read_text()
    listed = re.findall(r"\(\.\./examples/anomalies/(\w+\.py)\)", page)
    assert sorted(set(listed)) == sorted(path.name for path in FOLDER.glob("*.py"))
