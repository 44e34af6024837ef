"""docs/seeds.md: a row for every code block of the five documents, and examples that are there."""

from __future__ import annotations

import re

import pytest

from tests.pages import ROOT

PAGE = (ROOT / "docs" / "seeds.md").read_text("utf-8")
BLOCKS = {
    "Queen Streaming - Usage Guide": 40,
    "Queen Streaming V3 - Implementation Complete": 12,
    "Queen Streaming V3: Final Implementation Plan": 27,
    "Streaming Data": 10,
    "Module #50: Stream Processing Engine": 11,
}


@pytest.mark.parametrize(("title", "blocks"), BLOCKS.items(), ids=str)
def test_every_block_has_its_row(title: str, blocks: int) -> None:
    section = PAGE.partition(f"## {title}\n")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| (\d+) \| (.+?) \| (.+?) \|", section, re.M)
    assert [int(number) for number, _, _ in rows] == list(range(1, blocks + 1))
    assert all(what.strip() and here.strip() for _, what, here in rows)


def test_the_examples_are_there_and_print_what_is_expected() -> None:
    linked = set(re.findall(r"\(\.\./(examples/[\w/]+)\.py\)", PAGE))
    assert len(linked) > 40
    for name in linked:
        example = ROOT / f"{name}.py"
        assert example.exists(), name
        assert (example.parent / "expected" / f"{example.stem}.txt").exists(), name
