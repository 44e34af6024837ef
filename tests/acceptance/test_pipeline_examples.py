"""The examples of pipelines run as their readers run them, twice, and print what they should."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.processes import clean_environment, up, without_summaries

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "examples" / "pipelines"
EXAMPLES = sorted(FOLDER.glob("*.py"))


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    with up("--ephemeral", "--port", "0") as broker:
        yield broker.ready()


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda example: example.stem)
def test_it_prints_what_it_should(example: Path, address: str, tmp_path: Path) -> None:
    expected = (FOLDER / "expected" / f"{example.stem}.txt").read_text()
    for _ in range(2):  # what the first run left must not be in the way of the second
        run = subprocess.run(
            [sys.executable, "-W", "error", example],
            capture_output=True,
            text=True,
            timeout=120,
            cwd=tmp_path,
            env=clean_environment(QUEEN_URL=address),
        )
        assert (run.stdout, without_summaries(run.stderr), run.returncode) == (expected, "", 0)


def test_no_output_is_expected_of_an_example_that_is_gone() -> None:
    expected = {path.stem for path in (FOLDER / "expected").iterdir()}
    assert expected == {example.stem for example in EXAMPLES}


def test_the_guide_lists_every_example_with_its_idea() -> None:
    guide = (ROOT / "docs" / "tables.md").read_text()
    listed = re.findall(r"^\| \[(.+)\]\(\.\./examples/pipelines/(.+)\) \| (.+) \|$", guide, re.M)
    ideas = {example.name: ast.get_docstring(ast.parse(example.read_text())) for example in EXAMPLES}
    assert listed == [(name, name, idea) for name, idea in ideas.items()]
