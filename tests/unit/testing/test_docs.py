"""What docs/testing.md shows of the driver does what it says."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import queenstream.testing
from queenstream.testing import PipelineDriver

TEXT = (Path(__file__).parents[3] / "docs" / "testing.md").read_text("utf-8")


def test_the_first_example_runs() -> None:
    block = re.search(r"## PipelineDriver\n\n((?:    .*\n|\n)+)", TEXT)
    assert block is not None
    lines = [line.removeprefix("    ") for line in block[1].splitlines()]
    names: dict[str, Any] = {}
    exec(compile("\n".join(lines), "docs/testing.md", "exec"), names)  # our own page
    names["test_clicks_are_counted_by_minute"]()


def test_every_method_is_described() -> None:
    public = {name for name in vars(PipelineDriver) if not name.startswith("_")} - {"close"}
    described = set(re.findall(r"^\| `(\w+)", TEXT, re.MULTILINE))
    assert public <= described
    for name in queenstream.testing.__all__:
        assert name in TEXT
