"""The command line: ``queen``.

Commands import what they need when they run, and only the one that is called is imported: ``queen push`` in a
loop of a shell script must start quickly.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Iterable, Sequence
from typing import Annotated

import typer

from queenstream.cli.support import exit_codes, secrets
from queenstream.cli.support.help import help_text
from queenstream.errors import QueenstreamError

_CODES = "\n".join(f"  {code:<4} {meaning}" for code, meaning in exit_codes.MEANINGS.items())
HELP = help_text(
    "Partitioned queues and windows on PostgreSQL.",
    "queen up",
    'queen push orders \'{"user": "ann", "amount": 5}\'',
    "queen tail orders -f",
    "queen pop orders --group billing",
    "queen status",
)

# In the order in which ``queen --help`` has them; a group has commands of its own.
_FOLDERS = {"bench", "doctor", "pipeline"}  # beside ``commands``: each is more than one module
_COMMANDS = {
    "up": "command",
    "status": "command",
    "doctor": "command",
    "bench": "group",
    "push": "command",
    "pop": "command",
    "tail": "command",
    "bridge": "command",
    "dlq": "group",
    "trace": "group",
    "queue": "group",
    "group": "group",
    "stream": "group",
    "pipeline": "group",
    "rules": "group",
    "config": "group",
    "keys": "group",
    "token": "group",
}


def _version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        sys.stdout.write(f"queen {version('queenstream')}\n")
        raise typer.Exit


def root(
    version: Annotated[
        bool, typer.Option("--version", help="Show the version.", callback=_version, is_eager=True)
    ] = False,
) -> None:
    """What all commands have in common: nothing but this."""


def app(names: Iterable[str] = _COMMANDS) -> typer.Typer:
    """The application with these commands."""
    made = typer.Typer(
        name="queen",
        help=HELP,
        epilog=f"\b\nExit codes:\n{_CODES}",
        no_args_is_help=True,
        rich_markup_mode=None,  # what draws boxes takes longer to import than all the rest
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["--help", "-h"]},
    )
    made.callback()(root)
    for name in names:
        module = importlib.import_module(module_of(name))
        if _COMMANDS[name] == "group":
            made.add_typer(module.app, name=name)
        else:
            made.command(name, help=module.HELP)(getattr(module, name))
    return made


def module_of(command: str) -> str:
    """The module of a command."""
    return f"queenstream.cli.{command}" if command in _FOLDERS else f"queenstream.cli.commands.{command}"


def _called(words: Sequence[str]) -> Iterable[str]:
    """The command that is called; all of them, if that is none, or a shell asks what there is."""
    completes = any(name.endswith("_COMPLETE") for name in os.environ)
    return words[:1] if words and words[0] in _COMMANDS and not completes else _COMMANDS


def main() -> None:
    """Run the command; an error of ours is one line, not a traceback."""
    secrets.hide_secrets()
    try:
        app(_called(sys.argv[1:]))()
    except QueenstreamError as error:
        sys.stderr.write(f"queen: {error}\n")
        sys.exit(exit_codes.code_of(error))
