"""The pages of docs/ and the README: programs and sessions run, in order, and print what is said there."""

from __future__ import annotations

import asyncio
import contextlib
import io
import os
import re
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.integration.cli.running import environment, on_terminal
from tests.pages import PAGES, ROOT, Block, blocks, differences
from tests.processes import QUEEN, up

# These have tests of their own.
ELSEWHERE = {
    "cli.md": "tests/integration/cli/test_docs.py",
    "client.md": "tests/acceptance/test_examples.py",
    "dead-letters.md": "tests/integration/local/test_letters_page.py",
    "testing.md": "tests/unit/testing/test_docs.py",
}
HERE = [page for page in PAGES if page.name not in ELSEWHERE]
RUN = [page for page in HERE if any(block.runs for block in blocks(page))]


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    """One broker for all pages: each has queues of its own."""
    with up("--ephemeral", "--port", "0") as broker:
        yield broker.ready()


@pytest.mark.parametrize("page", RUN, ids=lambda page: page.stem)
def test_what_the_page_shows_is_what_happens(
    page: Path, address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [name for name in os.environ if name.startswith("QUEEN_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("QUEEN_URL", address)
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {"__name__": page.stem}
    printed: list[str] | None = None  # by the program before
    for block in blocks(page):
        place = f"{page.name}, line {block.line}"
        if block.reason is not None:
            printed = None
        elif block.kind == "text" and printed is not None:
            assert not differences(block.text.splitlines(), printed), place
            printed = None
        elif block.file is not None:
            (tmp_path / block.file).write_text(block.text)
        elif block.kind == "python":
            printed = run(block, place, names)
        elif block.kind == "console":
            asyncio.run(session(block, place, address, tmp_path))


def run(block: Block, place: str, names: dict[str, Any]) -> list[str]:
    """Run a program with what those before it on the page have made; gives the lines that it prints."""
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        with contextlib.redirect_stdout(io.StringIO()) as output:
            exec(compile(block.text, place, "exec"), names)  # our own page
    finally:  # one of the clients that pages show takes them over
        for number, handler in handlers.items():
            signal.signal(number, handler)
    return output.getvalue().splitlines()


async def session(block: Block, place: str, address: str, folder: Path) -> None:
    """Run the commands of a session as on a terminal."""
    known = environment(
        XDG_CONFIG_HOME=str(folder),
        QUEEN_URL=address,
        PATH=f"{Path(QUEEN).parent}:{os.environ['PATH']}",
    )
    for command, expected in block.commands():
        async with on_terminal(["bash", "-c", command], known, 160, cwd=folder) as terminal:
            await terminal.ended()
        shown = [line for line in terminal.lines if line]
        assert not differences(expected, shown), f"{place}: {command}"


def test_what_is_not_run_is_a_program_all_the_same() -> None:
    for page in HERE:
        for block in blocks(page):
            if block.kind == "python" and not block.runs:
                compile(block.text, f"{page.name}, line {block.line}", "exec")


def test_no_program_hides_in_an_indented_block() -> None:
    for page in HERE:
        outside = re.sub(r"^```.*?^```", "", page.read_text("utf-8"), flags=re.M | re.S)
        found = re.search(r"^    (?:from \w+|import \w+|with Queen)", outside, re.M)
        assert found is None, page.name


def test_the_pages_that_are_tested_elsewhere_are() -> None:
    for name, test in ELSEWHERE.items():
        assert (ROOT / "docs" / name).exists()
        assert name in (ROOT / test).read_text("utf-8")
