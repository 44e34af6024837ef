"""``queen rules``: sets of rules that pipelines go by, and that may change while they run."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from queenstream.cli.support.completion import rules_names
from queenstream.cli.support.confirm import DryRun, Yes, confirm
from queenstream.cli.support.connection import connected
from queenstream.cli.support.help import help_text
from queenstream.cli.support.output import Column, Output, Printer, amount, note, number, since
from queenstream.cli.support.paging import Limit, every
from queenstream.errors import ConfigError, NotFound

if TYPE_CHECKING:
    from queenstream import Queen
    from queenstream.pipeline.analytics.rules import RuleSet

app = typer.Typer(
    help=help_text(
        "Rules of running pipelines: apply, list, show, delete.",
        "queen rules apply rules.toml --dry-run",
        "queen rules apply rules.toml",
        "queen rules show fraud",
    ),
    no_args_is_help=True,
)

RulesName = Annotated[
    str, typer.Argument(metavar="SET", help="The set of rules.", autocompletion=rules_names)
]
RulesFile = Annotated[
    # Checked before a broker is asked for: whoever writes rules may have none at hand.
    Path, typer.Argument(metavar="FILE", help="Sets of rules, as TOML.", callback=lambda file: _checked(file))
]
_COLOURS = {"new": "green", "changed": "yellow", "tuned": "yellow", "removed": "red", "kept": "bright_black"}

_LIST = (
    Column("SET", "name"),
    number("VERSION", "version"),
    number("PATTERNS", "patterns"),
    number("ANOMALIES", "anomalies"),
    Column("CHANGED", "changedAt", since),
)
_FIELDS = (
    Column("set", "name"),
    Column("version", "version"),
    Column("changed", "changedAt", since),
)
_RULES = (Column("RULE", "rule"), Column("KIND", "kind"), Column("SAYS", "says", cut=True))
_CHANGES = (
    Column("SET", "set"),
    Column("RULE", "rule"),
    Column("KIND", "kind"),
    Column("CHANGE", "change", style=lambda change: _COLOURS.get(change, "")),
    Column("SAYS", "says", cut=True),
)


@app.command(
    "apply",
    help=help_text(
        "Check a file of rules, and put its sets in force.",
        "queen rules apply rules.toml --dry-run",
        "queen rules apply rules.toml",
        """queen rules apply rules.toml --dry-run | jq 'select(.change != "kept")'""",
        more="A set is replaced as a whole; sets that the file does not name stay. Pipelines that run take "
        "it over within seconds: a rule that is kept or tuned goes on with what it has seen, one that is "
        "changed begins anew.",
    ),
)
@connected
def apply(
    queen: Queen,
    file: RulesFile,
    dry_run: DryRun = False,
    output: Output = None,
) -> None:
    """Apply a file."""
    wanted = _read(file)
    before = {name: _known(queen, name) for name in wanted}
    rows: list[dict[str, Any]] = []
    told: list[str] = []
    for name, rules in wanted.items():
        version, known = before[name]
        if not dry_run:
            applied = queen.admin.apply_rules(name, rules.definition(), expected_version=version)
            version = applied.version
            told.append(f"{name}: {'now' if applied.changed else 'still'} version {version}")
        rows += _changes(name, version, known, rules)
    out = Printer(output)
    out.rows(rows, _CHANGES, empty="no rules in these sets: nothing will be looked for")
    if out.for_people:
        for line in told or ["nothing was changed"]:
            note(line)


def _checked(file: Path) -> Path:
    """The same file, if it can be read."""
    _read(file)
    return file


def _read(file: Path) -> dict[str, RuleSet]:
    from queenstream.pipeline.analytics.rules import read_file

    try:
        text = file.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{file} cannot be read: {error}; name a file of rules") from None
    return read_file(text, str(file))


def _known(queen: Queen, name: str) -> tuple[int, RuleSet]:
    """What the broker has: version 0, if nothing. What an older version cannot read counts as nothing."""
    from queenstream.pipeline.analytics.rules import RuleSet

    try:
        found = queen.admin.rules(name)
    except NotFound:
        return 0, RuleSet()
    try:
        return found.version, RuleSet.of(found.rules, name)
    except ConfigError as error:
        note(f"what is stored cannot be read, and is replaced: {error}")
        return found.version, RuleSet()


def _changes(name: str, version: int, before: RuleSet, after: RuleSet) -> Iterator[dict[str, Any]]:
    from queenstream.pipeline.analytics.rules import changes

    for each in changes(before, after):
        yield {
            "set": name,
            "version": version,
            "kind": each.kind,
            "rule": each.rule,
            "change": each.verdict,
            "says": each.says,
        }


@app.command(
    "ls",
    help=help_text("List the sets of rules.", "queen rules ls", "queen rules ls -o json | jq .name"),
)
@connected
def ls(queen: Queen, limit: Limit = None, output: Output = None) -> None:
    """List sets."""
    found = every(lambda size, offset: queen.admin.rule_sets(limit=size, offset=offset))
    Printer(output).rows(
        islice(found, limit), _LIST, empty="no rules; make some with: queen rules apply FILE"
    )


@app.command(
    "show",
    help=help_text(
        "Show the rules of a set.",
        "queen rules show fraud",
        "queen rules show fraud -o json | jq .rules.patterns",
    ),
)
@connected
def show(queen: Queen, rules: RulesName, output: Output = None) -> None:
    """Show a set."""
    from queenstream.pipeline.analytics.rules import RuleSet

    found = queen.admin.rules(rules)
    out = Printer(output)
    if not out.for_people:
        out.record(found, _FIELDS)
        return
    read = RuleSet.of(found.rules, rules).rules
    listed = [{"kind": kind, "rule": rule.name, "says": str(rule)} for kind, rule in read]
    shown = {"name": found.name, "version": found.version, "changedAt": found.changed_at, "rules": listed}
    out.record(shown, _FIELDS, [("rules", _RULES)])


@app.command(
    "delete",
    help=help_text(
        "Delete a set of rules.",
        "queen rules delete fraud",
        "queen rules delete fraud --yes",
        more="A pipeline that runs goes on with the rules that it knows, and cannot be started again. To "
        "stop its rules, apply the set without them.",
    ),
)
@connected
def delete(queen: Queen, rules: RulesName, yes: Yes = False, output: Output = None) -> None:
    """Delete a set."""
    found = queen.admin.rules(rules)
    says = found.rules or {}
    has = amount(len(says.get("patterns", {})) + len(says.get("anomalies", {})), "rule")
    confirm(f"Delete the set {rules} ({has})?", yes=yes)
    gone = queen.admin.delete_rules(rules)
    Printer(output).done(gone, f"deleted the rules {rules}")
