"""The examples run as their readers run them, and print what they should; the guide shows nothing else."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.processes import clean_environment, up, without_summaries

ROOT = Path(__file__).parents[2]
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))
AT_ONCE = 6  # they wait for windows more than they work
SECONDS = 60

Run = subprocess.CompletedProcess[str]


def run_twice(example: Path, address: str) -> list[Run]:
    """As a user would, and again: what the first run left must not be in the way of the second."""
    return [
        subprocess.run(
            [sys.executable, "-W", "error", example],
            capture_output=True,
            text=True,
            timeout=SECONDS,
            env=clean_environment(QUEEN_URL=address),
        )
        for _ in range(2)
    ]


@pytest.fixture(scope="module")
def runs_of() -> Iterator[Callable[[Path], list[Run]]]:
    """One broker for all; who asks for the runs of an example starts those of the next ones, too."""
    with up("--ephemeral", "--port", "0") as broker, ThreadPoolExecutor(AT_ONCE) as pool:
        address = broker.ready()
        started: dict[Path, Future[list[Run]]] = {}

        def runs(example: Path) -> list[Run]:
            first = EXAMPLES.index(example)
            for one in EXAMPLES[first : first + 2 * AT_ONCE]:  # a long one leaves nobody idle
                if one not in started:
                    started[one] = pool.submit(run_twice, one, address)
            return started[example].result()

        yield runs
        pool.shutdown(cancel_futures=True)


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda example: example.stem)
def test_it_prints_what_it_should(example: Path, runs_of: Callable[[Path], list[Run]]) -> None:
    expected = (ROOT / "examples" / "expected" / f"{example.stem}.txt").read_text()
    for run in runs_of(example):
        assert (run.stdout, without_summaries(run.stderr), run.returncode) == (expected, "", 0)


def test_no_output_is_expected_of_an_example_that_is_gone() -> None:
    expected = {path.stem for path in (ROOT / "examples" / "expected").iterdir()}
    assert expected == {example.stem for example in EXAMPLES}


def test_the_readme_lists_every_example_with_its_idea() -> None:
    readme = (ROOT / "examples" / "README.md").read_text()
    rows = re.findall(r"^\| \[(.+)\]\((.+)\) \| (.+) \|$", readme, re.M)
    ideas = {example.name: ast.get_docstring(ast.parse(example.read_text())) for example in EXAMPLES}
    assert rows == [(name, name, idea) for name, idea in ideas.items()]


def blocks(text: str) -> Iterator[list[str]]:
    """The code in a Markdown text: indented lines, between lines that are not."""
    block: list[str] = []
    for line in [*text.splitlines(), "end"]:
        if line.startswith("    "):
            block.append(line.strip())
        elif line.strip() and block:
            yield block
            block = []


def holds(example: str, block: list[str]) -> bool:
    """Whether these lines are in an example, in this order."""
    lines = iter([line.strip() for line in example.splitlines()])
    return all(line in lines for line in block)


def test_the_guide_shows_only_code_of_the_examples() -> None:
    shown = list(blocks((ROOT / "docs" / "client.md").read_text()))
    sources = [example.read_text() for example in EXAMPLES]
    unknown = [block for block in shown if not any(holds(source, block) for source in sources)]
    assert len(shown) > 10
    assert not unknown
