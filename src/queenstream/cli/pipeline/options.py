"""What the commands on pipelines have in common: which pipeline, and how a wrong one is refused."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

from queenstream.cli.support.exit_codes import USAGE


def python_files(incomplete: str) -> list[str]:
    """Folders and Python files, for the shell."""
    begun = Path(incomplete)
    folder = begun if incomplete.endswith("/") or not incomplete else begun.parent
    try:
        found = sorted(folder.iterdir())
    except OSError:
        return []
    names = [f"{path}/" if path.is_dir() else str(path) for path in found if not path.name.startswith(".")]
    return [name for name in names if name.startswith(incomplete) and name.endswith(("/", ".py"))]


PipelineFile = Annotated[
    str,
    typer.Argument(
        metavar="FILE[:NAME]", help="A file or module; its pipeline, or the one of that name.",
        autocompletion=python_files, show_default=False,
    ),
]  # fmt: skip


@contextmanager
def refused_with_code() -> Iterator[None]:
    """A pipeline that is defined wrongly: all its problems, and the exit code for wrong usage."""
    from queenstream.pipeline.errors import PipelineError

    try:
        yield
    except PipelineError as error:
        sys.stderr.write(f"queen: {error}\n")
        raise typer.Exit(USAGE) from None
