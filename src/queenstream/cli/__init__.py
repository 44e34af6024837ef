"""The command line: ``queen``.

Commands import what they need when they run: ``queen --help`` and completion must be quick.
"""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from queenstream.cli import (
    bench,
    config,
    dlq,
    doctor,
    exits,
    group,
    pipeline,
    pop,
    push,
    queue,
    status,
    stream,
    tail,
    trace,
    up,
)
from queenstream.cli.helping import help_text
from queenstream.errors import QueenstreamError

_CODES = "\n".join(f"  {code:<4} {meaning}" for code, meaning in exits.MEANINGS.items())
HELP = help_text(
    "Partitioned queues and windows on PostgreSQL.",
    "queen up",
    'queen push orders \'{"user": "ann", "amount": 5}\'',
    "queen tail orders -f",
    "queen pop orders --group billing",
    "queen status",
)

app = typer.Typer(
    name="queen",
    help=HELP,
    epilog=f"\b\nExit codes:\n{_CODES}",
    no_args_is_help=True,
    rich_markup_mode=None,  # what draws boxes takes longer to import than all the rest
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["--help", "-h"]},
)
app.command("up", help=up.HELP)(up.up)
app.command("status", help=status.HELP)(status.status)
app.command("doctor", help=doctor.HELP)(doctor.doctor)
app.add_typer(bench.app, name="bench")
app.command("push", help=push.HELP)(push.push)
app.command("pop", help=pop.HELP)(pop.pop)
app.command("tail", help=tail.HELP)(tail.tail)
app.add_typer(dlq.app, name="dlq")
app.add_typer(trace.app, name="trace")
app.add_typer(queue.app, name="queue")
app.add_typer(group.app, name="group")
app.add_typer(stream.app, name="stream")
app.add_typer(pipeline.app, name="pipeline")
app.add_typer(config.app, name="config")


def _version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        sys.stdout.write(f"queen {version('queenstream')}\n")
        raise typer.Exit


@app.callback()
def root(
    version: Annotated[
        bool, typer.Option("--version", help="Show the version.", callback=_version, is_eager=True)
    ] = False,
) -> None:
    """What all commands have in common: nothing but this."""


def main() -> None:
    """Run the command; an error of ours is one line, not a traceback."""
    try:
        app()
    except QueenstreamError as error:
        sys.stderr.write(f"queen: {error}\n")
        sys.exit(exits.code_of(error))
