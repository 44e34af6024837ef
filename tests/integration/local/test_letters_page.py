"""docs/dead-letters.md: its programs run, and print what the page says."""

from __future__ import annotations

import asyncio
import re
import sys
from asyncio.subprocess import PIPE
from pathlib import Path

from queenstream.broker.app import Broker
from tests.processes import clean_environment

PAGE = (Path(__file__).parents[3] / "docs" / "dead-letters.md").read_text("utf-8")


PROGRAMS = re.findall(r"```python\n(.*?)```\n\nIt prints (.*?)\n\n", PAGE, re.DOTALL)


async def printed(program: str, broker: Broker, folder: Path) -> list[str]:
    (folder / "program.py").write_text(program)
    known = clean_environment(QUEEN_URL=broker.address)
    process = await asyncio.create_subprocess_exec(
        sys.executable, "program.py", cwd=folder, env=known, stdout=PIPE, stderr=PIPE
    )
    out, err = await asyncio.wait_for(process.communicate(), 60)
    assert process.returncode == 0, err.decode()
    return out.decode().splitlines()


async def test_the_programs_of_the_page(broker: Broker, tmp_path: Path) -> None:
    (choose, chosen), (letters, found) = PROGRAMS
    assert await printed(choose, broker, tmp_path) == re.findall(r"`(charge: .*?)`", chosen)
    [first] = re.findall(r"^`(.*?)`", found)
    assert await printed(letters, broker, tmp_path) == [
        first,
        "[{'id': 1, 'total': 10}, {'id': 2, 'total': 5}]",
    ]
