"""docs/dead-letters.md: the program in it runs, and prints what the page says."""

from __future__ import annotations

import asyncio
import re
import sys
from asyncio.subprocess import PIPE
from pathlib import Path

from queenstream.broker.app import Broker
from tests.processes import clean_environment

PAGE = (Path(__file__).parents[3] / "docs" / "dead-letters.md").read_text("utf-8")


async def test_the_program_of_the_page(broker: Broker, tmp_path: Path) -> None:
    [program] = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    (tmp_path / "letters.py").write_text(program)
    known = clean_environment(QUEEN_URL=broker.address)
    process = await asyncio.create_subprocess_exec(
        sys.executable, "letters.py", cwd=tmp_path, env=known, stdout=PIPE, stderr=PIPE
    )
    out, err = await asyncio.wait_for(process.communicate(), 60)
    assert process.returncode == 0, err.decode()
    [found] = re.findall(r"It prints `(.*?)`", PAGE)
    assert out.decode().splitlines() == [found, "[{'id': 1, 'total': 10}, {'id': 2, 'total': 5}]"]
