"""``queen up``: PostgreSQL and the broker, until Ctrl-C."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Any

import typer

from queenstream import config
from queenstream.cli.support.help import help_text

HELP = help_text(
    "Start the broker, with a PostgreSQL of its own or yours.",
    "queen up                                    data in the default folder",
    "queen up --ephemeral --port 7000            nothing is kept",
    "queen up --pg postgresql://me@db/queen      yours, 15 or newer",
    "queen up --demo                             with something going on",
    more="A password of PostgreSQL is best in --pg-file, QUEEN_PG or ~/.pgpass. Settings also come from "
    "QUEEN_* variables and from queen.toml, in that order.",
)


def _help(name: str) -> str:
    row = config.SETTINGS[name]
    default = "" if row.default in (None, False, ()) else f" (default {row.show(row.default)})"
    return f"{row.help}{default} ({row.variable})"


def up(
    host: Annotated[str | None, typer.Option(help=_help("host"))] = None,
    port: Annotated[int | None, typer.Option(help=_help("port"))] = None,
    allow_host: Annotated[list[str] | None, typer.Option(help=_help("allow_host"), metavar="HOST")] = None,
    insecure: Annotated[bool | None, typer.Option("--insecure", help=_help("insecure"))] = None,
    pg: Annotated[str | None, typer.Option(help=_help("pg"), metavar="URL")] = None,
    pg_file: Annotated[Path | None, typer.Option(help=_help("pg_file"), metavar="FILE")] = None,
    data: Annotated[Path | None, typer.Option(help=_help("data"))] = None,
    ephemeral: Annotated[bool | None, typer.Option(help=_help("ephemeral"))] = None,
    workers: Annotated[int | None, typer.Option(help=_help("workers"))] = None,
    log_level: Annotated[str | None, typer.Option(help=_help("log_level"))] = None,
    log_format: Annotated[str | None, typer.Option(help=_help("log_format"))] = None,
    demo: Annotated[bool, typer.Option("--demo", help="Also run the demo: traffic and a pipeline.")] = False,
    config_file: Annotated[
        Path | None, typer.Option("--config", help="TOML file with settings. (QUEEN_CONFIG)")
    ] = None,
) -> None:
    flags: dict[str, Any] = {
        "host": host, "port": port, "allow_host": allow_host or None, "insecure": insecure,
        "pg": pg, "pg_file": pg_file, "data": data, "ephemeral": ephemeral, "workers": workers,
        "log_level": log_level, "log_format": log_format,
    }  # fmt: skip
    settings = config.load(flags, os.environ, config_file)
    # Only here: the broker takes long to import, and other commands do without.
    from queenstream.cli.support import logs, server

    logs.configure(settings.log_level, settings.log_format)
    server.run(settings, demo=demo)
