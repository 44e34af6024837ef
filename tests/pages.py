"""The pages of docs/ and the README as tests read them: programs, sessions, and what these print.

A block is Markdown's, between three backticks. ``python`` is a program, or a file if it begins with a comment
that is a file's name; ``console`` is a session, whose commands begin with ``$``; ``text`` behind a program is
what it prints. In what is printed, … stands for anything. A comment before a block says why it is not run::

    <!-- not run: needs a cluster -->
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]

_BLOCK = re.compile(
    r"^(?:<!-- not run: (?P<reason>[^\n]+) -->\n+)?```(?P<kind>\w+)[^\n]*\n(?P<text>.*?)^```$", re.M | re.S
)
_FILE = re.compile(r"# (\S+\.\w+)\n")


@dataclass(frozen=True)
class Block:
    """A block of a page; ``line`` is where its text begins, ``reason`` why it is not run."""

    kind: str
    text: str
    line: int
    reason: str | None

    @property
    def runs(self) -> bool:
        """Whether it is to be run."""
        return self.kind in ("python", "console") and self.reason is None

    @property
    def file(self) -> str | None:
        """The name of the file that it is."""
        found = _FILE.match(self.text) if self.kind == "python" else None
        return found[1] if found else None

    def commands(self) -> list[tuple[str, list[str]]]:
        """The commands of a session, each with the lines that follow it."""
        found: list[tuple[str, list[str]]] = []
        for line in self.text.splitlines():
            if line.startswith("$ "):
                found.append((line.removeprefix("$ "), []))
            else:
                found[-1][1].append(line)
        return found


def blocks(page: Path) -> list[Block]:
    """All blocks of a page, in order."""
    text = page.read_text("utf-8")
    return [
        Block(found["kind"], found["text"], text.count("\n", 0, found.start("text")) + 1, found["reason"])
        for found in _BLOCK.finditer(text)
    ]


def fits(expected: str, line: str) -> bool:
    """Whether a line is as a page has it."""
    return re.fullmatch(".*".join(map(re.escape, expected.split("…"))), line) is not None


def differences(expected: list[str], lines: list[str]) -> list[str]:
    """What was printed otherwise than a page says; nothing, if all is as it should be."""
    if len(expected) != len(lines):
        return [f"{len(lines)} lines instead of {len(expected)}: {lines}"]
    pairs = zip(expected, lines, strict=True)
    return [f"{line!r} is not {wanted!r}" for wanted, line in pairs if not fits(wanted, line)]
