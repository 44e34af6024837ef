"""``queen doctor``: what decides how safe and how fast an installation is, and what to do about it."""

from __future__ import annotations

import io
import json
import os
import sys
from collections import Counter
from enum import StrEnum
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Annotated
from urllib.parse import urlsplit

import typer

from queenstream import config
from queenstream.cli.support.help import help_text
from queenstream.errors import ConfigError

if TYPE_CHECKING:
    from queenstream.cli.doctor.checks import Finding

HELP = help_text(
    "Check database, machine and broker: are they safe and fast?",
    "queen doctor                                    the embedded server",
    "queen doctor --pg postgresql://me:pw@db/queen   a server of your own",
    "queen doctor -o json | jq 'select(.status == \"problem\")'",
    more="Exit codes: 0 no problem (warnings do not count), 1 a problem, 3 PostgreSQL cannot be used.",
)

_LOOKS = {
    "ok": ("✓", "green"),
    "note": ("·", "cyan"),
    "warning": ("!", "yellow"),
    "problem": ("✗", "red"),
    "unknown": ("?", "magenta"),
}
_INDENT = " " * 15


class Output(StrEnum):
    """How to print: for people, or one JSON object a line."""

    TABLE = "table"
    JSON = "json"


def _help(name: str) -> str:
    row = config.SETTINGS[name]
    return f"{row.help} ({row.variable})"


def doctor(
    pg: Annotated[str | None, typer.Option(help=_help("pg"), metavar="URL")] = None,
    pg_file: Annotated[Path | None, typer.Option(help=_help("pg_file"), metavar="FILE")] = None,
    data: Annotated[Path | None, typer.Option(help=_help("data"))] = None,
    url: Annotated[
        str | None,
        typer.Option(help="Where the broker is; else as queen up listens. (QUEEN_URL)", metavar="URL"),
    ] = None,
    token: Annotated[
        str | None, typer.Option(help="Token for the broker, role read-only. (QUEEN_TOKEN)")
    ] = None,
    output: Annotated[
        Output | None, typer.Option("--output", "-o", help="Default: table on a terminal, json in a pipe.")
    ] = None,
    config_file: Annotated[
        Path | None, typer.Option("--config", help="TOML file with settings. (QUEEN_CONFIG)")
    ] = None,
) -> None:
    # Only here: they take long to import, and other commands do without.
    from queenstream.cli.doctor import checks, probes
    from queenstream.cli.doctor import settings as expected
    from queenstream.cli.doctor.facts import Missing
    from queenstream.cli.support.exit_codes import FAILED, UNREACHABLE

    settings = config.load({"pg": pg, "pg_file": pg_file, "data": data}, os.environ, config_file)
    token = token or os.environ.get("QUEEN_TOKEN") or None
    broker_url = checked_url(url or os.environ.get("QUEEN_URL") or default_url(settings))
    names = [*(row.name for row in expected.SETTINGS), *expected.MORE_SETTINGS]
    facts = probes.look(settings, broker_url, token, names)
    findings = checks.examine(facts)
    if output is Output.JSON or (output is None and not sys.stdout.isatty()):
        sys.stdout.write(as_json(findings))
    else:
        if isinstance(sys.stdout, io.TextIOWrapper):
            sys.stdout.reconfigure(errors="replace")  # a terminal without these symbols shows another
        print_table(findings)
    sys.stdout.flush()
    if isinstance(facts.server, Missing):
        raise typer.Exit(UNREACHABLE)
    if any(finding.status == "problem" for finding in findings):
        raise typer.Exit(FAILED)


def default_url(settings: config.Settings) -> str:
    """Where ``queen up`` listens with these settings, as one gets there from this machine.

    >>> default_url(config.Settings(host="0.0.0.0", port=7000))
    'http://127.0.0.1:7000'
    """
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(settings.host, settings.host)  # noqa: S104
    return config.http_address(host, settings.port)


def checked_url(url: str) -> str:
    """The broker's address; it is printed, so it must not hold a secret.

    >>> checked_url("http://broker:6632/")
    'http://broker:6632'
    """
    try:
        parts = urlsplit(url)
        _ = parts.port  # looked at only when asked
        usable = parts.scheme in ("http", "https") and bool(parts.hostname) and "@" not in parts.netloc
    except ValueError:
        usable = False
    if not usable or parts.query or parts.fragment:
        raise ConfigError("--url (QUEEN_URL) is not usable; write http://host:6632, and the token as --token")
    return url.rstrip("/")


def as_json(findings: list[Finding]) -> str:
    """One object a line, the sum last."""
    lines = [
        {"check": f.check, "status": f.status, "found": f.found, "why": f.why, "remedy": f.remedy}
        for f in findings
    ]
    return "".join(json.dumps(line) + "\n" for line in [*lines, {"summary": sums(findings)}])


def sums(findings: list[Finding]) -> dict[str, int]:
    """How many findings of each status."""
    counts = Counter(str(finding.status) for finding in findings)
    return {status: counts[status] for status in _LOOKS}


def print_table(findings: list[Finding]) -> None:
    """In groups; why and what to do only where there is something to do."""
    from rich.console import Console
    from rich.text import Text

    console = Console(highlight=False, soft_wrap=True)  # a wrapped command could not be copied
    width = max(len(finding.check) for finding in findings)
    for group, members in groupby(findings, key=lambda finding: finding.group):
        console.print(Text(f"\n{group}", "bold"))
        for finding in members:
            symbol, colour = _LOOKS[finding.status]
            line = Text(f"  {symbol} {finding.status:<8} ", colour)
            line.append(f"{finding.check:<{width}}  {finding.found}", "default")
            if finding.status != "ok":
                line.append(f"\n{_INDENT}why: {finding.why}" if finding.why else "", "bright_black")
                line.append(f"\n{_INDENT}do:  {finding.remedy}" if finding.remedy else "", "bold default")
            console.print(line)
    counts = [f"{count} {status}" for status, count in sums(findings).items() if count]
    console.print(f"\n{', '.join(counts)}\n")
