"""Questions before something is lost."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from queenstream.cli.support.exit_codes import FAILED
from queenstream.cli.support.output import note, visible
from queenstream.errors import ConfigError

Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do it without asking; needed in a pipe.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Say what would be done, and do nothing.")]


def confirm(question: str, *, yes: bool) -> None:
    """Go on if ``yes`` or if somebody says so; without anybody to ask, it is an error.

    >>> confirm("Delete queue orders?", yes=True)
    """
    if yes:
        return
    if not somebody_there():
        raise ConfigError(f"{visible(question)} There is nobody to ask: add --yes to do it")
    sys.stderr.write(f"{visible(question)} [y/N]: ")
    sys.stderr.flush()
    if sys.stdin.readline().strip().lower() not in ("y", "yes"):
        note("nothing was changed")
        raise typer.Exit(FAILED)


def somebody_there() -> bool:
    """Whether standard input is a person's keyboard; it may also be a file, or closed."""
    return sys.stdin is not None and sys.stdin.isatty()
