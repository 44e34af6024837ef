"""The command line: ``queen``.

Exit codes: 0 done, 1 failed, 2 wrong usage or settings, 3 PostgreSQL cannot be used (``bench``: the
broker cannot be reached), 4 the port is taken.
"""

from __future__ import annotations

import sys

import typer

from queenstream.cli import bench, doctor, up
from queenstream.cli.target import BrokerUnreachable
from queenstream.errors import ConfigError, PostgresError, QueenstreamError

FAILED, USAGE, DATABASE, PORT = 1, 2, 3, 4

app = typer.Typer(
    name="queen",
    help="Partitioned queues and windows on PostgreSQL.",
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
)
app.command("up", help=up.HELP)(up.up)
app.command("doctor", help=doctor.HELP)(doctor.doctor)
app.add_typer(bench.app, name="bench")


@app.callback()
def root() -> None:
    """Partitioned queues and windows on PostgreSQL."""


def main() -> None:
    """Run the command; an error of ours is one line, not a traceback."""
    try:
        app()
    except up.PortTaken as error:
        fail(error, PORT)
    except ConfigError as error:
        fail(error, USAGE)
    except (PostgresError, BrokerUnreachable) as error:
        fail(error, DATABASE)
    except QueenstreamError as error:
        fail(error, FAILED)


def fail(error: Exception, code: int) -> None:
    """Say what is wrong on standard error, and exit."""
    sys.stderr.write(f"queen: {error}\n")
    sys.exit(code)
