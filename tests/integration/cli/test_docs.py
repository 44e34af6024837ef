"""docs/cli.md: every command in it is run, in order, and prints what the page says."""

from __future__ import annotations

import os
import re
from pathlib import Path

from queenstream.broker.app import Broker
from queenstream.cli import exits
from tests.integration.cli.running import environment, on_terminal
from tests.processes import QUEEN

PAGE = (Path(__file__).parents[3] / "docs" / "cli.md").read_text("utf-8")


def commands() -> list[tuple[str, list[str]]]:
    """The commands of the page's sessions, each with the lines that follow it."""
    found: list[tuple[str, list[str]]] = []
    for block in re.findall(r"```console\n(.*?)```", PAGE, re.DOTALL):
        for line in block.splitlines():
            if line.startswith("$ "):
                found.append((line.removeprefix("$ "), []))
            else:
                found[-1][1].append(line)
    return found


def files() -> dict[str, str]:
    """The files of the page by name: a block of Python begins with its own."""
    found = re.findall(r"```python\n# (\S+)\n(.*?)```", PAGE, re.DOTALL)
    return dict(found)


def fits(expected: str, line: str) -> bool:
    """Whether a line is as the page has it; … stands for anything."""
    return re.fullmatch(".*".join(map(re.escape, expected.split("…"))), line) is not None


async def test_what_the_page_shows_is_what_happens(broker: Broker, tmp_path: Path) -> None:
    known = environment(
        XDG_CONFIG_HOME=str(tmp_path),
        QUEEN_URL=broker.address,
        PATH=f"{Path(QUEEN).parent}:{os.environ['PATH']}",
    )
    for name, text in files().items():
        (tmp_path / name).write_text(text)
    assert len(commands()) > 20
    for command, expected in commands():
        async with on_terminal(["bash", "-c", command], known, 160, cwd=tmp_path) as terminal:
            await terminal.ended()
        shown = [line for line in terminal.lines if line]
        assert len(shown) == len(expected), f"{command}: {shown}"
        for line, wanted in zip(shown, expected, strict=True):
            assert fits(wanted, line), f"{command}: {line!r} is not {wanted!r}"


def test_the_page_lists_the_exit_codes() -> None:
    for code, meaning in exits.MEANINGS.items():
        assert f"| {code} | {meaning.replace('|', chr(92) + '|')} |" in PAGE
