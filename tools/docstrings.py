"""Docstrings as the documentation site shows them: an example of doctest becomes a block of Python.

Griffe, which reads the sources for mkdocstrings, calls this (``extensions`` in mkdocs.yml).
"""

from __future__ import annotations

import re
from typing import Any

from griffe import Extension, Object

_EXAMPLE = re.compile(r"^([ \t]*)>>> .*\n(?:\1[^\n]*\S[^\n]*(?:\n|$))*", re.M)


def fenced(text: str) -> str:
    """A docstring's text with its examples, each up to the next empty line, as Markdown has code.

    >>> fenced("Adds.\\n\\n>>> 1 + 1\\n2").splitlines()[2:]
    ['```pycon', '>>> 1 + 1', '2', '```']
    """

    def block(found: re.Match[str]) -> str:
        indent, lines = found[1], found[0].rstrip("\n")
        return f"{indent}```pycon\n{lines}\n{indent}```\n"

    return _EXAMPLE.sub(block, f"{text}\n").rstrip("\n")


class Examples(Extension):
    """Rewrites every docstring that has examples."""

    def on_instance(self, *, obj: Object, **_: Any) -> None:
        """Called for each module, class, function and attribute that was read."""
        if obj.docstring is not None and ">>> " in obj.docstring.value:
            obj.docstring.value = fenced(obj.docstring.value)
