"""The examples of StreamProcessor run as their readers run them, and print what they should."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.processes import clean_environment, without_summaries

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "examples" / "stream_processor"
EXAMPLES = sorted(FOLDER.glob("*.py"))


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda example: example.stem)
def test_it_prints_what_it_should(example: Path, tmp_path: Path) -> None:
    run = subprocess.run(
        [sys.executable, "-W", "error", example],
        capture_output=True,
        text=True,
        timeout=60,
        cwd=tmp_path,
        env=clean_environment(),
    )
    expected = (FOLDER / "expected" / f"{example.stem}.txt").read_text()
    assert (run.stdout, without_summaries(run.stderr), run.returncode) == (expected, "", 0)


def test_no_output_is_expected_of_an_example_that_is_gone() -> None:
    expected = {path.stem for path in (FOLDER / "expected").iterdir()}
    assert expected == {example.stem for example in EXAMPLES}


def test_the_guide_lists_every_example() -> None:
    guide = (ROOT / "docs" / "stream-processor.md").read_text()
    listed = re.findall(r"\(\.\./examples/stream_processor/(\w+\.py)\)", guide)
    assert listed == [example.name for example in EXAMPLES]
