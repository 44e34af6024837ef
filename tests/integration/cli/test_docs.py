"""docs/cli.md: every command in it is run, in order, and prints what the page says."""

from __future__ import annotations

import os
from pathlib import Path

from queenstream.broker.app import Broker
from queenstream.cli.support import exit_codes
from tests.integration.cli.running import environment, on_terminal
from tests.pages import ROOT, blocks, differences
from tests.processes import QUEEN

PAGE = ROOT / "docs" / "cli.md"


async def test_what_the_page_shows_is_what_happens(broker: Broker, tmp_path: Path) -> None:
    known = environment(
        XDG_CONFIG_HOME=str(tmp_path),
        QUEEN_URL=broker.address,
        PATH=f"{Path(QUEEN).parent}:{os.environ['PATH']}",
    )
    for block in blocks(PAGE):
        if block.file is not None:
            (tmp_path / block.file).write_text(block.text)
    commands = [each for block in blocks(PAGE) if block.kind == "console" for each in block.commands()]
    assert len(commands) > 20
    for command, expected in commands:
        async with on_terminal(["bash", "-c", command], known, 160, cwd=tmp_path) as terminal:
            await terminal.ended()
        shown = [line for line in terminal.lines if line]
        assert not differences([line for line in expected if line], shown), command


def test_the_page_lists_the_exit_codes() -> None:
    text = PAGE.read_text("utf-8")
    for code, meaning in exit_codes.MEANINGS.items():
        assert f"| {code} | {meaning.replace('|', chr(92) + '|')} |" in text
